"""How numbers stand in every table: the same digits for a score and its interval, and a dash for what isn't known."""

from __future__ import annotations

from collections.abc import Mapping

from evald.leaderboard import Cell, Standing
from evald.results import Served
from evald.stats import Interval
from shared.errors import MEANINGS

UNKNOWN = "–"
SHOWN_NAMES = 4
SHOWN_CHARACTERS = 60  # of a name: an endpoint may call itself anything


def score(value: float | None) -> str:
    """A score in [0, 1] as a percentage with one decimal: 0.4213 is 42.1."""
    return UNKNOWN if value is None else f"{100 * value:.1f}"


def with_error(value: float | None, stderr: float | None) -> str:
    """With its standard error, where that is known."""
    return score(value) if value is None or stderr is None else f"{score(value)} ± {100 * stderr:.1f}"


def span(value: Interval | None, *, sign: int = 1) -> str:
    if value is None:
        return UNKNOWN
    low, high = sorted((sign * value.low, sign * value.high))
    return f"{_signless_zero(100 * low)} to {_signless_zero(100 * high)}"


def points(difference: float | None, stderr: float | None) -> str:
    """A difference in percentage points, with its sign and its standard error."""
    if difference is None:
        return UNKNOWN
    return f"{100 * difference:+.1f}" + (f" ± {100 * stderr:.1f}" if stderr is not None else "")


def amount(value: float | None, stderr: float | None, *, percent: bool, sign: str = "") -> str:
    """Of a whole dataset: a share, or with percent false a number as it is, such as a perplexity."""
    if percent or value is None:
        return points(value, stderr) if sign else with_error(value, stderr)
    return f"{value:{sign}.5g}" + (f" ± {stderr:.3g}" if stderr is not None else "")


def amounts(value: Interval | None, *, percent: bool) -> str:
    return span(value) if percent or value is None else f"{value.low:.5g} to {value.high:.5g}"


def chance(p: float | None) -> str:
    """A p-value; never 0."""
    if p is None:
        return UNKNOWN
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def ranks(standing: Standing) -> str:
    """Those that the comparisons leave open."""
    if standing.rank_best is None or standing.rank_worst is None:
        return UNKNOWN
    best, worst = standing.rank_best, standing.rank_worst
    return str(best) if best == worst else f"{best} to {worst}"


def _signless_zero(percent: float) -> str:
    return f"{round(percent, 1) + 0.0:.1f}"


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
    """A dataset's score, with a star where some of its docs have none, or lack some of their repeats."""
    if value.state == "missing" or value.mean is None:
        return UNKNOWN
    return score(value.mean) + ("" if value.n == value.n_docs and not value.n_partial else "*")


def docs(n: int, n_docs: int, n_partial: int) -> str:
    """Those with a score, of how many where some have none; with a star where some of them lack repeats."""
    return (str(n) if n == n_docs else f"{n}/{n_docs}") + ("*" if n_partial else "")


def errors(counts: Mapping[str, int]) -> str:
    """Failed attempts by class, with whose fault each is."""
    return ", ".join(
        f"{name} {count} ({MEANINGS[name].fault})" if name in MEANINGS else f"{name} {count}"
        for name, count in sorted(counts.items())
    )


def unextracted(value: Cell) -> str:
    """Of how many answers, and which steps of post-processing found nothing in how many."""
    if not value.unextracted:
        return "0"
    steps = ", ".join(f"{name} {count}" for name, count in sorted(value.unextracted_at.items()))
    return f"{value.unextracted} of {value.answered}" + (f" ({steps})" if steps else "")


def wasted(late_answers: int, duplicates: int) -> str:
    """What was paid for and is of no use; nothing where nothing was."""
    late = f"late answers dropped: {late_answers}" if late_answers else ""
    return ", ".join(filter(None, (late, f"paid for twice: {duplicates}" if duplicates else "")))


def drift(models: Served, fingerprints: Served) -> str:
    """Which models or builds answered, with how many answers each; nothing where there was no change."""
    told = (f"served by {_names(models)}" if models.changed else "",
            f"fingerprints {_names(fingerprints)}" if fingerprints.changed else "")  # fmt: skip
    return "; ".join(filter(None, told))


def _names(served: Served) -> str:
    """The names with the most answers; a count of 0 is one that isn't known."""
    shown = [(name[:SHOWN_CHARACTERS], count) for name, count in served.names.items()][:SHOWN_NAMES]
    others = served.others + sum(list(served.names.values())[SHOWN_NAMES:])
    texts = [f"{name} ({count})" if count else name for name, count in shown]
    hidden = len(served.names) - len(shown)
    if others:
        texts.append(f"others ({others})")
    elif hidden:
        texts.append(f"{hidden} others")
    return ", ".join(texts)
