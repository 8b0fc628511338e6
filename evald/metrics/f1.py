"""f1: how much the bags of words of the answer and a target overlap, as in SQuAD 1.1.

Precision and recall count each shared token as often as both sides hold it; F1 = 2PR / (P + R) (Rajpurkar et al. 2016).
The normaliser `unicode` reads all scripts, CJK by character; `squad` is that of the published script, for its numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from evald import text
from evald.metrics.scorer import Scorer, text_scorer
from shared.vocabulary import F1Parameters

VERSION = f"2.{text.VERSION}"

_ARTICLES = frozenset({"a", "an", "the"})


def make(parameters: F1Parameters) -> Scorer:
    if parameters.normaliser == "squad":
        return text_scorer(_scored_by(squad_words), 0.5, {"normaliser": "squad"})
    params = {"normaliser": "unicode: lower case, no punctuation, no English articles; CJK by character"}
    return text_scorer(_scored_by(words), 0.5, params | {"tokens": text.VERSION})


def words(string: str) -> list[str]:
    """A text of articles alone keeps them: the target "A" must not become empty."""
    found = text.squad_tokens(string)
    return [token for token in found if token not in _ARTICLES] or found


def squad_words(string: str) -> list[str]:
    return text.squad(string).split()


def _scored_by(tokens: Callable[[str], list[str]]) -> Callable[[str, Sequence[str]], float]:
    def score(answer: str, targets: Sequence[str]) -> float:
        """In [0, 1], the best over the targets. No tokens on either side: 0.0."""
        given = Counter(tokens(answer))
        return max((_f1(given, Counter(tokens(target))) for target in targets), default=0.0)

    return score


def _f1(given: Counter[str], wanted: Counter[str]) -> float:
    shared = (given & wanted).total()
    return 2 * shared / (given.total() + wanted.total()) if shared else 0.0  # the same as 2PR / (P + R)
