"""Time as a parameter: code that waits or stamps takes a Clock, so that tests decide what time it is."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something, and only inside one process."""

    def time(self) -> float:
        """Seconds since 1970 UTC as this host believes. For people to read; never compared between hosts."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, monotonic: float = 0.0, time: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._time = time

    def monotonic(self) -> float:
        return self._monotonic

    def time(self) -> float:
        return self._time

    def advance(self, seconds: float) -> None:
        self._monotonic += seconds
        self._time += seconds

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or NTP would."""
        self._time += seconds


def utc(timestamp: float) -> str:
    """The instant as `2026-11-30T12:00:00.000Z`, the form in which every record keeps it."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
