"""What stands below the leaderboard, each as (head, rows of text): groups, pairs of models, metrics, categories,
reliability. Long tables are cut; `left_out` says by how much, and report.json holds all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from evald.comparisons import PairedRow
from evald.leaderboard import Cell, MetricFigures, Report
from evald.report import numbers
from evald.sandbox.failure import FAILURES

SHOWN = 45  # rows
SHOWN_MODELS = 8  # beside each other
SHOWN_REASON = 100  # characters


class Table(NamedTuple):
    """left_out: rows, or models, of which report.json tells more. unmade: rows that nobody computed."""

    head: list[str]
    rows: list[list[str]]
    left_out: int = 0
    unmade: int = 0


_PAIR = ["first", "second", "difference", "95 %", "p", "p (Holm)", "separable", "detectable", "docs"]


def groups(report: Report) -> Table:
    rows = [
        [
            row.group,
            row.model,
            f"{row.datasets_scored}/{row.datasets}",
            str(row.n),
            numbers.with_error(row.macro.mean, row.macro.stderr),
            numbers.with_error(row.micro.mean, row.micro.stderr),
            numbers.with_error(row.weighted.mean, row.weighted.stderr) if row.weighted is not None else numbers.UNKNOWN,
        ]
        for row in report.groups
    ]
    return _cut(["group", "model", "datasets", "docs", "macro", "micro", "weighted"], rows)


def pairs(report: Report) -> Table:
    """In the order of the leaderboard; the first of two is the one that stands higher."""
    place = {standing.model: at for at, standing in enumerate(report.leaderboard)}
    ordered = sorted(
        report.pairwise,
        key=lambda row: (
            max(place.get(row.first, 0), place.get(row.second, 0)),
            min(place.get(row.first, 0), place.get(row.second, 0)),
        ),
    )
    rows = (_pair(row, swapped=place.get(row.first, 0) > place.get(row.second, 0)) for row in ordered)
    return _cut(_PAIR, rows, len(ordered), report.pairs_not_compared)


def dataset_pairs(report: Report) -> Table:
    """Dataset by dataset, in the order of the suite; then as `pairs`."""
    place = {standing.model: at for at, standing in enumerate(report.leaderboard)}
    rows = [
        [row.dataset, *_pair(row, swapped=place.get(row.first, 0) > place.get(row.second, 0))]
        for row in islice(report.pairwise_by_dataset, SHOWN)
    ]
    return _cut(["dataset", *_PAIR], iter(rows), len(report.pairwise_by_dataset), report.dataset_pairs_not_compared)


def corpus_pairs(report: Report) -> Table:
    rows = (
        [
            row.dataset,
            row.metric,
            row.first,
            row.second,
            numbers.amount(row.difference, row.stderr, percent=row.percent, sign="+"),
            numbers.amounts(row.interval, percent=row.percent),
            numbers.chance(row.p),
            numbers.chance(row.p_holm),
        ]
        for row in report.corpus_pairwise
    )
    head = ["dataset", "metric", "first", "second", "difference", "95 %", "p", "p (Holm)"]
    return _cut(head, rows, len(report.corpus_pairwise), report.corpus_pairs_not_compared)


def metrics(report: Report) -> Table:
    """Of the pairs that have more to tell than the headline's mean."""
    rows = [
        [standing.model, dataset, *_metric(metric)]
        for standing in report.leaderboard
        for dataset, cell in standing.datasets.items()
        if len(cell.metrics) > 1 or any(metric.corpus is not None or metric.n_errors for metric in cell.metrics)
        for metric in cell.metrics
    ]
    head = ["model", "dataset", "metric", "docs", "score", "95 %", "bounds", "whole dataset", "95 %", "no score"]
    return _cut(head, rows)


def failures(report: Report) -> Table:
    """Of the metrics that tell why an answer is wrong: a column for each reason that any pair has."""
    found = [
        (standing.model, dataset, metric)
        for standing in report.leaderboard
        for dataset, cell in standing.datasets.items()
        for metric in cell.metrics
        if metric.failures
    ]
    named = {name for _, _, metric in found for name in metric.failures}
    reasons = [*(name for name in FAILURES if name in named), *sorted(named - set(FAILURES))]
    rows = [
        [model, dataset, metric.name, *(str(metric.failures.get(name, 0)) for name in reasons)]
        for model, dataset, metric in found
    ]
    return _cut(["model", "dataset", "metric", *reasons], rows)


