"""JSON as models write it: amid prose or between fences, with single or curly quotes, bare words, comments, commas too
many or too few, Python's True and None, raw line breaks in strings; and what was whole of it where it breaks off.

Numbers stay as they are written: no float comes between 0.1 and 0.10, and none is too long to be read. Nesting is
bounded, and so is the text that is read more than once: a text costs a multiple of its length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_DEPTH = 64
REREAD = 16
"""How many times a text's length may be read, in all, for what doesn't turn out to be JSON; of values, once as many as
the text has characters."""

_SPACE = re.compile(r"(?:[\s\ufeff]++|//[^\n]{0,500}+)*+")  # with comments that end with their line
_LONGEST_COMMENT = 500
_STRING = re.compile(
    r"""(?:"(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*+)"|'(?P<single>[^'\\]*+(?:\\.[^'\\]*+)*+)'|“(?P<curly>[^”]*+)”)""",
    re.DOTALL,
)
_WORD = re.compile(r"""[^\s,:{}\[\]"'“”]++""")
_NUMBER = re.compile(r"[-+]?[0-9]++(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})++(?:\.[0-9]++)?(?=\s*+[,}])")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "/": "/", "\\": "\\", "\n": ""}
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


class Number(str):
    """As it was written."""

    __slots__ = ()


class PartOfObject(dict[str, Any]):
    """What was whole of an object that breaks off."""


class PartOfArray(list[Any]):
    """What was whole of an array that breaks off."""


class Document(NamedTuple):
    """An object or array found in a text. whole: it didn't break off before its end."""

    value: Any
    whole: bool


WHOLE = -1
_NOTHING = object()  # a value that isn't there, or isn't whole


def documents(text: str) -> Iterator[Document]:
    """The outermost objects and arrays, in order. One that breaks off comes with what was whole in it; then those that
    begin within it come too."""
    reader = _Reader(text)
    position, characters, values = 0, REREAD * len(text) + 1000, len(text) + 1000
    while (found := _OPENING.search(text, position)) is not None and characters > 0 and values > 0:
        start, reader.values = found.start(), 0
        value, end = reader.value(start, 0)
        whole = reader.broken_at == WHOLE
        if value is not _NOTHING:
            yield Document(value, whole)
        if not whole:
            characters -= reader.broken_at - start + 1
            values -= reader.values
            reader.broken_at = WHOLE
        position = end if whole else start + 1


_OPENING = re.compile(r"[{\[]")


