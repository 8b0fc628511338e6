"""Writes status files on a thread of its own, so that a slow mount holds up neither the dispatcher nor the journal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from shared.errors import TandemError
from shared.records import InferStatus
from shared.status import check_transition, write_record


class Publisher:
    """The one writer of this inferd's status files. Of several records for one file the newest is written."""

    def __init__(self, on_error: Callable[[Path, Exception], None]) -> None:
        self._on_error = on_error
        self._latest: dict[Path, InferStatus] = {}
        self._written: dict[Path, InferStatus] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._writing = False
        self._count = 0  # of files written
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def post(self, path: Path, status: InferStatus) -> None:
        with self._changed:
            old = self._latest.get(path) or self._written.get(path)
            if old is not None:
                check_transition(old.state, status.state)
            self._latest[path] = status
            self._changed.notify_all()

    def settle(self, timeout: float) -> bool:
        """Wait until all that was posted is written; False when for `timeout` seconds none of it could be."""
        before = -1
        with self._changed:
            while (self._latest or self._writing) and before != self._count:
                before = self._count
                self._changed.wait_for(lambda: not self._latest and not self._writing, timeout)
            return not self._latest and not self._writing

    def stop(self, timeout: float) -> bool:
        """Write what is left; False when for `timeout` seconds none of it could be written. A slow disk takes the time
        it takes.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        before = -1
        while self._thread.is_alive() and before != self._count:
            before = self._count
            self._thread.join(timeout)
        return not self._thread.is_alive() and not self._latest

    def _run(self) -> None:
        failed = False
        while True:
            with self._changed:
                if failed and not self._stopping:
                    self._changed.wait(1.0)  # a full disk: the same again in a while
                while not self._latest and not self._stopping:
                    self._changed.wait()
                batch, self._latest = self._latest, {}
                self._writing = True
                last = self._stopping  # asked before the writing: what is posted during it needs another round
            failed = False
            for path, status in batch.items():
                try:
                    write_record(path, status)
                    self._count += 1
                    if status.state in ("done", "fail"):
                        self._written[path] = status
                except (OSError, TandemError) as error:
                    failed = True
                    self._on_error(path, error)
                    with self._changed:
                        self._latest.setdefault(path, status)
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                if last and (failed or not self._latest):
                    return
