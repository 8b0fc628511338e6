"""An inferd as a process whose output goes to a file, so that it never waits for a reader: killed, stopped, counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from shared.layout import WorkDir
from tests.harness import ROOT

FEW = 24
"""Threads, and sockets, of an inferd beyond one a worker: loaders, writers, name lookups."""


class Has(NamedTuple):
    """What a process has open. files: descriptors of all kinds."""

    threads: int
    sockets: int
    files: int


class Inferd:
    """Started at once; killed at the latest when the `with` ends."""

    def __init__(
        self, work: WorkDir, said: Path, *options: str, env: dict[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self._said = said
        with said.open("ab") as file:
            self._begin = file.tell()
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "inferd", "-w", str(work), *options],
                cwd=ROOT,
                env=os.environ | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Inferd:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """All that it wrote on stdout and stderr."""
        with self._said.open("rb") as file:
            file.seek(self._begin)
            return file.read().decode("utf-8", "replace")

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit status."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {timeout} s; it said:\n{self.said[-3000:]}") from None

    def kill(self) -> None:
        """SIGKILL, as from the kernel's OOM killer: to it alone."""
        if self.running:
            self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP; returns when all its threads stand still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def has(self) -> Has:
        """Raises ProcessLookupError when it ended, since then it has nothing."""
        folder, targets = f"/proc/{self.process.pid}", []
        try:
            threads = len(os.listdir(f"{folder}/task"))
            for name in os.listdir(f"{folder}/fd"):
                try:
                    targets.append(os.readlink(f"{folder}/fd/{name}"))
                except FileNotFoundError:
                    continue  # closed meanwhile
        except FileNotFoundError:
            raise ProcessLookupError from None
        if not self.running:
            raise ProcessLookupError
        return Has(threads, sum(target.startswith("socket:") for target in targets), len(targets))
