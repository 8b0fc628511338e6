"""What goes between a program and its tests: values arrive as they were, and hostile bytes do nothing."""

from __future__ import annotations

import datetime
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.sandbox.inside.wire import Codec, WireError, frame

KEPT = object()


def keep(value: object) -> tuple[bytes, int]:
    assert value is KEPT
    return b"h", 7


def fetch(tag: bytes, number: int) -> object:
    assert (tag, number) == (b"h", 7)
    return KEPT


CODEC = Codec(keep, fetch)
SIMPLE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters()), st.binary()
)
HASHABLE = st.recursive(SIMPLE, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    HASHABLE | st.complex_numbers(allow_nan=False) | st.dates() | st.timedeltas() | st.fractions(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_data_arrives_as_it_was(value: object) -> None:
    """Same value, same types, all the way down."""
    read = CODEC.decode(CODEC.encode(value))
    assert read == value
    assert repr(read) == repr(value) or isinstance(value, set | frozenset | dict | list | tuple)


@pytest.mark.parametrize(
    "value",
    [
        range(2, 9, 3), bytearray(b"x"), deque([1, 2], 5), Counter("aab"), OrderedDict(b=1, a=2), Decimal("1.50"),
        Fraction(1, 3), datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.time(1, 2), ..., int, type, ValueError,
        "\ud800", 10**5000, -(2**63), -1, 128, 0.1, float("-inf"), KEPT, [KEPT, {1: KEPT}],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_rarer_types_too(value: object) -> None:
    read = CODEC.decode(CODEC.encode(value))
    assert read == value
    assert type(read) is type(value)


def test_a_subclass_arrives_as_its_base() -> None:
    """So nobody's own `__eq__` comes along."""

    class Always(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Words(list[str]):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    for value, base in ((Always(3), 3), (Words(["a"]), ["a"]), (defaultdict(int, a=1), {"a": 1})):
        read = CODEC.decode(CODEC.encode(value))
        assert (read, type(read) in (int, list, defaultdict)) == (base, True)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    """Nothing but WireError comes out, quickly."""
    codec = Codec(keep, lambda *_: None)
    try:
        codec.decode(data)
    except WireError:
        pass


@given(VALUES, st.data())
def test_a_damaged_message_is_a_value_or_refused(value: object, data: st.DataObject) -> None:
    """Cut short or changed in one place."""
    whole = bytearray(CODEC.encode(value))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    for damaged in (bytes(whole), bytes(whole[:at])):
        try:
            Codec(keep, lambda *_: None).decode(damaged)
        except WireError:
            pass


def test_size_and_depth_are_bounded() -> None:
    """A message that names a billion items doesn't make them; one nested without end is refused on both sides."""
    with pytest.raises(WireError):
        CODEC.decode(b"l\xff\xff\xff\x7f")
    with pytest.raises(WireError):
        CODEC.decode(b"l\x01\x00\x00\x00" * 100_000)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(WireError, match="levels deep"):
        CODEC.encode(loop)
    with pytest.raises(WireError, match="64 MB"):
        frame(bytes((64 << 20) + 1))
