"""Asks the process that compares mathematics (evald/math_child.py), starts it when there is a question for it, and
kills it when it doesn't answer in time. One a worker process; it ends with it.

A question that takes more CPU than it may is answered with "not equal": the child's own timer kills it, so that another
program on the machine can't make an answer wrong. All else that goes amiss is a MathError, never a verdict.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from shared.errors import TandemError

_CHILD = Path(__file__).with_name("math_child.py")
_START = 120.0  # seconds of real time for it to import what it needs
_PATIENCE = 20.0  # times its CPU limit, of real time, until it counts as hanging
_TRIES = 2


class MathError(TandemError):
    """The comparison could not be made."""


class Question(Struct, frozen=True, kw_only=True):
    """answer, targets: LaTeX or plain, and whole (shared.patterns). seconds: of CPU."""

    answer: str
    targets: tuple[str, ...]
    decimals: int
    strict: bool
    seconds: float


class _Reply(Struct, frozen=True):
    equal: bool | None = None
    fault: str = ""


class _Died(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"its process ended with status {code}" if code >= 0 else f"killed by signal {-code}")
        self.code = code


def equal(question: Question) -> bool:
    """Whether the answer is one of the targets. Raises MathError."""
    line = msgspec.json.encode(question)
    died: _Died | None = None
    for _ in range(_TRIES):
        try:
            reply = msgspec.json.decode(_CURRENT.take().ask(line, question.seconds * _PATIENCE), type=_Reply)
        except _Died as error:
            _CURRENT.drop()
            if -error.code == signal.SIGPROF:
                return False
            died = error
            continue
        except BaseException:
            _CURRENT.drop()
            raise
        if reply.equal is None:
            raise MathError(reply.fault)
        return reply.equal
    raise MathError(f"math-verify failed: {died}")


def end() -> None:
    """End the process, if there is one; the next question starts another."""
    _CURRENT.drop()


class _Child:
    """The process and its pipes: a line a question, a line an answer."""

    def __init__(self) -> None:
        # Its own environment: no secrets in it, and sets in the same order in each process.
        env = {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LC_ALL": "C.UTF-8"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=env,
        )
        try:
            self._read(_START)
        except BaseException:
            self.end()
            raise

    def ask(self, line: bytes, patience: float) -> bytes:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
        except BrokenPipeError:
            raise _Died(self._process.wait()) from None
        return self._read(patience)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self, patience: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience
        found = b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise MathError(f"math-verify gave no answer in {patience:g} s")
            part = self._process.stdout.read(1 << 16)
            if not part:
                raise _Died(self._process.wait())
            found += part
        return found


class _Current:
    """The child of this process; a forked copy of the process starts its own."""

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._owner = 0

    def take(self) -> _Child:
        if self._child is None or self._owner != os.getpid():
            self._child, self._owner = _Child(), os.getpid()
        return self._child

    def drop(self) -> None:
        if self._child is not None and self._owner == os.getpid():
            self._child.end()
        self._child = None


_CURRENT = _Current()
