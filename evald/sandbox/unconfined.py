"""Back end `unsafe-subprocess`: no sandbox at all, but limits of time, memory, output and files. The program can read
and write whatever evald's own user can, connect to anything, and start what outlives it. Only where the suite asks for
it by name.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from evald.sandbox.contract import Limits, Program, Started
from evald.sandbox.interpreter import INSIDE


class Unconfined:
    name = "unsafe-subprocess"

    def settings(self, limits: Limits) -> list[str]:
        # All that this user runs would be counted.
        return [setting for setting in limits.settings() if not setting.startswith("processes=")]

    def start(
        self, program: Program, limits: Limits, *, stdin: int, stdout: int, stderr: int, pass_fds: Sequence[int] = ()
    ) -> Started:
        folder = tempfile.mkdtemp(prefix="tandem-program-")
        for name, data in program.files.items():
            (Path(folder) / name).write_bytes(data)
        own = {"HOME": folder, "TMPDIR": folder, "PYTHONPATH": str(Path(INSIDE).parent)}
        process = subprocess.Popen(
            list(program.argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=list(pass_fds),
            env={**program.environment, **own},
            cwd=folder,
            start_new_session=True,
        )
        return Started(process, uncontained=True, folder=folder)
