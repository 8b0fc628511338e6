"""A shard on disk: opened under its claim, read as a feed of requests that still need an answer, merged into
predictions.

All of it is disk work and runs on loader threads, never on the dispatcher's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from shared import atomic, claims, requests
from shared.config import ModelConfig
from shared.errors import ErrorClass, WorkDirError
from shared.journal import AnswerIndex, Found, Tally
from shared.layout import WorkDir
from shared.plan import read_planned_tasks, tasks_digest
from shared.records import (
    Attempt,
    InferStatus,
    PairState,
    Plan,
    PlanDataset,
    PlanPair,
    PlanShard,
    Prediction,
    encode_record,
)
from shared.requests import Request
from shared.status import read_record

Where = tuple[int, int, int]  # (doc_id, idx, repeat)
Span = tuple[str, str]  # (start, end), as in InferStatus.spans


@dataclass(frozen=True)
class Failure:
    """Why a request has no answer; what its line in the predictions says."""

    error: ErrorClass
    message: str
    attempts: int
    latency: float


@dataclass(frozen=True)
class Batch:
    """What a feed gave: requests to send; reused: answers passed over because they are journalled, by outcome."""

    requests: list[Request]
    reused: dict[str, int]
    exhausted: bool


@dataclass(frozen=True)
class Opened:
    claim: claims.Claim
    feed: Feed
    answered: int  # an upper bound: rows whose key no longer matches are only found while feeding
    tally: Tally
    damaged: int
    spans: tuple[Span, ...]  # when earlier runs worked on it


@dataclass(frozen=True)
class AlreadyDone:
    """The shard's predictions stand and match the plan."""

    status: InferStatus


@dataclass(frozen=True)
class Foreign:
    """Another inferd works on the shard."""

    owner: str


@dataclass
class Shelf:
    """The planned tasks of a work_dir; checks each dataset's file against the plan once."""

    work: WorkDir
    plan: Plan
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _checked: dict[str, str] = field(default_factory=dict)

    def dataset(self, abbr: str) -> PlanDataset:
        return next(dataset for dataset in self.plan.datasets if dataset.abbr == abbr)

    def check(self, abbr: str) -> None:
        """Raises WorkDirError when the tasks file isn't the one that was planned."""
        with self._lock:
            if abbr not in self._checked:
                self._checked[abbr] = tasks_digest(self.work.tasks(abbr))
        if self._checked[abbr] != self.dataset(abbr).digest:
            raise WorkDirError(f"{self.work.tasks(abbr)}: not the file that was planned: submit the suite again")

    def requests(self, pair: PlanPair, shard: PlanShard, model: ModelConfig) -> Iterator[Request]:
        """Every request of the shard, in (doc_id, idx, repeat) order."""
        identity = requests.identity(model)
        repeats = self.dataset(pair.dataset).repeats
        tasks = islice(enumerate(read_planned_tasks(self.work, pair.dataset)), shard.first, shard.first + shard.docs)
        for doc_id, task in tasks:
            yield from requests.requests_of(task, doc_id, model, identity, repeats)


class Feed:
    """Streams a shard's requests and passes over those that are answered. One loader thread at a time calls `take`."""

    def __init__(self, stream: Iterator[Request], index: AnswerIndex) -> None:
        self._stream = stream
        self._cursor = index.cursor()

    def take(self, count: int) -> Batch:
        wanted: list[Request] = []
        reused: dict[str, int] = {}
        for request in self._stream:
            found = self._cursor.find(request.doc_id, request.idx, request.repeat, request.key)
            if found is None:
                wanted.append(request)
                if len(wanted) == count:
                    return Batch(wanted, reused, exhausted=False)
            else:
                reused[found.outcome] = reused.get(found.outcome, 0) + 1
        return Batch(wanted, reused, exhausted=True)


def open_shard(
    shelf: Shelf, pair: PlanPair, shard: PlanShard, model: ModelConfig, tick: Callable[[], None]
) -> Opened | AlreadyDone | Foreign:
    """Take the shard's claim and find out what it still needs."""
    work = shelf.work
    shelf.check(pair.dataset)
    path = work.shard_claim(pair.model, shard.stem)
    claim = claims.take(path)
    if claim is None:
        return Foreign(claims.owner(path))
    try:
        if (done := standing(work, pair, shard)) is not None:
            claim.release()
            return AlreadyDone(done)
        index = _index(work, pair, shard, tick)
        old = last_status(work, pair, shard)
        spans = old.spans if old is not None else ()
        return Opened(
            claim, Feed(shelf.requests(pair, shard, model), index), len(index), index.tally, index.damaged, spans
        )
    except BaseException:
        claim.release()
        raise


