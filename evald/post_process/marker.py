"""What stands behind an answer marker ("The answer is", "####"), to the end of its line. The last marker wins."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from evald.post_process.characters import plain

_BEFORE_MARK = r"(?<![^\W_])"  # "answer:" isn't in "preanswer:"
_AROUND = " \t\r\n\u00a0\u3000*_`"
_END = (".", "。", "．")


def after(markers: tuple[str, ...]) -> Callable[[str], str | None]:
    """The step that looks for these. None where there is no marker, and where nothing stands behind the last one: it is
    an answer that was left out, and what stands elsewhere is none.
    """
    pattern = _pattern(markers)

    def extract(text: str) -> str | None:
        last = deque(pattern.finditer(plain(text)), maxlen=1)  # of the same length as the text
        if not last:
            return None
        behind = text[last[0].end() :].lstrip(_AROUND + ":：")
        return trimmed(behind.split("\n", 1)[0]) or None

    return extract


def trimmed(line: str) -> str:
    """Without Markdown's emphasis and white space around it, and without the one full stop that ends it."""
    line = line.strip(_AROUND)
    return line[:-1].rstrip(_AROUND) if line.endswith(_END) and not line.endswith("...") else line


def _pattern(markers: tuple[str, ...]) -> re.Pattern[str]:
    """Longer ones first. All that repeats in it is bounded."""
    parts = {_literal(plain(marker)) for marker in markers if marker.strip()}
    longest_first = sorted(parts, key=lambda part: (-len(part), part))
    return re.compile("|".join(longest_first) or r"(?!)", re.IGNORECASE)


def _literal(marker: str) -> str:
    words = [re.escape(word) for word in marker.split()]
    text = r"[\s*_]{1,4}".join(words)
    if text.endswith(":"):  # "**Answer**: 5", and "Answer : 5"
        text = text[:-1] + r"[\s*_]{0,4}:"
    return (_BEFORE_MARK if marker.lstrip()[:1].isascii() and marker.lstrip()[:1].isalnum() else "") + text
