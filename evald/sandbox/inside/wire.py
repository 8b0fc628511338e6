"""Values as bytes, between a program and the tests that judge it: data is copied, all else is a handle.

Whatever bytes come, reading them runs none of the sender's code: it builds plain values of the types below and nothing
else, or raises WireError. So a value can't bring an `__eq__` of its own along. A subclass arrives as its base.
"""

from __future__ import annotations

import builtins
import os
import struct
from collections import Counter, OrderedDict, defaultdict, deque

TYPE_CHECKING = False  # typing.TYPE_CHECKING, whose module takes longer to load than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


MAX_FRAME = 64 << 20
"""Bytes of one message."""
MAX_DEPTH = 200

_SIZE = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_LATE: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("decimal", "Decimal"): lambda value: (str(value),),
    ("fractions", "Fraction"): lambda value: (value.numerator, value.denominator),
    ("datetime", "date"): lambda value: (value.year, value.month, value.day),
    ("datetime", "time"): lambda value: (value.hour, value.minute, value.second, value.microsecond),
    ("datetime", "timedelta"): lambda value: (value.days, value.seconds, value.microseconds),
    ("datetime", "datetime"): lambda value: (
        *(value.year, value.month, value.day, value.hour),
        *(value.minute, value.second, value.microsecond),
    ),
}
"""Types of modules that are imported only when a value needs them: what each is made from."""
_NAIVE = ("time", "datetime")  # with a time zone they are no plain data
_NUMBERS = "biufc"  # kinds of numpy's types that hold numbers


class WireError(Exception):
    """These bytes are no message, or this value can't be sent."""


