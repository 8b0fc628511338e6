"""What the dispatcher knows of each shard and model. Only the dispatcher's thread touches these."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from inferd.ask import Asker, Ended
from inferd.feed import Failure, Feed, Where, not_run
from inferd.limiter import Health, Permits
from inferd.merge import Merge
from inferd.scheduler import Scheduler
from inferd.shards import Span
from shared.answers import AnswerIndex
from shared.claims import Claim
from shared.config import ModelConfig
from shared.journal import Tally, Target, Told
from shared.records import InferStatus, PairState, PlanPair, PlanShard, Straggler
from shared.requests import Request

SPANS = 100  # of earlier runs that a status tells
STRAGGLERS = 5  # that a status names
LONG = 4.0  # times the usual latency after which a request is a straggler


@dataclass(eq=False)
class ShardRun:
    """A shard while this inferd works on it."""

    pair: PlanPair
    shard: PlanShard
    claim: Claim
    feed: Feed
    index: AnswerIndex
    target: Target
    tally: Tally
    damaged: int
    left: int  # requests not handed to a worker yet; an upper bound until the feed is exhausted
    started_at: str
    earlier: tuple[Span, ...] = ()
    pending: int = 0  # requests the feed gave that have no durable end yet
    unsaved: int = 0  # lines on their way to the journal, those of attempts that are tried again included
    filling: bool = False
    refill_at: int = 0  # so few queued, and it is time to read more
    exhausted: bool = False
    merge: Merge | None = None
    merging: bool = False  # a loader is at it
    merge_errors: int = 0
    finalising: bool = False
    given_up: str = ""
    in_flight: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reused: int = 0
    failures: dict[Where, Failure] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    refused_for_good: int = 0
    answered: int = 0
    last_error: str = ""
    told: Told = field(default_factory=Told)
    late: int = 0
    duplicates: int = 0
    stragglers: tuple[Straggler, ...] = ()

    @property
    def completed(self) -> int:
        return sum(self.outcomes.values()) + sum(self.failed.values())

    def drained(self) -> bool:
        """Nothing is queued, in flight, waiting for a retry or waiting for its fsync."""
        return (self.exhausted or bool(self.given_up)) and not self.filling and self.pending == self.unsaved == 0

    def fail(self, request: Request, failure: Failure) -> None:
        """The request has no answer and gets none in this run; then the turns that wait for it aren't asked either."""
        self._fail(request.idx, request, failure)
        for idx in range(request.idx + 1, request.idx + 1 + request.later):
            self._fail(idx, request, not_run(request.idx))

    def _fail(self, idx: int, request: Request, failure: Failure) -> None:
        self.failures[(request.doc_id, idx, request.repeat)] = failure
        self.failed[failure.error or "not_run"] += 1

    def status(self, state: PairState, now: str, *, reason: str = "", digest: str = "") -> InferStatus:
        ended = state in ("done", "fail")
        return InferStatus(
            model=self.pair.model,
            dataset=self.pair.dataset,
            stem=self.shard.stem,
            state=state,
            plan_digest=self.pair.digest,
            total=self.shard.requests,
            completed=self.completed,
            outcomes=dict(self.outcomes),
            errors=dict(self.tally.errors),
            failed=dict(self.failed),
            attempts=self.tally.attempts,
            reused=self.reused,
            in_flight=self.in_flight,
            prompt_tokens=self.tally.prompt_tokens,
            completion_tokens=self.tally.completion_tokens,
            cost=self.tally.cost,
            digest=digest,
            reason=reason,
            started_at=self.started_at,
            finished_at=now if ended else "",
            spans=(*self.earlier, (self.started_at, now))[-SPANS:],
            updated_at=now,
            claim=self.claim.token,
            served_models=tuple(sorted(self.told.models)),
            system_fingerprints=tuple(sorted(self.told.fingerprints)),
            late_answers=self.late,
            duplicates=self.duplicates + self.late,
            stragglers=self.stragglers if state == "running" else (),
            journal_damage=self.damaged,
        )


@dataclass(frozen=True)
class Ending:
    """How the run ended, over all pairs."""

    done: int
    failed: int
    unfinished: int
    saved: bool  # every answer and every status is on disk


@dataclass(eq=False)
class Job:
    """One attempt on its way: which request, of whom, and the how-manieth try."""

    lane: Lane
    run: ShardRun
    request: Request
    attempt: int
    sent: float = 0.0  # monotonic
    abandoned: bool = False

    def log_failure(self, log: Any, ended: Ended, retry_in: float | None) -> None:
        """A failed attempt, for who looks closely. retry_in: seconds; None: it isn't tried again."""
        request, error = self.request, ended.error
        log.debug(
            "attempt failed",
            model=self.run.pair.model,
            dataset=self.run.shard.stem,
            request=request.key,
            task=request.task.task_id,
            repeat=request.repeat,
            attempt=self.attempt,
            error=error.kind if error is not None else "",
            status=error.status if error is not None else None,
            message=ended.message,
            latency=round(ended.latency, 3),
            retry_in=retry_in,
        )


