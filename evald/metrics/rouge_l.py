"""rouge_l: the longest common subsequence of tokens as an F-measure (Lin 2004, with beta = 1), over the text as a
whole.

That is ROUGE-L, not ROUGE-Lsum (which takes line by line); no stemming; tokens of every script, not of [a-z0-9] alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapidfuzz.distance import LCSseq

from evald import text

VERSION = "1"
PARAMS = {"beta": 1, "stemming": False, "summary_level": False, "tokens": text.VERSION}


def score(answer: str, targets: Sequence[str]) -> float:
    """In [0, 1], the best over the targets: 2 LCS / (tokens of the answer + tokens of the target). Either empty:
    0.0."""
    given = text.tokens(answer)
    return max((_f_measure(given, text.tokens(target)) for target in targets), default=0.0)


def _f_measure(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return 0.0
    # As numbers, since rapidfuzz would hash the words: with other seeds in other processes, and blind to collisions.
    ids: dict[str, int] = {}
    for token in wanted:
        ids.setdefault(token, len(ids))
    unknown = len(ids)  # in no target, so in no common subsequence
    common = LCSseq.similarity([ids.get(token, unknown) for token in given], [ids[token] for token in wanted])
    return 2 * common / (len(given) + len(wanted))
