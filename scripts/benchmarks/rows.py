"""A load as a row of the table: inferd and the bare loop by turns, medians of each, and again what was disturbed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from scripts.benchmarks.loads import Load
from scripts.benchmarks.measuring import Child
from scripts.benchmarks.runs import BenchError, Run, command, prepare, run_bare, run_inferd
from scripts.benchmarks.server import ROOT, Server
from shared.layout import WorkDir

NOISY = 0.10  # a run that others took more of the machine from is done again
ALIKE = 0.02  # inferd's bodies and those of the bare loop may differ in size by so much
AGAIN = 2  # so often a row, at most


@dataclass
class Bench:
    """What all rows share. model_lines: more lines of TOML for the model's table. say: tells progress."""

    server: Server
    runs: int
    model_lines: tuple[str, ...]
    say: Callable[[str], None]


def measure(bench: Bench, load: Load) -> dict[str, float]:
    """The figures of a row."""
    own: list[Run] = []
    bare: list[Run] = []
    told: list[float] = []
    again = AGAIN
    for number in range(min(bench.runs, load.runs)):
        tries: list[tuple[list[Run], Callable[[], Run]]] = [(own, partial(_inferd, bench, load, told))]
        if load.bare:
            tries.append((bare, partial(_bare, bench, load)))
        for kept, attempt in tries:
            run = attempt()
            while run.foreign > NOISY and again:
                bench.say(f"{load.name}: others took {run.foreign:.0%} of the machine: once more")
                again -= 1
                run = min(run, attempt(), key=lambda run: run.foreign)
            kept.append(run)
            bench.say(f"{load.name} {number + 1}: {'inferd' if kept is own else 'bare'} {run.wall:.2f} s")
    for run in bare:
        if abs(run.sent / own[0].sent - 1) > ALIKE:
            raise BenchError(
                f"{load.name}: inferd sent {own[0].sent} bytes, the bare loop {run.sent}: not the same load"
            )
    found = figures(load, own, bare)
    if told:
        found["named"] = min(told)
    return found


def figures(load: Load, own: list[Run], bare: list[Run]) -> dict[str, float]:
    """Medians; of size and of others' share the largest. What a load can't tell isn't in it."""

    def middle(of: Callable[[Run], float], runs: list[Run] = own) -> float:
        return median(of(run) for run in runs)

    found = {
        "wall": middle(lambda run: run.wall),
        "per_second": load.requests / middle(lambda run: run.wall),
        "cpu_us": middle(lambda run: run.cpu) / load.requests * 1e6,
        "peak_mb": max(run.peak_mb for run in own),
        "threads": max(run.threads for run in own),
        "connections": max(run.connections for run in own),
        "foreign": max(run.foreign for run in (*own, *bare)),
        "stall": max(run.stall for run in own),
        "fill": max(run.fill for run in own),
        "first": middle(lambda run: run.first),
        "whole": middle(lambda run: run.whole),
    }
    if load.ms:
        found |= {
            "ratio": middle(lambda run: run.wall / run.ideal),
            "asked_ratio": middle(lambda run: run.asked / run.ideal),
            "busy": middle(lambda run: run.busy),
            "tail_busy": middle(lambda run: run.tail_busy),
        }
    if bare:
        found["bare_cpu_us"] = middle(lambda run: run.cpu, bare) / load.requests * 1e6
        found["cpu_ratio"] = found["cpu_us"] / found["bare_cpu_us"]
        found["bare_per_second"] = load.requests / middle(lambda run: run.wall, bare)
        if load.ms:
            found["bare_ratio"] = middle(lambda run: run.wall / run.ideal, bare)
            found["bare_busy"] = middle(lambda run: run.busy, bare)
    return found


def _inferd(bench: Bench, load: Load, told: list[float]) -> Run:
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        folder = Path(name)
        work, _ = prepare(load, bench.server, folder, bench.model_lines)
        if not load.stragglers:
            return run_inferd(load, bench.server, work, folder / "inferd.txt")
        stragglers = Stragglers(load, bench.server, work, folder / "status.txt")
        run = run_inferd(load, bench.server, work, folder / "inferd.txt", look=stragglers.look)
        told.append(float(stragglers.named))
        return run


def _bare(bench: Bench, load: Load) -> Run:
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        return run_bare(load, bench.server, Path(name) / "bare.txt")


class Stragglers:
    """Once all has been sent and only slow answers are out: is one of them named, by its task's id, in what
    `evalctl status` prints or in a status file?
    """

    def __init__(self, load: Load, server: Server, work: WorkDir, output: Path) -> None:
        self.named = False
        self._load = load
        self._server = server
        self._work = work
        self._output = output
        self._looks = 0

    def look(self) -> float:
        """Returns the CPU seconds it took, of what it started."""
        self._looks += 1
        if self.named or self._looks % 5:
            return 0.0
        seen = self._server.stats()
        if seen["requests"] < self._load.requests or seen["answered"] == seen["requests"]:
            return 0.0
        text, cpu = self._status()
        self.named = any(name in text for body in self._server.slow() for name in re.findall(r"item-\d+-\d+", body))
        return cpu

    def _status(self) -> tuple[str, float]:
        files = [*self._work.infer_status_root.rglob("*.json"), self._work.infer_heartbeat()]
        texts = [file.read_text("utf-8") for file in files]
        cpu = 0.0
        for form in ((), ("--json",)):
            child = Child(command("evalctl", "status", "-w", self._work, *form), cwd=ROOT, output=self._output)
            usage = child.wait(30.0)
            cpu += usage.cpu if usage else 0.0
            texts.append(self._output.read_text("utf-8"))
        return "\n".join(texts), cpu
