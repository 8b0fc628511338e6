"""exact_match: the answer is a target, character for character, apart from white space around both."""

from __future__ import annotations

from collections.abc import Sequence

from evald import text
from evald.metrics.scorer import Scorer, text_scorer
from shared.vocabulary import NormalisedParameters

VERSION = f"2.{text.VERSION}"


def make(parameters: NormalisedParameters) -> Scorer:
    if parameters.normaliser == "squad":
        return text_scorer(score_squad, 1.0, {"normaliser": "squad"})
    return text_scorer(score, 1.0)


def score(answer: str, targets: Sequence[str]) -> float:
    """1.0 or 0.0. An empty answer is right only where a target is empty too."""
    stripped = answer.strip()
    return float(any(stripped == target.strip() for target in targets))


def score_squad(answer: str, targets: Sequence[str]) -> float:
    """The exact match of SQuAD 1.1."""
    normal = text.squad(answer)
    return float(any(normal == text.squad(target) for target in targets))