class _Reader:
    """Reads values; a position goes in, and the one behind comes out. Once something breaks, `broken_at` says where,
    and everything returns with what it has. values: how many were begun."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.broken_at = WHOLE
        self.values = 0
        self._unclosed = (0, 0)  # where no comment's end begins

    def value(self, position: int, depth: int) -> tuple[Any, int]:
        self.values += 1
        position = self._skip(position)
        sign = self._text[position : position + 1]
        if not sign or depth > MAX_DEPTH:
            return self._break(position)
        if sign == "{":
            return self._object(position + 1, depth + 1)
        if sign == "[":
            return self._array(position + 1, depth + 1)
        if sign in "\"'“":
            found = _STRING.match(self._text, position)
            if found is None:
                return self._break(len(self._text))
            return (_unescaped(found), found.end()) if self._ends_at(found.end()) else self._break(found.end())
        word = _WORD.match(self._text, position)
        if word is None:
            return self._break(position)
        # At the text's end it may be the 4 of what was to become 42.
        if word.end() == len(self._text) or not self._ends_at(word.end()):
            return self._break(word.end())
        if _NUMBER.fullmatch(word[0]):
            return Number(word[0]), word.end()
        return _WORDS.get(word[0], word[0]), word.end()

    def _object(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        while self.broken_at == WHOLE:
            position = self._skip(position)
            sign = self._text[position : position + 1]
            if sign == "}":
                return result, position + 1
            if sign == ",":
                position += 1
                continue
            if sign in "{[":  # also the end of the text
                self._break(position)
                break
            key, position = self.value(position, depth)
            position = self._skip(position)
            if self.broken_at == WHOLE and self._text[position : position + 1] != ":":
                self._break(position)
            if self.broken_at != WHOLE:
                break
            position = self._skip(position + 1)
            if grouped := _GROUPED.match(self._text, position):  # 1,234 is no JSON, but one number
                value, position = Number(grouped[0].replace(",", "")), grouped.end()
            else:
                value, position = self.value(position, depth)
            if value is not _NOTHING:
                result[str(key)] = value
        return PartOfObject(result), position

    def _array(self, position: int, depth: int) -> tuple[list[Any], int]:
        result: list[Any] = []
        while self.broken_at == WHOLE:
            position = self._skip(position)
            sign = self._text[position : position + 1]
            if sign == "]":
                return result, position + 1
            if sign == ",":
                position += 1
                continue
            value, position = self.value(position, depth)
            if value is not _NOTHING:
                result.append(value)
        return PartOfArray(result), position

    def _ends_at(self, position: int) -> bool:
        """Whether a word or a string may end here: of `42 apples` and `"say "hi""` nothing is known to be the value."""
        behind = self._skip(position)
        sign = self._text[behind : behind + 1]
        return sign in ",}]:" or (sign in "\"'“" and "\n" in self._text[position:behind])  # at the end of the text, too

    def _skip(self, position: int) -> int:
        """Behind white space and comments."""
        while True:
            found = _SPACE.match(self._text, position)
            position = found.end() if found else position
            if not self._text.startswith("/*", position) or (end := self._comment_end(position + 2)) < 0:
                return position
            position = end

    def _comment_end(self, start: int) -> int:
        """-1 where it has none. What was looked through for one isn't looked through again: a text may be full of
        comments' beginnings.
        """
        first, last = self._unclosed
        stop = start + _LONGEST_COMMENT
        begin = max(start, last) if first <= start else start
        found = self._text.find("*/", begin, stop + 2)
        if found >= 0:
            return found + 2
        self._unclosed = (first if first <= start <= last else start, max(begin, stop + 1))
        return -1

    def _break(self, position: int) -> tuple[Any, int]:
        self.broken_at = position
        return _NOTHING, position


def _unescaped(found: re.Match[str]) -> str:
    """What a string says. A backslash that escapes nothing stays: it is LaTeX's."""
    text = found[found.lastgroup or 0]
    if "\\" not in text or found.lastgroup == "curly":
        return text
    plain = _ESCAPE.sub(lambda e: chr(int(e[1], 16)) if e[1] else _ESCAPED.get(e[2], e[0]), text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def at_path(value: Any, path: str) -> Any:
    """What the path leads to; None where it leads nowhere. A key may hold dots itself."""
    while path:
        if isinstance(value, dict):
            if path in value:
                return value[path]
            key, _, path = path.partition(".")
            value = value.get(key)
        elif isinstance(value, list):
            key, _, path = path.partition(".")
            index = int(key) if re.fullmatch(r"-?[0-9]{1,6}", key) else len(value)
            value = value[index] if -len(value) <= index < len(value) else None
        else:
            return None
    return value


def text_of(value: Any) -> str | None:
    """A value as text: strings and numbers as they are, true and false, objects and arrays as JSON; None for null, and
    for what isn't whole.
    """
    match value:
        case None | PartOfObject() | PartOfArray():
            return None
        case bool():
            return "true" if value else "false"
        case str():
            return str(value)
        case _:
            return json.dumps(_numbered(value), ensure_ascii=False)


def _numbered(value: Any) -> Any:
    match value:
        case dict():
            return {key: _numbered(item) for key, item in value.items()}
        case list():
            return [_numbered(item) for item in value]
        case Number() if len(value) <= 400:
            number = float(value) if re.search("[.eE]", value) else int(value)
            return number if math.isfinite(number) else str(value)
        case Number():
            return str(value)
        case _:
            return value


def field(path: str, text: str) -> str | None:
    """The field of the last object or array in the text that has it."""
    last = None
    for document in documents(text):
        found = text_of(at_path(document.value, path))
        if found is not None:
            last = found
            if not document.whole:  # what begins within it is a part of it
                break
    return last
