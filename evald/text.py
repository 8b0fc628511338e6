"""Text as tokens, the same for all metrics that count words.

Spaced scripts (Hangul among them) give words; Han, kana and bopomofo, which aren't spaced, give one token a
character; so a mixed text gives both. Thai, Lao, Khmer and Burmese aren't spaced either, but their words can't be
told without a dictionary: a run of letters stays one token there.
"""

from __future__ import annotations

import unicodedata

VERSION = "1"
"""Changes when the tokens of any text do. Metrics record it, so that results are computed anew."""

_CJK_RANGES = (
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),  # iteration mark, closing mark, zero
    (0x3021, 0x3029),  # Hangzhou numerals
    (0x3040, 0x30FA),  # Hiragana, Katakana
    (0x30FC, 0x312F),  # prolonged sound and iteration marks, bopomofo (0x30FB, the middle dot, is punctuation)
    (0x31A0, 0x31BF),  # bopomofo, extended
    (0x31F0, 0x31FF),  # Katakana, extended
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x1B000, 0x1B16F),  # kana, historic
    (0x20000, 0x3FFFF),  # Han, extensions B and on
)
_KANA_RANGES = ((0x3040, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF), (0x1B000, 0x1B16F))
_VARIATION_SELECTORS = ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF))


def is_cjk(char: str) -> bool:
    """Whether the character is of a script that is written without spaces and counted by character."""
    return _within(ord(char), _CJK_RANGES)


def has_cjk(text: str) -> bool:
    return not text.isascii() and any(map(is_cjk, text))


def has_kana(text: str) -> bool:
    return not text.isascii() and any(_within(ord(char), _KANA_RANGES) for char in text)


def tokens(text: str) -> list[str]:
    """Lower-cased (after NFKC) words and CJK characters, in order. Punctuation and symbols separate and are dropped."""
    return _normal(text).translate(_SEPARATED).split()


def squad_tokens(text: str) -> list[str]:
    """As `tokens`, but punctuation inside a word is dropped without separating it ("don't" is "dont", "3.14" is
    "314") and symbols such as € stay. It is the normalisation of SQuAD 1.1's evaluation script without its articles
    (Rajpurkar et al. 2016), with the punctuation of all scripts and not only of ASCII."""
    return _normal(text).translate(_JOINED).split()


def _normal(text: str) -> str:
    return (text if text.isascii() else unicodedata.normalize("NFKC", text)).lower()


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)


class _Table(dict[int, str]):
    """A table for str.translate that works out what becomes of a character when it first meets it."""

    def __missing__(self, code: int) -> str:
        result = self.replacement(chr(code))
        if code <= 0xFFFF:  # no text, however hostile, makes it grow beyond that
            self[code] = result
        return result

    def replacement(self, char: str) -> str:
        """What stands for the character, where both kinds of table agree; " " elsewhere."""
        if is_cjk(char):
            return f" {char} "
        category = unicodedata.category(char)
        if category[0] in "LMN":  # letters, their marks (vowel signs of Indic scripts, say) and numbers
            return "" if _within(ord(char), _VARIATION_SELECTORS) else char
        # Joiners, soft hyphens and direction marks are inside words; the zero-width space is between them.
        return "" if category == "Cf" and char != "\u200b" else " "


class _JoinedTable(_Table):
    def replacement(self, char: str) -> str:
        if char in "$+<=>^`|~":  # ASCII's symbols count as punctuation there
            return ""
        match unicodedata.category(char)[0]:
            case "P":
                return ""
            case "S":
                return char
            case _:
                return super().replacement(char)


_SEPARATED = _Table()
_JOINED = _JoinedTable()
