"""evalctl's commands to daemons at work: pause, resume, drain, stop, cancel, retune, reload."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from evalctl.control import Given, Wanted, give, prepare
from evalctl.options import AS_JSON, WORK_DIR
from evalctl.tables import clean
from shared.clock import SystemClock
from shared.layout import WorkDir
from shared.records import encode_record

DRY_RUN = click.option("--dry-run", is_flag=True, help="Check it, show whom it is for, and give no command.")
TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the daemons' word.",
)


def _steers(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of each of these commands."""
    for option in (AS_JSON, TIMEOUT, DRY_RUN, WORK_DIR):
        command = option(command)
    return command


@click.command()
@_steers
def pause(**options: Any) -> None:
    """Send nothing new until `evalctl resume`. What is in flight ends and is kept; inferd stays, and beats.

    \b
    Example: evalctl pause -w /srv/tandem/run1
    """
    _give(Wanted("pause"), **options)


@click.command()
@_steers
def resume(**options: Any) -> None:
    """Send again after `evalctl pause`.

    \b
    Example: evalctl resume -w /srv/tandem/run1
    """
    _give(Wanted("resume"), **options)


@click.command()
@_steers
def drain(**options: Any) -> None:
    """End each inferd once what is in flight has ended, as SIGTERM does. Started again, it goes on.

    \b
    Example: evalctl drain -w /srv/tandem/run1
    """
    _give(Wanted("drain"), **options)


@click.command()
@_steers
def stop(**options: Any) -> None:
    """End inferd and evald now. Calls in flight are cut off and asked again at the next start; answers are kept.

    \b
    Example: evalctl stop -w /srv/tandem/run1
    """
    _give(Wanted("stop"), **options)


@click.command()
@click.argument("pair", metavar="MODEL/DATASET")
@click.option("--reason", default="", help="Why, for whoever reads the status.")
@_steers
def cancel(pair: str, reason: str, **options: Any) -> None:
    """Give one pair up: it fails with the reason, its answers are kept, and inferd's next start goes on with it.

    \b
    Example: evalctl cancel big/gsm8k --reason "wrong template" -w /srv/tandem/run1
    """
    _give(Wanted("cancel", pair=pair, reason=reason), **options)


@click.command()
@click.option("--max-workers", required=True, type=click.IntRange(1, 1 << 20), help="Requests in flight a model.")
@click.option("--model", default="", metavar="ABBR", help="Which model; all of them by default.")
@_steers
def retune(max_workers: int, model: str, **options: Any) -> None:
    """Change how many requests of a model may be in flight, in each inferd, until it ends.

    \b
    Example: evalctl retune --max-workers 64 --model big -w /srv/tandem/run1
    """
    _give(Wanted("retune", model=model, max_workers=max_workers), **options)


@click.command()
@_steers
def reload(**options: Any) -> None:
    """Have both daemons read [infer], [eval] and the models' max_workers in WORK_DIR's suite.toml again.

    Settings that need a restart are named. A suite that asks for anything else is refused: that needs `evalctl submit`.

    \b
    Example: evalctl reload -w /srv/tandem/run1
    """
    _give(Wanted("reload"), **options)


COMMANDS = (pause, resume, drain, stop, cancel, retune, reload)


def _give(wanted: Wanted, work_dir: Path, as_json: bool, timeout: float, dry_run: bool) -> None:
    work, clock = WorkDir(work_dir), SystemClock()
    given = prepare(work, wanted, clock) if dry_run else give(work, wanted, clock, wait=time.sleep, timeout=timeout)
    if as_json:
        click.echo(encode_record(given).decode())
    else:
        _show(given, timeout)
    sys.exit(0 if given.obeyed or given.dry_run else 1)


def _show(given: Given, timeout: float) -> None:
    for word in given.daemons:
        who = f"{word.daemon} (process {word.pid} on {word.host})"
        if given.dry_run:
            said = f"would be told to {given.command.command}"
        elif word.outcome == "silent":
            said = (
                f"not acknowledged within {timeout:g} s. The command stays and is obeyed once it is seen: "
                f"look with `evalctl status -w {given.work_dir}`"
            )
        else:
            said = f"{word.outcome}: {word.text}"
        failed = not given.dry_run and word.outcome != "obeyed"
        click.echo(clean(f"{who}: {said}"), err=failed)
