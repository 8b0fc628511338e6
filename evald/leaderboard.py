"""From pairs' results to the leaderboard, groups of datasets, and what stands beside them. Pure: everything comes in as
values.

A model ranks only when all of its pairs were scored: a mean over fewer datasets is another number. Models whose rank
value is the same share a rank. What is missing is counted and named, never filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from evald.account import Counts, Fault, Pair, counts_of, faults_of
from evald.calibration import Calibration
from evald.comparisons import Comparisons, CorpusRow, PairedRow, flips, rank_ranges
from evald.results import CategoryResult, MetricResult, PairResult, Served
from evald.stats import Estimate, Interval, interval, macro_mean, micro_mean, weighted_mean
from shared.records import InferStatus, Plan, PlanGroup, PlanPair, Record


class MetricFigures(Struct, frozen=True, kw_only=True):
    """One metric of a pair: the mean over docs, and the value over the whole dataset where the metric has one."""

    name: str
    n: int
    mean: float | None
    stderr: float | None
    interval: Interval | None
    corpus: float | None = None
    corpus_stderr: float | None = None
    corpus_interval: Interval | None = None


class Cell(Struct, frozen=True, kw_only=True):
    """A model's standing on one dataset. state `scored` has the numbers; any other has the reason why it hasn't.

    clusters: over so many the standard error is taken, None where each doc is its own. outcomes: requests by how they
    ended; answered: those with an answer; unextracted: answers in which post-processing found nothing, unextracted_at:
    at which step. metrics: every metric, the headline included. served_changed: the served model or the fingerprint
    changed within the pair; served_models and system_fingerprints say between which.
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
    clusters: int | None = None
    coverage: float = 0.0
    metrics: tuple[MetricFigures, ...] = ()
    categories: tuple[CategoryResult, ...] = ()
    outcomes: dict[str, int] = {}
    answered: int = 0
    unextracted: int = 0
    unextracted_at: dict[str, int] = {}
    served_changed: bool = False
    served_models: Served = Served()
    system_fingerprints: Served = Served()


class Standing(Struct, frozen=True, kw_only=True):
    """A row of the leaderboard, ranked by `score`: the mean over datasets, each of the same weight (macro).

    micro: the mean over all docs of all datasets. Both come with standard errors of the same estimator. rank_best,
    rank_worst: the ranks that comparisons with the other models leave open; None where it wasn't compared with all of
    them. could_flip: the models before or behind which missing docs could put it. bounds: the score if all docs without
    one were wrong, and if they were right. complete: every pair was scored and every doc has a score. coverage: docs
    with a score, of the docs planned.
    """

    rank: int | None
    rank_best: int | None = None
    rank_worst: int | None = None
    could_flip: tuple[str, ...] = ()
    model: str
    score: float | None
    stderr: float | None
    interval: Interval | None
    bounds: Interval | None = None
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


class Figure(Struct, frozen=True):
    """A mean with what belongs to the same estimator."""

    mean: float | None
    stderr: float | None
    interval: Interval | None


class GroupRow(Struct, frozen=True, kw_only=True):
    """A model on a group of datasets. macro: each dataset of the same weight; micro: over all docs; weighted: by the
    group's weights, None where it has none. All None as soon as one dataset has no score.
    """

    group: str
    model: str
    datasets: int
    datasets_scored: int
    n: int
    macro: Figure
    micro: Figure
    weighted: Figure | None


class Report(Record, frozen=True, kw_only=True):
    """`summary/report.json`."""

    ranked_by: str = "score: mean over datasets, each of the same weight (macro)"
    leaderboard: tuple[Standing, ...]
    groups: tuple[GroupRow, ...] = ()
    pairwise: tuple[PairedRow, ...]
    corpus_pairwise: tuple[CorpusRow, ...] = ()
    pairs_not_compared: int = 0
    corpus_pairs_not_compared: int = 0
    draws: int = 0
    calibration: dict[str, Calibration]
    summary: Counts
    errors: tuple[Fault, ...]


