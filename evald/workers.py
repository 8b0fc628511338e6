"""Worker processes for calls that may raise, hang, or take their process down: such a failure is that one call's alone.

A worker starts when there is a call for it, does one after the other, and is replaced after it died or was killed at
its time limit. Limits are timed on the monotonic clock. No worker outlives the process that it works for.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from shared.errors import TandemError

PATIENCE = 5.0  # seconds for a killed process to go; one that hangs in the kernel (a dead mount) is left behind


class WorkerDied(TandemError):
    """The process ended in the middle of the call."""


class OverTime(TandemError):
    """The call took longer than its limit; its process was killed."""


class Scorers(Protocol):
    """Whoever makes the calls: `Workers`, or `evald.inline.Inline`."""

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Future[Any]: ...
    def stop(self) -> None: ...


class Workers:
    """At most `count` processes. preload: modules that each of them has imported before it starts."""

    def __init__(self, count: int, preload: Sequence[str]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._threads = ThreadPoolExecutor(count, "worker")
        self._lock = threading.Lock()
        self._all: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._stopped = False

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Future[Any]:
        """The call's future: its result or exception, WorkerDied, or OverTime after `timeout` seconds of its run.

        function and args must be picklable.
        """
        return self._threads.submit(self._call, function, args, timeout)

    def stop(self) -> None:
        """Kill what runs; what waits is cancelled. Nothing of any call happens after this returned."""
        with self._lock:
            self._stopped = True
            for worker in self._all:
                worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._idle:
            worker.end()

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> Any:
        worker = self._take()
        try:
            ok, value = worker.call(function, args, timeout)
        except BaseException:
            worker.end()
            with self._lock:
                self._all.discard(worker)
            raise
        with self._lock:
            self._idle.append(worker)
        if ok:
            return value
        raise value

    def _take(self) -> _Worker:
        with self._lock:
            if self._stopped:
                raise WorkerDied("stopped")
            while self._idle:
                worker = self._idle.pop()
                if worker.process.is_alive():
                    return worker
                worker.end()
                self._all.discard(worker)
            worker = _Worker(self._context)
            self._all.add(worker)
            return worker


class _Worker:
    """One process and the pipe to it; used by one thread at a time."""

    def __init__(self, context: Any) -> None:
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), name="evald-worker", daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> tuple[bool, Any]:
        """(True, result) or (False, exception)."""
        try:
            self._pipe.send((function, args))
            if not self._pipe.poll(timeout):
                raise OverTime(f"took longer than {timeout:g} s")
            answer: tuple[bool, Any] = self._pipe.recv()
            return answer
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            raise WorkerDied(f"its process died ({_how(self.process.exitcode)})") from None

    def end(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE)
        self._pipe.close()


def _how(code: int | None) -> str:
    if code is None:
        return "and hangs"
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _serve(pipe: Connection) -> None:
    """A worker's life: it ends with the pipe, and when its parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, function(*args))
        except BaseException as error:  # noqa: BLE001  # the edge of the worker: whatever it is, the caller is told
            answer = (False, _portable(error))
        pipe.send(answer)


def _end_with_parent() -> None:
    """The daemon's end, however it came, shows at its sentinel; that of the fork server in between would not: it lives
    as long as its children.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def _portable(error: BaseException) -> BaseException:
    """The exception, or its text where it can't be sent to another process."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # a class may raise anything from its own pickling
        copy = None
    return copy if isinstance(copy, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
