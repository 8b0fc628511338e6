"""One thread that drives all calls of one model at once, where its adapter lets a transport carry them.

It does what a pool of worker threads does, without a parked thread for each request in flight: it takes jobs, sends
them, and reports the attempts that ended, many at a time.

Invariant: every job that was submitted is reported exactly once, whatever an adapter or libcurl does, unless it was
broken off at the end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, NoReturn, Protocol, TypeVar

from inferd.adapters import CarriedAdapter
from inferd.adapters.multi import Multi
from inferd.adapters.transport import Call, Reply
from inferd.ask import Asker, Ended
from shared.clock import Clock
from shared.errors import Retryable
from shared.requests import Request

GROUP = 16  # calls sent between two looks at what came: a first wave sent in one go would come back in one go, too
IDLE = 60.0  # seconds without any event after which it looks around


class Attempting(Protocol):
    """What it needs of a job."""

    @property
    def request(self) -> Request: ...
    @property
    def attempt(self) -> int: ...


J = TypeVar("J", bound=Attempting)


class Engine(Generic[J]):
    """Interface of `inferd.pool.Pool`. size: how many calls may be in flight: whoever submits holds the permit.

    report: told what ended; called on the engine's own thread, and must not raise.
    """

    def __init__(
        self,
        name: str,
        size: int,
        adapter: CarriedAdapter,
        asker: Asker,
        clock: Clock,
        report: Callable[[list[tuple[J, Ended]]], None],
    ) -> None:
        self._size = size
        self._adapter = adapter
        self._asker = asker
        self._clock = clock
        self._report = report
        self._jobs: deque[J] = deque()
        self._asleep = False
        self._ending = False
        self._broken_off = False
        self._multi: Multi[tuple[J, Call, float]] = Multi(size)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: J) -> None:
        self._jobs.append(job)
        self._rouse()

    def resize(self, size: int) -> None:
        """From now on so many calls may be in flight."""
        self._size = size
        self._rouse()

    def abandon(self, job: J) -> None:
        """The job's deadline passed and nothing came. There is no thread to replace: libcurl breaks the call off."""

    def end(self) -> None:
        """End once nothing is in flight."""
        self._ending = True
        self._rouse()

    def wait(self, timeout: float) -> int:
        """After `end`: how many calls had to be broken off after `timeout` seconds."""
        self._thread.join(max(timeout, 0.0))
        left = len(self._multi) + len(self._jobs) if self._thread.is_alive() else 0
        self._broken_off = True
        self._rouse()
        self._thread.join(1.0)
        return left

    def _rouse(self) -> None:
        # Asleep is set before the engine looks for jobs once more, and read here after the job was put: one of the two
        # sees the other.
        if self._asleep:
            self._asleep = False
            self._multi.wake()

    def _run(self) -> None:
        while not self._broken_off and not (self._ending and not self._multi and not self._jobs):
            if self._multi.connections != self._size:
                self._multi.keep(self._size)
            ended = self._start_submitted()
            self._asleep = True
            came = self._poll(0.0 if ended or self._jobs or self._ending or self._broken_off else IDLE)
            self._asleep = False
            ended += [(job, self._ended(job, call, started, answer)) for (job, call, started), answer in came]
            if ended:
                self._report(ended)
        self._multi.close()

    def _poll(self, timeout: float) -> list[tuple[tuple[J, Call, float], Reply | Exception]]:
        try:
            return self._multi.poll(timeout)
        except Exception as error:  # noqa: BLE001  # a worker's edge: nobody could tell that this thread had ended
            broken, self._multi = self._multi, Multi(self._size)
            lost = Retryable("connection", f"all connections were lost: {type(error).__name__}: {error}")
            return [(token, lost) for token in broken.close()]

    def _start_submitted(self) -> list[tuple[J, Ended]]:
        """Send the next of what was submitted; gives those whose request couldn't even be made."""
        failed: list[tuple[J, Ended]] = []
        jobs = self._jobs
        for _ in range(min(len(jobs), GROUP)):
            job = jobs.popleft()
            request, started = job.request, self._clock.monotonic()
            try:
                call = self._adapter.call(request.prompt, request.task)
                self._multi.start(self._adapter.transport, call, (job, call, started))
            except BaseException as error:  # noqa: BLE001  # an adapter's defect ends one request
                failed.append((job, self._asker.ended(request, job.attempt, started, _raiser(error))))
        return failed

    def _ended(self, job: J, call: Call, started: float, came: Reply | Exception) -> Ended:
        return self._asker.ended(job.request, job.attempt, started, lambda: call.answer(came))


def _raiser(error: BaseException) -> Callable[[], NoReturn]:
    def raise_it() -> NoReturn:
        raise error

    return raise_it
