"""accuracy: the answer is the label of a class, however it is cased, spaced, quoted or punctuated around."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

VERSION = "1"
PARAMS = {"normaliser": "NFKC, casefold, outer punctuation stripped"}

# Signs that can be a label or a part of one (-1, C++, C#, <=, 5%) are not among them.
_OUTER = " \t\r\n\f\v\u200b\ufeff.,:;!?¡¿*_`\"'()[]{}·…—–“”‘’‚„«»‹›。、・「」『』【】《》〈〉〔〕"


def score(answer: str, targets: Sequence[str]) -> float:
    """1.0 or 0.0. An empty answer is no label: 0.0."""
    label = _label(answer)
    return float(bool(label) and any(label == _label(target) for target in targets))


def _label(text: str) -> str:
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(_OUTER) or folded  # a label that is nothing but punctuation stays as it is
