"""Two processes that call each other's objects over a pair of pipes. An object stays where it was made; the other side
holds a handle to it and may do with it what `allowed` names.

One conversation at a time: a question is answered before the next one begins, unless the answerer asks something back.
"""

from __future__ import annotations

import builtins
from collections import deque

from . import wire

TYPE_CHECKING = False  # typing.TYPE_CHECKING, whose module takes longer to load than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


MAX_KEPT = 1_000_000
"""Objects that one side holds for the other."""
_MUTABLE = (list, dict, set, bytearray, deque)


class Ended(BaseException):
    """The other process ended itself. No Exception: a test that takes any of those for an answer must not take this."""


class Remote:
    """Names an object of the other process."""

    __slots__ = ("_number", "_peer")

    def __init__(self, peer: Peer, number: int) -> None:
        self._peer = peer
        self._number = number


class Peer:
    """allowed: what the other side may do with the objects it was given a handle to: "call", "get", "set", or the name
    of a special method. barred: kinds of objects that it may do nothing with. remote: makes what stands for an object
    of the other side. Raises Ended when the other side is gone.
    """

    def __init__(
        self,
        reads: int,
        writes: int,
        allowed: frozenset[str],
        remote: Callable[[Peer, int], Any],
        barred: tuple[type, ...] = (),
    ) -> None:
        self._reads = reads
        self._writes = writes
        self._allowed = allowed
        self._remote = remote
        self._barred = barred
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._remotes: dict[int, Any] = {}
        self._codec = wire.Codec(self._keep, self._fetch)
        self.gone = ""  # why there will be no more answers

    def ask(self, what: str, target: Any, *arguments: Any, **named: Any) -> Any:
        """What the other side's object gives, or raises. Arguments that it changed in place are changed here too."""
        self._send("ask", what, target, arguments, named)
        value, changed = self._until_answer()
        for position, content in changed:
            _replace(arguments[position], content)
        return value

    def tell(self, kind: str, *rest: Any) -> None:
        self._send(kind, *rest)

    def hear(self) -> tuple[Any, ...]:
        """The next message."""
        try:
            message = self._codec.decode(wire.receive(self._reads))
        except EOFError:
            raise self._end("it ended before it answered") from None
        except (OSError, wire.WireError) as error:
            raise self._end(str(error)) from None
        if type(message) is not tuple or not message:
            raise self._end("a damaged message")
        return message

    def serve(self) -> None:
        """Answer until the other side is gone."""
        while True:
            message = self.hear()
            if message[0] == "ask":
                self._answer(*message[1:])

    def _until_answer(self) -> tuple[Any, Any]:
        while True:
            match self.hear():
                case ("value", value, changed):
                    return value, changed
                case ("raised", tuple(names), str(text)):
                    raise _error(names, text)
                case ("ended", str(why)):
                    raise self._end(why)
                case ("ask", str(what), target, tuple(arguments), dict(named)):
                    self._answer(what, target, arguments, named)
                case _:
                    raise self._end("a damaged message")

    def _answer(self, what: str, target: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            before = [self._codec.encode(item) if isinstance(item, _MUTABLE) else None for item in arguments]
            value = self._do(what, target, arguments, named)
            changed = [
                (position, arguments[position])
                for position, was in enumerate(before)
                if was is not None and self._codec.encode(arguments[position]) != was
            ]
            self._send("value", value, changed)
        except Exception as error:  # noqa: BLE001  # the program's own, or the test's: the other side is told
            self._send("raised", tuple(kind.__name__ for kind in type(error).__mro__), _text(error))
        except Ended:
            raise
        except BaseException as error:  # noqa: BLE001  # sys.exit, and what else a program raises to get away
            self._send("ended", f"{type(error).__name__}: {_text(error)}")

    def _do(self, what: str, target: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        # An object that was handed over, and no class: with `type` and the like, a program could make objects of the
        # test's process that say of themselves what it likes.
        if what not in self._allowed or id(target) not in self._numbers or isinstance(target, self._barred):
            raise PermissionError(f"{what} isn't allowed here")
        match what:
            case "call":
                return target(*arguments, **named)
            case "get":
                return getattr(target, arguments[0])
            case "set":
                return setattr(target, *arguments)
            case special:
                method = getattr(type(target), special, None)
                if method is None:
                    raise TypeError(f"{type(target).__name__!r} object has no {special}")
                return method(target, *arguments)

    def _send(self, *message: Any) -> None:
        # What can't be sent is the sender's error; nothing of it has gone out then.
        data = self._codec.encode(message)
        if len(data) > wire.MAX_FRAME:
            raise wire.WireError("a value of more bytes than can be sent")
        try:
            wire.send(self._writes, data)
        except OSError as error:
            raise self._end(str(error)) from None

    def _end(self, why: str) -> Ended:
        self.gone = self.gone or why
        return Ended(why)

    def _keep(self, value: Any) -> tuple[bytes, int]:
        if isinstance(value, Remote):
            return b"k", value._number
        number = self._numbers.get(id(value))
        if number is None:
            if len(self._kept) >= MAX_KEPT:
                raise wire.WireError("too many objects")
            number = self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)  # which also keeps its id its own
        return b"h", number

    def _fetch(self, tag: bytes, number: int) -> Any:
        if tag == b"k":
            return self._kept[number]
        if number not in self._remotes:
            self._remotes[number] = self._remote(self, number)
        return self._remotes[number]


def _replace(old: Any, new: Any) -> None:
    """Make `old` hold what `new` holds, where they are of one kind."""
    if type(old) is not type(new):
        return
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)
    elif isinstance(old, deque):
        old.clear()
        old.extend(new)


def _error(names: tuple[Any, ...], text: str) -> Exception:
    """The exception that the other side raised, as the nearest of its classes that Python itself has."""
    for name in names:
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                error = kind(text)
            except TypeError:  # UnicodeDecodeError and the like want more
                continue
            return error
    return Exception(text)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except Exception:  # noqa: BLE001  # the program's own class
        return ""
