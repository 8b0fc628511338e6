"""The figures as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scripts.benchmarks.goals import GOALS, Figures, row_verdict, value_of, verdict

NOTHING = "–"
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("wall s", "wall", "{:.2f}"),
    ("wall / ideal", "ratio", "{:.3f}"),
    ("asked / ideal", "asked_ratio", "{:.3f}"),
    ("bare / ideal", "bare_ratio", "{:.3f}"),
    ("per s", "per_second", "{:,.0f}"),
    ("bare per s", "bare_per_second", "{:,.0f}"),
    ("CPU us", "cpu_us", "{:.0f}"),
    ("CPU / bare", "cpu_ratio", "{:.2f}"),
    ("peak MB", "peak_mb", "{:.0f}"),
    ("threads", "threads", "{:.0f}"),
    ("connections", "connections", "{:.0f}"),
    ("busy", "busy", "{:.1%}"),
    ("foreign", "foreign", "{:.0%}"),
)
"""Of the rows' table: heading, figure, form."""


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(head), "|" + "---|" * len(head), *(_line(row) for row in rows)]


def rows_head() -> list[str]:
    return markdown(("row", "requests", *(heading for heading, _, _ in COLUMNS), "verdict"), ())


def row_line(name: str, words: str, figures: Figures, noisy: float) -> str:
    """One line of the rows' table. noisy: from which share of others on it is marked."""
    found = figures[name]
    cells = [shown(found.get(figure), form) for _, figure, form in COLUMNS]
    if found["foreign"] > noisy:
        cells[-1] += " (!)"
    return _line((name, words, *cells, row_verdict(name, figures)))


def goals_table(figures: Figures, measured: Collection[str]) -> list[str]:
    """measured: the rows that were to be measured; of others nothing is told."""
    rows = []
    for goal in GOALS:
        if goal.row not in measured:
            continue
        value = value_of(goal, figures)
        rows.append(
            (goal.test, goal.bound(goal.must), goal.bound(goal.aim), shown(value, goal.form), verdict(goal, value))
        )
    return markdown(("test", "must", "aim", "came out", "verdict"), rows)


def shown(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
