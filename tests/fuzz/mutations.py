"""What may become of a file: sound ones changed a little or a lot, and plain garbage. The same seed gives the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 1 << 16  # bytes of one input, but for what nests

VALUES: tuple[bytes, ...] = (
    *(b"null", b"true", b"-1", b"0", b"1e999", b"-0.0", b"NaN", b"Infinity", b"1e-400", b"0x10", b"1_000"),
    *(b"18446744073709551616", b"9" * 400, b"9" * 5000, b"-" + b"9" * 5000, b"1." + b"1" * 5000),
    *(b'""', b'"\\ud800"', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b'"' + b"x" * 5000 + b'"'),
    *(b"[]", b"{}", b"[[]]", b'{"":{}}', b'"2026-02-30T25:61:61Z"', b"2026-02-30", b'"../../etc/passwd"'),
    *(b"[" * 3000, b'{"a":' * 3000, b"[" * 3000 + b"]" * 3000, b'{"a":' * 3000 + b"1" + b"}" * 3000),
    *(b"a." * 2000 + b"a = 1", b'"{{ 1/0 }}"', b'"(a+)+$"', b'"a.b.c:d"', b"99999999999", b"1e18", b"4294967296"),
)
BYTES: tuple[bytes, ...] = (
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\n", b"\r", b'"', b"\\", b",", b"\t", b":", b"{", b"}", b"[", b"]"),
    *("\u2028".encode(), "\U0001f600".encode(), b"\x1b[31m", b"'", b"#", b"=", b"%", b"\n\n", b'"""', b"'''"),
)
_CUTS = b'{}[],:"\n=\t'


def inputs(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """One input made of these seeds."""
    data = rng.choice(seeds)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        data = rng.choice(_WAYS)(data, seeds, rng)
    return data[: 4 * LONGEST]


def _flip(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 4, 32))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    place = rng.randint(0, len(data))
    return data[:place] + rng.choice(BYTES) * rng.choice((1, 1, 1, 1000)) + data[place:]


def _remove(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    first, end = _span(data, rng)
    return data[:first] + data[end:]


def _repeat(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    first, end = _span(data, rng)
    return (data[:end] + data[first:end] * rng.choice((1, 2, 50)) + data[end:])[:LONGEST]


def _splice(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _truncate(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _value(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    """Another value in the place of what stands between two marks."""
    places = [place for place, byte in enumerate(data[:LONGEST]) if byte in _CUTS]
    if len(places) < 2:
        return rng.choice(VALUES)
    number = rng.randrange(len(places) - 1)
    return data[: places[number] + 1] + rng.choice(VALUES) + data[places[number + 1] :]


def _structure(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    """Sound JSON with other content: a key less, a value of another type or from another place."""
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return _value(data, (), rng)
    nodes = _nodes(value)
    if not nodes:
        return _value(data, (), rng)
    holder, key = rng.choice(nodes)
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1:
            other, place = rng.choice(nodes)
            try:
                holder[key] = json.loads(json.dumps(other[place]))
            except (KeyError, IndexError):
                return data
        case 2:
            holder[key] = rng.choice(
                (None, True, -1, 1.5, "", "x" * 2000, [], {}, [None], {"schema": 2}, 1 << 63, "\x00")
            )
        case 3:
            holder[key] = [holder[key]]
    lines[number] = json.dumps(value).encode()
    return b"\n".join(lines)


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value in it."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        node = pending.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            pending.append(node[key])
    return found


def _garbage(_: bytes, __: Sequence[bytes], rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 7, 300, 5000)))


def _words(_: bytes, __: Sequence[bytes], rng: random.Random) -> bytes:
    """Nothing but marks and odd values."""
    return b"".join(rng.choice((*BYTES, *VALUES[:22])) for _ in range(rng.randint(1, 30)))


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    first = rng.randint(0, len(data))
    return first, min(len(data), first + rng.choice((1, 1, 4, 40, 1000)))


_WAYS: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    *(_flip, _insert, _remove, _repeat, _splice, _truncate, _garbage, _words),
    *(_value, _value, _value, _structure, _structure, _structure),
)
