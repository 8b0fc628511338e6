"""What the tests of this folder share beyond the harness: a work_dir made in this process, and looks into it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalctl.submit import submit
from shared.layout import WorkDir
from shared.records import ANSWERS, Prediction
from tests.harness import Process, infer_status, journal, task, write_suite


def submitted(
    folder: Path,
    models: Sequence[dict[str, Any]],
    datasets: dict[str, Sequence[dict[str, Any]]],
    *,
    root: Path | None = None,
    **more: Any,
) -> WorkDir:
    """The suite submitted to `folder`/work (or `root`), again if it is there already; in this process, to be quick."""
    work = WorkDir(root or folder / "work")
    submit(write_suite(folder / "suite", models, datasets, **more), work)
    return work


def tasks(count: int, *, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [task(number, **more) for number in range(first, first + count)]


def behaving(number: int, behaviour: str) -> dict[str, Any]:
    """A task whose own request the fake server treats so, whatever the address says."""
    return task(number, prompt=f"question {number} BEHAVE={behaviour} ANSWER={number}")


def texts(rows: Sequence[Prediction]) -> list[str | None]:
    return [row.generation.text if row.generation else None for row in rows]


def answers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def answered(work: WorkDir, model: str = "m", dataset: str = "d") -> set[str]:
    """The keys of the requests whose answer is in the journal."""
    return {line.key for line in journal(work, model, dataset) if line.outcome in ANSWERS}


def state(work: WorkDir, model: str = "m", dataset: str = "d") -> str:
    status = infer_status(work, model, dataset)
    return status.state if status is not None else "missing"


def ended(process: Process, code: int, timeout: float = 60.0) -> Process:
    """The process, once it ended with that exit status."""
    assert process.wait(timeout) == code, process.err[-3000:]
    return process


def strict(text: str | bytes) -> Any:
    """JSON as the RFC has it: without NaN and infinities, which Python's parser would take."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def all_strict(work: WorkDir) -> int:
    """Parse every line of every record in the work_dir strictly; how many there were."""
    count = 0
    for path in work.root.rglob("*"):
        if path.is_file() and (path.suffix in (".json", ".jsonl") or path.name.endswith("_heartbeat")):
            for line in path.read_bytes().split(b"\n"):
                if path.suffix == ".json" and b"\n" in path.read_bytes().strip():
                    strict(path.read_bytes())
                elif line:
                    strict(line)
                count += 1
    return count


def journal_file(work: WorkDir, model: str = "m", dataset: str = "d") -> Path:
    """The only journal of the pair."""
    (path,) = work.journals(model, dataset)
    return path
