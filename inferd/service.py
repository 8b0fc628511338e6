"""inferd: the process around inference: its claim, signals, log, heartbeat and limits; runs it to an end, and tells
that by exit status.

Exit status: 0 all pairs done; 3 some pairs failed or were left unfinished; 4 the budget ended it; 2 bad usage or a bad
suite; 1 a fatal error.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec

from inferd import local_model
from inferd.adapters import cannot, is_carried, model_faults
from inferd.inference import Inference, sweep_statuses, with_local_servers
from inferd.lifecycle import LOOKAHEAD
from inferd.orders import Orders
from inferd.progress import Lane
from shared import claims, daemon, log
from shared.atomic import remove
from shared.clock import Clock, SystemClock
from shared.config import Suite
from shared.errors import FATAL, INCOMPLETE, USAGE, Fatal, TandemError, UsageError
from shared.heartbeat import HeartbeatWriter
from shared.layout import WorkDir
from shared.plan import make_plan, read_plan_if_sound, suite_digest
from shared.records import Plan
from shared.steering import Steering
from shared.suite import parse_suite, submitted_suite
from shared.supervision import ServiceManager
from shared.vigil import Vigil

OTHER_FILES = 64  # beside sockets, claims and journals


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: inferd -w runs/first    (after: evalctl submit suite.toml -w runs/first)",
)
@click.option(
    "-w", "--work-dir", required=True, type=click.Path(path_type=Path), help="The folder with the frozen suite."
)
@click.option(
    "--max-workers", type=click.IntRange(min=1), help="Requests in flight a model; wins over [infer] max_workers."
)
@click.option(
    "--poll-interval",
    type=click.FloatRange(min=0, min_open=True),
    help="The longest sleep of the dispatcher, in seconds.",
)
@click.option(
    "--log-interval", type=click.FloatRange(min=0, min_open=True), help="Seconds between progress lines in the log."
)
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@click.version_option(package_name="tandem-eval")
def main(
    work_dir: Path, max_workers: int | None, poll_interval: float | None, log_interval: float | None, verbose: bool
) -> None:
    """Ask the models: send every request of the plan in WORK_DIR and journal each answer as it comes.

    Can be stopped at any moment and started again: what is journalled is not asked again. SIGTERM drains (what is in
    flight ends and is kept), a second SIGTERM stops at once. SIGHUP reads the suite's settings again. `evalctl pause`,
    `retune` and others steer it.
    """
    given = {"max_workers": max_workers, "poll_interval": poll_interval, "log_interval": log_interval}
    sys.exit(
        run(WorkDir(work_dir), {name: value for name, value in given.items() if value is not None}, verbose=verbose)
    )


def run(work: WorkDir, options: dict[str, Any], *, verbose: bool = False) -> int:
    """Run to the end; returns the exit status. options: what wins over the suite's [infer] table."""
    stop = daemon.StopSignal()
    stop.install()
    _raise_file_limit()
    if not work.root.is_dir():
        click.echo(f"{work}: no such folder: `evalctl submit SUITE -w {work}` makes it", err=True)
        return USAGE
    logger = log.configure("inferd", work.log("inferd", socket.gethostname()), run=work.root.name, verbose=verbose)
    return daemon.exit_status(lambda: _serve(work, options, stop, logger), logger)


def _serve(work: WorkDir, options: dict[str, Any], stop: daemon.StopSignal, logger: Any) -> int:
    clock = SystemClock()
    manager = ServiceManager(clock)
    suite, _ = _read_suite(work)
    config = msgspec.structs.replace(suite.infer, **options)
    with ExitStack() as stack:
        instance = ""
        first = own = claims.take(work.inferd_claim(), timeout=claims.START_PATIENCE)
        if own is None:
            logger.warning("another inferd is at work here: sharing its plan", owner=claims.owner(work.inferd_claim()))
            instance = os.urandom(4).hex()
            own = claims.take(work.inferd_claim(instance))
        if own is not None:
            stack.enter_context(own)
        remove_dead_beats(work)
        inference: Inference | None = None
        beat = HeartbeatWriter(
            work.infer_heartbeat(instance),
            clock,
            config.heartbeat_interval,
            counters=lambda: (inference.counters() if inference is not None else {}) | daemon.process_figures(),
            on_error=lambda error: logger.warning("heartbeat can't be written; trying again", error=str(error)),
            on_beat=manager.tell,
        )
        beat.start()
        vigil = Vigil(
            suite.notify,
            work,
            "inferd",
            clock,
            logger,
            counters=lambda: inference.counters() if inference is not None else {},
            idle=lambda: inference is None or inference.dispatcher.paused or inference.dispatcher.draining,
        )
        vigil.start()

        def moves() -> None:
            """The loop goes on."""
            beat.tick()
            manager.feed()

        def tick() -> None:
            """Called often by all that comes before the loop, which is what heeds signals afterwards."""
            beat.tick()
            if stop.event.is_set():
                raise _Stopped(f"{stop.name} before the first request")

        try:
            suite, plan = planned(work, clock, tick, logger)
            text = submitted_suite(work.suite)  # nobody submits another while an inferd holds its claim
            config = msgspec.structs.replace(suite.infer, **options)
            suite = with_local_servers(suite, stack, work, stop.event, logger)
            if first is not None:
                sweep_statuses(work, suite)
            inference = Inference(work, suite, plan, config, clock, logger, moves)
            inference.reset(tick)
            inference.offer(plan.pairs)
            _check_file_limit(inference.lanes)
            _tune(inference.lanes)
            orders = Orders(inference.dispatcher, suite, options, beat, _check_file_limit)
            steering = Steering(
                work, text, beat, manager, stop, logger, interval=config.heartbeat_interval,
                post=inference.dispatcher.post, obey=orders.obey, apply=orders.apply,
            )  # fmt: skip
            beat.set_state("running")
            steering.start()
            manager.ready()
            logger.info("running", pairs=len(plan.pairs), requests=sum(pair.requests for pair in plan.pairs))
            return _run(inference, stop, beat, manager, vigil, logger)
        except BaseException as error:
            reason = f"{error}" if isinstance(error, (TandemError, OSError)) else f"{type(error).__name__}: {error}"
            beat.finish("aborted", reason)
            vigil.end(getattr(error, "exit_code", FATAL), reason, stopped=stop.event.is_set())
            raise


