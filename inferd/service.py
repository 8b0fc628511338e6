"""inferd: composes the parts, runs them to an end, and tells it by exit status. The only place here that reads the
environment.

Exit status: 0 all pairs done; 3 some pairs failed or were left unfinished; 4 the budget ended it; 2 bad usage or a bad
suite; 1 a fatal error.
"""

from __future__ import annotations

import gc
import os
import random
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

from inferd import local_model, shards
from inferd.adapters import build_adapter, cannot, is_carried, model_faults
from inferd.adapters.redact import Redactor, usual_writings
from inferd.ask import Asker, Redact
from inferd.dispatcher import Dispatcher
from inferd.engine import Engine
from inferd.lifecycle import LOOKAHEAD
from inferd.limiter import Budget, Health, Permits
from inferd.pool import Pool
from inferd.progress import Job, Lane, Workers
from inferd.shards import Shelf
from shared import claims, daemon, log
from shared.atomic import remove, sweep
from shared.clock import SystemClock, utc
from shared.config import InferConfig, ModelConfig, Suite, default_max_workers
from shared.errors import Fatal, TandemError, UsageError
from shared.heartbeat import HeartbeatWriter
from shared.layout import WorkDir
from shared.plan import make_plan, read_plan_if_sound, suite_digest
from shared.records import Plan
from shared.secrets import lookup
from shared.status import write_record
from shared.suite import parse_suite

DONE, FATAL, USAGE, INCOMPLETE, OVER_BUDGET = 0, 1, 2, 3, 4
ENGINE_FROM = 64
"""Calls in flight from which one thread that drives them all beats a thread for each (docs/benchmarks.md)."""
OTHER_FILES = 64  # beside sockets, claims and journals
LONG_SECRET = 16  # characters from which a secret can't be a word of an answer


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
    flight ends and is kept), a second SIGTERM stops at once.
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
    logger = log.configure("inferd", work.log("inferd", socket.gethostname()), verbose=verbose)
    return daemon.exit_status(lambda: _serve(work, options, stop, logger), logger)


def _serve(work: WorkDir, options: dict[str, Any], stop: daemon.StopSignal, logger: Any) -> int:
    clock = SystemClock()
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
        _remove_dead_beats(work)
        dispatcher: Dispatcher | None = None
        beat = HeartbeatWriter(
            work.infer_heartbeat(instance),
            clock,
            config.heartbeat_interval,
            counters=lambda: (dispatcher.counters() if dispatcher is not None else {}) | daemon.process_figures(),
            on_error=lambda error: logger.warning("heartbeat can't be written; trying again", error=str(error)),
        )
        beat.start()

        def tick() -> None:
            """Called often by all that comes before the loop, which is what heeds signals afterwards."""
            beat.tick()
            if stop.event.is_set():
                raise _Stopped(f"{stop.name} before the first request")

        try:
            suite, plan = _plan(work, clock, tick, logger)
            config = msgspec.structs.replace(suite.infer, **options)
            suite = _with_local_servers(suite, stack, work, stop, logger)
            shelf = Shelf(work, plan)
            budget = Budget(suite.budget)
            if first is not None:
                for folder in work.written_by_inferd(model.abbr for model in suite.models):
                    sweep(folder)
            _reset_statuses(shelf, budget, clock, tick)
            secret = _Secrets()
            dispatcher = Dispatcher(shelf, config, budget, clock, random.uniform, logger, beat.tick)
            for model in suite.models:
                dispatcher.lanes.append(_lane(model, plan, config, secret, clock, dispatcher))
            _check_file_limit(dispatcher.lanes)
            _collect_rarely()
            beat.set_state("running")
            daemon.notify("READY=1")
            logger.info("running", pairs=len(plan.pairs), requests=sum(pair.requests for pair in plan.pairs))
            return _run(dispatcher, config, stop, beat, clock, logger)
        except BaseException as error:
            reason = f"{error}" if isinstance(error, (TandemError, OSError)) else f"{type(error).__name__}: {error}"
            beat.finish("aborted", reason)
            raise


def _run(
    dispatcher: Dispatcher,
    config: InferConfig,
    stop: daemon.StopSignal,
    beat: HeartbeatWriter,
    clock: SystemClock,
    logger: Any,
) -> int:
    """The loop, from the first request to the last status."""
    stop.on_signal = dispatcher.wake

    def step(now: float) -> float | None:
        if stop.event.is_set() and not dispatcher.draining:
            beat.set_state("draining", stop.name)
            daemon.notify("STOPPING=1")
            dispatcher.stop(stop.name, config.drain_timeout)
        if stop.hurry.is_set():
            dispatcher.stop(stop.name, 0.0)
        return dispatcher.step(now)

    try:
        daemon.run_loop(step, clock.monotonic, dispatcher.wait)
    except BaseException:
        dispatcher.close()  # a defect of ours: what was answered is saved all the same
        raise
    ended = dispatcher.close()
    clean = not ended.failed and not ended.unfinished and ended.saved
    if clean:
        code, reason = DONE, ""
    elif not ended.saved and not dispatcher.fatal:
        code, reason = FATAL, "not everything could be written to the work_dir"
    elif dispatcher.fatal:
        code, reason = FATAL, dispatcher.fatal
    elif dispatcher.over_budget:
        code, reason = OVER_BUDGET, dispatcher.stop_reason
    else:
        code, reason = INCOMPLETE, dispatcher.stop_reason
    beat.finish("aborted" if dispatcher.draining and not clean else "finished", reason)
    logger.info(
        "ended", done=ended.done, failed=ended.failed, unfinished=ended.unfinished, exit_status=code, reason=reason
    )
    return code


