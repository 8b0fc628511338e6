"""The command `evalctl doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from evalctl.options import AS_JSON
from evalctl.tables import plain
from shared.layout import WorkDir
from shared.records import encode_record

if TYPE_CHECKING:
    from evalctl.doctor.findings import Diagnosis

STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command("doctor")
@click.argument("work_dir", type=click.Path(path_type=Path))
@click.option("--peer", is_flag=True, help="Together with another host, on which the same command runs.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the other host.",
)
@AS_JSON
def main(work_dir: Path, peer: bool, timeout: float, as_json: bool) -> None:
    """Test the mount that WORK_DIR lies on, and say which settings follow. Leaves nothing there.

    With --peer on two hosts at the same time: also how soon, and by what, each sees the other's changes, and whether
    their locks exclude each other. Exit status 1 when there is a problem.

    \b
    Examples:
      evalctl doctor /srv/tandem
      evalctl doctor /srv/tandem --peer          (on both hosts, within a minute)
      evalctl doctor /srv/tandem --json | jq .settings
    """
    from evalctl.doctor.examine import diagnose  # what it needs is loaded for this command alone

    found = diagnose(WorkDir(work_dir), peer=peer, timeout=timeout)
    if as_json:
        click.echo(encode_record(found).decode())
    else:
        show(found, Console())
    sys.exit(0 if found.ok else 1)


def show(found: Diagnosis, console: Console) -> None:
    """A row a finding; below them the settings, as they go into a suite."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "check", "found", "remedy or setting"):
        table.add_column(name, no_wrap=name in ("", "check"), overflow="fold")
    for finding in found.findings:
        wanted = [f"[{table_of(key)}] {key_of(key)} = {_toml(value)}" for key, value in finding.settings.items()]
        says = "; ".join([*([finding.remedy] if finding.remedy else []), *wanted])
        state = plain(finding.state)
        state.stylize(STYLES[finding.state])
        table.add_row(state, plain(finding.check), plain(finding.text), plain(says))
    console.print(table)
    for name in sorted({table_of(key) for key in found.settings}):
        console.print(f"\n[{name}]", markup=False)
        for key, value in found.settings.items():
            if table_of(key) == name:
                console.print(f"{key_of(key)} = {_toml(value)}")


def table_of(key: str) -> str:
    return key.partition(".")[0]


def key_of(key: str) -> str:
    return key.partition(".")[2]


def _toml(value: bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
