"""Texts of many scripts in one form: digits, dashes and look-alikes as ASCII. Lines."""

from __future__ import annotations

import unicodedata

from evald import text as texts


class _Plain(dict[int, str]):
    """For str.translate: digits of any script and look-alikes of ASCII ("４", "Ｂ", "𝟒") become ASCII, dashes that
    serve as a minus become "-", and the spaces that group digits one no-break space. All else stays, superscripts
    too: 10² is not 102."""

    def __missing__(self, code: int) -> str:
        result = self._replacement(chr(code))
        if code <= 0xFFFF:  # no text, however hostile, makes it grow beyond that
            self[code] = result
        return result

    def _replacement(self, char: str) -> str:
        if char in "\u2212\u2010\u2011\u2012\u2013\ufe63":
            return "-"
        if char in "\u00a0\u2007\u2009\u202f":
            return "\u00a0"
        if char in "\u066c\u066b":  # the Arabic thousands and decimal separators
            return "," if char == "\u066c" else "."
        if (digit := unicodedata.decimal(char, None)) is not None:
            return str(digit)
        form = unicodedata.normalize("NFKC", char)
        return form if len(form) == 1 and form.isascii() and unicodedata.category(char) != "No" else char


_PLAIN = _Plain()


def plain(text: str) -> str:
    return text if text.isascii() else text.translate(_PLAIN)


def lines(text: str) -> list[str]:
    return [stripped for line in text.split("\n") if (stripped := line.strip())]


def first_line(text: str) -> str | None:
    return next(iter(lines(text)), None)


def last_line(text: str) -> str | None:
    return next(reversed(lines(text)), None)


def squad(text: str) -> str:
    """As SQuAD 1.1's script compares answers (evald.text.squad). What that leaves nothing of, it leaves in lower case:
    "The" is no empty answer, and "+" isn't "-".
    """
    return texts.squad(text) or text.strip().lower()
