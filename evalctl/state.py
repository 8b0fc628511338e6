"""What a work_dir says of itself, put together for people and for `--json`. Reads only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct

from evald.results import PairResult, Served
from evald.summary import RESULT_LIMIT
from shared import claims
from shared.atomic import look_again
from shared.clock import utc
from shared.errors import WorkDirError
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import (
    Acknowledgement,
    DaemonState,
    EvalStatus,
    Heartbeat,
    InferStatus,
    PairState,
    PlanPair,
    Record,
    Straggler,
)
from shared.status import read_record

ViewState = Literal["not started", DaemonState, "gone"]
AT_WORK = ("starting", "running", "paused", "draining")
"""States of a daemon that hasn't ended."""


class DaemonView(Struct, frozen=True, kw_only=True):
    """A daemon as its beat and its claim show it. meaning: that in words. acknowledged: the last commands that it
    took in. (boot_id, seq) changes with each beat, every `interval` seconds; beat_seconds: since it was last seen to
    change, by the clock of whoever looks; null where nobody watched.
    """

    state: ViewState
    meaning: str
    host: str = ""
    pid: int = 0
    beat_at: str = ""
    boot_id: str = ""
    seq: int = 0
    interval: float = 0.0
    beat_seconds: float | None = None
    reason: str = ""
    counters: dict[str, float] = {}
    acknowledged: tuple[Acknowledgement, ...] = ()


class PairView(Struct, frozen=True, kw_only=True):
    """A pair's inference and scoring. docs, instances, total (requests): as planned; attempts: calls made. rate:
    answers a second of this run; eta_seconds: at that rate. completed: answered, or failed for good. served_models,
    system_fingerprints: answers by name, 0 where how many isn't known before the pair is scored. stragglers: requests
    long in flight.
    """

    model: str
    dataset: str
    infer: PairState
    eval: PairState
    docs: int
    instances: int
    total: int
    completed: int
    answered: int
    reused: int
    in_flight: int
    attempts: int
    outcomes: dict[str, int]
    errors: dict[str, int]
    failed: dict[str, int]
    prompt_tokens: int
    completion_tokens: int
    cost: float
    late_answers: int
    duplicates: int
    served_models: Served
    system_fingerprints: Served
    stragglers: tuple[Straggler, ...]
    rate: float | None
    eta_seconds: float | None
    reason: str


class State(Record, frozen=True, kw_only=True):
    """The whole of `evalctl status --json`. rate and eta_seconds: over all pairs. docs, instances, requests: as
    planned. in_flight, limit, retries_waiting: of the inferds at work together, by their beats. errors: failed attempts
    by class, 429s as `rate_limited`; failed: requests that failed for good.
    """

    work_dir: str
    as_of: str
    inferd: tuple[DaemonView, ...]
    evald: DaemonView
    docs: int
    instances: int
    requests: int
    completed: int
    answered: int
    attempts: int
    in_flight: int
    limit: int
    retries_waiting: int
    errors: dict[str, int]
    failed: dict[str, int]
    late_answers: int
    duplicates: int
    prompt_tokens: int
    completion_tokens: int
    rate: float | None
    eta_seconds: float | None
    cost: float
    pairs: tuple[PairView, ...]


