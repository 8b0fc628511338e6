"""Text as tokens, the same for all metrics that count words.

Spaced scripts (Hangul among them) give words; Han, kana and bopomofo, which aren't spaced, give one token a
character; so a mixed text gives both. Thai, Lao, Khmer and Burmese aren't spaced either, but their words can't be
told without a dictionary: a run of letters stays one token there.
"""

from __future__ import annotations

import re
import string
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
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VARIATION_SELECTORS = ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF))


def _one_of(ranges: tuple[tuple[int, int], ...]) -> re.Pattern[str]:
    return re.compile("[" + "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges) + "]")


_CJK, _KANA = _one_of(_CJK_RANGES), _one_of(_KANA_RANGES)


def is_cjk(char: str) -> bool:
    """Whether the character is of a script that is written without spaces and counted by character."""
    return _within(ord(char), _CJK_RANGES)


def has_cjk(text: str) -> bool:
    return not text.isascii() and _CJK.search(text) is not None


def has_kana(text: str) -> bool:
    return not text.isascii() and _KANA.search(text) is not None


def pieces(text: str) -> list[str]:
    """The text taken apart, with nothing lost but white space: words, numbers ("3.14" and "1,000" are one piece), CJK
    characters, single signs.
    """
    return _IN_NUMBER.sub(lambda sign: _KEPT[sign[0]], text).translate(_APART).split()


def tokens(text: str) -> list[str]:
    """Lower-cased (after NFKC) words and CJK characters, in order. Punctuation and symbols separate and are dropped."""
    return _normal(text).translate(_SEPARATED).split()


def squad_tokens(text: str) -> list[str]:
    """As `tokens`, but punctuation inside a word is dropped without separating it ("don't" is "dont", "3.14" is
    "314") and symbols such as € stay. It is the normalisation of SQuAD 1.1's evaluation script without its articles
    (Rajpurkar et al. 2016), with the punctuation of all scripts and not only of ASCII."""
    return _normal(text).translate(_JOINED).split()


def squad(text: str) -> str:
    """The text as SQuAD 1.1's evaluation script compares it: lower case, without ASCII punctuation and English
    articles, single spaces (Rajpurkar et al. 2016). A text that is nothing but such things keeps them: the target "A"
    must not be empty, and so equal to anything empty.
    """
    lowered = text.lower()
    plain = lowered.translate(_NO_PUNCTUATION)
    for form in (_ARTICLES.sub(" ", plain), plain, lowered):
        if words := form.split():
            return " ".join(words)
    return ""


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


class _ApartTable(_Table):
    def replacement(self, char: str) -> str:
        if char in _KEPT.values() or (unicodedata.category(char)[0] in "LMN" and not is_cjk(char)):
            return char
        return " " if char.isspace() else f" {char} "


_IN_NUMBER = re.compile(r"(?<=\d)[.,](?=\d)")
_KEPT = {".": "\x01", ",": "\x02"}  # the signs inside numbers, where they don't separate
_APART = _ApartTable({ord("_"): "_"})
_SEPARATED = _Table()
_JOINED = _JoinedTable()
