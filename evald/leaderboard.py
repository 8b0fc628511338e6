"""From pairs' results to the leaderboard, groups of datasets, and what stands beside them. Pure: everything comes in as
values.

A model ranks only when every doc of every pair has a score: a mean over fewer of them is another number. Those that
lack some stand below with their bounds. A doc that lacks some of its repeats has a score, of the others: its model
ranks, marked, and what the missing ones could turn is told. Models whose rank value is the same share a rank. What is
missing is counted and named, never filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from evald.account import Counts, Fault, Pair, counts_of, covered, faults_of
from evald.calibration import Calibration
from evald.comparisons import Comparisons, CorpusRow, PairedRow, flips, rank_ranges
from evald.results import CategoryResult, MetricResult, PairResult, Served
from evald.stats import Estimate, Interval, interval, macro_mean, micro_mean, weighted_mean
from shared.records import InferStatus, Limit, Plan, PlanGroup, PlanPair, Record

SAME = 1e-9
"""Scores that differ by no more are equal: the order in which docs were added up leaves far less."""


class MetricFigures(Struct, frozen=True, kw_only=True):
    """One metric of a pair: the mean over docs, and the value over the whole dataset where the metric has one.

    n: docs with a score, of the n_docs that name it; n_partial, coverage, bounds: as in Cell, over those. n_errors,
    reason: docs that it has no score of though they were answered, and why not, of the first. failures: answers that
    are wrong, by why, where the metric tells. corpus_percent: whether that is a share; a perplexity isn't.
    """

    name: str
    n: int
    n_docs: int = 0
    n_partial: int = 0
    coverage: float = 0.0
    mean: float | None
    stderr: float | None
    interval: Interval | None
    bounds: Interval | None = None
    n_errors: int = 0
    reason: str = ""
    failures: dict[str, int] = {}
    corpus: float | None = None
    corpus_percent: bool = True
    corpus_stderr: float | None = None
    corpus_interval: Interval | None = None


class Cell(Struct, frozen=True, kw_only=True):
    """A model's standing on one dataset. state `scored` has the numbers; any other has the reason why it hasn't.

    n_partial: docs with a score that lack some of their repeats. clusters: over so many the standard error is taken,
    None where each doc is its own. instances, requests: of the n_docs, as planned; attempts: calls that were made for
    them. outcomes: requests by how they ended; answered: those with an answer; unextracted:
    answers in which post-processing found nothing, unextracted_at: at which step. metrics: every metric, the headline
    included; categories: of the headline, `uncategorised` docs belong to none of them. served_changed: the served
    model or the fingerprint changed within the pair; served_models and system_fingerprints say between which.
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
    n_partial: int = 0
    clusters: int | None = None
    coverage: float = 0.0
    metrics: tuple[MetricFigures, ...] = ()
    categories: tuple[CategoryResult, ...] = ()
    uncategorised: int = 0
    instances: int = 0
    requests: int = 0
    attempts: int = 0
    outcomes: dict[str, int] = {}
    answered: int = 0
    unextracted: int = 0
    unextracted_at: dict[str, int] = {}
    served_changed: bool = False
    served_models: Served = Served()
    system_fingerprints: Served = Served()


