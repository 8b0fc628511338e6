"""Regular expressions that users write, matched against text that models write, in time linear in the text.

The engine is RE2: it doesn't backtrack, so no pattern and no text can make it hang. What can't be matched that way
(look-around, back-references) it doesn't know, and such a pattern is refused when a task is read. Looking for all
matches is a search from each one on, so only a bounded tail of the text is looked at for them. Texts are str; half a
surrogate pair, which UTF-8 can't carry, counts as U+FFFD.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import re2

ENGINE = f"google-re2 {importlib.metadata.version('google-re2')}"
"""What decides what a pattern takes."""

MAX_PATTERN = 1000
"""Characters of a pattern."""

MAX_MEMORY = 8 << 20
"""Bytes that a compiled pattern may take: counted repetition multiplies."""

TAIL = 20_000
"""Characters at the end of a text in which all matches are looked for. An answer's last match is what matters."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Found(NamedTuple):
    """A match. text: the whole of it. groups: None where a group has no part in it."""

    text: str
    groups: Sequence[str | None]


class Pattern:
    """A compiled pattern. Raises ValueError, with what is wrong in words, where RE2 doesn't take it."""

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        if len(pattern) > MAX_PATTERN:
            raise ValueError(f"a pattern of {len(pattern)} characters: at most {MAX_PATTERN} are taken")
        options = re2.Options()
        options.log_errors = False
        options.case_sensitive = not ignore_case
        options.max_mem = MAX_MEMORY
        try:
            self._compiled = re2.compile(pattern, options)
        except (re2.error, UnicodeEncodeError) as error:
            raise ValueError(f"isn't a pattern that RE2 knows: {_reason(error)}") from None

    @property
    def groups(self) -> int:
        return int(self._compiled.groups)

    def search(self, text: str) -> Found | None:
        """The first match in the whole text."""
        found = self._compiled.search(whole(text))
        return None if found is None else _found(found)

    def finditer(self, text: str) -> Iterator[Found]:
        """The matches in the text's last TAIL characters, from left to right; none overlaps another."""
        return map(_found, self._compiled.finditer(whole(text[-TAIL:])))

    def matches(self, text: str, *, full: bool = False) -> bool:
        """Whether the pattern matches somewhere in the text, or the whole of it."""
        found = (self._compiled.fullmatch if full else self._compiled.search)(whole(text))
        return found is not None


@lru_cache(maxsize=1024)
def compiled(pattern: str, *, ignore_case: bool = False) -> Pattern:
    """Raises ValueError."""
    return Pattern(pattern, ignore_case=ignore_case)


def pattern_fault(pattern: str) -> str | None:
    """What is wrong with the pattern, in words."""
    try:
        compiled(pattern)
    except ValueError as error:
        return str(error)
    return None


def whole(text: str) -> str:
    """The text with U+FFFD for half surrogate pairs."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _found(match: Any) -> Found:
    return Found(match.group(), match.groups())


def _reason(error: Exception) -> str:
    told = error.args[0] if error.args else error
    text = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
    if "(?<" in text or "(?=" in text or "(?!" in text:
        text += " (it has no look-around)"
    return text
