"""Calls made one at a time on the thread of whoever waits for them, instead of on workers' threads: so that a debugger
works inside an adapter, and Ctrl-C reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from inferd.progress import Job


class Desk:
    """One for all models. What a call raises, `serve` raises."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def workers(self, work: Callable[[Job], None]) -> DeskWorkers:
        """For one model. work: makes a job's call and reports it."""
        return DeskWorkers(lambda job: self.post(lambda: work(job)))

    def serve(self) -> None:
        """Make the calls as they are submitted, until somebody says `leave`."""
        while (call := self._calls.get()) is not None:
            call()

    def post(self, call: Callable[[], object]) -> None:
        """Have this called as well. From any thread."""
        self._calls.put(call)

    def leave(self) -> None:
        """From any thread."""
        self._calls.put(None)


class DeskWorkers:
    """Interface of `inferd.pool.Pool`, without a thread of its own: nothing is left to end or to wait for."""

    def __init__(self, submit: Callable[[Job], None]) -> None:
        self._submit = submit

    def submit(self, job: Job) -> None:
        self._submit(job)

    def abandon(self, job: Job) -> None: ...

    def resize(self, size: int) -> None: ...

    def end(self) -> None: ...

    def wait(self, timeout: float) -> int:
        return 0
