"""Finds the pairs that are ready to score. Events are hints, the scan is the truth: everything here works with events
off.

A pair is ready when every shard of the plan has a status `done` for this plan, and its predictions are there by
listing. Names are looked up in the plan exactly. A scan lists the folders under predictions/ and reads the status files
of new names only, each through a fresh open; a full sweep reads the statuses of all pairs not handled yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from shared.atomic import look_again
from shared.errors import WorkDirError
from shared.layout import WorkDir, is_infer_heartbeat
from shared.records import InferStatus, Plan, PlanPair
from shared.status import read_record

Pair = tuple[str, str]  # (model, dataset)
Ready = tuple[PlanPair, tuple[str, ...]]  # with the digest of each shard's predictions


class Watch:
    """Knows which pairs of the plan still wait, and which of them are ready."""

    def __init__(self, work: WorkDir, plan: Plan) -> None:
        self._work = work
        self._pairs: dict[Pair, PlanPair] = {(pair.model, pair.dataset): pair for pair in plan.pairs}
        self._of_stem: dict[Pair, Pair] = {
            (pair.model, shard.stem): (pair.model, pair.dataset) for pair in plan.pairs for shard in pair.shards
        }
        self.waiting: set[Pair] = set(self._pairs)

    def digest(self, key: Pair) -> str:
        """The pair's digest in the plan."""
        return self._pairs[key].digest

    def handled(self, key: Pair) -> None:
        """Scored, or failed for good: look at it no more."""
        self.waiting.discard(key)

    def plans(self, pair: PlanPair) -> bool:
        """Whether this very pair is in the plan."""
        return self._pairs.get((pair.model, pair.dataset)) == pair

    def scan(self, skip: Set[Pair] = frozenset()) -> Iterator[Ready]:
        """The waiting pairs of which all predictions have appeared and whose statuses say `done`; not those in `skip`.

        Statuses are read as the pairs are taken: who takes one pair pays for one.
        """
        names = self._work.finished_predictions()
        there = Counter(self._of_stem[name] for name in names if name in self._of_stem)
        whole = {key for key, count in there.items() if count == len(self._pairs[key].shards)}
        return self._ready(sorted((whole & self.waiting) - skip))

    def sweep(self, skip: Set[Pair] = frozenset()) -> Iterator[Ready]:
        """The same over all waiting pairs, whatever has appeared."""
        look_again(self._work.infer_status_root)
        for model in sorted({model for model, _ in self.waiting}):
            look_again(self._work.infer_status_of(model))
        return self._ready(sorted(self.waiting - skip))

    def statuses(self, key: Pair) -> list[InferStatus | None]:
        """The status of each of the pair's shards; None where there is none for this plan, or none that can be read."""
        pair = self._pairs[key]
        found: list[InferStatus | None] = []
        for shard in pair.shards:
            try:
                status = read_record(self._work.infer_status(pair.model, shard.stem), InferStatus)
            except (WorkDirError, OSError):
                status = None  # damaged, planted, or not to be had now: it speaks for nothing until it can be read
            found.append(status if status is not None and status.plan_digest == pair.digest else None)
        return found

    def _ready(self, keys: Iterable[Pair]) -> Iterator[Ready]:
        for key in keys:
            statuses = self.statuses(key)
            if all(status is not None and status.state == "done" for status in statuses):
                yield self._pairs[key], tuple(status.digest for status in statuses if status is not None)


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
        if not self._folder.is_dir():
            return  # inferd makes it; made here, it might hide a mount that comes back
        try:
            observer = Observer()
            observer.daemon = True
            handler = _Handler(self._wake)
            observer.schedule(handler, str(self._folder), recursive=True)
            observer.schedule(handler, str(self._folder.parent), recursive=False)  # where inferd beats
            inode = self._folder.stat().st_ino
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
        self._inode = inode

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
    don't. A beat may tell that inferd has ended.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in ("created", "moved", "modified") and not event.is_directory:
            name = str(event.dest_path or event.src_path).rpartition("/")[2]
            if is_infer_heartbeat(name) or (name.endswith(".json") and not name.startswith(".")):
                self._wake()


class Wake:
    """What the loop waits on: something changed, or it is time to stop. May be called from a signal's handler."""

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()  # an Event's lock isn't reentrant

    def __call__(self) -> None:
        if self._tokens.empty():
            self._tokens.put(None)

    def wait(self, delay: float) -> None:
        try:
            self._tokens.get(timeout=delay)
        except Empty:
            pass
