"""exact_match: the answer is a target, character for character, apart from white space around both."""

from __future__ import annotations

from collections.abc import Sequence

VERSION = "1"


def score(answer: str, targets: Sequence[str]) -> float:
    """1.0 or 0.0. An empty answer is right only where a target is empty too."""
    stripped = answer.strip()
    return float(any(stripped == target.strip() for target in targets))