class Codec:
    """keep: gives the handle of an object that isn't data, as ("h", n) for one of ours and ("k", n) for one of the
    other side's. fetch: the object of a handle, as the reader sees it.
    """

    def __init__(self, keep: Callable[[Any], tuple[bytes, int]], fetch: Callable[[bytes, int], Any]) -> None:
        self._keep = keep
        self._fetch = fetch

    def encode(self, value: Any) -> bytes:
        out: list[bytes] = []
        self._write(value, out, 0)
        return b"".join(out)

    def decode(self, data: bytes) -> Any:
        """Raises WireError."""
        try:
            value, end = self._read(memoryview(data), 0, 0)
        except WireError:
            raise
        except (ArithmeticError, ImportError, IndexError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise WireError(f"a damaged message: {type(error).__name__}") from None
        except struct.error:
            raise WireError("a message cut short") from None
        if end != len(data):
            raise WireError("a message with something after its end")
        return value

    def _write(self, value: Any, out: list[bytes], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise WireError(f"a value nested more than {MAX_DEPTH} levels deep")
        kind = type(value)
        if value is None:
            out.append(b"n")
        elif kind is bool:
            out.append(b"T" if value else b"F")
        elif kind is int:
            _put(out, b"i", int.to_bytes(value, value.bit_length() // 8 + 1, "little", signed=True))
        elif kind is float:
            out.append(b"f" + _FLOAT.pack(value))
        elif kind is str:
            _put(out, b"s", value.encode("utf-8", "surrogatepass"))
        elif kind in _ITEMS:
            self._write_all(_ITEMS[kind], value, out, depth)
        elif kind in _MAPPINGS:
            out.append(_MAPPINGS[kind] + _SIZE.pack(len(value)))
            for key, item in value.items():
                self._write(key, out, depth + 1)
                self._write(item, out, depth + 1)
        else:
            self._write_rare(value, out, depth)

    def _write_all(self, tag: bytes, items: Any, out: list[bytes], depth: int) -> None:
        out.append(tag + _SIZE.pack(len(items)))
        for item in items:
            self._write(item, out, depth + 1)

    def _write_rare(self, value: Any, out: list[bytes], depth: int) -> None:
        kind = type(value)
        name = (kind.__module__, kind.__qualname__)
        if kind in (bytes, bytearray):
            _put(out, b"b" if kind is bytes else b"B", bytes(value))
        elif kind is complex:
            out.append(b"c" + _FLOAT.pack(value.real) + _FLOAT.pack(value.imag))
        elif kind is range:
            self._write_all(b"r", (value.start, value.stop, value.step), out, depth)
        elif kind is deque:
            self._write(value.maxlen, _tagged(out, b"q"), depth + 1)
            self._write_all(b"l", value, out, depth + 1)
        elif (parts := _LATE.get(name)) is not None and not (name[1] in _NAIVE and value.tzinfo is not None):
            self._write_all(b"m", (*name, *parts(value)), out, depth)
        elif isinstance(value, type) and (word := _builtin_name(value)):
            _put(out, b"y", word.encode())
        elif value is Ellipsis:
            out.append(b"e")
        elif name[0] == "numpy" and getattr(getattr(value, "dtype", None), "kind", "") in _NUMBERS:
            self._write_all(b"a", (value.dtype.str, tuple(value.shape), value.tobytes()), out, depth)
        elif (base := next((base for base in _BASES if isinstance(value, base)), None)) is not None:
            self._write(_as_base(base, value), out, depth)
        else:
            tag, number = self._keep(value)
            out.append(tag + _SIZE.pack(number))

    def _read(self, data: memoryview, at: int, depth: int) -> tuple[Any, int]:
        if depth > MAX_DEPTH + 2:
            raise WireError("a message nested too deeply")
        tag = bytes(data[at : at + 1])
        at += 1
        if tag in _CONSTANTS:
            return _CONSTANTS[tag], at
        if tag == b"f":
            return _FLOAT.unpack_from(data, at)[0], at + 8
        if tag == b"c":
            return complex(*struct.unpack_from("<dd", data, at)), at + 16
        if tag == b"q":
            longest, at = self._read(data, at, depth + 1)
            items, at = self._read(data, at, depth + 1)
            return deque(items, longest), at
        size = _SIZE.unpack_from(data, at)[0]
        at += 4
        if tag in _FROM_BYTES:
            if at + size > len(data):
                raise WireError("a message cut short")
            return _FROM_BYTES[tag](bytes(data[at : at + size])), at + size
        if tag in (b"h", b"k"):
            return self._fetch(tag, size), at
        if tag in _FROM_ITEMS:
            found, at = self._read_some(size, data, at, depth)
            return _FROM_ITEMS[tag](found), at
        if tag in _FROM_PAIRS:
            found, at = self._read_some(2 * size, data, at, depth)
            return _FROM_PAIRS[tag](zip(found[::2], found[1::2], strict=True)), at
        raise WireError("a damaged message")

    def _read_some(self, count: int, data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
        if count > len(data) - at:  # each takes a byte at least
            raise WireError("a message cut short")
        found = []
        for _ in range(count):
            item, at = self._read(data, at, depth + 1)
            found.append(item)
        return found, at


def frame(data: bytes) -> bytes:
    """As it goes over a pipe. Raises WireError."""
    if len(data) > MAX_FRAME:
        raise WireError(f"a message of more than {MAX_FRAME >> 20} MB")
    return _SIZE.pack(len(data)) + data


def send(fd: int, data: bytes) -> None:
    """Raises OSError, WireError."""
    view = memoryview(frame(data))
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int) -> bytes:
    """The next message. Raises EOFError, OSError, WireError."""
    size = _SIZE.unpack(_exactly(fd, _SIZE.size))[0]
    if size > MAX_FRAME:
        raise WireError("a message that is too long")
    return _exactly(fd, size)


def _exactly(fd: int, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = os.read(fd, min(missing, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _put(out: list[bytes], tag: bytes, data: bytes) -> None:
    out.append(tag + _SIZE.pack(len(data)))
    out.append(data)


def _tagged(out: list[bytes], tag: bytes) -> list[bytes]:
    out.append(tag)
    return out


def _as_base(base: type, value: Any) -> Any:
    """A plain copy of an instance of a subclass, by the base's own means."""
    if base is dict:
        return dict(dict.items(value))
    if base in (list, tuple, set, frozenset):
        return base(iter(base.__iter__(value)))
    if base is int:
        return int.__int__(value)
    if base is float:
        return float.__float__(value)
    return str.__str__(value) if base is str else bytes.__getitem__(value, slice(None))


def _late(items: list[Any]) -> Any:
    module, name, *rest = items
    if (module, name) not in _LATE:
        raise WireError("a damaged message")
    return getattr(__import__(module), name)(*rest)


def _array(items: list[Any]) -> Any:
    numpy: Any = __import__("numpy")
    kind, shape, data = items
    dtype = numpy.dtype(kind)
    if dtype.kind not in _NUMBERS:
        raise WireError("a damaged message")
    array = numpy.frombuffer(data, dtype).reshape(shape)
    return array.copy() if shape else array[()]


def _builtin_name(kind: type) -> str:
    """As a builtin; "" if it is none."""
    name = str(kind.__name__)
    return name if getattr(builtins, name, None) is kind else ""


def _builtin_type(name: bytes) -> type:
    found = getattr(builtins, name.decode(), None)
    if not isinstance(found, type):
        raise WireError("a damaged message")
    return found


def _defaults(pairs: Iterator[tuple[Any, Any]]) -> defaultdict[Any, Any]:
    return defaultdict(None, pairs)


def _counter(pairs: Iterator[tuple[Any, Any]]) -> Counter[Any]:
    return Counter(dict(pairs))


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_BASES = (int, float, str, bytes, list, tuple, dict, set, frozenset)
_ITEMS: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}
_MAPPINGS: dict[type, bytes] = {dict: b"d", Counter: b"C", OrderedDict: b"O", defaultdict: b"D"}
_CONSTANTS: dict[bytes, Any] = {b"n": None, b"T": True, b"F": False, b"e": Ellipsis}
_FROM_BYTES: dict[bytes, Callable[[bytes], Any]] = {
    b"i": _signed,
    b"s": _text,
    b"b": bytes,
    b"B": bytearray,
    b"y": _builtin_type,
}
_FROM_ITEMS: dict[bytes, Callable[[list[Any]], Any]] = {
    b"l": list,
    b"t": tuple,
    b"S": set,
    b"Z": frozenset,
    b"r": lambda items: range(*items),
    b"m": _late,
    b"a": _array,
}
_FROM_PAIRS: dict[bytes, Callable[[Iterator[tuple[Any, Any]]], Any]] = {
    b"d": dict,
    b"C": _counter,
    b"O": OrderedDict,
    b"D": _defaults,
}
