"""Inference and scoring in one process, one batch of pairs after the other: each is asked to its end and then scored.

The parts are those of the two daemons, and so are the files that they leave: either way of running goes on where the
other one stopped. Nothing here belongs to the process as a whole, but for what `run_serial` sets up: signals and log.
"""

from __future__ import annotations

import math
import socket
import threading
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from evalctl.run import Ended
from evald.inline import Inline
from evald.scoring import Scoring
from evald.watch import Wake
from inferd.adapters import ModelAdapter
from inferd.desk import Desk
from inferd.inference import Inference, sweep_statuses, with_local_servers
from inferd.service import planned, remove_dead_beats
from shared import claims, daemon, log
from shared.clock import SystemClock
from shared.config import Suite
from shared.errors import FATAL, UsageError
from shared.heartbeat import HeartbeatWriter
from shared.layout import WorkDir
from shared.records import Plan, PlanPair


def run_serial(work: WorkDir, *, max_workers: int | None, progress: bool, verbose: bool) -> Ended:
    """Run what was submitted to the work_dir, dataset by dataset. Ctrl-C drains it, a second one stops it at once.

    max_workers: instead of the suite's own; with one, all calls are made on this thread, as all scoring is: there a
    debugger works. Raises UsageError when an inferd or an evald is at work there.
    """
    file = work.log("evalctl", socket.gethostname())
    logger = log.configure("evalctl", file, run=work.root.name, verbose=verbose, quiet=not progress)
    suite, plan = planned(work, SystemClock(), lambda: None, logger)
    stop = daemon.StopSignal()
    stop.install()
    if max_workers is not None:
        suite = with_workers(suite, max_workers)
    datasets = [[pair for pair in plan.pairs if pair.dataset == dataset.abbr] for dataset in plan.datasets]
    return OneProcess(work, suite, plan, stop, logger).run(datasets)


def with_workers(suite: Suite, count: int) -> Suite:
    """The suite with so many requests in flight for each model."""
    models = tuple(replace(model, max_workers=None) for model in suite.models)
    return replace(suite, models=models, infer=replace(suite.infer, max_workers=count))


