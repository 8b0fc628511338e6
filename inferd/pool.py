"""Worker threads of one model. They take jobs from a queue and never wait for a permit: whoever submits holds it
already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

J = TypeVar("J")


class Pool(Generic[J]):
    """At most `size` threads, started as they are needed. `work(job)` must not raise.

    A job whose thread hangs can be `abandoned`: one more thread takes its place, and the hung one ends when it comes
    back.
    """

    def __init__(self, name: str, size: int, work: Callable[[J], None]) -> None:
        self._name = name
        self._size = size
        self._work = work
        self._jobs: SimpleQueue[J | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._surplus = 0
        self._lock = threading.Lock()

    def submit(self, job: J) -> None:
        if len(self._threads) < self._size:
            self._start()
        self._jobs.put(job)

    def abandon(self) -> None:
        """One thread hangs in a job: let another do the work that is left."""
        with self._lock:
            self._surplus += 1
        self._start()

    def stop(self, timeout: float) -> int:
        """End the threads once they are idle; returns how many still hang after `timeout` seconds in all."""
        for _ in self._threads:
            self._jobs.put(None)
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
            if self._surplus and self._retire():
                return

    def _retire(self) -> bool:
        with self._lock:
            if self._surplus:
                self._surplus -= 1
                return True
        return False