def build_report(
    plan: Plan,
    statuses: Mapping[Pair, Sequence[InferStatus]],
    results: Mapping[Pair, PairResult],
    reasons: Mapping[Pair, str],
    comparisons: Comparisons,
    calibration: Mapping[str, Calibration],
) -> Report:
    """reasons: of pairs without a result, why. comparisons: as `evald.comparisons.compare` makes them. calibration: of
    each model over all its answers. The results need hold neither their own calibration nor resamples.
    """
    models = list(dict.fromkeys(pair.model for pair in plan.pairs))
    by_model: dict[str, list[PlanPair]] = {model: [] for model in models}
    for pair in plan.pairs:
        by_model[pair.model].append(pair)
    standings = _ranked([_standing(model, by_model[model], results, reasons) for model in models])
    return Report(
        leaderboard=_placed(standings, comparisons),
        groups=tuple(_group(group, model, results) for group in plan.groups for model in models),
        pairwise=comparisons.rows,
        corpus_pairwise=comparisons.corpus,
        pairs_not_compared=comparisons.left_out,
        corpus_pairs_not_compared=comparisons.corpus_left_out,
        draws=comparisons.draws,
        calibration={model: calibration[model] for model in models if model in calibration},
        summary=counts_of(plan, statuses, results),
        errors=faults_of(plan, statuses, results, reasons),
    )


def _standing(
    model: str, pairs: Sequence[PlanPair], results: Mapping[Pair, PairResult], reasons: Mapping[Pair, str]
) -> Standing:
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
        bounds=_mean_bounds([result.bounds if result is not None else None for result in found.values()]),
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
    if result is None:
        return Estimate(0, None, None)
    return Estimate(result.n_scored, result.mean, result.stderr, result.clusters)


def _mean_bounds(found: Sequence[Interval | None]) -> Interval | None:
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    return Interval(sum(one.low for one in known) / len(known), sum(one.high for one in known) / len(known))


def _group(group: PlanGroup, model: str, results: Mapping[Pair, PairResult]) -> GroupRow:
    found = [results.get((model, dataset)) for dataset in group.datasets]
    estimates = [_estimate(result) for result in found]
    return GroupRow(
        group=group.name,
        model=model,
        datasets=len(found),
        datasets_scored=sum(result is not None for result in found),
        n=sum(estimate.n for estimate in estimates),
        macro=_figure(macro_mean(estimates)),
        micro=_figure(micro_mean(estimates)),
        weighted=_figure(weighted_mean(estimates, group.weights)) if group.weights else None,
    )


def _figure(estimate: Estimate) -> Figure:
    return Figure(estimate.mean, estimate.stderr, interval(estimate))


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
        clusters=result.clusters.count if result.clusters is not None else None,
        metrics=tuple(_figures(metric) for metric in result.metrics),
        categories=result.categories,
        n=result.n_scored,
        n_docs=result.n_docs,
        coverage=result.coverage,
        outcomes=result.outcomes,
        answered=result.answered,
        unextracted=result.unextracted,
        unextracted_at=result.unextracted_at,
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


def _placed(standings: Sequence[Standing], comparisons: Comparisons) -> tuple[Standing, ...]:
    """With what the comparisons leave open of the ranks."""
    ranges = rank_ranges({standing.model: standing.rank for standing in standings}, comparisons.rows)
    turned = flips(comparisons.rows)
    placed = []
    for standing in standings:
        best, worst = ranges.get(standing.model, (None, None))
        could_flip = turned.get(standing.model, ()) if standing.rank is not None else ()
        placed.append(replace(standing, rank_best=best, rank_worst=worst, could_flip=could_flip))
    return tuple(placed)


def _figures(metric: MetricResult) -> MetricFigures:
    value = metric.corpus.get("value") if metric.corpus is not None else None
    return MetricFigures(
        name=metric.name,
        n=metric.n,
        mean=metric.mean,
        stderr=metric.stderr,
        interval=metric.interval,
        corpus=float(value) if isinstance(value, int | float) else None,
        corpus_stderr=metric.corpus_stderr,
        corpus_interval=metric.corpus_interval,
    )
