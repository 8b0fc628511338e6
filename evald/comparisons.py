"""Every two models against each other, over the docs that both have: the rows of the report's pair tables, over all
datasets and on each, what they leave open of the ranks, and the same for corpus values such as BLEU. Pure.

A pair's difference is the mean of its differences on the common datasets, each of the same weight. What is computed
grows with the square of the models, so it is bounded: `chosen` says which models take part, `Comparisons.left_out` how
many pairs don't.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from evald.results import MetricResult, PairResult
from evald.stats import Interval
from evald.stats.corpus import compared
from evald.stats.draws import Floats
from evald.stats.overall import Overall, PairFigures
from evald.stats.paired import DRAWS, Comparison
from evald.stats.significance import ALPHA, holm

Pair = tuple[str, str]  # (model, dataset)

MAX_COMPARED = 40
"""Models compared with each other: the best, where there are more."""
MAX_CORPUS_COMPARED = 10
"""The same on every single dataset, and for values of whole datasets, on every dataset and metric."""
MAX_DATASET_ROWS = 10_000
"""Of pairs on single datasets; datasets that come later have none."""


class PairedRow(Struct, frozen=True, kw_only=True):
    """first's score minus second's, over the n docs that both have, on one dataset, or as a mean over their common
    datasets (dataset is "" then); None where there is nothing in common.

    interval: 95 %. p_bootstrap, p_permutation: two-sided. p_mcnemar: where all scores are right or wrong and no doc is
    in a cluster; only_first, only_second: the docs that one alone has right. p: the one of these that decides
    (docs/statistics.md); p_holm: adjusted for all rows of its table. separable: p_holm < 0.05. detectable: the smallest
    true difference that so many docs show with a power of 0.8. bounds: the difference if the docs that miss a score,
    and the repeats without an answer, were wrong for one and right for the other. could_flip: it lies on both sides of
    0, so what is missing may turn the order.
    """

    dataset: str = ""
    first: str
    second: str
    n: int
    datasets: int
    difference: float | None
    stderr: float | None
    interval: Interval | None
    p_bootstrap: float | None = None
    p_permutation: float | None = None
    p_mcnemar: float | None = None
    only_first: int | None = None
    only_second: int | None = None
    p: float | None = None
    p_holm: float | None = None
    separable: bool | None = None
    detectable: float | None = None
    bounds: Interval | None = None
    could_flip: bool = False


class CorpusRow(Struct, frozen=True, kw_only=True):
    """Two models' values of a metric over a whole dataset (corpus BLEU): the first's minus the second's.

    interval, stderr and p by paired bootstrap over the same docs, None where that can't be told (one doc or cluster);
    p_holm over all rows of the table. percent: whether the values are shares.
    """

    dataset: str
    metric: str
    percent: bool = True
    first: str
    second: str
    difference: float
    stderr: float | None
    interval: Interval | None
    p: float | None
    p_holm: float | None = None


class Comparisons(Struct, frozen=True, kw_only=True):
    """rows: over all datasets; by_dataset: on each, where there are several. left_out: pairs of models that weren't
    compared, since there are too many; dataset_left_out, corpus_left_out: the same on single datasets, and of corpus
    values. draws: of bootstrap and permutation.
    """

    rows: tuple[PairedRow, ...] = ()
    by_dataset: tuple[PairedRow, ...] = ()
    corpus: tuple[CorpusRow, ...] = ()
    left_out: int = 0
    dataset_left_out: int = 0
    corpus_left_out: int = 0
    draws: int = DRAWS


class Scores(NamedTuple):
    """The headline scores of one dataset. chunks: (the docs' clusters, scores of shape (docs, models) with NaN where
    there is none), in the order of the docs.
    """

    dataset: str
    models: Sequence[str]
    chunks: Iterable[tuple[Sequence[str], Floats]]


def chosen(models: Sequence[str], results: Mapping[Pair, PairResult], limit: int | None = None) -> list[str]:
    """The models that are compared, in the given order: all, or where there are more than `limit` (MAX_COMPARED) those
    with the most scored pairs and, of these, those that lack no doc's score, and the best.
    """
    found: dict[str, list[float]] = {model: [] for model in models}
    for (model, _), result in results.items():
        if result.mean is not None:
            found[model].append(result.mean)
    lacking = {model for (model, _), result in results.items() if result.n_scored < result.n_docs}
    best = sorted(models, key=lambda m: (-len(found[m]), m in lacking, -sum(found[m]) / max(len(found[m]), 1), m))
    kept = set(best[: MAX_COMPARED if limit is None else limit])
    return [model for model in models if model in kept]


def compare(
    models: Sequence[str],
    results: Mapping[Pair, PairResult],
    datasets: Iterable[Scores],
    resampled: Mapping[Pair, PairResult],
    draws: int = DRAWS,
) -> Comparisons:
    """models: all there are, in the plan's order. datasets: each once, the scores of those models that `chosen`
    names. resampled: the results with their resamples, of those that `chosen` names up to MAX_CORPUS_COMPARED.
    """
    some, best = chosen(models, results), set(chosen(models, results, MAX_CORPUS_COMPARED))
    overall, having = Overall(len(some), draws), Counter(dataset for _, dataset in results)
    alone: list[PairedRow] = []
    met = 0
    for scores in datasets:
        comparison = Comparison(scores.dataset, len(scores.models))
        for clusters, chunk in scores.chunks:
            comparison.add(clusters, chunk)
        sums = comparison.result(draws)
        bounds = [_bounds(results.get((model, scores.dataset))) for model in scores.models]
        overall.add([some.index(model) for model in scores.models], sums, bounds)
        met += 1
        kept = [at for at, model in enumerate(scores.models) if model in best]
        if len(alone) + _pairs(len(kept)) <= MAX_DATASET_ROWS:
            own = Overall(len(kept), draws)
            own.add(range(len(kept)), sums.among(kept, len(scores.models)), [bounds[at] for at in kept])
            names = [scores.models[at] for at in kept]
            alone += _rows(names, own, scores.dataset)
    rows = _rows(some, overall)
    corpus, corpus_left_out = corpus_rows(models, results, resampled)
    return Comparisons(
        rows=_decided(rows),
        by_dataset=_decided(alone) if met > 1 else (),
        corpus=tuple(replace(row, p_holm=p) for row, p in zip(corpus, holm([row.p for row in corpus]), strict=True)),
        left_out=_pairs(len(models)) - len(rows),
        dataset_left_out=sum(map(_pairs, having.values())) - len(alone) if met > 1 else 0,
        corpus_left_out=corpus_left_out,
        draws=draws,
    )


def _pairs(models: int) -> int:
    return models * (models - 1) // 2


def _rows(models: Sequence[str], overall: Overall, dataset: str = "") -> list[PairedRow]:
    return [_row(dataset, models[first], models[second], found) for first, second, found in overall.results()]


def _decided(rows: Sequence[PairedRow]) -> tuple[PairedRow, ...]:
    """The rows of a table, each p adjusted for all of them."""
    return tuple(
        replace(row, p_holm=p, separable=None if p is None else p < ALPHA)
        for row, p in zip(rows, holm([row.p for row in rows]), strict=True)
    )


def corpus_rows(
    models: Sequence[str], results: Mapping[Pair, PairResult], resampled: Mapping[Pair, PairResult]
) -> tuple[list[CorpusRow], int]:
    """The rows of every metric that has resamples, over datasets of which both models have every answer to every doc
    that names it (else their values are of other segments); and how many there would be more with all models.
    """
    having = Counter(
        (dataset, metric.name)
        for (_, dataset), result in results.items()
        for metric in result.metrics
        if metric.corpus_stderr is not None and _whole(metric)
    )
    metrics: dict[tuple[str, str], dict[str, MetricResult]] = {key: {} for key in having}
    clusters = {key: result.clusters.count for key, result in resampled.items() if result.clusters is not None}
    for (model, dataset), result in resampled.items():
        for metric in result.metrics:
            if metric.resamples and metric.corpus is not None and _whole(metric):
                metrics[dataset, metric.name][model] = metric
    rows, left_out = [], 0
    for (dataset, name), found in metrics.items():
        draws = {model: np.array(metric.resamples, np.float64) for model, metric in found.items()}
        left_out += _pairs(having[dataset, name]) - _pairs(len(found))
        for first, second in combinations([model for model in models if model in found], 2):
            one, two = found[first], found[second]
            if (one.version, one.params, one.n) != (two.version, two.params, two.n):
                continue
            units = min(one.n, *(clusters.get((model, dataset), one.n) for model in (first, second)))
            told = compared(_value(one), _value(two), draws[first], draws[second], units)
            if told is not None:
                rows.append(
                    CorpusRow(
                        dataset=dataset,
                        metric=name,
                        percent=one.percent,
                        first=first,
                        second=second,
                        difference=told.difference,
                        stderr=told.stderr,
                        interval=told.interval,
                        p=told.p_bootstrap,
                    )
                )
    return rows, left_out


def rank_ranges(ranks: Mapping[str, int | None], rows: Iterable[PairedRow]) -> dict[str, tuple[int, int]]:
    """model -> (best, worst) rank that the comparisons leave open: a model is surely behind those only that are
    separably better, whatever the missing repeats would have shown. Of ranked models that were all compared with each
    other; of others nothing.
    """
    ranked = [model for model, rank in ranks.items() if rank is not None]
    better = dict.fromkeys(ranked, 0)
    worse = dict.fromkeys(ranked, 0)
    seen = dict.fromkeys(ranked, 0)
    for row in rows:
        if row.first not in better or row.second not in better or row.separable is None:
            continue
        for model in (row.first, row.second):
            seen[model] += 1
        if row.separable and not row.could_flip:
            ahead, behind = (row.first, row.second) if (row.difference or 0.0) > 0 else (row.second, row.first)
            worse[ahead] += 1
            better[behind] += 1
    return {
        model: (1 + better[model], len(ranked) - worse[model]) for model in ranked if seen[model] == len(ranked) - 1
    }


def flips(rows: Iterable[PairedRow]) -> dict[str, tuple[str, ...]]:
    """model -> the models before or behind which what is missing could put it; of those that lack something."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.could_flip:
            found.setdefault(row.first, []).append(row.second)
            found.setdefault(row.second, []).append(row.first)
    return {model: tuple(others) for model, others in found.items()}


def _row(dataset: str, first: str, second: str, found: PairFigures) -> PairedRow:
    low, high = (found.bounds.low, found.bounds.high) if found.bounds is not None else (0.0, 0.0)
    return PairedRow(
        dataset=dataset,
        first=first,
        second=second,
        n=found.n,
        datasets=found.datasets,
        difference=found.mean,
        stderr=found.stderr,
        interval=found.interval,
        p_bootstrap=found.p_bootstrap,
        p_permutation=found.p_permutation,
        p_mcnemar=found.p_mcnemar,
        only_first=found.only_first,
        only_second=found.only_second,
        p=found.p,
        detectable=found.detectable,
        bounds=found.bounds,
        could_flip=low < high and low <= 0.0 <= high,
    )


def _bounds(result: PairResult | None) -> Interval | None:
    return result.bounds if result is not None else None


def _whole(metric: MetricResult) -> bool:
    return metric.n == metric.n_docs and not metric.n_partial


def _value(metric: MetricResult) -> float:
    return float((metric.corpus or {})["value"])
