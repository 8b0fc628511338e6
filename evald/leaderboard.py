"""From pairs' results to the leaderboard, the paired differences and the counts. Pure: everything comes in as values.

A model ranks only when all of its pairs were scored: a mean over fewer datasets is another number. Models whose rank
value is the same share a rank. What is missing is counted and named, never filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import combinations
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from evald.calibration import Calibration, CalibrationBuffer
from evald.results import PairResult, Served
from evald.stats import (
    Difference,
    Estimate,
    Interval,
    interval,
    macro_difference,
    macro_mean,
    micro_mean,
    paired_difference,
)
from shared.records import InferStatus, Plan, PlanPair, Record

Pair = tuple[str, str]  # (model, dataset)


class Cell(Struct, frozen=True, kw_only=True):
    """A model's standing on one dataset. state `scored` has the numbers; any other has the reason why it hasn't.

    outcomes: requests by how they ended. served_changed: the served model or the fingerprint changed within the pair;
    served_models and system_fingerprints say between which.
    """

    state: Literal["scored", "missing"]
    reason: str = ""
    metric: str = ""
    mean: float | None = None
    stderr: float | None = None
    interval: Interval | None = None
    bounds: Interval | None = None
    n: int = 0
    n_docs: int = 0
    coverage: float = 0.0
    outcomes: dict[str, int] = {}
    served_changed: bool = False
    served_models: Served = Served()
    system_fingerprints: Served = Served()


class Standing(Struct, frozen=True, kw_only=True):
    """A row of the leaderboard, ranked by `score`: the mean over datasets, each of the same weight (macro).

    micro: the mean over all docs of all datasets. Both come with standard errors of the same estimator. complete: every
    pair was scored and every doc has a score. coverage: docs with a score, of the docs planned.
    """

    rank: int | None
    model: str
    score: float | None
    stderr: float | None
    interval: Interval | None
    micro: float | None
    micro_stderr: float | None
    micro_interval: Interval | None
    complete: bool
    coverage: float
    pairs_scored: int
    pairs: int
    n_docs: int
    n_scored: int
    datasets: dict[str, Cell]


class PairedRow(Struct, frozen=True, kw_only=True):
    """first's score minus second's, over the docs that both have, as a mean over their common datasets.

    interval: 95 %. separable: it doesn't hold 0. None where there is nothing in common.
    """

    first: str
    second: str
    n: int
    datasets: int
    difference: float | None
    stderr: float | None
    interval: Interval | None
    separable: bool | None


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


class Report(Record, frozen=True, kw_only=True):
    """`summary/report.json`."""

    ranked_by: str = "score: mean over datasets, each of the same weight (macro)"
    leaderboard: tuple[Standing, ...]
    pairwise: tuple[PairedRow, ...]
    calibration: dict[str, Calibration]
    summary: Counts
    errors: tuple[Fault, ...]


Scores = Mapping[str, float]  # task_id -> headline score


def build_report(
    plan: Plan,
    statuses: Mapping[Pair, Sequence[InferStatus]],
    results: Mapping[Pair, PairResult],
    reasons: Mapping[Pair, str],
    pairwise: Iterable[PairedRow],
) -> Report:
    """reasons: of pairs without a result, why. pairwise: as `paired_rows` makes them."""
    models = list(dict.fromkeys(pair.model for pair in plan.pairs))
    standings = [_standing(model, plan, results, reasons) for model in models]
    return Report(
        leaderboard=_ranked(standings),
        pairwise=tuple(pairwise),
        calibration={
            model: calibration for model in models if (calibration := _calibration(model, results)) is not None
        },
        summary=_counts(plan, statuses, results),
        errors=_faults(plan, statuses, results, reasons),
    )


def paired_rows(models: Sequence[str], by_dataset: Iterable[Mapping[str, Scores]]) -> list[PairedRow]:
    """Every two models compared on what both have. by_dataset: for each dataset, the scores of each model that
    has any.
    """
    differences: dict[tuple[str, str], list[Difference]] = {couple: [] for couple in combinations(models, 2)}
    for scores in by_dataset:
        for first, second in differences:
            if first in scores and second in scores:
                difference = paired_difference(scores[first], scores[second])
                if difference.n:
                    differences[first, second].append(difference)
    return [_paired_row(first, second, found) for (first, second), found in differences.items()]


def _paired_row(first: str, second: str, found: list[Difference]) -> PairedRow:
    whole = found[0] if len(found) == 1 else macro_difference(found)
    separable = None if whole.interval is None else not whole.interval.low <= 0.0 <= whole.interval.high
    return PairedRow(
        first=first,
        second=second,
        n=whole.n,
        datasets=len(found),
        difference=whole.mean,
        stderr=whole.stderr,
        interval=whole.interval,
        separable=separable,
    )


def _standing(model: str, plan: Plan, results: Mapping[Pair, PairResult], reasons: Mapping[Pair, str]) -> Standing:
    pairs = [pair for pair in plan.pairs if pair.model == model]
    found = {pair.dataset: results.get((model, pair.dataset)) for pair in pairs}
    estimates = [_estimate(result) for result in found.values()]
    macro, micro = macro_mean(estimates), micro_mean(estimates)
    scored = [result for result in found.values() if result is not None]
    n_docs = sum(pair.docs for pair in pairs)
    n_scored = sum(result.n_scored for result in scored)
    alone = scored[0] if len(pairs) == 1 and scored else None
    return Standing(
        rank=None,
        model=model,
        score=macro.mean,
        stderr=macro.stderr,
        interval=alone.interval if alone is not None else interval(macro),
        micro=micro.mean,
        micro_stderr=micro.stderr,
        micro_interval=alone.interval if alone is not None else interval(micro),
        complete=n_scored == n_docs,
        coverage=n_scored / n_docs if n_docs else 0.0,
        pairs_scored=len(scored),
        pairs=len(pairs),
        n_docs=n_docs,
        n_scored=n_scored,
        datasets={
            pair.dataset: _cell(pair, found[pair.dataset], reasons.get((model, pair.dataset), "")) for pair in pairs
        },
    )


def _estimate(result: PairResult | None) -> Estimate:
    return Estimate(0, None, None) if result is None else Estimate(result.n_scored, result.mean, result.stderr)


def _cell(pair: PlanPair, result: PairResult | None, reason: str) -> Cell:
    if result is None:
        return Cell(state="missing", reason=reason or "not scored yet", n_docs=pair.docs)
    return Cell(
        state="scored",
        reason="" if result.n_scored else "no scorable samples",
        metric=result.metric,
        mean=result.mean,
        stderr=result.stderr,
        interval=result.interval,
        bounds=result.bounds,
        n=result.n_scored,
        n_docs=result.n_docs,
        coverage=result.coverage,
        outcomes=result.outcomes,
        served_changed=result.served_models.changed or result.system_fingerprints.changed,
        served_models=result.served_models,
        system_fingerprints=result.system_fingerprints,
    )


def _ranked(standings: Sequence[Standing]) -> tuple[Standing, ...]:
    """Best first; equal scores share a rank; models without a score come last, unranked."""
    order = sorted(standings, key=lambda s: (s.score is None, -(s.score or 0.0), s.model))
    ranked: list[Standing] = []
    for position, standing in enumerate(order, 1):
        if standing.score is None:
            ranked.append(standing)
            continue
        before = ranked[-1] if ranked else None
        rank = before.rank if before is not None and before.score == standing.score else position
        ranked.append(replace(standing, rank=rank))
    return tuple(ranked)


def _calibration(model: str, results: Mapping[Pair, PairResult]) -> Calibration | None:
    """Over all answers of the model; None when none of its pairs was scored."""
    whole: CalibrationBuffer | None = None
    for (owner, _), result in results.items():
        if owner == model:
            part = CalibrationBuffer.from_record(result.calibration)
            if whole is None:
                whole = part
            else:
                whole.merge(part)
    return whole.result() if whole is not None else None


def _counts(plan: Plan, statuses: Mapping[Pair, Sequence[InferStatus]], results: Mapping[Pair, PairResult]) -> Counts:
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
        coverage=docs_scored / docs if docs else 0.0,
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


def _faults(
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
