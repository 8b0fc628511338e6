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

SHOWN = 45  # rows
SHOWN_MODELS = 8  # beside each other
SHOWN_REASON = 100  # characters


class Table(NamedTuple):
    """left_out: rows, or models, of which report.json tells more. unmade: rows that nobody computed."""

    head: list[str]
    rows: list[list[str]]
    left_out: int = 0
    unmade: int = 0


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
    head = ["first", "second", "difference", "95 %", "p", "p (Holm)", "separable", "detectable", "docs"]
    return _cut(head, rows, len(ordered), report.pairs_not_compared)


def corpus_pairs(report: Report) -> Table:
    rows = (
        [
            row.dataset,
            row.metric,
            row.first,
            row.second,
            numbers.points(row.difference, row.stderr),
            numbers.span(row.interval),
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
    return _cut(["model", "dataset", "metric", "docs", "score", "95 %", "whole dataset", "95 %", "no score"], rows)


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
    return (
        metric.name,
        str(metric.n),
        numbers.with_error(metric.mean, metric.stderr),
        numbers.span(metric.interval),
        numbers.with_error(metric.corpus, metric.corpus_stderr),
        numbers.span(metric.corpus_interval),
        f"{metric.n_errors}: {metric.reason[:SHOWN_REASON]}" if metric.n_errors else "",
    )


def _category(cell: Cell | None, category: str) -> str:
    found = next((one for one in cell.categories if one.category == category), None) if cell is not None else None
    if found is None:
        return numbers.UNKNOWN
    return f"{numbers.with_error(found.mean, found.stderr)} [{numbers.span(found.interval)}] of {found.n}"


def _cut(head: list[str], rows: Iterable[list[str]], total: int | None = None, unmade: int = 0) -> Table:
    """total: how many rows there are, where they aren't a list. unmade: how many more there could be."""
    if isinstance(rows, list):
        total = len(rows)
    shown = list(islice(rows, SHOWN))
    return Table(head, shown, (total or 0) - len(shown), unmade)
