"""`summary/report.md`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evald.leaderboard import Report
from evald.report import numbers


def markdown(report: Report) -> str:
    counts = report.summary
    parts = [
        "# Results",
        "",
        f"{counts.models} models x {counts.datasets} datasets, {counts.tasks} tasks: "
        f"{counts.pairs_scored} of {counts.pairs} pairs scored, coverage {numbers.share(counts.coverage)}, "
        f"inference {numbers.seconds(counts.wall_seconds)}.",
        f"{counts.docs} docs, {counts.instances} instances, {counts.requests} requests, {counts.attempts} attempts; "
        f"{counts.prompt_tokens} + {counts.completion_tokens} tokens, {counts.cost:.4f} USD.",
        "",
        "## Leaderboard",
        "",
        f"Scores in percent with 95 % intervals. Ranked by {_text(report.ranked_by)}.",
        "",
        *_leaderboard(report),
        "",
        *_notes(report),
        "## Paired differences",
        "",
        "First minus second over the docs that both have, in percentage points.",
        "",
        *_pairwise(report),
        "",
        "## Calibration",
        "",
        *_calibration(report),
        "",
    ]
    if report.errors:
        parts += [
            "## Errors",
            "",
            *(f"- {_text(f'{e.model} x {e.dataset} ({e.stage}): {e.reason}')}" for e in report.errors),
            "",
        ]
    return "\n".join(parts)


def _leaderboard(report: Report) -> list[str]:
    datasets = list(dict.fromkeys(name for standing in report.leaderboard for name in standing.datasets))
    rows = [
        [
            numbers.rank(s),
            s.model,
            numbers.score(s.score),
            numbers.span(s.interval),
            numbers.score(s.micro),
            f"{s.n_scored}/{s.n_docs}",
            *(numbers.cell(s.datasets[name]) if name in s.datasets else numbers.UNKNOWN for name in datasets),
        ]
        for s in report.leaderboard
    ]
    return _table(["rank", "model", "score", "95 %", "micro", "docs", *datasets], rows)


def _notes(report: Report) -> list[str]:
    """A star or a dash in the table is explained below it, with the range that the missing docs leave open."""
    notes = []
    for standing in report.leaderboard:
        for name, cell in standing.datasets.items():
            if cell.state == "missing":
                notes.append(f"- {_text(f'{standing.model} x {name}: not scored: {cell.reason}')}")
            elif cell.n < cell.n_docs:
                missing = (
                    f"{cell.n_docs - cell.n} of {cell.n_docs} docs have no score; "
                    f"with them it lies in {numbers.span(cell.bounds)}"
                )
                notes.append(f"- \\* {_text(f'{standing.model} x {name}: {missing}')}")
    return [*notes, ""] if notes else []


def _pairwise(report: Report) -> list[str]:
    rows = [
        [
            row.first,
            row.second,
            numbers.difference(row),
            numbers.span(row.interval),
            str(row.n),
            {True: "yes", False: "no", None: numbers.UNKNOWN}[row.separable],
        ]
        for row in report.pairwise
    ]
    return _table(["first", "second", "difference", "95 %", "docs", "separable"], rows)


def _calibration(report: Report) -> list[str]:
    rows = [
        [
            model,
            numbers.plain(c.ece),
            numbers.plain(c.mce),
            numbers.plain(c.brier),
            f"{c.populated_bins}/{c.bins}",
            str(c.n),
            str(c.n_missing),
        ]
        for model, c in report.calibration.items()
    ]
    return _table(["model", "ECE", "MCE", "Brier", "bins", "answers", "without confidence"], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [list(head), ["---"] * len(head), *rows]
    return ["| " + " | ".join(_text(value) for value in line) + " |" for line in lines]


def _text(value: str) -> str:
    """On one line, and nothing in it that Markdown or HTML would act on."""
    flat = "".join(char if char.isprintable() else " " for char in value)
    for char in "\\`*[]|~$":
        flat = flat.replace(char, "\\" + char)
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