class Workers(Protocol):
    """What makes a model's calls: a pool of threads, or an engine. Whoever submits a job holds its permit."""

    def submit(self, job: Job) -> None: ...
    def abandon(self, job: Job) -> None:
        """Nothing more is expected of this job: it must not keep others from their turn."""

    def resize(self, size: int) -> None:
        """How many jobs may be submitted at once from now on."""

    def end(self) -> None: ...
    def wait(self, timeout: float) -> int:
        """After `end`: how many calls hung, or were broken off, after `timeout` seconds."""


@dataclass(eq=False)
class Lane:
    """A model: its workers under its permits, its queue over all its shards, its retries."""

    model: ModelConfig
    asker: Asker
    permits: Permits
    health: Health
    timeout: float
    workers: Workers
    queue: Scheduler[ShardRun, Request] = field(default_factory=Scheduler)
    again: deque[Job] = field(default_factory=deque)  # retries that are due
    waiting: deque[tuple[PlanPair, PlanShard]] = field(default_factory=deque)  # not opened yet
    foreign: list[tuple[PlanPair, PlanShard]] = field(default_factory=list)  # another inferd has them
    opening: int = 0
    usual_latency: float = 0.0  # seconds, of late
    runs: set[ShardRun] = field(default_factory=set)
    in_flight: dict[int, Job] = field(default_factory=dict)
    _retries: list[tuple[float, int, Job]] = field(default_factory=list)
    _order: int = 0

    def on_latency(self, seconds: float) -> None:
        """An exponential mean over about the last hundred attempts."""
        self.usual_latency += (seconds - self.usual_latency) * (0.01 if self.usual_latency else 1.0)

    def go_on(self, run: ShardRun, following: Request) -> None:
        """Queue a chat's next turn, which is pending already."""
        run.left += run.exhausted  # else it is among those that are left already
        self.queue.offer(run, [following])

    def name_stragglers(self, now: float) -> None:
        """Tell each shard which of its requests in flight take much longer than is usual here, the longest first."""
        long = max(1.0, LONG * self.usual_latency)
        found: dict[ShardRun, list[Straggler]] = {run: [] for run in self.runs}
        for job in self.in_flight.values():  # in the order they were sent
            if now - job.sent <= long:
                break
            named = found.get(job.run)
            if named is not None and len(named) < STRAGGLERS:
                request = job.request
                named.append(Straggler(request.task.task_id, request.repeat, job.attempt, round(now - job.sent, 1)))
        for run, stragglers in found.items():
            run.stragglers = tuple(stragglers)

    def retry_at(self, due: float, job: Job) -> None:
        self._order += 1
        heappush(self._retries, (due, self._order, job))

    def next_retry(self) -> float | None:
        return self._retries[0][0] if self._retries else None

    def release_retries(self, now: float) -> None:
        while self._retries and self._retries[0][0] <= now:
            self.again.append(heappop(self._retries)[2])

    def drop_retries(self, wanted: Callable[[Job], bool]) -> list[Job]:
        """Take out the retries, due or not, for which `wanted` holds."""
        dropped = [job for _, _, job in self._retries if wanted(job)] + [job for job in self.again if wanted(job)]
        self._retries = [entry for entry in self._retries if not wanted(entry[2])]
        heapify(self._retries)
        self.again = deque(job for job in self.again if not wanted(job))
        return dropped

    @property
    def retries(self) -> int:
        return len(self._retries) + len(self.again)

    def open_runs(self) -> int:
        """Shards that still have requests to hand out, or are about to."""
        return self.opening + sum(1 for run in self.runs if run.left > 0)

    def samples_left(self) -> int:
        return sum(max(run.left, 0) for run in self.runs)

    @property
    def finished(self) -> bool:
        return not (self.waiting or self.foreign or self.opening or self.runs)


def figures(lanes: Sequence[Lane], now: float) -> dict[str, float]:
    """All models together, for the beat and the log."""
    oldest = min((next(iter(lane.in_flight.values())).sent for lane in lanes if lane.in_flight), default=now)
    retries = [due for lane in lanes if (due := lane.next_retry()) is not None]
    return {
        "pairs_open": sum(len(lane.runs) for lane in lanes),
        "pairs_waiting": sum(len(lane.waiting) + len(lane.foreign) + lane.opening for lane in lanes),
        "in_flight": sum(len(lane.in_flight) for lane in lanes),
        "limit": sum(lane.permits.limit for lane in lanes),
        "retries_waiting": sum(lane.retries for lane in lanes),
        "oldest_in_flight_seconds": round(now - oldest, 3),
        "next_retry_seconds": round(max(min(retries, default=now) - now, 0.0), 3),
    }
