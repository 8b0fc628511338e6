"""The leaderboard as rows of text, the same in Markdown and on a terminal, and the notes that belong below it."""

from __future__ import annotations

from collections.abc import Iterator

from evald.comparisons import MAX_COMPARED
from evald.leaderboard import Report, Standing
from evald.report import numbers
from shared.records import ANSWER_KINDS

SHOWN_NAMES = 5


def head(report: Report, *, datasets: bool = True) -> list[str]:
    """datasets: with a column for each."""
    return ["rank", "model", "score", "95 %", "ranks", "micro", "docs", "ECE", *(titles(report) if datasets else [])]


def rows(report: Report, *, datasets: bool = True) -> Iterator[list[str]]:
    for standing in report.leaderboard:
        calibration = report.calibration.get(standing.model)
        yield [
            numbers.rank(standing),
            standing.model,
            numbers.with_error(standing.score, standing.stderr),
            numbers.span(standing.interval),
            numbers.ranks(standing),
            numbers.score(standing.micro),
            f"{standing.n_scored}/{standing.n_docs}" + ("*" if standing.n_partial else ""),
            numbers.plain(calibration.ece if calibration is not None else None),
            *(_cell(standing, name) for name in (names(report) if datasets else [])),
        ]


def by_dataset(report: Report) -> Iterator[list[str]]:
    """A row for each dataset: its name, then each model's score in the order of the leaderboard."""
    for name, title in zip(names(report), titles(report), strict=True):
        yield [title, *(_cell(standing, name) for standing in report.leaderboard)]


def names(report: Report) -> list[str]:
    """The datasets, in the order of the suite."""
    return list(dict.fromkeys(name for standing in report.leaderboard for name in standing.datasets))


def titles(report: Report) -> list[str]:
    """The same as they head a table: with the part that is asked where that isn't all."""
    parts = {one.dataset: f"{one.docs}/{one.rows if one.rows is not None else '?'}" for one in report.limited}
    return [f"{name} ({parts[name]})" if name in parts else name for name in names(report)]


def limits(report: Report) -> Iterator[str]:
    """Which datasets are asked in part."""
    for one in report.limited:
        rows = f" of {one.rows}" if one.rows is not None else ""
        yield f"{one.dataset}: {one.docs}{rows} docs (limit {one.limit})"


def notes(report: Report) -> Iterator[str]:
    """A star in the table is explained, with the range that missing docs and repeats leave open; a dash too, but for
    those that stand among the report's errors.
    """
    told = {(fault.model, fault.dataset) for fault in report.errors}
    for standing in report.leaderboard:
        for name, cell in standing.datasets.items():
            if cell.state == "missing" and (standing.model, name) not in told:
                yield f"{standing.model} x {name}: not scored: {cell.reason}"
            elif cell.state == "scored" and (cell.n < cell.n_docs or cell.n_partial):
                missing = [f"{cell.n_docs - cell.n} of {cell.n_docs} docs have no score"] * (cell.n < cell.n_docs)
                missing += [f"{cell.n_partial} of {cell.n_docs} docs lack some of their repeats"] * bool(cell.n_partial)
                within = f"with them it lies in {numbers.span(cell.bounds)}"
                yield f"* {standing.model} x {name}: {', '.join(missing)}; {within}"

    for standing in report.leaderboard:
        if standing.not_met:
            met = f"{standing.pairs} of {standing.pairs + standing.not_met} datasets"
            yield f"* {standing.model}: no rank: by the plan it meets {met}, and its mean is over those"
        elif standing.rank is None and standing.score is not None:
            within = numbers.span(standing.bounds)
            yield f"* {standing.model}: no rank, for want of scores; with them its score lies in {within}"
        if standing.could_flip:
            names = ", ".join(standing.could_flip[:SHOWN_NAMES])
            more = f" and {more} more" if (more := len(standing.could_flip) - SHOWN_NAMES) > 0 else ""
            yield f"* {standing.model}: missing scores could turn its order with {names}{more}"


def legend(report: Report) -> str:
    """How the table is to be read."""
    text = (
        "Percent ± standard error, 95 % interval. ranks: those that paired comparisons leave open "
        "(Holm over all pairs, 5 %)"
    )
    if any(one.rank is None and one.score is not None and not one.not_met for one in report.leaderboard):
        text += "; models without a rank lack scores of docs and aren't ranked against the others"
    if report.pairs_not_compared:
        text += f"; {report.pairs_not_compared} pairs of models are not compared, only the best {MAX_COMPARED} models"
    return f"{text}."


def drift(report: Report) -> Iterator[str]:
    """The pairs within which what answered changed."""
    for standing in report.leaderboard:
        for name, cell in standing.datasets.items():
            if cell.served_changed:
                yield f"{standing.model} x {name}: {numbers.drift(cell.served_models, cell.system_fingerprints)}"


def outcomes(report: Report) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table of the pairs in which not every request was answered as it should be, or not
    every answer could be read. Only outcomes that occur have a column.
    """
    pairs = [
        (standing.model, name, cell)
        for standing in report.leaderboard
        for name, cell in standing.datasets.items()
        if cell.unextracted or any(count and outcome != "ok" for outcome, count in cell.outcomes.items())
    ]
    all_outcomes = (*ANSWER_KINDS, "error", "not_run")
    known = [outcome for outcome in all_outcomes if any(cell.outcomes.get(outcome) for _, _, cell in pairs)]
    unread = ["unextracted"] if any(cell.unextracted for _, _, cell in pairs) else []
    return ["model", "dataset", *known, *unread], [
        [
            model,
            name,
            *(str(cell.outcomes.get(outcome, 0)) for outcome in known),
            *(numbers.unextracted(cell) for _ in unread),
        ]
        for model, name, cell in pairs
    ]


def failures(report: Report) -> str:
    """What failed on the way, and what was paid for in vain; nothing where nothing did."""
    known = report.summary
    failed = f"failed attempts: {numbers.errors(known.errors)}" if known.errors else ""
    return ", ".join(filter(None, (failed, numbers.wasted(known.late_answers, known.duplicates))))


def counts(report: Report) -> str:
    """The run in one line."""
    known = report.summary
    return (
        f"{known.pairs_scored} of {known.pairs} pairs scored, {known.tasks} tasks, {known.docs} docs, "
        f"{known.instances} instances, {known.requests} requests, {known.attempts} attempts, "
        f"coverage {numbers.share(known.coverage)}, inference {numbers.seconds(known.wall_seconds)}"
    )


def _cell(standing: Standing, dataset: str) -> str:
    return numbers.cell(standing.datasets[dataset]) if dataset in standing.datasets else numbers.UNKNOWN