def read_state(work: WorkDir, now: float) -> State:
    """Raises WorkDirError when there is no plan, or a file of the work_dir is damaged."""
    look_again(work.root)
    if not work.root.is_dir():
        raise WorkDirError(f"{work}: no such folder")
    plan = read_plan(work)
    if plan is None:
        raise WorkDirError(f"{work}: no plan here: `evalctl submit SUITE -w {work}` makes one")
    for model in {pair.model for pair in plan.pairs}:
        look_again(work.infer_status_of(model))
    inferds = _inferds(work)
    working = [view for view in inferds if view.state in AT_WORK]
    alive = bool(working)
    pairs = tuple(_pair(work, pair, alive) for pair in plan.pairs)
    rates = [pair.rate for pair in pairs if pair.rate is not None and pair.infer == "running"]
    rate = sum(rates) if rates else None
    left = sum(pair.total - pair.completed for pair in pairs)
    return State(
        work_dir=str(work),
        as_of=utc(now),
        inferd=inferds,
        evald=_daemon(work.eval_heartbeat, work.evald_claim, "evald"),
        docs=sum(pair.docs for pair in plan.pairs),
        instances=sum(pair.instances for pair in plan.pairs),
        requests=sum(pair.requests for pair in plan.pairs),
        completed=sum(pair.completed for pair in pairs),
        answered=sum(pair.answered for pair in pairs),
        attempts=sum(pair.attempts for pair in pairs),
        in_flight=sum(count(view, "in_flight") for view in working),
        limit=sum(count(view, "limit") for view in working),
        retries_waiting=sum(count(view, "retries_waiting") for view in working),
        errors=_merged(pair.errors for pair in pairs),
        failed=_merged(pair.failed for pair in pairs),
        late_answers=sum(pair.late_answers for pair in pairs),
        duplicates=sum(pair.duplicates for pair in pairs),
        prompt_tokens=sum(pair.prompt_tokens for pair in pairs),
        completion_tokens=sum(pair.completion_tokens for pair in pairs),
        rate=rate,
        eta_seconds=left / rate if rate else None,
        cost=sum(pair.cost for pair in pairs),
        pairs=pairs,
    )


def is_missing(state: State) -> bool:
    """Whether some pair will have no score as things stand: it failed, or the daemons have been at work, none is any
    more, and it isn't scored.
    """
    views = (*state.inferd, state.evald)
    working = any(view.state in AT_WORK for view in views)
    over = not working and any(view.state != "not started" for view in views)
    return any("fail" in (pair.infer, pair.eval) or (over and pair.eval != "done") for pair in state.pairs)


def count(view: DaemonView, name: str) -> int:
    """A counter of its beat; 0 where it tells none that is a number."""
    told = view.counters.get(name, 0.0)
    return int(told) if math.isfinite(told) else 0


