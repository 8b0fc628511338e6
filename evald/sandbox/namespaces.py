"""Back end `namespaces`: the same out of what the kernel has, where bubblewrap isn't installed or can't work.

Slower by the start of one more interpreter, and needs Linux 5.12. inside/enclose.py builds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evald.sandbox import host, seccomp
from evald.sandbox.contract import Limits, Program, Started
from evald.sandbox.inside import wire
from evald.sandbox.interpreter import INSIDE, SHOWN, compile_inside


class Namespaces:
    name = "namespaces"

    def __init__(self) -> None:
        """Raises OSError where the kernel has no such thing."""
        if not os.path.exists("/proc/self/ns/user"):
            raise FileNotFoundError("this kernel has no user namespaces")
        compile_inside()

    def settings(self, limits: Limits) -> list[str]:
        return [*host.own_user(), *limits.settings()]

    def start(
        self, program: Program, limits: Limits, *, stdin: int, stdout: int, stderr: int, pass_fds: Sequence[int] = ()
    ) -> Started:
        system = host.system_paths()
        folders = [(path, path) for path, target in system if not target]
        folders += [(path, path) for path in program.visible]
        plan = (
            host.is_root(),
            [(path, target) for path, target in system if target],
            [*folders, (INSIDE, SHOWN)],
            dict(program.files),
            limits.disk,
            seccomp.program() or b"",
            list(program.argv),
            dict(program.environment),
        )
        fd = host.memory_file(wire.frame(wire.Codec(_no_handle, _no_handle).encode(plan)))
        try:
            process = subprocess.Popen(
                [os.path.realpath(sys.executable), "-s", "-S", "-P", "-c", _ENCLOSE, str(fd)],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[*pass_fds, fd],
                env={"PYTHONPATH": str(Path(INSIDE).parent)},
                cwd="/",
            )
        finally:
            os.close(fd)
        return Started(process)


_ENCLOSE = "from inside.enclose import main; main()"


def _no_handle(*_: object) -> tuple[bytes, int]:
    raise wire.WireError("no data")
