"""Listens for changes in a folder the way evald does, and remembers whether any came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer


class Listening:
    """error: why it can't listen. heard: an event came."""

    def __init__(self, folder: Path) -> None:
        self.error = ""
        self.heard = False
        self._observer: Any = Observer()
        self._observer.daemon = True
        try:
            self._observer.schedule(_Handler(self), str(folder))
            self._observer.start()
        except OSError as error:
            self.error = str(error)

    def stop(self) -> None:
        if not self.error:
            self._observer.unschedule_all()
            self._observer.stop()
            self._observer.join(2.0)


class _Handler(FileSystemEventHandler):
    def __init__(self, listening: Listening) -> None:
        self._listening = listening

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in ("created", "moved", "modified") and not event.is_directory:
            self._listening.heard = True
