"""What both daemons have in common: the loop, signals, and telling systemd.

A daemon is `step(now) -> delay` under one loop; handlers only set flags; waiting is on the stop event.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType


class StopSignal:
    """Set by SIGTERM and SIGINT; a second one of either asks to hurry."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.hurry = threading.Event()
        self.name = ""
        self.on_signal: Callable[[], None] = lambda: None

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.event.is_set():
            self.hurry.set()
        self.name = signal.Signals(number).name
        self.event.set()
        self.on_signal()


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
            link.sendto(message.encode(), target)
    except OSError:
        pass  # the service manager is gone or refuses: it can't be told, and the work goes on