def _merged(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            merged[name] = merged.get(name, 0) + count
    return merged


def _inferds(work: WorkDir) -> tuple[DaemonView, ...]:
    beats = work.infer_heartbeats() or [work.infer_heartbeat()]
    return tuple(_daemon(path, work.inferd_claim_of(path), "inferd") for path in beats)


def _daemon(path: Path, claim: Path, name: str) -> DaemonView:
    """Alive is who holds the claim: a kernel lock that goes with its process, so no clock has to be believed."""
    try:
        beat = read_record(path, Heartbeat)
    except (WorkDirError, OSError) as error:
        return DaemonView(state="not started", meaning=f"its heartbeat can't be read: {error}")
    if beat is None:
        return DaemonView(state="not started", meaning=f"no heartbeat yet: start {name}")
    state: ViewState = beat.state
    meaning = {
        "starting": "reads the suite and plans",
        "running": "at work",
        "paused": "asks nothing new until `evalctl resume`",
        "draining": "ends what is in flight, asks nothing new",
        "finished": "came to its end",
        "aborted": "stopped before its end",
    }[beat.state]
    if state in AT_WORK:
        held = claims.held(claim)
        if held is False:
            state, meaning = "gone", f"its process has died: start {name} again, nothing journalled is lost"
        elif held is None:
            meaning += " by its own word (locks can't be tested here: see whether the beat changes)"
    return DaemonView(
        state=state,
        meaning=meaning,
        host=beat.host,
        pid=beat.pid,
        beat_at=beat.time,
        boot_id=beat.boot_id,
        seq=beat.seq,
        interval=beat.interval,
        reason=beat.reason,
        counters=beat.counters,
        acknowledged=beat.acknowledged,
    )


def _pair(work: WorkDir, pair: PlanPair, alive: bool) -> PairView:
    """alive: an inferd is at work. What a dead one left in flight, and its rate, is no longer so."""
    damage: list[str] = []
    shards = []
    for shard in pair.shards:
        try:
            status = read_record(work.infer_status(pair.model, shard.stem), InferStatus)
        except WorkDirError as error:
            damage.append(str(error))
            status = None
        shards.append(status if status is not None and status.plan_digest == pair.digest else None)
    known = [status for status in shards if status is not None]
    try:
        scored = read_record(work.eval_status(pair.model, pair.dataset), EvalStatus)
        scored = scored if scored is not None and scored.plan_digest == pair.digest else None
    except WorkDirError as error:
        damage.append(str(error))
        scored = None
    states = {status.state if status is not None else "pending" for status in shards}
    completed = sum(status.completed for status in known)
    # Shards follow each other: the rates of those that run now add up, one that has ended says nothing of now.
    timed = known if len(shards) == 1 else [status for status in known if status.state == "running"]
    rates = [rate for status in timed if alive and (rate := _rate(status)) is not None]
    rate = sum(rates) if rates else None
    infer = _worst(states)
    reasons = damage + [status.reason for status in known if status.reason]
    models, fingerprints = _served(work, pair, known)
    return PairView(
        model=pair.model,
        dataset=pair.dataset,
        infer=infer,
        eval=scored.state if scored is not None else "pending",
        docs=pair.docs,
        instances=pair.instances,
        total=pair.requests,
        completed=completed,
        answered=sum(sum(status.outcomes.values()) for status in known),
        reused=sum(status.reused for status in known),
        in_flight=sum(status.in_flight for status in known) if alive else 0,
        attempts=sum(status.attempts for status in known),
        outcomes=_merged(status.outcomes for status in known),
        errors=_merged(status.errors for status in known),
        failed=_merged(status.failed for status in known),
        prompt_tokens=sum(status.prompt_tokens for status in known),
        completion_tokens=sum(status.completion_tokens for status in known),
        cost=sum(status.cost for status in known),
        late_answers=sum(status.late_answers for status in known),
        duplicates=sum(status.duplicates for status in known),
        served_models=models,
        system_fingerprints=fingerprints,
        stragglers=tuple(one for status in known for one in status.stragglers) if alive else (),
        rate=rate,
        eta_seconds=(pair.requests - completed) / rate if rate and infer == "running" else None,
        reason="; ".join(dict.fromkeys(reasons)) or (scored.reason if scored is not None else ""),
    )


def _served(work: WorkDir, pair: PlanPair, known: list[InferStatus]) -> tuple[Served, Served]:
    """Who answered: as counted when the pair was scored, if that is of the predictions that stand; else the names."""
    named = (
        Served(names={name: 0 for status in known for name in status.served_models if name}),
        Served(names={name: 0 for status in known for name in status.system_fingerprints if name}),
    )
    if not any(served.changed for served in named):
        return named  # the common case: what was scored isn't read at each look
    try:
        result = read_record(work.result(pair.model, pair.dataset), PairResult, RESULT_LIMIT)
    except (WorkDirError, OSError):
        return named
    standing = (pair.digest, tuple(status.digest for status in known))
    if result is None or (result.plan_digest, result.predictions_digest) != standing:
        return named
    return result.served_models, result.system_fingerprints


def _worst(states: set[PairState]) -> PairState:
    if "fail" in states:
        return "fail"
    if len(states) == 1:
        return next(iter(states))
    return "running"


def _rate(status: InferStatus) -> float | None:
    """Both stamps are of the one clock that wrote the status."""
    fresh = status.completed - status.reused
    try:
        seconds = (
            datetime.fromisoformat(status.updated_at) - datetime.fromisoformat(status.started_at)
        ).total_seconds()
    except ValueError:
        return None
    return fresh / seconds if fresh > 0 and seconds > 0 else None
