"""Capitals, small letters, and no comma."""

from __future__ import annotations

import re

from evald.metrics.ifeval.counts import holds
from evald.metrics.ifeval.language import is_language
from shared.instructions import CapitalWords, Told

# What parts words: white space, punctuation that isn't part of one, and the apostrophe of a contraction, so that the
# first word of "I'm" is in capitals. Hyphens, full stops and slashes stay inside (U.S., CD-ROM).
_PARTS = re.compile(r"""[\s;@#$%&?!()\[\]{}<>",:“”…]+|--+|'(?=(?:s|m|d|ll|re|ve)(?!\w))""", re.IGNORECASE)


def capital_word_frequency(text: str, told: CapitalWords) -> bool:
    """How many words have capitals and no small letter."""
    return holds(sum(map(str.isupper, _PARTS.split(text))), told.capital_relation, told.capital_frequency)


def english_capital(text: str, told: Told) -> bool:
    return text.isupper() and is_language(text, "en")


def english_lowercase(text: str, told: Told) -> bool:
    return text.islower() and is_language(text, "en")


def no_comma(text: str, told: Told) -> bool:
    return "," not in text
