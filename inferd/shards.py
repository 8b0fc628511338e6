"""A shard on disk: opened under its claim, read as a feed of requests that still need an answer, merged into
predictions.

All of it is disk work and runs on loader threads, never on the dispatcher's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from inferd.feed import Asked, Feed
from shared import claims, requests
from shared.answers import AnswerIndex
from shared.config import ModelConfig
from shared.errors import WorkDirError
from shared.journal import MAX_DOCS
from shared.layout import WorkDir, claim_of
from shared.plan import read_planned_tasks, tasks_digest
from shared.records import (
    InferStatus,
    PairState,
    Plan,
    PlanDataset,
    PlanPair,
    PlanShard,
)
from shared.requests import Later, Request
from shared.status import read_record

Span = tuple[str, str]  # (start, end), as in InferStatus.spans


@dataclass(frozen=True)
class Opened:
    """index: of what earlier runs journalled; its length is an upper bound of what is answered, since rows whose key no
    longer matches are only found while feeding.
    """

    claim: claims.Claim
    feed: Feed
    index: AnswerIndex
    spans: tuple[Span, ...]  # when earlier runs worked on it
    late: int  # answers that came too late in them


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

    def requests(self, pair: PlanPair, shard: PlanShard, model: ModelConfig) -> Iterator[Request | Later]:
        """Every request of the shard, in (doc_id, idx, repeat) order; the place of one that can't be made yet."""
        identity = requests.identity(model)
        planned = self.dataset(pair.dataset)
        tasks = read_planned_tasks(self.work, pair.dataset, shard.first, shard.first + shard.docs)
        for doc_id, task in enumerate(tasks, shard.first):
            yield from requests.requests_of(
                task, doc_id, model, identity, planned.repeats, seed_per_repeat=planned.seed_per_repeat
            )


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
        late = old.late_answers if old is not None else 0
        asked = Asked(shard.first, shelf.dataset(pair.dataset).repeats)
        follow_up = partial(requests.follow_up, model=model, model_identity=requests.identity(model))
        feed = Feed(shelf.requests(pair, shard, model), index, asked, follow_up)
        return Opened(claim, feed, index, spans, late)
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


def check_failures(work: WorkDir, pair: PlanPair, known: Mapping[str, int], max_error_rate: float) -> None:
    """Raises WorkDirError when more of the pair's requests failed for good than it may have, over all its shards.

    known: how many by shard, where that is known better than by the shard's status. Shards that end at the same moment
    in two inferds may both miss the other's last failures.
    """
    failed = sum(known.values())
    for shard in pair.shards:
        if shard.stem not in known and (status := last_status(work, pair, shard)) is not None:
            failed += sum(status.failed.values())
    if failed > max_error_rate * pair.requests:
        raise WorkDirError(f"{failed}/{pair.requests} requests of the pair failed, over all its shards")


def _index(work: WorkDir, pair: PlanPair, shard: PlanShard, tick: Callable[[], None]) -> AnswerIndex:
    """Of the shard's own files, and of what another sharding left under the dataset's name (`shared.regroup`). In the
    order of the claims, so that of two answers to one request the same one wins in each sharding.
    """
    stems = dict.fromkeys((shard.stem, pair.dataset))
    journals = [path for stem in stems for path in work.journals(pair.model, stem)]
    predictions = [work.predictions(pair.model, shard.stem), *work.all_merged(pair.model).get(pair.dataset, ())]
    return AnswerIndex(sorted(journals, key=claim_of), predictions, docs=_docs(pair, shard), tick=tick)


def _docs(pair: PlanPair, shard: PlanShard) -> range | None:
    """What of a file is the shard's. A longer dataset's docs were the last one's, and their costs stay told there."""
    if len(pair.shards) == 1:
        return None
    last = shard.stem == pair.shards[-1].stem
    return range(shard.first, MAX_DOCS if last else shard.first + shard.docs)