def bare_status(
    pair: PlanPair, shard: PlanShard, state: PairState, now: str, *, reason: str = "", spans: tuple[Span, ...] = ()
) -> InferStatus:
    """The status of a shard that isn't open."""
    return InferStatus(
        model=pair.model,
        dataset=pair.dataset,
        stem=shard.stem,
        state=state,
        plan_digest=pair.digest,
        total=shard.requests,
        reason=reason,
        spans=spans,
        updated_at=now,
        finished_at=now if state == "fail" else "",
    )


def last_status(work: WorkDir, pair: PlanPair, shard: PlanShard) -> InferStatus | None:
    """What was last said of the shard, if that was for this plan and can be read."""
    try:
        status = read_record(work.infer_status(pair.model, shard.stem), InferStatus)
    except WorkDirError:
        return None  # damaged: it is written anew
    return status if status is not None and status.plan_digest == pair.digest else None


def standing(work: WorkDir, pair: PlanPair, shard: PlanShard) -> InferStatus | None:
    """The shard's status if it says `done`, for this plan, of predictions that are there and unchanged; else None."""
    status = last_status(work, pair, shard)
    if status is None or status.state != "done":
        return None
    try:
        digest = tasks_digest(work.predictions(pair.model, shard.stem))
    except FileNotFoundError:
        return None
    return status if digest == status.digest else None


def write_predictions(
    shelf: Shelf,
    pair: PlanPair,
    shard: PlanShard,
    model: ModelConfig,
    failures: Mapping[Where, Failure],
    tick: Callable[[], None],
) -> str:
    """Merge the shard's journals into its predictions file; returns its SHA-256.

    Every request of the plan gets exactly one line, by construction. Raises WorkDirError when one has neither an answer
    in the journals nor a known failure.
    """
    predictions = shelf.work.predictions(pair.model, shard.stem)
    atomic.sweep(predictions.parent, predictions.name)  # a merge that was killed may have left much
    index = _index(shelf.work, pair, shard, tick)
    cursor = index.cursor()
    with ExitStack() as stack:
        files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in index.paths]
        for fd in files:
            stack.callback(os.close, fd)

        def lines() -> Iterator[bytes]:
            for request in shelf.requests(pair, shard, model):
                found = cursor.find(request.doc_id, request.idx, request.repeat, request.key)
                if found is not None:
                    line = os.pread(files[found.file], found.length, found.offset)
                    earlier = index.paths[found.file] == predictions
                    prediction = _PREDICTION.decode(line) if earlier else _answered(request, line, found)
                else:
                    failure = failures.get((request.doc_id, request.idx, request.repeat))
                    if failure is None:
                        raise WorkDirError(
                            f"doc {request.doc_id} repeat {request.repeat} has no answer in the journal any more"
                        )
                    prediction = _failed(request, failure)
                yield encode_record(prediction) + b"\n"

        _, digest = atomic.replace_lines(predictions, lines(), tick=tick)
    return digest


def _index(work: WorkDir, pair: PlanPair, shard: PlanShard, tick: Callable[[], None]) -> AnswerIndex:
    predictions = work.predictions(pair.model, shard.stem)
    return AnswerIndex(work.journals(pair.model, shard.stem), predictions if predictions.is_file() else None, tick=tick)


_ATTEMPT = msgspec.json.Decoder(Attempt)
_PREDICTION = msgspec.json.Decoder(Prediction)


def _answered(request: Request, line: bytes, found: Found) -> Prediction:
    attempt = _ATTEMPT.decode(line)
    return Prediction(
        task_id=request.task.task_id,
        key=request.key,
        doc_id=request.doc_id,
        idx=request.idx,
        repeat=request.repeat,
        outcome=found.outcome,
        attempts=attempt.attempt,
        latency=attempt.latency,
        endpoint=attempt.endpoint,
        cost=attempt.cost,
        generation=attempt.generation,
    )


def _failed(request: Request, failure: Failure) -> Prediction:
    return Prediction(
        task_id=request.task.task_id,
        key=request.key,
        doc_id=request.doc_id,
        idx=request.idx,
        repeat=request.repeat,
        outcome="error",
        error=failure.error,
        message=failure.message,
        attempts=failure.attempts,
        latency=failure.latency,
    )