class Standing(Struct, frozen=True, kw_only=True):
    """A row of the leaderboard, ranked by `score`: the mean over datasets, each of the same weight (macro). rank: None
    of a model that lacks a doc's score.

    micro: the mean over all docs of all datasets. Both come with standard errors of the same estimator. rank_best,
    rank_worst: the ranks that comparisons with the other models leave open; None where it wasn't compared with all of
    them. could_flip: the models before or behind which missing scores, of docs or of repeats, could put it. bounds: the
    score if all of these were wrong, and if they were right. complete: every pair was scored and every doc has a score
    over all its repeats. coverage: docs with a score, of the docs planned; one that lacks repeats (n_partial are such)
    counts as the share that was answered. not_met: datasets that others were asked and this model by the plan wasn't;
    with any its mean is over other datasets, and has no rank.
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
    not_met: int = 0
    n_docs: int
    n_scored: int
    n_partial: int = 0
    datasets: dict[str, Cell]


class Limited(Struct, frozen=True, kw_only=True):
    """A dataset of which not all is asked: docs of the rows that its source has, None where that isn't known, and by
    which limit. Its scores are those of a part.
    """

    dataset: str
    docs: int
    rows: int | None
    limit: Limit


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
    pairwise_by_dataset: tuple[PairedRow, ...] = ()
    corpus_pairwise: tuple[CorpusRow, ...] = ()
    pairs_not_compared: int = 0
    dataset_pairs_not_compared: int = 0
    corpus_pairs_not_compared: int = 0
    draws: int = 0
    calibration: dict[str, Calibration]
    limited: tuple[Limited, ...] = ()
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
    datasets = len({pair.dataset for pair in plan.pairs})
    standings = _ranked([_standing(model, by_model[model], datasets, results, reasons) for model in models])
    return Report(
        leaderboard=_placed(standings, comparisons),
        groups=tuple(_group(group, model, results) for group in plan.groups for model in models),
        pairwise=comparisons.rows,
        pairwise_by_dataset=comparisons.by_dataset,
        corpus_pairwise=comparisons.corpus,
        pairs_not_compared=comparisons.left_out,
        dataset_pairs_not_compared=comparisons.dataset_left_out,
        corpus_pairs_not_compared=comparisons.corpus_left_out,
        draws=comparisons.draws,
        calibration={model: calibration[model] for model in models if model in calibration},
        limited=tuple(
            Limited(dataset=one.abbr, docs=one.docs, rows=one.rows, limit=one.limit)
            for one in plan.datasets
            if one.limit is not None
        ),
        summary=counts_of(plan, statuses, results),
        errors=faults_of(plan, statuses, results, reasons),
    )


def _standing(
    model: str,
    pairs: Sequence[PlanPair],
    datasets: int,
    results: Mapping[Pair, PairResult],
    reasons: Mapping[Pair, str],
) -> Standing:
    """datasets: how many there are in the plan."""
    found = {pair.dataset: results.get((model, pair.dataset)) for pair in pairs}
    estimates = [_estimate(result) for result in found.values()]
    macro, micro = macro_mean(estimates), micro_mean(estimates)
    scored = [result for result in found.values() if result is not None]
    n_docs = sum(pair.docs for pair in pairs)
    n_scored = sum(result.n_scored for result in scored)
    n_partial = sum(result.n_partial for result in scored)
    alone = scored[0].interval if len(pairs) == 1 and scored else None
    return Standing(
        rank=None,
        model=model,
        score=macro.mean,
        stderr=macro.stderr,
        interval=alone or interval(macro),
        bounds=_mean_bounds([result.bounds if result is not None else None for result in found.values()]),
        micro=micro.mean,
        micro_stderr=micro.stderr,
        micro_interval=alone or interval(micro),
        complete=n_scored == n_docs and not n_partial,
        coverage=sum(map(covered, scored)) / n_docs if n_docs else 0.0,
        pairs_scored=len(scored),
        pairs=len(pairs),
        not_met=datasets - len(pairs),
        n_docs=n_docs,
        n_scored=n_scored,
        n_partial=n_partial,
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
    alone = found[0].interval if len(found) == 1 and found[0] is not None else None
    return GroupRow(
        group=group.name,
        model=model,
        datasets=len(found),
        datasets_scored=sum(result is not None for result in found),
        n=sum(estimate.n for estimate in estimates),
        macro=_figure(macro_mean(estimates), alone),
        micro=_figure(micro_mean(estimates), alone),
        weighted=_figure(weighted_mean(estimates, group.weights), alone) if group.weights else None,
    )


def _figure(estimate: Estimate, alone: Interval | None) -> Figure:
    """alone: the interval of the one dataset there is."""
    return Figure(estimate.mean, estimate.stderr, alone or interval(estimate))


def _cell(pair: PlanPair, result: PairResult | None, reason: str) -> Cell:
    if result is None:
        return Cell(
            state="missing",
            reason=reason or "not scored yet",
            n_docs=pair.docs,
            instances=pair.instances,
            requests=pair.requests,
        )
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
        uncategorised=result.uncategorised,
        instances=result.instances,
        requests=result.requests,
        attempts=result.attempts,
        n=result.n_scored,
        n_docs=result.n_docs,
        n_partial=result.n_partial,
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
    """Best first; equal scores share a rank, in the order of names. Then, unranked, models that lack scores but
    have some in every dataset, and the others.
    """
    able = sorted((s for s in standings if _ranks(s)), key=lambda s: -(s.score or 0.0))
    ranked: list[Standing] = []
    for position, standing in enumerate(able, 1):
        before = ranked[-1] if ranked else None
        same = before is not None and (before.score or 0.0) - (standing.score or 0.0) <= SAME
        ranked.append(replace(standing, rank=before.rank if before is not None and same else position))
    ranked.sort(key=lambda s: (s.rank or 0, s.model))
    others = [s for s in standings if not _ranks(s)]
    return (*ranked, *sorted(others, key=lambda s: (s.score is None, -(s.score or 0.0), s.model)))


def _ranks(standing: Standing) -> bool:
    return standing.score is not None and standing.n_scored == standing.n_docs and not standing.not_met


def _placed(standings: Sequence[Standing], comparisons: Comparisons) -> tuple[Standing, ...]:
    """With what the comparisons leave open of the ranks."""
    ranges = rank_ranges({standing.model: standing.rank for standing in standings}, comparisons.rows)
    turned = flips(comparisons.rows)
    placed = []
    for standing in standings:
        best, worst = ranges.get(standing.model, (None, None))
        could_flip = turned.get(standing.model, ()) if standing.score is not None else ()
        placed.append(replace(standing, rank_best=best, rank_worst=worst, could_flip=could_flip))
    return tuple(placed)


def _figures(metric: MetricResult) -> MetricFigures:
    value = metric.corpus.get("value") if metric.corpus is not None else None
    return MetricFigures(
        name=metric.name,
        n=metric.n,
        n_docs=metric.n_docs,
        n_partial=metric.n_partial,
        coverage=metric.coverage,
        mean=metric.mean,
        stderr=metric.stderr,
        interval=metric.interval,
        bounds=metric.bounds,
        failures=metric.failures,
        n_errors=metric.n_errors,
        reason=metric.reason,
        corpus=float(value) if isinstance(value, int | float) else None,
        corpus_percent=metric.percent,
        # Resamples that are all equal, as of one doc, tell of no error.
        corpus_stderr=metric.corpus_stderr if metric.corpus_interval is not None else None,
        corpus_interval=metric.corpus_interval,
    )
