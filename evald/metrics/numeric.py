"""numeric: the answer is the same number as a target, exactly or within a tolerance.

The number of a text is the last one in it, a fraction or a mixed number being one
(`evald.post_process.numbers.last_value`). Numbers are
compared as fractions: 0.1 + 0.2 is 0.3, and a tolerance of 0.01 is 1/100.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from evald.metrics.scorer import Scorer, text_scorer
from evald.post_process.numbers import last_value
from shared.vocabulary import NumericParameters

VERSION = "3"

_AROUND = " \t\u00a0*_`)}]$\\"  # what may stand between a number and its percent sign


class Number(NamedTuple):
    """value: as it stands there, 20 for 20%."""

    value: Fraction
    percent: bool


def make(parameters: NumericParameters) -> Scorer:
    tolerance, relative = Fraction(str(parameters.tolerance)), Fraction(str(parameters.relative))

    def equal(given: Number, wanted: Number) -> bool:
        if parameters.percent == "keep" and given.percent != wanted.percent:
            return False
        one, two = given.value, wanted.value
        if parameters.percent == "value":
            one, two = (n.value / 100 if n.percent else n.value for n in (given, wanted))
        return abs(one - two) <= max(tolerance, relative * abs(two))

    def score(answer: str, targets: Sequence[str]) -> float:
        """1.0 or 0.0. An answer or a target without a number: 0.0."""
        given = number(answer)
        if given is None:
            return 0.0
        return float(any(equal(given, wanted) for wanted in map(number, targets) if wanted is not None))

    return text_scorer(score, 1.0, target_fault=target_fault)


def target_fault(target: str) -> str | None:
    return None if number(target) is not None else f"numeric: no number in the target {target[:60]!r}"


def number(text: str) -> Number | None:
    found = last_value(text)
    return None if found is None else Number(found.number, _is_percent(found.behind))


def _is_percent(behind: str) -> bool:
    """Whether a percent sign, or the word, follows the number."""
    return behind.lstrip(_AROUND).lower().startswith(("%", "percent", "per cent"))
