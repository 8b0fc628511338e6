"""Heartbeats: written by the process that does the work, judged by CHANGE on the reader's own monotonic clock.

Clocks of two hosts are never compared, so skew and clock steps can neither kill nor immortalise a daemon. The beat is
withheld when the work itself stopped moving (`tick` wasn't called for `stall_after` seconds), so that a hung daemon
looks hung.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from shared.clock import Clock, utc
from shared.errors import WorkDirError
from shared.records import Acknowledgement, DaemonState, Heartbeat
from shared.status import read_record, write_record

ACKNOWLEDGED = 16  # commands that a beat tells of


class HeartbeatWriter:
    """Beats every `interval` seconds from a thread of its own, so that no slow file or model holds it up."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        interval: float,
        counters: Callable[[], dict[str, float]] = dict,
        on_error: Callable[[Exception], None] = lambda error: None,
        stall_after: float = 60.0,
        on_beat: Callable[[Heartbeat], None] = lambda beat: None,
    ) -> None:
        self.boot_id = uuid.uuid4().hex
        self._path = path
        self._clock = clock
        self._interval = interval
        self._counters = counters
        self._on_error = on_error
        self._stall_after = stall_after
        self._on_beat = on_beat
        self._state: DaemonState = "starting"
        self._reason = ""
        self._acknowledged: tuple[Acknowledgement, ...] = ()
        self._seq = 0
        self._ticked = clock.monotonic()
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """The first beat is written before this returns: a work_dir that can't be written to fails here."""
        self._beat()
        self._thread.start()

    def tick(self) -> None:
        """The work moves, or there is none to do."""
        self._ticked = self._clock.monotonic()

    def set_state(self, state: DaemonState, reason: str = "") -> None:
        """Tell the new state at once, not at the next beat."""
        self._state, self._reason = state, reason
        self.tick()
        self._changed.set()

    def set_interval(self, interval: float) -> None:
        """Beat so often from now on."""
        self._interval = interval
        self._changed.set()

    def set_stall_after(self, seconds: float) -> None:
        self._stall_after = seconds

    def acknowledge(self, word: Acknowledgement) -> None:
        """Tell at once what became of a command."""
        self._acknowledged = (*self._acknowledged, word)[-ACKNOWLEDGED:]
        self._changed.set()

    def finish(self, state: Literal["finished", "aborted"], reason: str = "", timeout: float = 10.0) -> None:
        """The last beat. Waits at most `timeout` seconds for it: a hung mount must not keep the process."""
        self._state, self._reason = state, reason
        self._ended.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._changed.wait(self._interval)
            self._changed.clear()
            ended = self._ended.is_set()
            moves = self._clock.monotonic() - self._ticked < self._stall_after
            if ended or moves or self._state == "starting":  # before the work there is nothing that could tick
                try:
                    self._beat()
                except (OSError, WorkDirError) as error:
                    self._on_error(error)  # tried again at the next beat; a reader sees an old beat meanwhile
            if ended:
                return

    def _beat(self) -> None:
        if not self._path.parent.is_dir():  # a mount went away: a folder made here would hide it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path.parent))
        self._seq += 1
        beat = Heartbeat(
            time=utc(self._clock.time()),
            seq=self._seq,
            boot_id=self.boot_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=self._state,
            interval=self._interval,
            reason=self._reason,
            counters=self._counters(),
            acknowledged=self._acknowledged,
        )
        self._on_beat(beat)
        write_record(self._path, beat)


Verdict = Literal["missing", "alive", "stale", "finished", "aborted"]


class HeartbeatReader:
    """Watches one or several beats of the same kind; inference lives while any of them changes."""

    def __init__(self, paths: Callable[[], list[Path]], clock: Clock, timeout: float) -> None:
        self._paths = paths
        self._clock = clock
        self._timeout = timeout
        self._seen: dict[Path, Heartbeat] = {}
        self._changed_at: dict[Path, float] = {}
        self._started = clock.monotonic()
        self.moved = False  # a beat was seen to change, rather than to lie there from an earlier run
        self.trouble = ""
        self.last: Heartbeat | None = None

    def set_timeout(self, timeout: float) -> None:
        """How long an unchanged beat counts as alive from now on."""
        self._timeout = timeout

    def look(self) -> Verdict:
        """Read the beats once.

        A beat that can't be read now (ESTALE, a vanished mount) is an unchanged beat, not a death; and one that was
        left behind by a killed process keeps no other from having finished.
        """
        now = self._clock.monotonic()
        self.trouble = ""
        try:
            paths = self._paths()
        except OSError as error:
            paths, self.trouble = [], str(error)
        for path in paths:
            self._read(path, now)
        if not self._seen:
            return "missing"
        ended = [beat for beat in self._seen.values() if beat.state in ("finished", "aborted")]
        going = [path for path, beat in self._seen.items() if beat.state not in ("finished", "aborted")]
        if any(now - self._changed_at[path] < self._timeout for path in going):
            return "alive"
        if not ended:
            return "stale"
        return "aborted" if any(beat.state == "aborted" for beat in ended) else "finished"

    def silent_for(self) -> float:
        """Seconds since a beat was last seen to change, on this reader's clock (since it began to look, when
        none was).
        """
        return self._clock.monotonic() - max(self._changed_at.values(), default=self._started)

    def _read(self, path: Path, now: float) -> None:
        try:
            beat = read_record(path, Heartbeat)
        except (OSError, WorkDirError) as error:
            self.trouble = str(error)
            return
        known = self._seen.get(path)
        if beat is None or (known is not None and (known.boot_id, known.seq) == (beat.boot_id, beat.seq)):
            return
        self.moved = self.moved or known is not None
        self._seen[path] = beat
        self._changed_at[path] = now
        self.last = beat
