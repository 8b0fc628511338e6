"""What both daemons have in common: the loop, signals, and telling systemd.

A daemon is `step(now) -> delay` under one loop; handlers only set flags; waiting is on the stop event.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import psutil

from shared.errors import TandemError, UsageError


class SignalEvent(threading.Event):
    """An event that a signal handler may set. It is never cleared.

    The lock of a plain Event isn't reentrant: a handler that interrupts the main thread inside `wait` would wait for
    itself for ever. `SimpleQueue.put` is made for such a place.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told = False
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._told

    def set(self) -> None:
        if not self._told:
            self._told = True
            self._tokens.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._told:
            try:
                self._tokens.get(timeout=None if timeout is None else max(timeout, 0.0))
            except Empty:
                return self._told
            self._tokens.put(None)  # for whoever else waits
        return True


class StopSignal:
    """Set by SIGTERM and SIGINT, or by somebody else who asks; a second one of either asks to hurry. SIGHUP stops
    nothing: who wants to hear of it sets `on_hangup`.
    """

    def __init__(self) -> None:
        self.event = SignalEvent()
        self.hurry = SignalEvent()
        self.name = ""
        self.on_signal: Callable[[], None] = lambda: None
        self.on_hangup: Callable[[], None] = lambda: None

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGHUP, lambda number, frame: self.on_hangup())

    def ask(self, name: str, *, hurry: bool = False) -> None:
        """As a signal would, for somebody else's reason. From any thread."""
        if hurry:
            self.hurry.set()
        self.name = name
        self.event.set()
        self.on_signal()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.event.is_set():
            self.hurry.set()
        self.name = signal.Signals(number).name
        self.event.set()
        self.on_signal()


def process_figures() -> dict[str, float]:
    """What this process takes of its host, for its beat: CPU seconds so far, memory in MB, threads."""
    process = psutil.Process()
    with process.oneshot():
        times = process.cpu_times()
        return {
            "cpu_seconds": round(times.user + times.system, 3),
            "rss_mb": round(process.memory_info().rss / 2**20, 1),
            "threads": process.num_threads(),
        }


def exit_status(body: Callable[[], int], log: Any) -> int:
    """What a daemon's process ends with: what `body` returns, or what the class of its error carries, once it
    is logged.
    """
    try:
        return body()
    except UsageError as error:
        for line in str(error).splitlines():
            log.error(line)
        return error.exit_code
    except (TandemError, OSError) as error:
        log.error("stopping", reason=f"{error}")
        return error.exit_code if isinstance(error, TandemError) else TandemError.exit_code


def run_loop(
    step: Callable[[float], float | None], monotonic: Callable[[], float], wait: Callable[[float], object]
) -> None:
    """Call `step(now)` until it returns None; between calls wait for the delay it asked for."""
    while (delay := step(monotonic())) is not None:
        if delay > 0:
            wait(delay)


def notify(message: str) -> None:
    """Tell the service manager (`READY=1`, `STATUS=...`, `STOPPING=1`), if there is one (sd_notify's protocol)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
            link.settimeout(1.0)  # its queue may be full, and it may be what hangs
            link.sendto(message.encode(), target)
    except OSError:
        pass  # the service manager is gone or refuses: it can't be told, and the work goes on
