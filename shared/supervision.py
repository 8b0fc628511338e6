"""What the service manager is told (sd_notify's protocol, systemd.service(5)): ready, reloading, stopping, a line of
progress, and that the daemon isn't hung. Nothing is told where there is no manager.

The watchdog is fed by the work alone: whoever hangs starves it, and is killed and started again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from shared.clock import Clock
from shared.daemon import notify
from shared.records import Heartbeat

TOLD = {
    "completed": "requests ended",
    "in_flight": "in flight",
    "pairs_done": "pairs done",
    "pairs_failed": "pairs failed",
    "scored": "pairs scored",
    "failed": "not scored",
    "running": "being scored",
    "waiting": "waiting",
}
"""Of a beat's counters those that its line of progress shows, and as what."""


class ServiceManager:
    """env: where the manager says what it wants (WATCHDOG_USEC, WATCHDOG_PID)."""

    def __init__(self, clock: Clock, env: Mapping[str, str] = os.environ) -> None:
        self._clock = clock
        self._fed = float("-inf")
        limit = env.get("WATCHDOG_USEC", "")
        meant = env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every = int(limit) / 4e6 if meant and limit.isascii() and limit.isdigit() and int(limit) else None

    @property
    def patience(self) -> float:
        """The longest that the loop may wait, in seconds, so that its steps feed the watchdog in time."""
        return self._every if self._every is not None else float("inf")

    def ready(self) -> None:
        """It works, or works again after `reloading`."""
        notify("READY=1")

    def reloading(self) -> None:
        notify(f"RELOADING=1\nMONOTONIC_USEC={int(self._clock.monotonic() * 1e6)}")

    def stopping(self) -> None:
        notify("STOPPING=1")

    def feed(self) -> None:
        """The work moves, or there is none to do. Cheap enough for every step."""
        if self._every is not None and (now := self._clock.monotonic()) - self._fed >= self._every:
            self._fed = now
            notify("WATCHDOG=1")

    def tell(self, beat: Heartbeat) -> None:
        """A line of progress, from the beat that is about to be written."""
        counts = (f"{beat.counters[name]:g} {what}" for name, what in TOLD.items() if name in beat.counters)
        line = ", ".join(counts) or beat.reason
        notify(f"STATUS={beat.state}{': ' if line else ''}{line}".replace("\n", " "))
