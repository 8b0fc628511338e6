"""The rows of one dataset of 1,000,000 tasks: against one of 10,000, and resumed with some answers missing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scripts.benchmarks.loads import LARGE, MISSING, RESUME, SMALL
from scripts.benchmarks.rows import Bench, figures, measure
from scripts.benchmarks.runs import prepare, run_inferd
from scripts.benchmarks.suites import MODEL
from shared.atomic import remove
from shared.layout import WorkDir

CHUNK = 1 << 20


def measure_large(bench: Bench) -> Iterator[tuple[str, dict[str, float]]]:
    """Three rows as they come: name, figures. memory_growth (MB) and cpu_growth are against the 10,000 tasks."""
    small = measure(bench, SMALL)
    yield SMALL.name, small
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        folder = Path(name)
        work, submitted = prepare(LARGE, bench.server, folder, bench.model_lines)
        bench.say(f"{LARGE.name}: submitted in {submitted:.0f} s")
        run = run_inferd(LARGE, bench.server, work, folder / "inferd.txt")
        bench.say(f"{LARGE.name}: {run.wall:.0f} s")
        large = figures(LARGE, [run], []) | {"submit": submitted}
        large["memory_growth"] = large["peak_mb"] - small["peak_mb"]
        large["cpu_growth"] = large["cpu_us"] / small["cpu_us"]
        yield LARGE.name, large
        forget(work, LARGE.abbr(0), MISSING)
        run = run_inferd(LARGE, bench.server, work, folder / "again.txt", requests=MISSING)
        bench.say(f"{RESUME}: {run.whole:.1f} s")
        # asked_again is 0 here: run_inferd takes no other count than what was missing
        resumed = figures(replace(LARGE, name=RESUME), [run], []) | {"asked_again": 0.0}
        resumed["memory_growth"] = resumed["peak_mb"] - small["peak_mb"]
        yield RESUME, resumed


def forget(work: WorkDir, dataset: str, lines: int) -> None:
    """Leave a work_dir as a kill would have: the last answers aren't journalled, nothing is merged, no status says
    `done`.
    """
    (journal,) = work.journals(MODEL, dataset)
    os.truncate(journal, start_of_last(journal, lines))
    remove(work.predictions(MODEL, dataset))
    remove(work.infer_status(MODEL, dataset))


def start_of_last(path: Path, lines: int) -> int:
    """The offset at which the last so many lines of a file begin."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        while position and lines >= 0:
            begin = max(0, position - CHUNK)
            file.seek(begin)
            block = file.read(position - begin)
            found = block.count(b"\n")
            if found > lines:
                for _ in range(lines + 1):
                    block = block[: block.rindex(b"\n")]
                return begin + len(block) + 1
            lines -= found
            position = begin
    return 0
