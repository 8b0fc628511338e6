"""Values that users wrote (TOML tables, JSON objects) checked against the types of `shared.config`: every problem, each
with its place and what was expected there, instead of the first alone.

The expectations come from the types themselves (`msgspec.inspect`, `Meta` bounds), so a new option needs nothing here.
The walk only finds problems; the instance is built by msgspec. A value that the walk lets through and msgspec doesn't
is still a problem.
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
import re
from collections.abc import Hashable, Iterable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from shared.errors import Problem
from shared.secrets import may_be_key

T = TypeVar("T")

MAX_DEPTH = 32
"""Levels of tables and arrays that a value may be nested."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INT64 = range(-(2**63), 2**63)


def convert_table(value: Any, kind: type[T], place: str) -> tuple[T | None, list[Problem]]:
    """The value as an instance of the Struct type `kind`, or None and all that is wrong with it.

    place: what `value` is called in messages; "" at the top of a file. Booleans are no integers, integers pass as
    numbers, NaN and infinities nowhere.
    """
    problems: list[Problem] = []
    _check(value, _type_info(cast("Hashable", kind)), place, 0, problems)
    if problems:
        return None, problems
    try:
        return msgspec.convert(value, kind), []
    except (msgspec.ValidationError, RecursionError) as error:
        return None, [Problem(place, str(error))]


def is_deep(value: Any, levels: int = 4 * MAX_DEPTH) -> bool:
    """Whether tables and arrays are nested deeper than any walk over them should go."""
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for node in layer
            if isinstance(node, dict | list)
            for inner in (node.values() if isinstance(node, dict) else node)
        ]
        if not layer:
            return False
    return True


def join_place(place: str, key: str) -> str:
    """The place of a table's key: `models[0]` and `abbr` make `models[0].abbr`."""
    key = key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
    return f"{place}.{key}" if place else key


def close_match(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return found[0] if found else None


def unknown_word(word: str, known: Iterable[str]) -> str:
    """What to say of a word outside a closed vocabulary.

    >>> unknown_word("exact_mach", ["f1", "exact_match"])
    'unknown "exact_mach"; did you mean exact_match?'
    """
    known = sorted(known)
    meant = close_match(word, known)
    return f"unknown {show(word)}; " + (f"did you mean {meant}?" if meant else f"known: {', '.join(known)}")


def show(value: Any) -> str:
    """The value as a message quotes it: as it was written, but short; of tables and arrays just their kind, of what may
    be a key just its length.
    """
    match value:
        case None:
            return "null"
        case str() if may_be_key(value):
            return f"a text of {len(value)} characters"
        case str():
            return json.dumps(value if len(value) <= 60 else value[:57] + "...", ensure_ascii=False)
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 256:  # Python refuses to spell out the very long ones
            return f"an integer of {value.bit_length()} bits"
        case int() | float():
            text = repr(value)
            return text if len(text) <= 60 else text[:57] + "..."
        case dict():
            return "a table"
        case list() | tuple():
            return "an array"
        case datetime.date() | datetime.time():
            return f"the date or time {value.isoformat()}"
        case _:
            return f"a {type(value).__name__}"


@cache
def _type_info(kind: Hashable) -> inspect.Type:
    return inspect.type_info(kind)


def _check(value: Any, kind: inspect.Type, place: str, depth: int, problems: list[Problem]) -> None:
    if depth > MAX_DEPTH:
        problems.append(Problem(place, f"nested more than {MAX_DEPTH} levels deep"))
        return
    match kind:
        case inspect.UnionType():
            _check_union(value, kind, place, depth, problems)
        case inspect.StructType() if isinstance(value, dict):
            _check_struct(value, kind, place, depth, problems)
        case inspect.DictType() if isinstance(value, dict):
            for key, item in value.items():
                _check(item, kind.value_type, join_place(place, str(key)), depth + 1, problems)
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list | tuple):
            if not _fits_length(len(value), kind):
                problems.append(Problem(place, f"expected {_expected(kind)}, got {_many(len(value), 'item')}"))
            for index, item in enumerate(value):
                _check(item, kind.item_type, f"{place}[{index}]", depth + 1, problems)
        case inspect.AnyType():
            _check_any(value, place, depth, problems)
        case _:
            if not _fits(value, kind):
                problems.append(_refusal(value, kind, place))


def _check_struct(
    value: dict[Any, Any], kind: inspect.StructType, place: str, depth: int, problems: list[Problem]
) -> None:
    fields = {field.encode_name: field for field in kind.fields}
    for key, item in value.items():
        if key in fields:
            _check(item, fields[key].type, join_place(place, key), depth + 1, problems)
        else:
            meant = close_match(str(key), fields) or _in_nested(str(key), fields.values())
            hint = f"did you mean {meant}?" if meant else f"known here: {', '.join(fields)}"
            problems.append(Problem(join_place(place, str(key)), f"unknown key; {hint}"))
    for name, field in fields.items():
        if field.required and name not in value:
            problems.append(Problem(join_place(place, name), "is required"))


def _in_nested(key: str, fields: Iterable[inspect.Field]) -> str | None:
    """`generation.temperature` for a `temperature` that was written one level too high."""
    for field in fields:
        if isinstance(field.type, inspect.StructType) and any(inner.encode_name == key for inner in field.type.fields):
            return f"{field.encode_name}.{key}"
    return None


