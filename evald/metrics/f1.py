"""f1: how much the bags of words of the answer and a target overlap, as in SQuAD 1.1; CJK text by character.

Precision and recall count each shared token as often as both sides hold it; F1 = 2PR / (P + R) (Rajpurkar et al. 2016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evald import text

VERSION = "1"
PARAMS = {
    "normaliser": "squad: lower case, no punctuation, no English articles; CJK by character",
    "tokens": text.VERSION,
}

_ARTICLES = frozenset({"a", "an", "the"})


def score(answer: str, targets: Sequence[str]) -> float:
    """In [0, 1], the best over the targets. No tokens on either side: 0.0."""
    given = _bag(answer)
    return max((_f1(given, _bag(target)) for target in targets), default=0.0)


def _bag(string: str) -> Counter[str]:
    found = text.squad_tokens(string)
    # A text of articles alone keeps them: the target "A" must not become empty, and so equal to anything empty.
    return Counter([token for token in found if token not in _ARTICLES] or found)


def _f1(given: Counter[str], wanted: Counter[str]) -> float:
    shared = (given & wanted).total()
    return 2 * shared / (given.total() + wanted.total()) if shared else 0.0  # the same as 2PR / (P + R)
