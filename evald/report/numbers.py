"""How numbers stand in every table: the same digits for a score and its interval, and a dash for what isn't known."""

from __future__ import annotations

from evald.leaderboard import Cell, PairedRow, Standing
from evald.stats import Interval

UNKNOWN = "–"


def score(value: float | None) -> str:
    """A score in [0, 1] as a percentage with one decimal: 0.4213 is 42.1."""
    return UNKNOWN if value is None else f"{100 * value:.1f}"


def span(value: Interval | None) -> str:
    return UNKNOWN if value is None else f"{100 * value.low:.1f} to {100 * value.high:.1f}"


def share(value: float) -> str:
    """Never 100 % for less than all, nor 0 % for more than none."""
    if 0.9995 <= value < 1.0:
        return ">99.9%"
    if 0.0 < value < 0.0005:
        return "<0.1%"
    return f"{100 * value:.1f}%"


def plain(value: float | None, digits: int = 3) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f} s"


def rank(standing: Standing) -> str:
    return UNKNOWN if standing.rank is None else str(standing.rank)


def cell(value: Cell) -> str:
    """A dataset's score, with a star where some of its docs have none."""
    if value.state == "missing" or value.mean is None:
        return UNKNOWN
    return score(value.mean) + ("" if value.n == value.n_docs else "*")


def difference(row: PairedRow) -> str:
    return UNKNOWN if row.difference is None else f"{100 * row.difference:+.1f}"