def _run(
    inference: Inference,
    stop: daemon.StopSignal,
    beat: HeartbeatWriter,
    manager: ServiceManager,
    vigil: Vigil,
    logger: Any,
) -> int:
    """From the first request to the last status."""
    stop.on_signal = inference.wake

    def on_drain() -> None:
        beat.set_state("draining", stop.name)
        manager.stopping()

    try:
        inference.run(stop, on_drain, manager.patience)
    except BaseException:
        inference.close()  # a defect of ours: what was answered is saved all the same
        raise
    ended = inference.close()
    beat.finish(ended.state, ended.reason)
    logger.info(
        "ended",
        done=ended.done,
        failed=ended.failed,
        unfinished=ended.unfinished,
        exit_status=ended.code,
        reason=ended.reason,
    )
    vigil.end(ended.code, ended.reason, stopped=stop.event.is_set())
    return ended.code


def remove_dead_beats(work: WorkDir) -> None:
    """Of further inferds that were killed: nobody shall wait for them."""
    for beat in work.infer_heartbeats():
        claim = work.inferd_claim_of(beat)
        if beat != work.infer_heartbeat() and claims.held(claim) is False:
            remove(beat)
            remove(claim)


def _read_suite(work: WorkDir) -> tuple[Suite, bytes]:
    try:
        text = submitted_suite(work.suite)
    except FileNotFoundError:
        raise UsageError(f"{work.suite}: no suite here: `evalctl submit SUITE -w {work}` puts it in place") from None
    # The datasets' own files are needed only by who plans: a planned work_dir goes on any host.
    suite = parse_suite(text, str(work.suite), work.root, os.environ, check_files=False, model_faults=model_faults)
    return suite, text


def planned(work: WorkDir, clock: Clock, tick: Callable[[], None], logger: Any) -> tuple[Suite, Plan]:
    """The suite and the plan that belongs to it; made here if there is none yet. Both are read under the plan's claim:
    whoever comes second waits for whoever plans, or submits.
    """
    claim = None
    while claim is None:
        claim = claims.take(work.plan_claim, timeout=1.0)
        tick()
    with claim:
        suite, text = _read_suite(work)
        suite = local_model.with_identities(suite)
        plan = read_plan_if_sound(work)
        if plan is None or plan.suite_digest != suite_digest(text, suite):
            logger.info("planning")
            plan = make_plan(work, suite, text, clock, cannot=cannot, tick=tick)
    return suite, plan


class _Stopped(Fatal):
    """A signal came before there was anything to drain."""

    exit_code = INCOMPLETE


def _raise_file_limit() -> None:
    """Each request in flight has its socket, each open shard its claim and journal: a soft limit of 1024 is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tune(lanes: Sequence[Lane]) -> None:
    """What suits a process that does nothing else."""
    if any(lane.permits.limit >= 1024 for lane in lanes):
        sys.setswitchinterval(0.1)  # with so many threads the default 5 ms makes them fight over the interpreter
    threading.stack_size(512 * 1024)
    # Attempts are freed by their reference counts; what little goes in circles can wait. A collection looks at
    # everything that is queued and in flight, while all threads stand still.
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def _check_file_limit(lanes: Sequence[Lane]) -> None:
    """Raises UsageError when the calls could take the descriptors that the journals need: answers would be lost."""
    calls = sum(lane.permits.limit for lane in lanes if is_carried(lane.asker.adapter))
    needed = calls + sum(2 * min(LOOKAHEAD, len(lane.waiting)) for lane in lanes) + OTHER_FILES
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise UsageError(
            f"{calls} calls in flight need about {needed} open files, and this process may have {allowed}: "
            "raise the limit (`ulimit -n`, LimitNOFILE= under systemd), or lower max_workers"
        )
