"""Why a program failed: one of a few words, which can be counted, and what was said, fit to be shown. Pure.

It is told for people and decides nothing: a program can choose what it raises, and so under which word it fails.
"""

from __future__ import annotations

import builtins
import errno
import re
from typing import Literal, get_args

from evald.sandbox.contract import KilledBy

Failure = Literal[
    "no_program", "syntax", "assertion", "exception", "wrong_output", "ended_early", "exit_status", "timeout", "memory",
    "output_limit", "processes", "blocked",
]  # fmt: skip
"""no_program: the answer held none. ended_early: it ended itself before its tests were over. exit_status: a command's,
other than 0. timeout, memory, output_limit, processes: the limit that ended it; memory also where it was refused some.
blocked: what the sandbox refuses, or refused at a limit, was its last error."""
FAILURES: tuple[str, ...] = get_args(Failure)
LIMITS: dict[KilledBy, Failure] = {
    "wall": "timeout", "cpu": "timeout", "memory": "memory", "output": "output_limit", "processes": "processes",
}  # fmt: skip

LONGEST = 120  # characters
_READ = 4000
_REFUSED = {
    errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS, errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.ECONNREFUSED,
    errno.EAGAIN, errno.ENOSPC, errno.EFBIG, errno.EMFILE,
}  # fmt: skip
_ERRNO = re.compile(r"\[Errno (\d{1,4})\]")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")


def of_exception(said: str) -> Failure | None:
    """said: as Python's last line, `NameError: name 'x' is not defined`. None where it isn't one."""
    name = said.partition(":")[0].strip()[:100]
    kind = getattr(builtins, name, None) if name.isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return None
    if issubclass(kind, AssertionError):
        return "assertion"
    if issubclass(kind, SyntaxError):
        return "syntax"
    if issubclass(kind, MemoryError):
        return "memory"
    if issubclass(kind, OSError):
        number = _ERRNO.search(said[:_READ])
        refused = number is not None and int(number[1]) in _REFUSED
        return "blocked" if refused or issubclass(kind, PermissionError) else "exception"
    return "exception"


def shown(said: str) -> str:
    """On one line, cut, without what a terminal acts on, nor addresses, which are others each time."""
    flat = "".join(char if char.isprintable() else " " for char in said[:_READ])
    return _ADDRESS.sub("0x...", " ".join(flat.split()))[:LONGEST]
