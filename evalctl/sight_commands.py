"""evalctl's commands that show what happens, and why nothing does: why, top, metrics."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from evalctl.circumstances import facts
from evalctl.exposition import exposition
from evalctl.metrics_server import HOST, metrics_server
from evalctl.options import AS_JSON, WORK_DIR
from evalctl.state import State, read_state
from evalctl.tables import SHOWN, clean
from evalctl.top import Looker, top_table
from evalctl.watching import Beats
from evalctl.why import Why, explain, name
from shared.atomic import replace
from shared.clock import SystemClock
from shared.errors import UsageError
from shared.layout import WorkDir
from shared.records import encode_record
from shared.tables import unknown_word

READABLE = 0o644  # node_exporter is another user

INTERVAL = click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between looks."
)


@click.command()
@click.argument("pair", metavar="[MODEL/DATASET]", required=False, default="")
@WORK_DIR
@click.option(
    "--observe",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    help="Seconds between two looks, which tell what moves; 0 for a single look.",
)
@AS_JSON
def why(pair: str, work_dir: Path, observe: float, as_json: bool) -> None:
    """Why is nothing happening in WORK_DIR, or with one pair: what holds it up, and what to do about it.

    Exit status 0 when something moves, is waited for no longer than usual, or all is scored; 1 otherwise. A daemon
    counts as hung only where its beat was watched for three of its intervals: that needs --observe 16.

    \b
    Examples:
      evalctl why -w /srv/tandem/run1
      evalctl why big/gsm8k -w /srv/tandem/run1
      evalctl why -w /srv/tandem/run1 --observe 20 --json | jq '.findings[] | {cause, what, remedy}'
    """
    work, clock, beats = WorkDir(work_dir), SystemClock(), Beats()

    def look() -> State:
        return beats.look(read_state(work, clock.time()), clock.monotonic())

    before = look()
    if pair and pair not in (known := {name(one) for one in before.pairs}):
        raise UsageError(f"{pair}: no such pair in the plan; {unknown_word(pair, known)}")
    if observe:
        time.sleep(observe)
    state = look() if observe else before
    found = explain(before, state, facts(work, state), pair)
    if as_json:
        click.echo(encode_record(found).decode())
    else:
        _show(found)
    sys.exit(0 if found.progressing else 1)


def _show(found: Why) -> None:
    for move in found.moves:
        click.echo(clean(move))
    for finding in found.findings[:SHOWN]:
        click.echo(clean(finding.what))
        click.echo(clean(f"    -> {finding.remedy}"))
    if len(found.findings) > SHOWN:
        click.echo(f"... and {len(found.findings) - SHOWN} more with --json")
    if found.progressing and not found.moves and not found.findings:
        click.echo("answers are waited for, no longer than usual")


@click.command()
@click.argument("root", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show it once, instead of again and again until Ctrl-C.")
@INTERVAL
@AS_JSON
def top(root: Path, once: bool, interval: float, as_json: bool) -> None:
    """Show every daemon of every work_dir under ROOT, a line each, with what it has in flight, its rate and errors.

    Beats are judged by their change between looks. With --json a line each time.

    \b
    Examples:
      evalctl top /srv/tandem
      evalctl top /srv/tandem --once --json | jq '.rows[] | select(.state == "gone")'
    """
    looker = Looker(root, SystemClock())
    try:
        if as_json:
            click.echo(encode_record(looker.look()).decode())
            while not once:
                time.sleep(interval)
                click.echo(encode_record(looker.look()).decode())
        elif once:
            Console().print(top_table(looker.look()))
        else:
            with Live(console=Console(), auto_refresh=False) as live:
                while True:
                    live.update(top_table(looker.look()), refresh=True)
                    time.sleep(interval)
    except KeyboardInterrupt:
        return  # the way to end it


@click.command()
@WORK_DIR
@click.option("--file", type=click.Path(path_type=Path), help="Replace FILE by them, whole, for node_exporter.")
@click.option("--watch", is_flag=True, help="With --file: keep it up to date until both daemons have ended.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=15.0, show_default=True, help="Seconds, with --watch."
)
@click.option("--serve", type=click.IntRange(0, 65535), metavar="PORT", help="Serve them on 127.0.0.1 until Ctrl-C.")
def metrics(work_dir: Path, file: Path | None, watch: bool, interval: float, serve: int | None) -> None:
    """Print the state of WORK_DIR as Prometheus metrics, write them to a file, or serve them on loopback.

    They come from the status files, so any host that sees the folder will do; neither daemon is asked.

    \b
    Examples:
      evalctl metrics -w /srv/tandem/run1
      evalctl metrics -w /srv/tandem/run1 --file /var/lib/node_exporter/tandem_run1.prom --watch
      evalctl metrics -w /srv/tandem/run1 --serve 9464
    """
    if file is not None and serve is not None:
        raise click.UsageError("--file or --serve, not both")
    if watch and file is None:
        raise click.UsageError("--watch needs --file")
    work, clock = WorkDir(work_dir), SystemClock()

    def look() -> str:
        return exposition(read_state(work, clock.time()))

    text = look()  # a wrong folder is told at once
    if serve is not None:
        with metrics_server(serve, look) as server:
            click.echo(f"http://{HOST}:{server.server_address[1]}/metrics", err=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                return
    elif file is None:
        click.echo(text, nl=False)
    else:
        _write(file, text)
        while watch and not _ended(read_state(work, clock.time())):
            time.sleep(interval)
            _write(file, look())


def _write(file: Path, text: str) -> None:
    replace(file.absolute(), text.encode())
    os.chmod(file, READABLE)


def _ended(state: State) -> bool:
    return all(view.state in ("finished", "aborted", "gone") for view in (*state.inferd, state.evald))


COMMANDS = (why, top, metrics)
