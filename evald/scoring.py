"""Scoring put together: evald's heartbeat, its look at inferd's, and the loop between. The daemon composes it
(service.py), and so does whoever infers and scores in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from evald.loop import Loop
from evald.watch import Events, Wake
from evald.workers import Scorers
from shared import daemon
from shared.clock import Clock
from shared.config import EvalConfig, Suite
from shared.control import Refused
from shared.heartbeat import HeartbeatReader, HeartbeatWriter
from shared.layout import WorkDir
from shared.records import Command
from shared.reload import EVAL_FIXED, Change, merge
from shared.steering import Steering
from shared.supervision import ServiceManager

BEAT_INTERVAL = 5.0


class Scoring:
    """workers: who scores the pairs; they are stopped with it. wake: what `run` waits on between two looks.
    stall_after: seconds without a look after which it no longer beats.

    It is made with its first beat, and ends with `finish`, or with `abort`.
    """

    def __init__(
        self,
        work: WorkDir,
        config: EvalConfig,
        workers: Scorers,
        stop: daemon.StopSignal,
        wake: Wake,
        clock: Clock,
        logger: Any,
        stall_after: float | None = None,
    ) -> None:
        self._config = config
        self._stop = stop
        self._wake = wake
        self._clock = clock
        self._log = logger
        self._workers = workers
        self._work = work
        self._manager = manager = ServiceManager(clock)
        self._steering: Steering | None = None
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._beat = HeartbeatWriter(
            work.eval_heartbeat,
            clock,
            BEAT_INTERVAL,
            counters=lambda: self._loop.counters() | daemon.process_figures(),
            on_error=lambda error: logger.warning("heartbeat can't be written; trying again", error=str(error)),
            stall_after=stall_after or max(60.0, 2 * config.watch_interval),
            on_beat=manager.tell,
        )
        self._events = Events(work.infer_status_root, wake, logger) if config.events else None
        self._reader = reader = HeartbeatReader(work.infer_heartbeats, clock, config.heartbeat_timeout)
        self._loop = Loop(work, config, reader, workers, self._events, stop, wake, clock, logger, self._moves)
        self._beat.start()
        self._beat.set_state("running")

    def heed(self, options: dict[str, Any]) -> None:
        """Obey commands from now on (`shared.control`). options: what wins over the suite's [eval]."""

        def post(event: Callable[[], None]) -> None:
            self._posted.put(event)
            self._wake()

        def obey(command: Command) -> str:
            raise Refused(f"evald knows no command {command.command}")

        def apply(suite: Suite) -> Change:
            return self._reconfigure(msgspec.structs.replace(suite.eval, **options))

        self._steering = Steering(
            self._work, None, self._beat, self._manager, self._stop, self._log,
            post=post, obey=obey, apply=apply, interval=BEAT_INTERVAL,
        )  # fmt: skip
        self._steering.start()

    def run(self) -> None:
        """Score what comes, until nothing is left that could."""
        patience = self._manager.patience
        self._manager.ready()
        daemon.run_loop(self._step, self._clock.monotonic, lambda delay: self._wake.wait(min(delay, patience)))
        if self._stop.event.is_set():
            self._manager.stopping()

    def _step(self, now: float) -> float | None:
        try:
            while True:
                self._posted.get_nowait()()
        except Empty:
            return self._loop.step(now)

    def _moves(self) -> None:
        self._beat.tick()
        self._manager.feed()

    def _reconfigure(self, wanted: EvalConfig) -> Change:
        self._config, change = merge(self._config, wanted, EVAL_FIXED)
        self._loop.reconfigure(self._config)
        self._reader.set_timeout(self._config.heartbeat_timeout)
        self._beat.set_stall_after(max(60.0, 2 * self._config.watch_interval))
        return change

    def score_ready(self) -> None:
        """Score what is ready now."""
        self._loop.step(self._clock.monotonic())
        while self._loop.busy:
            self._wake.wait(1.0)
            self._loop.step(self._clock.monotonic())

    def counters(self) -> dict[str, float]:
        """Progress in numbers. From any thread."""
        return self._loop.counters()

    @property
    def reason(self) -> str:
        """Why it ended before all was scored; "" where it didn't."""
        return self._loop.reason

    def finish(self) -> int:
        """Write down what wasn't scored, and why, and the summary; the exit status."""
        loop = self._loop
        code = loop.finish()
        self._beat.finish("finished" if not self._stop.event.is_set() else "aborted", loop.reason)
        self._log.info("ended", scored=loop.done, not_scored=len(loop.unscored), exit_status=code, reason=loop.reason)
        self._release()
        return code

    def abort(self, error: BaseException) -> None:
        """After an error: leave what stands as it is."""
        self._beat.finish("aborted", f"{type(error).__name__}: {error}")
        self._release()

    def _release(self) -> None:
        if self._steering is not None:
            self._steering.end()
        if self._events is not None:
            self._events.stop()
        self._workers.stop()
