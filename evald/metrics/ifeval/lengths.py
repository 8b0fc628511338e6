"""How many sentences, paragraphs and words an answer has."""

from __future__ import annotations

import re

from evald.metrics.ifeval.counts import holds
from evald.metrics.ifeval.sentences import count_sentences
from shared.instructions import FirstWord, Paragraphs, Sentences, Words

_WORD = re.compile(r"\w+")
_ENDS_WORD = re.compile(r"[.,?!'\"]")


def number_sentences(text: str, told: Sentences) -> bool:
    return holds(count_sentences(text), told.relation, told.num_sentences)


def number_words(text: str, told: Words) -> bool:
    """A word is a run of letters, digits and underscores: "don't" has two."""
    return holds(sum(1 for _ in _WORD.finditer(text)), told.relation, told.num_words)


def number_paragraphs(text: str, told: Paragraphs) -> bool:
    """Exactly so many, with `***` between them. One more at the start or end is no matter; two in a row are."""
    paragraphs = [paragraph.strip() for paragraph in text.split("***")]
    if not all(paragraphs[1:-1]):
        return False
    return sum(map(bool, paragraphs)) == told.num_paragraphs


def nth_paragraph_first_word(text: str, told: FirstWord) -> bool:
    """Exactly so many, with an empty line between them, and the n-th begins with that word."""
    paragraphs = [stripped for paragraph in text.split("\n\n") if (stripped := paragraph.strip())]
    if len(paragraphs) != told.num_paragraphs or told.nth_paragraph > len(paragraphs):
        return False
    first = paragraphs[told.nth_paragraph - 1].split(maxsplit=1)[0].lstrip("'\"")
    return _ENDS_WORD.split(first, maxsplit=1)[0].lower() == told.first_word.lower()
