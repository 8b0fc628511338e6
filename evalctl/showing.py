"""What commands print of a report."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console

from evalctl.tables import SHOWN, clean, leaderboard_table
from evald.leaderboard import Report
from shared.records import encode_record


def tell_missing(found: Report) -> None:
    """A line on stderr for each pair without a score: stdout may be a file, or JSON."""
    missing = [
        f"{standing.model} x {dataset}: not scored: {cell.reason}"
        for standing in found.leaderboard
        for dataset, cell in standing.datasets.items()
        if cell.state == "missing"
    ]
    for line in missing[:SHOWN]:
        click.echo(clean(line), err=True)
    if len(missing) > SHOWN:
        click.echo(f"... and {len(missing) - SHOWN} more pairs without a score", err=True)


def show_report(found: Report, *, as_json: bool) -> None:
    """On stdout, as a table or as JSON."""
    if as_json:
        click.echo(msgspec.json.format(encode_record(found), indent=1).decode())
    else:
        Console().print(leaderboard_table(found))
