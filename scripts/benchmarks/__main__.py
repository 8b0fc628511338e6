"""The command line of `scripts/bench`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from scripts.benchmarks import evald, table
from scripts.benchmarks.large import measure_large
from scripts.benchmarks.loads import LARGE, LOADS, MISSING, RESUME, RUNS, SMALL
from scripts.benchmarks.peers import race
from scripts.benchmarks.rows import NOISY, Bench, measure
from scripts.benchmarks.runs import BenchError
from scripts.benchmarks.server import ROOT, Server

LARGE_ROWS = "large"  # in --rows: the three rows of 1,000,000 tasks
LARGE_NAMES = (SMALL.name, LARGE.name, RESUME)
MANY = "datasets-500"
GATE_ROW, GATE_RUNS, GATE_CPU, GATE_RATIO = "c256-200ms", 3, 2.5, 1.10
WORDS = {load.name: load.words for load in (*LOADS, SMALL, LARGE)} | {
    RESUME: f"{MISSING:,} of {LARGE.requests:,} missing, C={LARGE.workers}, 0 ms"
}


class Report:
    """Prints lines as they come and keeps them for the file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, *lines: str) -> None:
        self.lines += lines
        print("\n".join(lines), flush=True)


def main() -> int:
    names = [*(load.name for load in LOADS), LARGE_ROWS]
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures the whole inferd against a bare libcurl loop in the same run. See docs/benchmarks.md.",
    )
    parser.add_argument("--rows", help=f"only these, by name, with commas: {', '.join(names)}; `none` with --peers")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each, at most (default {RUNS})")
    parser.add_argument("--save", type=Path, help="the file for the tables (default: bench-results/<time>.md)")
    parser.add_argument(
        "--peers",
        nargs="?",
        const=",".join(race.PEERS),
        help=f"other harnesses too: all, or some of {','.join(race.PEERS)}. Installed on first use; 10 minutes more",
    )
    parser.add_argument("--evald", action="store_true", help="measure evald instead; with --rows, both")
    parser.add_argument(
        "--model", action="append", default=[], metavar="TOML", help="one more line for the model's table, say `x = 1`"
    )
    parser.add_argument(
        "--gate",
        action="store_true",
        help=f"{GATE_RUNS} runs of {GATE_ROW} alone; fails when CPU / bare > {GATE_CPU} or wall / ideal > {GATE_RATIO}",
    )
    options = parser.parse_args()
    told = options.rows if options.rows is not None else "none" if options.evald else ",".join(names)
    wanted = [name for name in told.split(",") if name not in ("", "none")]
    if unknown := set(wanted) - set(names):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    peers = options.peers.split(",") if options.peers else []
    if unknown := set(peers) - set(race.PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    if options.gate:
        return gate(tuple(options.model))

    report = Report()
    started = time.monotonic()
    report.add(*heading(options.runs), "")
    found: dict[str, dict[str, float]] = {}
    failed: list[str] = []
    with Server() as server:
        bench = Bench(server, options.runs, tuple(options.model), say)
        if wanted:
            report.add(*table.rows_head())
        for name in wanted:
            try:
                for row, figures in measure_large(bench) if name == LARGE_ROWS else measure_one(bench, name):
                    found[row] = figures
                    report.add(table.row_line(row, WORDS[row], found, NOISY))
            except BenchError as problem:
                say(str(problem))
                failed.append(str(problem).partition("\n")[0])
        for text in failed:
            report.add("", f"Not measured: {text}")
    if MANY in found:
        many = found[MANY]
        report.add(
            "",
            f"{MANY}: first request {many['stall']:.2f} s after `running`, all in flight {many['fill']:.2f} s later.",
        )
    if RESUME in found:
        report.add("", large_words(found))
    if peers:
        report.add("", *race.run(peers, tuple(options.model), found, say))
    if options.evald:
        try:
            report.add("", *evald.measure(say))
        except BenchError as problem:
            say(str(problem))
            failed.append(str(problem).partition("\n")[0])
            report.add("", f"Not measured: {failed[-1]}")
    if wanted:
        rows = {*wanted, *(LARGE_NAMES if LARGE_ROWS in wanted else ())}
        report.add("", *table.goals_table(found, rows))
    report.add("", f"Took {(time.monotonic() - started) / 60:.1f} minutes.")
    save(report, options.save)
    return 1 if failed else 0


def measure_one(bench: Bench, name: str) -> Iterator[tuple[str, dict[str, float]]]:
    yield name, measure(bench, next(load for load in LOADS if load.name == name))


def gate(model_lines: tuple[str, ...]) -> int:
    """For CI and for who changes inferd: ratios within one run alone, since absolute rates are too noisy."""
    load = next(load for load in LOADS if load.name == GATE_ROW)
    try:
        with Server() as server:
            found = measure(Bench(server, GATE_RUNS, model_lines, say), load)
    except BenchError as problem:
        say(str(problem))
        return 1
    print("\n".join([*table.rows_head(), table.row_line(load.name, load.words, {load.name: found}, NOISY)]))
    broken = [
        f"{words} is {value:.2f}, more than {bound}"
        for words, value, bound in (
            ("CPU / bare", found["cpu_ratio"], GATE_CPU),
            ("wall / ideal", found["ratio"], GATE_RATIO),
        )
        if value > bound
    ]
    for text in broken:
        say(text)
    return 1 if broken else 0


def heading(runs: int) -> list[str]:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [f"{now}, {os.cpu_count()} cores, Python {platform.python_version()}, up to {runs} runs of each, medians."]


def large_words(found: dict[str, dict[str, float]]) -> str:
    large, resumed = found[LARGE.name], found[RESUME]
    return (
        f"{LARGE.requests:,} tasks: submitted in {large['submit']:.0f} s (not part of a figure), first request "
        f"{large['first']:.1f} s after the start; resumed: first request after {resumed['first']:.1f} s, ended after "
        f"{resumed['whole']:.1f} s."
    )


def save(report: Report, file: Path | None) -> None:
    if file is None:
        file = ROOT / "bench-results" / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.md"
        file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(report.lines) + "\n", "utf-8")
    say(f"saved in {file}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
