"""evald: watches the work_dir, has each pair scored as soon as it is complete, and writes the summary. The only place
that composes.

Exit status: 0 all pairs scored; 3 some were skipped or could not be scored; 2 bad usage; 1 a fatal error.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from evald.loop import Loop
from evald.watch import Events, Wake
from evald.workers import Workers
from shared import claims, daemon, log
from shared.clock import SystemClock
from shared.config import EvalConfig
from shared.errors import UsageError
from shared.heartbeat import HeartbeatReader, HeartbeatWriter
from shared.layout import WorkDir
from shared.suite import parse_suite

FATAL, USAGE = 1, 2
BEAT_INTERVAL = 5.0


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: evald -w runs/first    (while inferd runs or after it, on any host that sees the folder)",
)
@click.option(
    "-w", "--work-dir", required=True, type=click.Path(path_type=Path), help="The folder with the frozen suite."
)
@click.option("--watch-interval", type=click.FloatRange(min=0, min_open=True), help="Seconds between scans.")
@click.option(
    "--heartbeat-timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds after which an unchanged inferd is gone.",
)
@click.option(
    "--log-interval", type=click.FloatRange(min=0, min_open=True), help="Seconds between progress lines in the log."
)
@click.option("--max-num-workers", type=click.IntRange(min=1), help="Pairs scored at once.")
@click.option("--events/--no-events", default=None, help="Listen to the filesystem between scans.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@click.version_option(package_name="tandem-eval")
def main(work_dir: Path, verbose: bool, **given: Any) -> None:
    """Score each model-dataset pair in WORK_DIR as soon as its predictions are complete, while inference goes on.

    Ends when everything is scored, or when inferd has ended or its heartbeat has gone stale. Nothing incomplete is
    scored.
    """
    sys.exit(
        run(WorkDir(work_dir), {name: value for name, value in given.items() if value is not None}, verbose=verbose)
    )


def run(work: WorkDir, options: dict[str, Any], *, verbose: bool = False) -> int:
    """Run to the end; returns the exit status. options: what wins over the suite's [eval] table."""
    stop = daemon.StopSignal()
    stop.install()
    if not work.root.is_dir():
        click.echo(f"{work}: no such folder: `evalctl submit SUITE -w {work}` makes it", err=True)
        return USAGE
    logger = log.configure("evald", work.log("evald", socket.gethostname()), verbose=verbose)
    return daemon.exit_status(lambda: _claim_and_serve(work, options, stop, logger), logger)


def _claim_and_serve(work: WorkDir, options: dict[str, Any], stop: daemon.StopSignal, logger: Any) -> int:
    config = msgspec.structs.replace(_read_config(work), **options)
    claim = claims.take(work.evald_claim, timeout=claims.START_PATIENCE)
    if claim is None:
        logger.error("another evald is at work here", owner=claims.owner(work.evald_claim))
        return FATAL
    with claim:
        return _serve(work, config, stop, logger)


def _read_config(work: WorkDir) -> EvalConfig:
    try:
        text = work.suite.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{work.suite}: no suite here: `evalctl submit SUITE -w {work}` puts it in place") from None
    return parse_suite(text, str(work.suite), work.root, check_files=False).eval


def _serve(work: WorkDir, config: EvalConfig, stop: daemon.StopSignal, logger: Any) -> int:
    clock = SystemClock()
    wake = Wake()
    stop.on_signal = wake
    loop: Loop | None = None
    beat = HeartbeatWriter(
        work.eval_heartbeat,
        clock,
        BEAT_INTERVAL,
        counters=lambda: (loop.counters() if loop is not None else {}) | daemon.process_figures(),
        on_error=lambda error: logger.warning("heartbeat can't be written; trying again", error=str(error)),
        stall_after=max(60.0, 2 * config.watch_interval),
    )
    beat.start()
    events = Events(work.infer_status_root, wake, logger) if config.events else None
    reader = HeartbeatReader(work.infer_heartbeats, clock, config.heartbeat_timeout)
    workers = Workers(config.max_num_workers, preload=["evald.service"])
    try:
        loop = Loop(work, config, reader, workers, events, stop, wake, clock, logger, beat.tick)
        beat.set_state("running")
        daemon.notify("READY=1")
        daemon.run_loop(loop.step, clock.monotonic, wake.wait)
        code = loop.finish()
        beat.finish("finished" if not stop.event.is_set() else "aborted", loop.reason)
        logger.info("ended", scored=loop.done, not_scored=len(loop.unscored), exit_status=code, reason=loop.reason)
        return code
    except BaseException as error:
        beat.finish("aborted", f"{type(error).__name__}: {error}")
        raise
    finally:
        if events is not None:
            events.stop()
        workers.stop()
