"""`summary/report.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from evald.leaderboard import Report
from evald.report import board, numbers

_INLINE = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
"""What acts within a line. An underscore between letters doesn't: names stay readable."""
_BLOCK = re.compile(r"^(?:(?=#|[+-](?!\d))|(\d+)(?=[.)](?:\s|$)))")
"""Where a line, if it begins so, becomes a heading, a list or a rule."""
_LINK = re.compile(r"@|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
"""What makes a link of the text around it, written as it may be: only a character between keeps it from that."""


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
        *_failures(report),
        "",
        "## Leaderboard",
        "",
        f"Scores in percent with 95 % intervals. Ranked by {_text(report.ranked_by)}.",
        "",
        *_table(board.head(report), board.rows(report)),
        "",
        *_notes(report),
        *_outcomes(report),
        *_pairwise(report),
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


def _notes(report: Report) -> list[str]:
    # A star that begins a note would make a list within the list.
    notes = [f"- {_text(note)}" for note in (*board.notes(report), *board.drift(report))]
    return [*notes, ""] if notes else []


def _failures(report: Report) -> list[str]:
    said = board.failures(report)
    return [f"{_text(said[0].upper() + said[1:])}."] if said else []


def _outcomes(report: Report) -> list[str]:
    head, rows = board.outcomes(report)
    if not rows:
        return []
    return [
        "## Outcomes",
        "",
        "Requests by how they ended, of the pairs in which not all are `ok`. All but `error` are answers, and scored.",
        "",
        *_table(head, rows),
        "",
    ]


def _pairwise(report: Report) -> list[str]:
    if not report.pairwise:
        return []
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
    return [
        "## Paired differences",
        "",
        "First minus second over the docs that both have, in percentage points.",
        "",
        *_table(["first", "second", "difference", "95 %", "docs", "separable"], rows),
        "",
    ]


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
    lines = [[_text(value) for value in line] for line in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return ["| " + " | ".join(line) + " |" for line in lines]


def _text(value: str) -> str:
    """On one line, and nothing in it that Markdown or HTML would act on."""
    flat = "".join(char if char.isprintable() else " " for char in value).strip()
    flat = _INLINE.sub(r"\\\g<0>", flat)
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = _BLOCK.sub(r"\1\\", flat)
    return _LINK.sub(r"\g<0>&#8203;", flat)
