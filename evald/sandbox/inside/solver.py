"""The process that holds the program. It loads the source that it is sent and does what it is asked: it sees neither
the tests nor what they expect, and has no say in the verdict.

Standard input and output are the line to the judge; the program itself gets an empty input, and its output goes to
standard error.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from .confine import confine
from .peer import Peer, Remote

TYPE_CHECKING = False  # typing.TYPE_CHECKING, whose module takes longer to load than all else here
if TYPE_CHECKING:
    from typing import Any


ALLOWED = frozenset(
    {"call", "get", "set", "__len__", "__iter__", "__next__", "__getitem__", "__setitem__", "__delitem__"}
    | {"__contains__", "__str__", "__repr__", "__enter__", "__exit__", "__eq__", "__hash__", "__bool__"}
)


class Foreign(Remote):
    """A function or an iterator of the test."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._peer.ask("call", self, *arguments, **named)

    def __iter__(self) -> Foreign:
        return self

    def __next__(self) -> Any:
        return self._peer.ask("__next__", self)


def main() -> None:
    confine(sys.argv[1:])
    peer = Peer(os.dup(0), os.dup(1), ALLOWED, Foreign)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.set_int_max_str_digits(0)
    # What the program imports must be Python's own.
    sys.path[:] = [place for place in sys.path if not os.path.isdir(os.path.join(place, "inside"))]
    peer.tell("hello", load)
    peer.serve()


def load(prefix: str, completion: str, entry_point: str) -> tuple[ModuleType, tuple[str, ...]]:
    """Run the program as a module; returns it and its names. prefix: what stands before the completion."""
    module = ModuleType("program")
    sys.modules["program"] = module
    code = compile(assemble(prefix, completion, entry_point), "program.py", "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module, tuple(name for name in list(vars(module)) if type(name) is str and not name.startswith("__"))


def assemble(prefix: str, completion: str, entry_point: str) -> str:
    """The source: prefix and completion, unless the completion is whole in itself. Then only what the prefix has to
    give stands before it: all of it where it compiles, else what comes before the entry point's own definition.
    """
    if not prefix:
        return completion
    if not _defines(completion, entry_point):
        return prefix + completion
    if not _compiles(prefix):
        lines = prefix.split("\n")
        starts = (f"def {entry_point}", f"async def {entry_point}", f"class {entry_point}")
        at = next((number for number, line in enumerate(lines) if line.startswith(starts)), len(lines))
        prefix = "\n".join(lines[:at])
    return prefix + "\n" + completion if _compiles(prefix) else completion


def _defines(source: str, name: str) -> bool:
    try:
        code = compile(source, "completion", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return name in code.co_names


def _compiles(source: str) -> bool:
    try:
        compile(source, "prefix", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
