"""What a run did, in numbers, and what broke on the way. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from evald.results import PairResult
from shared.records import InferStatus, Plan

Pair = tuple[str, str]  # (model, dataset)


class Fault(Struct, frozen=True, kw_only=True):
    """Something that broke, and where."""

    model: str
    dataset: str
    stage: Literal["infer", "score", "task"]
    reason: str


class Counts(Struct, frozen=True, kw_only=True):
    """The run in numbers. tasks: docs over all datasets; docs, instances, requests: over all pairs as planned;
    answered: requests with an answer; attempts: calls made. errors: attempts that failed, by class. late_answers,
    duplicates: paid for and of no use. wall_seconds: how long inference was at work, in all its runs, by inferd's
    clock.
    """

    models: int
    datasets: int
    tasks: int
    pairs: int
    pairs_scored: int
    docs: int
    docs_scored: int
    instances: int
    requests: int
    answered: int
    attempts: int
    coverage: float
    outcomes: dict[str, int]
    errors: dict[str, int]
    late_answers: int
    duplicates: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    wall_seconds: float | None


def covered(result: PairResult) -> float:
    """Docs with a score; one that lacks some repeats counts as the share of them that was answered."""
    return result.coverage * result.n_docs if result.n_partial else result.n_scored


def counts_of(plan: Plan, statuses: Mapping[Pair, Sequence[InferStatus]], results: Mapping[Pair, PairResult]) -> Counts:
    known = [status for found in statuses.values() for status in found]
    outcomes: dict[str, int] = {}
    errors: dict[str, int] = {}
    for status in known:
        for outcome, count in status.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        for error, count in status.errors.items():
            errors[error] = errors.get(error, 0) + count
    docs = sum(pair.docs for pair in plan.pairs)
    docs_scored = sum(result.n_scored for result in results.values())
    return Counts(
        models=len({pair.model for pair in plan.pairs}),
        datasets=len(plan.datasets),
        tasks=sum(dataset.docs for dataset in plan.datasets),
        pairs=len(plan.pairs),
        pairs_scored=len(results),
        docs=docs,
        docs_scored=docs_scored,
        instances=sum(pair.instances for pair in plan.pairs),
        requests=sum(pair.requests for pair in plan.pairs),
        answered=sum(outcomes.values()),
        attempts=sum(status.attempts for status in known),
        coverage=sum(map(covered, results.values())) / docs if docs else 0.0,
        outcomes=dict(sorted(outcomes.items())),
        errors=dict(sorted(errors.items())),
        late_answers=sum(status.late_answers for status in known),
        duplicates=sum(status.duplicates for status in known),
        prompt_tokens=sum(status.prompt_tokens for status in known),
        completion_tokens=sum(status.completion_tokens for status in known),
        cost=sum(status.cost for status in known),
        wall_seconds=_wall_seconds(known),
    )


def _wall_seconds(statuses: Sequence[InferStatus]) -> float | None:
    """How long at least one shard was at work: the union of their times, so that a pause between two runs isn't in it.

    None when nothing has begun yet, or the clock that stamped them was set back in between.
    """
    try:
        spans = sorted(
            (datetime.fromisoformat(start), datetime.fromisoformat(end))
            for status in statuses
            for start, end in status.spans
        )
        if not spans or any(end < start for start, end in spans):
            return None
        total, until = 0.0, spans[0][0]
        for start, end in spans:
            total += max((end - max(start, until)).total_seconds(), 0.0)
            until = max(until, end)
    except (ValueError, TypeError):  # stamps that are none, or of which only some name their zone
        return None
    return total


def faults_of(
    plan: Plan,
    statuses: Mapping[Pair, Sequence[InferStatus]],
    results: Mapping[Pair, PairResult],
    reasons: Mapping[Pair, str],
) -> tuple[Fault, ...]:
    faults = []
    for pair in plan.pairs:
        key = (pair.model, pair.dataset)
        result = results.get(key)
        failed = [status for status in statuses.get(key, ()) if status.state == "fail"]
        for status in failed:
            faults.append(Fault(model=pair.model, dataset=pair.dataset, stage="infer", reason=status.reason))
        if result is None:
            if not failed and reasons.get(key):
                faults.append(Fault(model=pair.model, dataset=pair.dataset, stage="score", reason=reasons[key]))
            continue
        for error in result.score_errors:
            reason = f"{error.task_id}: {error.reason}"
            faults.append(Fault(model=pair.model, dataset=pair.dataset, stage="task", reason=reason))
    return tuple(faults)
