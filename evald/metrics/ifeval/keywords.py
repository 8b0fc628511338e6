"""What an answer must say, how often, and what not. Letter case doesn't matter."""

from __future__ import annotations

import re

from evald.metrics.ifeval.counts import holds
from shared.instructions import ForbiddenWords, KeywordFrequency, Keywords, LetterFrequency


def existence(text: str, told: Keywords) -> bool:
    """Each keyword occurs, be it inside a longer word."""
    return all(_occurrences(keyword, text, at_most=1) for keyword in told.keywords)


def frequency(text: str, told: KeywordFrequency) -> bool:
    return holds(_occurrences(told.keyword, text), told.relation, told.frequency)


def forbidden_words(text: str, told: ForbiddenWords) -> bool:
    """None of them occurs as a word of its own."""
    return not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in told.forbidden_words)


def letter_frequency(text: str, told: LetterFrequency) -> bool:
    return holds(text.lower().count(told.letter.lower()), told.let_relation, told.let_frequency)


def _occurrences(keyword: str, text: str, at_most: int | None = None) -> int:
    """How often it occurs, none of them overlapping."""
    count = 0
    for _ in re.finditer(re.escape(keyword), text, re.IGNORECASE):
        count += 1
        if count == at_most:
            break
    return count
