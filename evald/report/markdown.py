"""`summary/report.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from evald.leaderboard import Report
from evald.report import board, breakdown, numbers

_INLINE = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
"""What acts within a line. An underscore between letters doesn't: names stay readable."""
_BLOCK = re.compile(r"^(?:(?=#|[+-](?!\d))|(\d+)(?=[.)](?:\s|$)))")
"""Where a line, if it begins so, becomes a heading, a list or a rule."""
_LINK = re.compile(r"@|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
"""What makes a link of the text around it, written as it may be: only a character between keeps it from that."""

_GROUPS = "macro: each dataset of the same weight; micro: over all docs; weighted: by the group's weights."
_PAIRS = (
    "First minus second over the docs that both have, in percentage points. separable: p (Holm) is below 0.05; with "
    "\\*, missing scores could turn the order. detectable: the difference found with a power of 0.8."
)
_DATASET_PAIRS = "The same on each dataset; p (Holm) is over all pairs of this table."
_CORPUS_PAIRS = (
    "First minus second, shares in percentage points, by paired bootstrap over the same docs; of pairs that lack no "
    "answer."
)
_METRICS = (
    "Percent ± standard error. docs: those with a score, of those that name the metric; with \\*, some lack repeats. "
    "bounds: the score if what is missing were all wrong, and all right. whole dataset: of metrics whose value for a "
    "dataset isn't the mean over docs; with \\*, of what there is. no score: docs with an answer that the "
    "metric has no score of, and why not, of the first."
)
_CATEGORIES = (
    "Percent ± standard error, 95 % interval, docs with a score; where some lack one or, with \\*, some of their "
    "repeats, bounds too: the score if what is missing were all wrong, and all right."
)
_FAILURES = "Answers by why their program fails."
_RELIABILITY = "Accuracy / mean confidence (answers), by bins of confidence."


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
        f"{_text(board.legend(report))} Ranked by {_text(report.ranked_by)}.",
        "",
        *_table(board.head(report), board.rows(report)),
        "",
        *_notes(report),
        *_outcomes(report),
        *_section("Groups of datasets", _GROUPS, breakdown.groups(report)),
        *_section("Paired differences", _PAIRS, breakdown.pairs(report)),
        *_section("Paired differences by dataset", _DATASET_PAIRS, breakdown.dataset_pairs(report)),
        *_section("Paired differences of whole datasets", _CORPUS_PAIRS, breakdown.corpus_pairs(report)),
        *_section("Metrics", _METRICS, breakdown.metrics(report)),
        *_section("Failures", _FAILURES, breakdown.failures(report)),
        *_section("Categories", _CATEGORIES, breakdown.categories(report)),
        "## Calibration",
        "",
        *_calibration(report),
        "",
        *_section("Reliability", _RELIABILITY, breakdown.reliability(report)),
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
    notes = [f"- {_text(note)}" for note in (*board.limits(report), *board.notes(report), *board.drift(report))]
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
        "Requests by how they ended, of the pairs in which not all are `ok`. All but `error` and `not_run` are "
        "answers, and scored.",
        *(
            ["`unextracted`: answers in which post-processing found nothing, and at which step. They score 0."]
            if "unextracted" in head
            else []
        ),
        "",
        *_table(head, rows),
        "",
    ]


def _section(title: str, said: str, table: breakdown.Table) -> list[str]:
    if not table.rows:
        return []
    more = f" {table.left_out} more in report.json." if table.left_out else ""
    more += f" {table.unmade} more pairs are not compared: only the best models are." if table.unmade else ""
    return [f"## {title}", "", f"{said}{more}", "", *_table(table.head, table.rows), ""]


def _calibration(report: Report) -> list[str]:
    """With a line on each model of which confidences are missing: they are left out of every figure."""
    rows = [
        [
            model,
            numbers.plain(c.ece),
            numbers.plain(c.ece_mass),
            numbers.plain(c.mce),
            numbers.plain(c.brier),
            *(numbers.plain(part) for part in (c.reliability, c.resolution, c.uncertainty)),
            numbers.plain(c.auroc),
            " / ".join(numbers.score(one.accuracy) for one in c.selective) or numbers.UNKNOWN,
            str(c.n),
            str(c.n_missing),
        ]
        for model, c in report.calibration.items()
    ]
    head = ["model", "ECE", "ECE (mass)", "MCE", "Brier", "reliability", "resolution", "uncertainty", "AUROC"]
    missing = [
        f"- {_text(f'{model}: {c.n_missing} of {c.n + c.n_missing} answers have no confidence and are left out')}"
        for model, c in report.calibration.items()
        if c.n_missing
    ]
    return [
        *_table([*head, "accuracy at 50 / 80 / 90 %", "answers", "without confidence"], rows),
        *(["", *missing] if missing else []),
    ]


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
