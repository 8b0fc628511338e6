"""Watches sandboxed processes: takes what they write, up to a limit, and ends them at their limits of time, output,
memory and number.

Whatever a program left running is gone when this returns, and nothing here waits for a pipe that such a child may hold.
"""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

from evald.sandbox.contract import KilledBy, Limits, Outcome, Started

FIRST_LOOK, LOOK_EVERY = 0.3, 0.1  # seconds: at memory; most programs end before the first
PATIENCE = 10.0  # seconds for a killed process to go
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watched:
    """One process. out, err: what is read of it, of pipes whose reading ends the watcher owns."""

    def __init__(self, started: Started, limits: Limits, *, out: int, err: int) -> None:
        self._started = started
        self.process = started.process
        self.limits = limits
        self.killed_by: KilledBy = ""
        self.texts = {out: bytearray(), err: bytearray()}
        self._out, self._err = out, err
        for fd in self.texts:
            os.set_blocking(fd, False)

    def take(self, fd: int) -> bool:
        """Read what there is; False at the end. What comes after the limit is not kept, and ends the program."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        room = self.limits.output - sum(map(len, self.texts.values()))
        self.texts[fd] += data[: max(0, room)]
        if len(data) > room:
            self.killed_by = self.killed_by or "output"
            self.kill("output")
        return bool(data) and len(data) <= room

    def kill(self, why: KilledBy) -> None:
        if self.process.poll() is None:
            self.killed_by = self.killed_by or why
            if self._started.uncontained:
                for child in _descendants(self.process.pid):
                    with suppress(psutil.Error):
                        child.kill()
            self.process.kill()

    def look(self) -> None:
        """End it where its processes together take more than they may."""
        memory, count = 0, 0
        for process in _descendants(self.process.pid):
            count += 1
            memory += _private_memory(process.pid)
        if memory > self.limits.memory:
            self.kill("memory")
        elif count > self.limits.processes + 8:  # the sandbox's own among them
            self.kill("processes")

    def end(self) -> Outcome:
        """Kill what is left, and say how it was."""
        self.kill("")
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = -9  # it hangs in the kernel
        for fd in self.texts:
            size = -1
            while size != len(self.texts[fd]):  # what it wrote last; the limit ends this too
                size = len(self.texts[fd])
                if not self.take(fd):
                    break
            os.close(fd)
        if self._started.folder:
            shutil.rmtree(self._started.folder, ignore_errors=True)
        status = 128 - status if status < 0 else status
        if status == 128 + 24 and not self.killed_by:  # SIGXCPU
            self.killed_by = "cpu"
        return Outcome(status, self.killed_by, bytes(self.texts[self._out]), bytes(self.texts[self._err]))


def watch(main: Watched, others: Iterable[Watched] = ()) -> None:
    """Returns when `main` has ended, or was killed at a limit. The wall-clock limit of `main` holds for all."""
    watched = [main, *others]
    began = time.monotonic()
    deadline, look_at = began + main.limits.wall, began + FIRST_LOOK
    ended = os.pidfd_open(main.process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ, None)
            for one in watched:
                for fd in one.texts:
                    selector.register(fd, selectors.EVENT_READ, one)
            while not any(one.killed_by for one in watched):
                now = time.monotonic()
                if now >= deadline:
                    for one in watched:
                        one.kill("wall")
                    return
                if now >= look_at:
                    for one in watched:
                        one.look()
                    look_at = now + LOOK_EVERY
                for key, _ in selector.select(max(0.0, min(deadline, look_at) - now)):
                    if key.data is None:
                        return
                    if not key.data.take(key.fd):
                        selector.unregister(key.fd)
    finally:
        os.close(ended)


def _descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _private_memory(pid: int) -> int:
    """Bytes that are this process's own or of its shared memory; of files nothing."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            fields = file.read().split()
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            shared = next((line.split()[1] for line in file if line.startswith("RssShmem:")), "0")
    except OSError:
        return 0  # it has just ended
    return max(0, int(fields[1]) - int(fields[2])) * _PAGE + int(shared) * 1024