def categories(report: Report) -> Table:
    """A row for each category, a column for each model; of datasets that have several categories."""
    models = report.leaderboard[:SHOWN_MODELS]
    names = {
        (dataset, category.category): None
        for standing in models
        for dataset, cell in standing.datasets.items()
        if len(cell.categories) > 1
        for category in cell.categories
    }
    rows = [
        [
            dataset,
            category or numbers.UNKNOWN,
            *(_category(standing.datasets.get(dataset), category) for standing in models),
        ]
        for dataset, category in names
    ]
    return _cut(["dataset", "category", *(standing.model for standing in models)], rows)


def reliability(report: Report) -> Table:
    """A row for each bin of equal width that any model uses, a column for each model."""
    known = [(model, calibration) for model, calibration in report.calibration.items() if calibration.n]
    shown = known[:SHOWN_MODELS]
    if not shown:
        return Table([], [])
    rows = []
    for at, bin_ in enumerate(shown[0][1].table):
        cells = [calibration.table[at] for _, calibration in shown if at < len(calibration.table)]
        if any(cell.n for cell in cells):
            texts = [
                f"{numbers.plain(cell.accuracy, 2)} / {numbers.plain(cell.mean_confidence, 2)} ({cell.n})"
                if cell.n
                else numbers.UNKNOWN
                for cell in cells
            ]
            rows.append([f"{bin_.lo:.2f} to {bin_.hi:.2f}", *texts])
    return Table(["confidence", *(model for model, _ in shown)], rows, len(known) - len(shown))


def _pair(row: PairedRow, *, swapped: bool) -> list[str]:
    first, second, sign = (row.second, row.first, -1) if swapped else (row.first, row.second, 1)
    difference = None if row.difference is None else sign * row.difference
    separable = {True: "yes", False: "no", None: numbers.UNKNOWN}[row.separable]
    return [
        first,
        second,
        numbers.points(difference, row.stderr),
        numbers.span(row.interval, sign=sign),
        numbers.chance(row.p),
        numbers.chance(row.p_holm),
        separable + ("*" if row.could_flip else ""),
        numbers.score(row.detectable),
        str(row.n),
    ]


def _metric(metric: MetricFigures) -> Sequence[str]:
    lacking = metric.n < metric.n_docs or metric.n_partial
    star = "*" if lacking and metric.corpus is not None else ""
    return (
        metric.name,
        numbers.docs(metric.n, metric.n_docs, metric.n_partial),
        numbers.with_error(metric.mean, metric.stderr),
        numbers.span(metric.interval),
        numbers.span(metric.bounds) if lacking else numbers.UNKNOWN,
        numbers.amount(metric.corpus, metric.corpus_stderr, percent=metric.corpus_percent) + star,
        numbers.amounts(metric.corpus_interval, percent=metric.corpus_percent),
        f"{metric.n_errors}: {metric.reason[:SHOWN_REASON]}" if metric.n_errors else "",
    )


def _category(cell: Cell | None, category: str) -> str:
    found = next((one for one in cell.categories if one.category == category), None) if cell is not None else None
    if found is None:
        return numbers.UNKNOWN
    told = numbers.with_error(found.mean, found.stderr) + (f" [{numbers.span(found.interval)}]" if found.n else "")
    text = f"{told} of {numbers.docs(found.n, found.n_docs, found.n_partial)}"
    whole = found.n == found.n_docs and not found.n_partial
    return text if whole else f"{text}, bounds {numbers.span(found.bounds)}"


def _cut(head: list[str], rows: Iterable[list[str]], total: int | None = None, unmade: int = 0) -> Table:
    """total: how many rows there are, where they aren't a list. unmade: how many more there could be."""
    if isinstance(rows, list):
        total = len(rows)
    shown = list(islice(rows, SHOWN))
    return Table(head, shown, (total or 0) - len(shown), unmade)
