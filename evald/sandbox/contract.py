"""What a sandbox is: it runs a command that nobody trusts, within limits, and tells how that ended. Every back end
keeps the same promises, which the self-test holds it to.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shared.errors import TandemError

KilledBy = Literal["", "wall", "cpu", "memory", "output", "processes"]
"""The limit that ended a program; "" where none did. A program that was refused memory, processes or disk space goes on
with that error: it wasn't killed."""

MB = 1 << 20


class SandboxUnavailable(TandemError):
    """No sandbox passes its self-test here: nothing is run, what needs one isn't scored. The text has the remedy."""


class SandboxFailed(TandemError):
    """The sandbox itself failed at this program, which says nothing of the program."""


@dataclass(frozen=True)
class Limits:
    """wall: seconds of wall-clock time; a process may take two more of processor time. memory: bytes of private memory,
    of each process and of all together; address_space: is the whole address space of a process held to that too (a
    runtime that reserves much more than it uses, as Java and Node do, must not be). processes: at once. disk: bytes of
    the private files, which live in memory. output: bytes of standard output and error. files: open at once in a
    process.
    """

    wall: float = 10.0
    memory: int = 512 * MB
    address_space: bool = True
    processes: int = 32
    disk: int = 16 * MB
    output: int = MB
    files: int = 64

    @property
    def cpu(self) -> int:
        return int(self.wall) + 2

    def settings(self) -> list[str]:
        """For evald.sandbox.inside.confine."""
        limits = {
            "cpu": self.cpu,
            "data": self.memory,
            "file_size": self.disk,
            "files": self.files,
            "processes": self.processes,
        }
        if self.address_space:
            limits["memory"] = self.memory
        return [f"{name}={value}" for name, value in limits.items()]


@dataclass(frozen=True)
class Program:
    """A command and what it is shown. argv: inside the sandbox. files: by their names in the private /tmp. visible:
    folders of this machine that it may read. environment: all that it gets.
    """

    argv: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    visible: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a program ended. status: its exit status, 128 + n for signal n. stdout, stderr: what there is of them within
    the limit.
    """

    status: int
    killed_by: KilledBy
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Started:
    """uncontained: nothing but the watcher ends what the process leaves behind. folder: to be removed at the end."""

    process: subprocess.Popen[bytes]
    uncontained: bool = False
    folder: str = ""


class Sandbox(Protocol):
    """A back end. name: as the suite's `sandbox` calls it."""

    name: str

    def settings(self, limits: Limits) -> list[str]:
        """What one program's confine must be told."""

    def start(
        self, program: Program, limits: Limits, *, stdin: int, stdout: int, stderr: int, pass_fds: Sequence[int] = ()
    ) -> Started:
        """Raises OSError. The caller closes the descriptors it gave. Killing the process ends all that it began, unless
        it says otherwise.
        """