def _remove_dead_beats(work: WorkDir) -> None:
    """Of further inferds that were killed: nobody shall wait for them."""
    for beat in work.infer_heartbeats():
        claim = work.inferd_claim_of(beat)
        if beat != work.infer_heartbeat() and claims.held(claim) is False:
            remove(beat)
            remove(claim)


def _read_suite(work: WorkDir) -> tuple[Suite, bytes]:
    try:
        text = work.suite.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{work.suite}: no suite here: `evalctl submit SUITE -w {work}` puts it in place") from None
    # The datasets' own files are needed only by who plans: a planned work_dir goes on any host.
    suite = parse_suite(text, str(work.suite), work.root, os.environ, check_files=False, model_faults=model_faults)
    return suite, text


def _plan(work: WorkDir, clock: SystemClock, tick: Callable[[], None], logger: Any) -> tuple[Suite, Plan]:
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


def _reset_statuses(shelf: Shelf, budget: Budget, clock: SystemClock, tick: Callable[[], None]) -> None:
    """`pending` for every shard that isn't done as planned, so that no state of an earlier run is taken for this one's.
    What the done ones took counts towards the budget; what the others took does when they are opened.

    Shards that another inferd works on keep the status which that one writes.
    """
    for pair in shelf.plan.pairs:
        for shard in pair.shards:
            tick()
            claim = claims.take(shelf.work.shard_claim(pair.model, shard.stem))
            if claim is None:
                continue
            with claim:
                path = shelf.work.infer_status(pair.model, shard.stem)
                if (done := shards.standing(shelf.work, pair, shard)) is not None:
                    budget.load(done.attempts, done.prompt_tokens + done.completion_tokens, done.cost)
                    continue
                old = shards.last_status(shelf.work, pair, shard)
                if old is not None and old.state == "pending":
                    continue
                write_record(
                    path,
                    shards.bare_status(
                        pair, shard, "pending", utc(clock.time()), spans=old.spans if old is not None else ()
                    ),
                )


def _lane(
    model: ModelConfig,
    plan: Plan,
    config: InferConfig,
    secret: _Secrets,
    clock: SystemClock,
    dispatcher: Dispatcher,
) -> Lane:
    limit = model.max_workers or config.max_workers or default_max_workers()
    adapter = build_adapter(model, infer=config, secret=secret.lookup)
    asker = Asker(adapter, model.price, clock, secret.redact())
    name = f"ask-{model.abbr}"
    workers: Workers
    if is_carried(adapter) and (model.transport == "engine" or (model.transport == "auto" and limit >= ENGINE_FROM)):
        workers = Engine[Job](name, limit, adapter, asker, clock, dispatcher.report)
    else:
        if limit >= 1024:
            sys.setswitchinterval(0.1)  # with so many threads the default 5 ms makes them fight over the interpreter
        threading.stack_size(512 * 1024)
        workers = Pool(name, limit, dispatcher.work)
    lane = Lane(
        model=model,
        asker=asker,
        permits=Permits(limit),
        health=Health(config.unhealthy_after, config.unhealthy_timeout, config.fail_fast_after),
        timeout=model.attempt_timeout or config.attempt_timeout,
        workers=workers,
    )
    lane.waiting.extend((pair, shard) for pair in plan.pairs if pair.model == model.abbr for shard in pair.shards)
    return lane


def _with_local_servers(suite: Suite, stack: ExitStack, work: WorkDir, stop: daemon.StopSignal, logger: Any) -> Suite:
    """The suite with the address of a running server in each `local` model; the servers end with the stack."""
    models = []
    for model in suite.models:
        if model.type == "local":
            logger.info("starting the local model", model=model.abbr)
            server = local_model.serve(model, log=work.model_log(model.abbr), progress=logger.info, stop=stop.event)
            stack.enter_context(server)
            model = msgspec.structs.replace(model, base_url=server.base_url)
        models.append(model)
    return msgspec.structs.replace(suite, models=tuple(models))


class _Stopped(Fatal):
    """A signal came before there was anything to drain."""

    exit_code = INCOMPLETE


def _raise_file_limit() -> None:
    """Each request in flight has its socket, each open shard its claim and journal: a soft limit of 1024 is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _collect_rarely() -> None:
    """Attempts are freed by their reference counts; what little goes in circles can wait. A collection looks at
    everything that is queued and in flight, while all threads stand still.
    """
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


class _Secrets:
    """Hands out secrets to adapters and takes them out of every text that is kept."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._message = self._answer = Redactor(())

    def lookup(self, name: str) -> str | None:
        value = lookup(name, os.environ)
        if value and value not in self._known:
            self._known.add(value)
            self._message = Redactor(self._known)
            long = (secret for secret in self._known if len(secret) >= LONG_SECRET)
            self._answer = Redactor(long, usual_writings)
        return value

    def redact(self) -> Redact:
        """For a model whose own secrets were all looked up."""
        has_long = any(len(secret) >= LONG_SECRET for secret in self._known)
        return Redact(message=lambda text: self._message(text), answer=self._clean if has_long else None)

    def _clean(self, text: str) -> str:
        return self._answer(text)