class OneProcess:
    """suite: as planned; where it has one worker for every model, calls are made on the thread that calls `run`.
    adapters: see `Inference`. stop: ends it early; `run` sets it itself at a KeyboardInterrupt. fatal: why it could not
    go on, if so, once it has ended.
    """

    def __init__(
        self,
        work: WorkDir,
        suite: Suite,
        plan: Plan,
        stop: daemon.StopSignal,
        logger: Any,
        adapters: Mapping[str, ModelAdapter] | None = None,
    ) -> None:
        self._work = work
        self._suite = suite
        self._plan = plan
        self._stop = stop
        self._log = logger
        self._adapters = adapters
        self._clock = SystemClock()
        self._wake = Wake()
        self.fatal = ""
        self._desk = Desk()
        self._alone = all((model.max_workers or suite.infer.max_workers) == 1 for model in suite.models)

    def run(self, batches: Iterable[Sequence[PlanPair]]) -> Ended:
        """Each batch asked to its end and then scored; what an earlier run left complete is scored first."""
        with ExitStack() as stack:
            for name, path in (("inferd", self._work.inferd_claim()), ("evald", self._work.evald_claim)):
                stack.enter_context(self._claim(name, path))
            remove_dead_beats(self._work)
            inference: Inference | None = None
            scoring: Scoring | None = None
            beat = HeartbeatWriter(
                self._work.infer_heartbeat(),
                self._clock,
                self._suite.infer.heartbeat_interval,
                counters=lambda: (inference.counters() if inference is not None else {}) | daemon.process_figures(),
                on_error=lambda error: self._log.warning("heartbeat can't be written", error=str(error)),
                stall_after=math.inf,  # while pairs are scored nothing ticks; and somebody may sit in a debugger
            )
            beat.start()
            try:
                suite = with_local_servers(self._suite, stack, self._work, self._stop.event, self._log)
                sweep_statuses(self._work, suite)
                inference = self._inference(suite, beat)
                inference.reset(beat.tick)
                scoring = self._scoring()
                beat.set_state("running")
                self._work_through(list(batches), inference, scoring, beat)
                ended = inference.close()
                self.fatal = ended.reason if ended.code == FATAL else ""
                beat.finish(ended.state, ended.reason)
                self._log.info("asked", done=ended.done, failed=ended.failed, unfinished=ended.unfinished)
                self._wake()  # nothing more will come: there is nothing to wait for between its last two looks
                scoring.run()
                return Ended(ended.code, scoring.finish())
            except BaseException as error:
                if inference is not None:
                    inference.close()
                beat.finish("aborted", f"{type(error).__name__}: {error}")
                if scoring is not None:
                    scoring.abort(error)
                raise

    def _claim(self, name: str, path: Path) -> claims.Claim:
        claim = claims.take(path, timeout=claims.START_PATIENCE)
        if claim is None:
            raise UsageError(
                f"{self._work}: {name} is at work here ({claims.owner(path)}): "
                f"watch it with `evalctl status -w {self._work} --watch`, or stop it first"
            )
        return claim

    def _inference(self, suite: Suite, beat: HeartbeatWriter) -> Inference:
        return Inference(
            self._work,
            suite,
            self._plan,
            suite.infer,
            self._clock,
            self._log,
            beat.tick,
            adapters=self._adapters,
            desk=self._desk if self._alone else None,
            on_defect=defects(self._log, alone=self._alone),
        )

    def _scoring(self) -> Scoring:
        def on_error(error: Exception) -> None:
            self._log.debug("scoring raised", exc_info=error)

        config = replace(self._suite.eval, events=False)  # who infers here tells by itself
        return Scoring(
            self._work, config, Inline(on_error), self._stop, self._wake, self._clock, self._log, stall_after=math.inf
        )

    def _work_through(
        self, batches: list[Sequence[PlanPair]], inference: Inference, scoring: Scoring, beat: HeartbeatWriter
    ) -> None:
        def draining() -> None:
            beat.set_state("draining", self._stop.name)

        try:
            self._score(scoring, inference)
            while batches and not self._stop.event.is_set():
                inference.offer(batches.pop(0))
                if not ask(inference, self._desk, self._stop, draining, alone=self._alone):
                    break
                inference.settle()
                self._score(scoring, inference)
        except KeyboardInterrupt:
            self._stop.ask(self._stop.name or "SIGINT")
        for batch in batches:
            inference.offer(batch)  # asked no more: it counts as unfinished

    def _score(self, scoring: Scoring, inference: Inference) -> None:
        """Ctrl-C breaks it off: a pair that isn't scored to its end is scored anew."""

        def on_signal() -> None:
            raise KeyboardInterrupt

        self._stop.on_signal = on_signal
        try:
            scoring.score_ready()
        finally:
            self._stop.on_signal = inference.wake


def defects(logger: Any, *, alone: bool) -> Callable[[BaseException], None]:
    """What is done about an exception that comes out of an adapter, before it ends its request as an error."""

    def on_defect(error: BaseException) -> None:
        if alone and isinstance(error, KeyboardInterrupt | BdbQuit):
            raise KeyboardInterrupt from error  # of whoever sits here, and not of the adapter
        logger.debug("an adapter raised", exc_info=error)

    return on_defect


def ask(
    inference: Inference, desk: Desk, stop: daemon.StopSignal, on_drain: Callable[[], None], *, alone: bool
) -> bool:
    """`Inference.run` on a thread of its own, where no Ctrl-C can hit it in the middle of a step; on this one, what
    comes to the desk: with `alone` all calls.

    At a KeyboardInterrupt it sets `stop` and goes on until what is in flight has ended; the call that was made here is
    lost. What else is raised here, and what `Inference.run` raises, is raised once all is at rest.
    """
    came: list[bool | BaseException] = []

    def run() -> None:
        try:
            came.append(inference.run(stop, on_drain))
        except BaseException as error:  # noqa: BLE001  # a thread's edge: raised again where it was started
            came.append(error)
        finally:
            desk.leave()

    def on_signal() -> None:
        inference.wake()
        if stop.hurry.is_set():
            raise KeyboardInterrupt  # out of the call at the desk

    raised: BaseException | None = None
    stop.on_signal = on_signal
    thread = threading.Thread(target=run, name="dispatcher")
    thread.start()
    while not came:
        try:
            desk.serve()
        except BaseException as error:  # noqa: BLE001  # see above
            stop.on_signal = inference.wake
            if not isinstance(error, KeyboardInterrupt):
                raised = raised or error
            stop.ask(stop.name or "SIGINT", hurry=alone or stop.event.is_set())
    thread.join()
    stop.on_signal = inference.wake
    (result,) = came
    if raised is not None or isinstance(result, BaseException):
        raise raised or result  # type: ignore[misc]  # one of them is an exception
    return result
