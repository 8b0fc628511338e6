"""evald: the process around scoring: its claim, signals, log and worker processes; runs it to an end, and tells that by
exit status.

Exit status: 0 all pairs scored; 3 some were skipped or could not be scored; 2 bad usage; 1 a fatal error.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from evald.scoring import Scoring
from evald.watch import Wake
from evald.workers import Workers
from shared import claims, daemon, log
from shared.clock import SystemClock
from shared.config import EvalConfig, NotifyConfig, Suite
from shared.errors import FATAL, USAGE, UsageError
from shared.layout import WorkDir
from shared.suite import parse_suite, submitted_suite
from shared.vigil import Vigil


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
    scored. SIGHUP reads the suite's settings again.
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
    logger = log.configure("evald", work.log("evald", socket.gethostname()), run=work.root.name, verbose=verbose)
    return daemon.exit_status(lambda: _claim_and_serve(work, options, stop, logger), logger)


def _claim_and_serve(work: WorkDir, options: dict[str, Any], stop: daemon.StopSignal, logger: Any) -> int:
    suite = read_suite(work)
    config = msgspec.structs.replace(suite.eval, **options)
    claim = claims.take(work.evald_claim, timeout=claims.START_PATIENCE)
    if claim is None:
        logger.error("another evald is at work here", owner=claims.owner(work.evald_claim))
        return FATAL
    with claim:
        return _serve(work, suite.notify, config, options, stop, logger)


def read_suite(work: WorkDir) -> Suite:
    try:
        text = submitted_suite(work.suite)
    except FileNotFoundError:
        raise UsageError(f"{work.suite}: no suite here: `evalctl submit SUITE -w {work}` puts it in place") from None
    return parse_suite(text, str(work.suite), work.root, check_files=False)


def _serve(
    work: WorkDir,
    notify: NotifyConfig,
    config: EvalConfig,
    options: dict[str, Any],
    stop: daemon.StopSignal,
    logger: Any,
) -> int:
    wake, clock = Wake(), SystemClock()
    stop.on_signal = wake
    workers = Workers(config.max_num_workers, preload=["evald.service"])
    scoring = Scoring(work, config, workers, stop, wake, clock, logger)
    vigil = Vigil(notify, work, "evald", clock, logger, counters=scoring.counters)
    vigil.start()
    try:
        scoring.heed(options)
        scoring.run()
        code = scoring.finish()
    except BaseException as error:
        scoring.abort(error)
        vigil.end(FATAL, f"{type(error).__name__}: {error}", stopped=stop.event.is_set())
        raise
    vigil.end(code, scoring.reason, stopped=stop.event.is_set())
    return code
