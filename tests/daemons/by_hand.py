"""inferd played by a test: its beat, its predictions and its statuses, each written when the test says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalctl.submit import submit
from shared.atomic import replace
from shared.clock import SystemClock
from shared.heartbeat import HeartbeatWriter
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import Generation, InferStatus, PlanPair, Prediction, encode_record
from shared.status import write_record
from tests.harness import openai, task, write_suite

NOWHERE = "http://127.0.0.1:9/v1"  # never asked


def planned(folder: Path, sizes: dict[str, int], models: Sequence[str] = ("m",), **options: Any) -> WorkDir:
    """A work_dir with the plan of a suite whose tasks' right answers are their numbers."""
    work = WorkDir(folder / "work")
    datasets = {name: [task(n) for n in range(size)] for name, size in sizes.items()}
    submit(write_suite(folder / "suite", [openai(NOWHERE, model) for model in models], datasets, **options), work)
    return work


@contextmanager
def beating(work: WorkDir, reason: str = "") -> Iterator[HeartbeatWriter]:
    """A live inferd's beat; `finished` when the block ends, unless the block said otherwise."""
    beat = HeartbeatWriter(work.infer_heartbeat(), SystemClock(), 0.2)
    beat.start()
    beat.set_state("running")
    try:
        yield beat
    finally:
        beat.finish("finished", reason)


def lines(texts: Sequence[str]) -> bytes:
    """Predictions, one a task, with these answers."""
    return b"".join(
        encode_record(
            Prediction(
                task_id=f"t{n}", key=f"k{n}", doc_id=n, outcome="ok", attempts=1,
                generation=Generation(text=text, confidence=0.9),
            )
        )
        + b"\n"
        for n, text in enumerate(texts)
    )  # fmt: skip


def predict(work: WorkDir, data: bytes, dataset: str = "d", model: str = "m") -> None:
    replace(work.predictions(model, dataset), data)


def pair_of(work: WorkDir, dataset: str = "d", model: str = "m") -> PlanPair:
    plan = read_plan(work)
    assert plan is not None
    return next(pair for pair in plan.pairs if (pair.model, pair.dataset) == (model, dataset))


def say(work: WorkDir, data: bytes, dataset: str = "d", model: str = "m", **more: Any) -> None:
    """The status of a pair whose predictions are `data`: done, unless `more` says otherwise."""
    pair = pair_of(work, dataset, model)
    status: dict[str, Any] = {
        "state": "done",
        "plan_digest": pair.digest,
        "total": pair.requests,
        "completed": pair.requests,
        "digest": hashlib.sha256(data).hexdigest(),
    }
    write_record(
        work.infer_status(model, dataset),
        InferStatus(model=model, dataset=dataset, stem=dataset, **(status | more)),
    )


def publish(work: WorkDir, texts: Sequence[str], dataset: str = "d", model: str = "m") -> None:
    """A pair as inferd finishes it: predictions first, then the status."""
    predict(work, lines(texts), dataset, model)
    say(work, lines(texts), dataset, model)


def right(count: int) -> list[str]:
    return [str(n) for n in range(count)]
