"""The leaderboard as rows of text, the same in Markdown and on a terminal, and the notes that belong below it."""

from __future__ import annotations

from collections.abc import Iterator

from evald.leaderboard import Report
from evald.report import numbers


def head(report: Report) -> list[str]:
    return ["rank", "model", "score", "95 %", "micro", "docs", "ECE", *_datasets(report)]


def rows(report: Report) -> Iterator[list[str]]:
    for standing in report.leaderboard:
        calibration = report.calibration.get(standing.model)
        yield [
            numbers.rank(standing),
            standing.model,
            numbers.score(standing.score),
            numbers.span(standing.interval),
            numbers.score(standing.micro),
            f"{standing.n_scored}/{standing.n_docs}",
            numbers.plain(calibration.ece if calibration is not None else None),
            *(
                numbers.cell(standing.datasets[name]) if name in standing.datasets else numbers.UNKNOWN
                for name in _datasets(report)
            ),
        ]


def notes(report: Report) -> Iterator[str]:
    """A star or a dash in the table is explained, with the range that the missing docs leave open."""
    for standing in report.leaderboard:
        for name, cell in standing.datasets.items():
            if cell.state == "missing":
                yield f"{standing.model} x {name}: not scored: {cell.reason}"
            elif cell.n < cell.n_docs:
                missing = f"{cell.n_docs - cell.n} of {cell.n_docs} docs have no score"
                yield f"* {standing.model} x {name}: {missing}; with them it lies in {numbers.span(cell.bounds)}"


def counts(report: Report) -> str:
    """The run in one line."""
    known = report.summary
    return (
        f"{known.pairs_scored} of {known.pairs} pairs scored, {known.tasks} tasks, {known.docs} docs, "
        f"{known.requests} requests, {known.attempts} attempts, coverage {numbers.share(known.coverage)}, "
        f"inference {numbers.seconds(known.wall_seconds)}"
    )


def _datasets(report: Report) -> list[str]:
    return list(dict.fromkeys(name for standing in report.leaderboard for name in standing.datasets))