def _check_union(value: Any, kind: inspect.UnionType, place: str, depth: int, problems: list[Problem]) -> None:
    if value is None and kind.includes_none:
        return
    for option in _options(kind):
        if _same_shape(value, option):
            _check(value, option, place, depth, problems)
            return
    problems.append(_refusal(value, kind, place))


def _check_any(value: Any, place: str, depth: int, problems: list[Problem]) -> None:
    """Free-form values go into JSON: what it can't carry is refused."""
    if depth > MAX_DEPTH:
        problems.append(Problem(place, f"nested more than {MAX_DEPTH} levels deep"))
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_any(item, join_place(place, str(key)), depth + 1, problems)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_any(item, f"{place}[{index}]", depth + 1, problems)
    elif isinstance(value, float) and not math.isfinite(value):
        problems.append(Problem(place, f"expected a finite number, got {show(value)}"))
    elif isinstance(value, int) and not isinstance(value, bool) and value not in _INT64:
        problems.append(Problem(place, f"expected an integer of at most 64 bits, got {show(value)}"))
    elif not isinstance(value, str | int | float | None):
        problems.append(Problem(place, f"expected a value that JSON has, got {show(value)}; quote it"))


def _refusal(value: Any, kind: inspect.Type, place: str) -> Problem:
    hint, got = "", show(value)
    if isinstance(kind, inspect.StructType | inspect.DictType) and isinstance(value, str):
        got = "a string"  # a whole table written as one string may hold a header's secret
    if _wants_text(kind):
        if isinstance(value, bool | int | float | datetime.date | datetime.time):
            hint = "; quote it"
        elif isinstance(value, str) and isinstance(kind, inspect.LiteralType):
            meant = close_match(value, map(str, kind.values))
            hint = f"; did you mean {meant}?" if meant else ""
    return Problem(place, f"expected {_expected(kind)}, got {got}{hint}")


def _options(kind: inspect.UnionType) -> list[inspect.Type]:
    return [option for option in kind.types if not isinstance(option, inspect.NoneType)]


def _same_shape(value: Any, kind: inspect.Type) -> bool:
    """Is `value` of the sort that `kind` is about, its bounds aside?"""
    match kind:
        case inspect.StrType() | inspect.LiteralType():
            return isinstance(value, str)
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool)
        case inspect.FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case inspect.StructType() | inspect.DictType():
            return isinstance(value, dict)
        case inspect.VarTupleType() | inspect.ListType():
            return isinstance(value, list | tuple)
        case _:
            return isinstance(kind, inspect.AnyType)


def _fits(value: Any, kind: inspect.Type) -> bool:
    if not _same_shape(value, kind):
        return False
    match kind:
        case inspect.StrType():
            return _fits_length(len(value), kind) and (kind.pattern is None or bool(re.search(kind.pattern, value)))
        case inspect.LiteralType():
            return value in kind.values
        case inspect.IntType():
            return value in _INT64 and _in_bounds(value, kind)
        case inspect.FloatType():
            try:
                return math.isfinite(value) and _in_bounds(value, kind)
            except OverflowError:  # an integer beyond any float
                return False
        case _:
            return True


def _in_bounds(value: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    return not (
        (kind.ge is not None and value < kind.ge)
        or (kind.gt is not None and value <= kind.gt)
        or (kind.le is not None and value > kind.le)
        or (kind.lt is not None and value >= kind.lt)
    )


def _fits_length(length: int, kind: inspect.StrType | inspect.VarTupleType | inspect.ListType) -> bool:
    return (kind.min_length or 0) <= length and (kind.max_length is None or length <= kind.max_length)


def _wants_text(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(map(_wants_text, _options(kind)))
    return isinstance(kind, inspect.StrType | inspect.LiteralType)


def _expected(kind: inspect.Type) -> str:
    """What the type asks for, in words: `an integer >= 1`."""
    match kind:
        case inspect.UnionType():
            return " or ".join(map(_expected, _options(kind)))
        case inspect.LiteralType():
            return "one of " + ", ".join(show(value) for value in kind.values)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "an integer" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.StrType():
            return "a string" + _length(kind, "character")
        case inspect.StructType() | inspect.DictType():
            return "a table"
        case inspect.VarTupleType() | inspect.ListType():
            return f"an array of {_plural(kind.item_type)}" + _length(kind, "item")
        case _:
            return "another kind of value"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge:g} to {kind.le:g}"
    signs = [(">=", kind.ge), (">", kind.gt), ("<=", kind.le), ("<", kind.lt)]
    text = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)
    return f" {text}" if text else ""


def _length(kind: inspect.StrType | inspect.VarTupleType | inspect.ListType, unit: str) -> str:
    low, high = kind.min_length or 0, kind.max_length
    if high is None:
        return f" of at least {_many(low, unit)}" if low else ""
    return f" of {low} to {_many(high, unit)}"


def _plural(kind: inspect.Type) -> str:
    match kind:
        case inspect.StrType():
            return "strings"
        case inspect.IntType():
            return "integers"
        case inspect.FloatType():
            return "numbers"
        case inspect.StructType() | inspect.DictType():
            return "tables"
        case _:
            return "values"


def _many(count: int, unit: str) -> str:
    return f"{count} {unit}" + ("" if count == 1 else "s")
