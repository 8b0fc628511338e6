"""What a child process takes of the machine, and what others took of it meanwhile. Linux alone (/proc)."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE = 0.05  # seconds between looks at a child
DIRECT = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # nothing stands between a client and the server


@dataclass(frozen=True)
class Usage:
    """What a process came to. cpu: user + system seconds, exact, with those of children it waited for. peak_mb: of its
    resident memory. threads: the most seen.
    """

    status: int
    cpu: float
    peak_mb: float
    threads: int


class Child:
    """A process, watched to its end. Its output goes to a file: a full pipe would stop it."""

    def __init__(self, command: Sequence[str | Path], *, cwd: Path, output: Path, **env: str) -> None:
        self.output = output
        with output.open("wb") as file:
            self.started = time.time()
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=cwd,
                env=os.environ | DIRECT | env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.ended = 0.0
        self._peak_kb = self._threads = 0
        self._usage: Usage | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> Usage | None:
        """Its figures once it has ended; else looks at it, and None."""
        if self._usage is None:
            # The peak only grows, so a look misses no more than what the last moments added.
            found = _status(self.pid)
            self._peak_kb = max(self._peak_kb, found.get("VmHWM", 0))
            self._threads = max(self._threads, found.get("Threads", 0))
            pid, code, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.ended = time.time()
                self._process.returncode = os.waitstatus_to_exitcode(code)
                # The kernel's own peak of a child begins with that of the process it was forked from.
                if used.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
                    self._peak_kb = max(self._peak_kb, used.ru_maxrss)
                self._usage = Usage(
                    self._process.returncode, used.ru_utime + used.ru_stime, self._peak_kb / 1024, self._threads
                )
        return self._usage

    def wait(self, timeout: float) -> Usage | None:
        """Its figures; None when it didn't end in time, and then it is killed."""
        deadline = time.monotonic() + timeout
        try:
            while (usage := self.poll()) is None and time.monotonic() < deadline:
                time.sleep(SAMPLE)
        finally:
            self.kill()
        return usage

    def kill(self) -> None:
        """It and what it started."""
        if self._usage is None:
            try:
                os.killpg(self.pid, 9)
            except ProcessLookupError:
                pass
            while self.poll() is None:
                time.sleep(0.01)

    def said(self, characters: int = 2000) -> str:
        """The end of its output."""
        return self.output.read_bytes()[-characters:].decode("utf-8", "replace")


def cpu_seconds(pid: int) -> float:
    """User + system, to a tick (10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _status(pid: int) -> dict[str, int]:
    """The numbers of /proc/<pid>/status that are wanted; nothing of a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.splitlines() if line.startswith(("VmHWM:", "Threads:")))
    return {name: int(value.split()[0]) for name, value in pairs}


class Foreign:
    """The share of all processors that went to others while something was measured.

    Interrupts count for nobody: the kernel books those of our own packets on no process.
    """

    def __init__(self, server: int) -> None:
        """server: the server's process id; it and the bench itself are no foreigners."""
        self._server = server
        self._begin = self._now()

    def share(self, own: float) -> float:
        """own: CPU seconds, since this began, of what else was measured."""
        moment, busy, ours = (now - then for now, then in zip(self._now(), self._begin, strict=True))
        capacity = moment * (os.cpu_count() or 1)
        return max(0.0, busy - ours - own) / capacity if capacity > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        user, nice, system, _, _, _, _, steal, *_ = map(int, Path("/proc/stat").read_text().split(None, 11)[1:11])
        return time.monotonic(), (user + nice + system + steal) / TICKS, cpu_seconds(self._server) + time.process_time()
