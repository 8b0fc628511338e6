"""The process that runs a task's tests. The program that they test runs in another sandbox; here are only handles to
its objects, so nothing that the program does to its interpreter reaches the verdict.

On standard input comes one message: prefix, completion, test, entry_point. On standard output go lines: `ready`, `met`
(the program's process is there), then one of

    passed          the tests ran to their end
    failed WHY      they didn't, or the program ended itself
    unfit WHY       the tests can't be run in this way: neither right nor wrong
"""

from __future__ import annotations

import builtins
import os
import sys
from types import CodeType, ModuleType

from . import wire
from .confine import confine
from .peer import Ended, Peer, Remote

TYPE_CHECKING = False  # typing.TYPE_CHECKING, whose module takes longer to load than all else here
if TYPE_CHECKING:
    from typing import Any


ALLOWED = frozenset({"call", "__next__"})
"""What a program may do with what a test hands it: call functions, go on with iterators."""
_OWN = frozenset({"_peer", "_number"})
_LONGEST = 2000  # characters, and bytes, of what is told of a failure
_RESERVE = 4 << 20  # bytes that are given back before the verdict is told


class Unfit(BaseException):
    """The test does what can't be done from another process."""


class Proxy(Remote):
    """An object of the program that is no data. It equals no data and has no arithmetic: else it could say of itself
    that it is what the test expects. Two of the program's own objects are compared by the program.
    """

    __slots__ = ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _ask(self, "call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in ("__name__", "__doc__", "__dict__"):
            raise AttributeError(name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            _ask(self, "set", name, value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Proxy) and _ask(self, "__eq__", other) is True

    def __hash__(self) -> int:
        return hash(_ask(self, "__hash__"))

    def __len__(self) -> int:
        return int(_ask(self, "__len__"))

    def __bool__(self) -> bool:
        try:
            return bool(_ask(self, "__bool__"))
        except TypeError:
            pass
        try:
            return len(self) > 0
        except TypeError:
            return True

    def __iter__(self) -> Any:
        return _ask(self, "__iter__")

    def __next__(self) -> Any:
        return _ask(self, "__next__")

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "__getitem__", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "__setitem__", key, value)

    def __delitem__(self, key: Any) -> None:
        _ask(self, "__delitem__", key)

    def __str__(self) -> str:
        return str(_ask(self, "__str__"))

    def __repr__(self) -> str:
        return str(_ask(self, "__repr__"))

    def __enter__(self) -> Any:
        return _ask(self, "__enter__")

    def __exit__(self, *_: Any) -> None:
        # Its word isn't taken: it could swallow the error that fails the program.
        _ask(self, "__exit__", None, None, None)


_calls = 0


def _ask(target: Proxy, what: str, *arguments: Any, **named: Any) -> Any:
    global _calls
    _calls += 1
    for value in (*arguments, *named.values()):
        _check(value)
    try:
        return target._peer.ask(what, target, *arguments, **named)
    except (StopIteration, StopAsyncIteration) as stop:
        # As generators do since PEP 479. Else a function that raises it would end the loop of its cases: map(), zip(),
        # iter() and all() over them take it for the end of the cases themselves.
        if what == "__next__" and isinstance(stop, StopIteration):
            raise
        raise RuntimeError(f"the program raised {type(stop).__name__}") from None


def _check(value: Any) -> None:
    """Of what isn't data, functions and iterators can be handed over."""
    kind = type(value)
    if isinstance(value, type) and getattr(builtins, value.__name__, None) is not value:
        raise Unfit(f"the test hands the class {value.__name__} of its own to the program")
    if isinstance(value, Remote) or callable(value) or hasattr(kind, "__next__"):
        return
    if kind.__module__ not in ("builtins", "collections", "decimal", "fractions", "datetime", "numpy"):
        raise Unfit(f"the test hands a {kind.__name__} of its own to the program")


def main() -> None:
    reads, writes = map(int, sys.argv[1].split(","))
    confine(sys.argv[2:])
    verdicts, peer = os.dup(1), Peer(reads, writes, ALLOWED, Proxy, barred=(type,))
    sys.set_int_max_str_digits(0)
    _say(verdicts, "ready")
    prefix, completion, test, entry_point = wire.Codec(_nothing, _nothing).decode(wire.receive(0))
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    match peer.hear():
        case ("hello", Proxy() as load):
            _say(verdicts, "met")
        case _:
            raise SystemExit("no hello")
    reserve = bytearray(_RESERVE)
    try:
        line = _verdict(peer, load, prefix, completion, test, entry_point)
    except MemoryError:  # values that fill it, down to the words for that
        line = "failed no memory is left"
    del reserve
    _say(verdicts, line)
    # At once: what a test registered for its own end has no say any more.
    os._exit(0)


def _verdict(peer: Peer, load: Proxy, prefix: str, completion: str, test: str, entry_point: str) -> str:
    try:
        try:
            _run(peer, load, prefix, completion, test, entry_point)
        except SystemExit as stop:  # the test's own, as of unittest.main(): the program's never come here
            if not (stop.code is None or (isinstance(stop.code, int) and stop.code == 0)):
                return f"failed the test ended with exit status {_words(stop.code)}"
    except Unfit as why:
        return f"unfit {_words(why)}"
    except Ended as end:
        return f"failed the program ended: {_words(end)}"
    except BaseException as error:  # noqa: BLE001  # whatever a test raises, it hasn't passed
        return f"failed {type(error).__name__}: {_words(error)}"
    return f"failed the program ended: {_words(peer.gone)}" if peer.gone else "passed"


def _words(told: object) -> str:
    """What the test said, its beginning. A program may have had a hand in it: a value too long to be told twice, an
    object whose text the program is asked for and ends itself instead. Its test has failed all the same.
    """
    try:
        return str(told)[:_LONGEST]
    except BaseException:  # noqa: BLE001  # as above
        return ""


def _run(peer: Peer, load: Proxy, prefix: str, completion: str, test: str, entry_point: str) -> None:
    global _calls
    code = compile(test, "test.py", "exec", dont_inherit=True)
    match peer.ask("call", load, prefix, completion, entry_point):
        case (Proxy() as program, tuple(defined)):
            pass
        case _:
            raise Ended("a damaged message")
    main_module = ModuleType("__main__")
    sys.modules["__main__"] = main_module
    names = vars(main_module)
    names.update(_given(prefix))
    tested = [name for name in sorted(_mentioned(code) & set(defined) - names.keys()) if not hasattr(builtins, name)]
    for name in tested:
        # A test that counts on an `import math` of the program's means Python's own.
        known = name in sys.stdlib_module_names
        names[name] = __import__(name) if known else peer.ask("get", program, name)
    if entry_point:
        if entry_point not in defined:
            raise NameError(f"the program defines no {entry_point}")
        names[entry_point] = peer.ask("get", program, entry_point)
    names["candidate"] = names.get(entry_point)
    _calls = 0
    exec(code, names)
    check = names.get("check")
    if not _calls and callable(check) and not isinstance(check, Proxy) and entry_point:
        check(names[entry_point])
    if not _calls and (isinstance(names.get(entry_point), Proxy) if entry_point else not tested):
        raise Unfit("the test never called the program")


def _given(prefix: str) -> dict[str, Any]:
    """The names that the task itself gives a program, as it wrote them: a test must not take a program's word for
    those. Classes are left to the program, which must be handed its own instances.
    """
    names: dict[str, Any] = {"__name__": "program"}
    for body in ("", "\n    pass\n"):  # it may end where the answer's first line belongs
        try:
            exec(compile(prefix + body, "prefix.py", "exec", dont_inherit=True), names)
            break
        except Exception:  # noqa: BLE001  # half a program often is none by itself
            continue
    else:
        return {}
    return {
        name: value
        for name, value in names.items()
        if not name.startswith("__") and not (isinstance(value, type) and value.__module__ == "program")
    }


def _mentioned(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _mentioned(constant)
    return names


def _say(fd: int, line: str) -> None:
    data = line[:_LONGEST].encode("utf-8", "replace")[:_LONGEST].replace(b"\n", b" ") + b"\n"
    os.write(fd, data)


def _nothing(*_: Any) -> Any:
    raise wire.WireError("a damaged message")
