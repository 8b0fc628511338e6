"""Worker threads of one model. They take jobs from a queue and never wait for a permit: whoever submits holds it
already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from typing import Generic, TypeVar

J = TypeVar("J", bound=Hashable)


class Pool(Generic[J]):
    """At most `size` threads, started as they are needed. `work(job)` must not raise.

    A job whose thread hangs can be abandoned: one more thread takes its place, and the hung one ends when it comes
    back.
    """

    def __init__(self, name: str, size: int, work: Callable[[J], None]) -> None:
        self._name = name
        self._size = size
        self._work = work
        self._jobs: SimpleQueue[J | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._wanted = 0  # threads that take jobs: neither told to end, nor hung
        self._abandoned: set[J] = set()
        self._lock = threading.Lock()

    def submit(self, job: J) -> None:
        if self._wanted < self._size:
            self._wanted += 1
            self._start()
        self._jobs.put(job)

    def resize(self, size: int) -> None:
        """From now on at most `size` threads; those too many end once they are idle."""
        self._size = size
        while self._wanted > size:
            self._wanted -= 1
            self._jobs.put(None)

    def abandon(self, job: J) -> None:
        """The thread that has this job hangs: let another do the work that is left."""
        with self._lock:
            self._abandoned.add(job)
        self._start()

    def end(self) -> None:
        """End each thread once it is idle."""
        for _ in self._threads:
            self._jobs.put(None)

    def wait(self, timeout: float) -> int:
        """After `end`: how many threads still hang after `timeout` seconds in all."""
        waiter = threading.Event()
        step = 0.01
        waited = 0.0
        while waited < timeout and any(thread.is_alive() for thread in self._threads):
            waiter.wait(step)
            waited += step
        return sum(thread.is_alive() for thread in self._threads)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._work(job)
            if self._abandoned and self._was_abandoned(job):
                return

    def _was_abandoned(self, job: J) -> bool:
        with self._lock:
            if job in self._abandoned:
                self._abandoned.remove(job)
                return True
        return False
