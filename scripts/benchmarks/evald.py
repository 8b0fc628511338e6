"""`scripts/bench --evald`: does scoring keep up with inference, and in bounded memory? Its rows, goals and tables."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from scripts.benchmarks.evald_work import answer, other, plan, same, status
from scripts.benchmarks.goals import Goal, verdict
from scripts.benchmarks.measuring import Child, Usage
from scripts.benchmarks.runs import BenchError
from scripts.benchmarks.server import ROOT
from scripts.benchmarks.table import markdown, shown

EXACT, ROUGE = 200_000, 50_000  # rows
SMALL, LARGE = 10_000, 1_000_000
PAIRS_SIDE = 100  # models, and datasets
PROGRAMS = 200
SCAN_MODELS, SCAN_DATASETS, SCAN_DONE = 1000, 100, 0.5
TIMEOUT = 1800.0

Figures = dict[str, float]

GOALS = (
    Goal(
        f"exact_match, {EXACT:,} tasks of 200 characters: tasks per CPU second",
        "exact",
        "per_second",
        20_000,
        at_least=True,
        form="{:,.0f}/s",
    ),
    Goal(
        f"ROUGE-L, {ROUGE:,} tasks of 200 characters: tasks per CPU second",
        "rouge",
        "per_second",
        2_000,
        at_least=True,
        form="{:,.0f}/s",
    ),
    Goal("10,000 pairs of one task, the whole evald", "pairs", "per_second", 50, at_least=True, form="{:,.0f}/s"),
    Goal("100,000 statuses, half of them handled, 5 new: CPU of a scan", "scan", "cpu", 1.0, form="{:.2f} s"),
    Goal(
        f"code_exec, {PROGRAMS} Python programs, two sandboxes each",
        "programs",
        "per_second",
        20,
        at_least=True,
        form="{:,.0f} sandboxes/s",
    ),
    Goal("1,000,000 tasks against 10,000: peak memory", "memory", "growth", 100, form="{:+.0f} MB"),
)


class Skipped(Exception):
    """This machine has not what the row needs."""


def measure(say: Callable[[str], None]) -> Iterator[str]:
    """The section's lines, as they come."""
    found: dict[str, Figures] = {}
    skipped = []
    for name, row in ROWS.items():
        with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
            try:
                found[name] = row(Path(folder))
            except Skipped as why:
                skipped.append(f"Not measured: {name}, since {why}")
                say(f"evald {name}: skipped, {why}")
                continue
        say(f"evald {name}: " + ", ".join(f"{key} {value:,.2f}" for key, value in found[name].items()))
    cells = []
    for goal in GOALS:
        value = found.get(goal.row, {}).get(goal.figure)
        cells.append((goal.test, goal.bound(goal.must), shown(value, goal.form), verdict(goal, value)))
    yield from markdown(("test of evald", "must", "came out", "verdict"), cells)
    yield ""
    exact, rouge, scan, memory = (found[name] for name in ("exact", "rouge", "scan", "memory"))
    yield (
        f"By the clock: exact_match {exact['wall_rate']:,.0f}/s, ROUGE-L {rouge['wall_rate']:,.0f}/s. "
        f"A scan took {scan['wall']:.2f} s, the first sweep over all statuses {scan['sweep']:.1f} s. "
        f"Peak {memory['small_mb']:.0f} MB for {SMALL:,} tasks, {memory['large_mb']:.0f} MB for {LARGE:,}."
    )
    for line in skipped:
        yield from ("", line)


def _exact(folder: Path) -> Figures:
    return _rate(EXACT, *_score(folder, EXACT, "exact_match", same))


def _rouge(folder: Path) -> Figures:
    return _rate(ROUGE, *_score(folder, ROUGE, "rouge_l", other))


def _memory(folder: Path) -> Figures:
    _, small = _score(folder / "small", SMALL, "exact_match", same)
    _, large = _score(folder / "large", LARGE, "exact_match", same)
    return {"growth": large.peak_mb - small.peak_mb, "small_mb": small.peak_mb, "large_mb": large.peak_mb}


def _pairs(folder: Path) -> Figures:
    """Pairs by the seconds from evald's look at the plan to its end, the summary included."""
    root = folder / "work"
    names = [f"n{number}" for number in range(PAIRS_SIDE)]
    made = plan(root, names, names, 1, "exact_match")
    for pair in made.pairs:
        answer(root, pair, same)
    child = Child([sys.executable, "-m", "evald", "-w", root], cwd=ROOT, output=folder / "evald.txt")
    _ended(child)
    times = {line["event"]: datetime.fromisoformat(line["timestamp"]) for line in _log(root)}
    seconds = (times["ended"] - times["plan read"]).total_seconds()
    scored = sum(line["event"] == "pair scored" for line in _log(root))
    if scored != len(made.pairs):
        raise BenchError(f"evald scored {scored} of {len(made.pairs)} pairs")
    return {"per_second": scored / seconds, "wall": seconds}


def _scan(folder: Path) -> Figures:
    root = folder / "work"
    made = plan(
        root,
        [f"m{number}" for number in range(SCAN_MODELS)],
        [f"d{number}" for number in range(SCAN_DATASETS)],
        1,
        "exact_match",
    )
    for number, pair in enumerate(made.pairs):
        if number < SCAN_DONE * len(made.pairs):
            answer(root, pair, same)
        else:
            status(root, pair, "running")
    return _told(folder, "scan", root)[0]


def _programs(folder: Path) -> Figures:
    """Sandboxes by the clock: all cores are used, and most of the time is that of other processes."""
    told, _ = _told(folder, "programs", folder, PROGRAMS)
    if "skipped" in told:
        raise Skipped(str(told["skipped"]))
    return {"per_second": 2 * told["count"] / told["wall"], "programs_per_second": told["count"] / told["wall"]}


ROWS: dict[str, Callable[[Path], Figures]] = {
    "exact": _exact,
    "rouge": _rouge,
    "pairs": _pairs,
    "scan": _scan,
    "programs": _programs,
    "memory": _memory,
}


def _score(folder: Path, rows: int, metric: str, how: Callable[..., str]) -> tuple[Figures, Usage]:
    folder.mkdir(exist_ok=True)
    root = folder / "work"
    (pair,) = plan(root, ["m"], ["d"], rows, metric).pairs
    answer(root, pair, how)
    return _told(folder, "score", root)


def _rate(rows: int, told: Figures, _: Usage) -> Figures:
    return {"per_second": rows / told["cpu"], "wall_rate": rows / told["wall"]}


def _told(folder: Path, mode: str, root: Path, *more: int) -> tuple[Figures, Usage]:
    command = [sys.executable, "-m", "scripts.benchmarks.evald_child", mode, root, *map(str, more)]
    child = Child(command, cwd=ROOT, output=folder / "child.txt")
    usage = _ended(child)
    return json.loads(child.said().splitlines()[-1]), usage


def _ended(child: Child) -> Usage:
    usage = child.wait(TIMEOUT)
    if usage is None or usage.status != 0:
        raise BenchError(
            f"evald: {'took too long' if usage is None else f'exit status {usage.status}'}\n{child.said()}"
        )
    return usage


def _log(root: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((root / "logs").iterdir()):
        yield from (json.loads(line) for line in path.read_text("utf-8").split("\n") if line)
