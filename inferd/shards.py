"""A shard on disk: opened under its claim, read as a feed of requests that still need an answer, merged into
predictions.

All of it is disk work and runs on loader threads, never on the dispatcher's.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from shared import atomic, claims, requests
from shared.answers import AnswerIndex, Cursor, key64, order_of, where_of
from shared.config import ModelConfig
from shared.errors import ErrorClass, WorkDirError
from shared.layout import WorkDir
from shared.plan import read_planned_ids, read_planned_tasks, tasks_digest
from shared.records import (
    InferStatus,
    Outcome,
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
LOOK = 20_000  # requests that a feed looks at in one go: progress is told in between
Span = tuple[str, str]  # (start, end), as in InferStatus.spans


@dataclass(frozen=True)
class Failure:
    """Why a request has no answer; what its line in the predictions says."""

    key: str
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
    """index: of what earlier runs journalled; its length is an upper bound of what is answered, since rows whose key no
    longer matches are only found while feeding.
    """

    claim: claims.Claim
    feed: Feed
    index: AnswerIndex
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
        planned = self.dataset(pair.dataset)
        tasks = islice(enumerate(read_planned_tasks(self.work, pair.dataset)), shard.first, shard.first + shard.docs)
        for doc_id, task in tasks:
            yield from requests.requests_of(
                task, doc_id, model, identity, planned.repeats, seed_per_repeat=planned.seed_per_repeat
            )


class Asked:
    """Which requests a shard consists of, in their order: 16 bytes each, so that merging need not render them again."""

    def __init__(self) -> None:
        self._orders, self._keys = array("Q"), array("Q")

    def add(self, order: int, key: int) -> None:
        self._orders.append(order)
        self._keys.append(key)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._orders, self._keys, strict=True)


class Feed:
    """Streams a shard's requests and passes over those that are answered. One loader thread at a time calls `take`."""

    def __init__(self, stream: Iterator[Request], index: AnswerIndex) -> None:
        self._stream = stream
        self._cursor: Cursor | None = index.cursor()
        self.asked = Asked()

    def take(self, count: int) -> Batch:
        """At most `count` requests that are to be sent; passes over at most LOOK requests to find them."""
        wanted: list[Request] = []
        reused: dict[str, int] = {}
        cursor = self._cursor
        if cursor is None:
            return Batch(wanted, reused, exhausted=True)
        for request in islice(self._stream, LOOK):
            order, key = order_of(request.doc_id, request.idx, request.repeat), key64(request.key)
            self.asked.add(order, key)
            found = cursor.find_order(order, key)
            if found is None:
                wanted.append(request)
                if len(wanted) == count:
                    return Batch(wanted, reused, exhausted=False)
            else:
                reused[found.outcome] = reused.get(found.outcome, 0) + 1
        exhausted = len(wanted) + sum(reused.values()) < LOOK
        if exhausted:
            self._cursor = None  # it holds on to the index, which is about to grow
        return Batch(wanted, reused, exhausted)


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
        return Opened(claim, Feed(shelf.requests(pair, shard, model), index), index, spans)
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
    asked: Asked,
    index: AnswerIndex,
    failures: Mapping[Where, Failure],
    tick: Callable[[], None],
) -> str:
    """Merge the shard's journals into its predictions file; returns its SHA-256.

    Every request that was asked gets exactly one line, by construction. index: of all that was journalled. Raises
    WorkDirError when a request has neither an answer in the journals nor a known failure.
    """
    predictions = shelf.work.predictions(pair.model, shard.stem)
    atomic.sweep(predictions.parent, predictions.name)  # a merge that was killed may have left much
    index.renew()
    cursor = index.cursor()
    ids = islice(enumerate(read_planned_ids(shelf.work, pair.dataset)), shard.first, shard.first + shard.docs)
    with ExitStack() as stack:
        files = [(stack.enter_context(_Lines(path)), path == predictions) for path in index.paths]

        def lines() -> Iterator[bytes]:
            doc_id, task_id = -1, ""
            for order, key in asked:
                while doc_id < order >> 32:
                    doc_id, task_id = next(ids)
                found = cursor.find_order(order, key)
                if found is not None:
                    file, is_merged = files[found.file]
                    line = file.read(found.offset, found.length)
                    yield (line if is_merged else encode_record(_answered(task_id, line, key))) + b"\n"
                    continue
                where = where_of(order)
                failure = failures.get(where)
                if failure is None:
                    raise WorkDirError(f"doc {where[0]} repeat {where[2]} has no answer in the journal any more")
                yield encode_record(_failed(task_id, where, failure)) + b"\n"

        _, digest = atomic.replace_lines(predictions, lines(), tick=tick)
    return digest


class _Lines:
    """Reads lines of a file by their place; those that follow each other cost one read a megabyte."""

    WINDOW = 1 << 20

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start, self._window = 0, b""

    def __enter__(self) -> _Lines:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_raised: object) -> None:
        os.close(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        first = offset - self._start
        if first < 0 or first + length > len(self._window):
            self._start, self._window = offset, os.pread(self._fd, max(length, self.WINDOW), offset)
            first = 0
        return self._window[first : first + length]


def _index(work: WorkDir, pair: PlanPair, shard: PlanShard, tick: Callable[[], None]) -> AnswerIndex:
    predictions = work.predictions(pair.model, shard.stem)
    return AnswerIndex(work.journals(pair.model, shard.stem), predictions if predictions.is_file() else None, tick=tick)


class _Answer(msgspec.Struct):
    """What a prediction takes from a journal line; the generation goes over as it is."""

    key: str
    doc_id: int
    attempt: int
    outcome: Outcome
    latency: float
    generation: msgspec.Raw
    idx: int = 0
    repeat: int = 0
    endpoint: str = ""
    cost: float = 0.0


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _answered(task_id: str, line: bytes, key: int) -> Prediction:
    try:
        answer = _decode_answer(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = None
    if answer is None or key64(answer.key) != key:
        raise WorkDirError("a journal isn't what was written into it any more: start inferd again")
    return Prediction(
        task_id=task_id,
        key=answer.key,
        doc_id=answer.doc_id,
        idx=answer.idx,
        repeat=answer.repeat,
        outcome=answer.outcome,
        attempts=answer.attempt,
        latency=answer.latency,
        endpoint=answer.endpoint,
        cost=answer.cost,
        generation=answer.generation,  # type: ignore[arg-type]  # the same JSON, which the index found sound
    )


def _failed(task_id: str, where: Where, failure: Failure) -> Prediction:
    doc_id, idx, repeat = where
    return Prediction(
        task_id=task_id,
        key=failure.key,
        doc_id=doc_id,
        idx=idx,
        repeat=repeat,
        outcome="error",
        error=failure.error,
        message=failure.message,
        attempts=failure.attempts,
        latency=failure.latency,
    )
