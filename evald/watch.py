"""Finds the pairs that are ready to score. Events are hints, the scan is the truth: everything here works with events
off.

A pair is ready when every shard of the plan has a status `done` for this plan, and its predictions are there by
listing. Names are looked up in the plan exactly. A scan lists the folders under predictions/ and reads the status files
of new names only, each through a fresh open; a full sweep reads the statuses of all pairs not handled yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from shared.atomic import make_folder
from shared.errors import WorkDirError
from shared.layout import WorkDir
from shared.records import InferStatus, Plan, PlanPair
from shared.status import read_record

Pair = tuple[str, str]  # (model, dataset)


class Watch:
    """Knows which pairs of the plan still wait, and which of them are ready."""

    def __init__(self, work: WorkDir, plan: Plan) -> None:
        self._work = work
        self._pairs: dict[Pair, PlanPair] = {(pair.model, pair.dataset): pair for pair in plan.pairs}
        self._of_stem: dict[Pair, Pair] = {
            (pair.model, shard.stem): (pair.model, pair.dataset) for pair in plan.pairs for shard in pair.shards
        }
        self.waiting: set[Pair] = set(self._pairs)

    def pair(self, key: Pair) -> PlanPair:
        return self._pairs[key]

    def handled(self, key: Pair) -> None:
        """Scored, or failed for good: look at it no more."""
        self.waiting.discard(key)

    def scan(self) -> list[tuple[PlanPair, tuple[str, ...]]]:
        """The waiting pairs whose predictions have all appeared and whose statuses say so, with their digests."""
        names = self._work.finished_predictions()
        seen = {self._of_stem[name] for name in names if name in self._of_stem}
        return self._ready(key for key in seen if key in self.waiting)

    def sweep(self) -> list[tuple[PlanPair, tuple[str, ...]]]:
        """The same, by reading the statuses of all waiting pairs."""
        return self._ready(sorted(self.waiting))

    def statuses(self, key: Pair) -> list[InferStatus | None]:
        """The status of each of the pair's shards; None where there is none for this plan, or none that can be read."""
        pair = self._pairs[key]
        found: list[InferStatus | None] = []
        for shard in pair.shards:
            try:
                status = read_record(self._work.infer_status(pair.model, shard.stem), InferStatus)
            except WorkDirError:
                status = None  # damaged, or planted: it speaks for nothing until its owner writes it anew
            found.append(status if status is not None and status.plan_digest == pair.digest else None)
        return found

    def _ready(self, keys: Iterable[Pair]) -> list[tuple[PlanPair, tuple[str, ...]]]:
        ready = []
        for key in keys:
            statuses = self.statuses(key)
            if all(status is not None and status.state == "done" for status in statuses):
                ready.append((self._pairs[key], tuple(status.digest for status in statuses if status is not None)))
        return ready


class Events:
    """Wakes the loop when a status appears. May fail to start, or die with its mount; the scan carries on by itself."""

    def __init__(self, folder: Path, wake: Callable[[], None], log: Any) -> None:
        self._folder = folder
        self._wake = wake
        self._log = log
        self._observer: Any = None
        self._warned = False

    def ensure(self) -> None:
        """Start listening, or start again after the watched folder went away. Cheap when all is well."""
        if self._observer is not None and self._observer.is_alive() and self._listens():
            return
        self.stop()
        try:
            make_folder(self._folder)
            observer = Observer()
            observer.daemon = True
            observer.schedule(_Handler(self._wake), str(self._folder), recursive=True)
            observer.start()
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._log.warning(
                    "no filesystem events: scanning alone",
                    error=str(error),
                    remedy="raise fs.inotify.max_user_instances or fs.inotify.max_user_watches, or ignore this",
                )
            return
        self._observer = observer
        self._inode = self._folder.stat().st_ino

    def stop(self) -> None:
        if self._observer is not None:
            try:
                self._observer.unschedule_all()
                self._observer.stop()
                self._observer.join(2.0)
            except (OSError, RuntimeError, KeyError):
                pass  # the folder it watched is gone
            self._observer = None

    def _listens(self) -> bool:
        """Whether what is watched is still the folder of that name."""
        try:
            return self._folder.stat().st_ino == self._inode and all(
                emitter.is_alive() for emitter in self._observer.emitters
            )
        except OSError:
            return False


class _Handler(FileSystemEventHandler):
    """Statuses are published by rename: inotify tells that as moved, polling as created; both count, temporary names
    don't.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in ("created", "moved", "modified") and not event.is_directory:
            name = str(event.dest_path or event.src_path)
            if name.endswith(".json"):
                self._wake()


class Wake:
    """The event on which the loop waits: something changed, or it is time to stop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> None:
        self._event.set()

    def wait(self, delay: float) -> None:
        self._event.wait(delay)
        self._event.clear()
