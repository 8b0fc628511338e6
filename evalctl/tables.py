"""Tables on a terminal: the state of a work_dir, and the leaderboard."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalctl.state import DaemonView, State
from evald.leaderboard import Report
from evald.report import board

SHOWN = 20  # notes and errors below a table; all of them stand in the JSON
STYLES = {
    "done": "green",
    "running": "cyan",
    "fail": "red",
    "pending": "dim",
    "gone": "red",
    "aborted": "yellow",
    "finished": "green",
}


def state_table(state: State) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "dataset", "inference", "answered", "in flight", "rate", "ETA", "scoring"):
        table.add_column(column, justify="right" if column in ("answered", "in flight", "rate", "ETA") else "left")
    for pair in state.pairs:
        table.add_row(
            plain(pair.model),
            plain(pair.dataset),
            Text(pair.infer, STYLES.get(pair.infer, "")),
            f"{pair.completed}/{pair.total}",
            str(pair.in_flight) if pair.in_flight else "",
            f"{pair.rate:.1f}/s" if pair.rate is not None and pair.infer == "running" else "",
            _duration(pair.eta_seconds),
            Text(pair.eval, STYLES.get(pair.eval, "")),
        )
    lines = [_daemon("inferd", view) for view in state.inferd] + [_daemon("evald ", state.evald)]
    whole = (
        f"{state.completed}/{state.requests} requests ({state.docs} docs, {state.instances} instances), "
        f"{state.attempts} attempts"
        + (f", {state.rate:.1f}/s, ETA {_duration(state.eta_seconds)}" if state.rate is not None else "")
        + (f", {state.cost:.4f} USD" if state.cost else "")
    )
    # Below the table, where a line has the whole width.
    notes = []
    for pair in state.pairs:
        failed = f"failed attempts: {_counts(pair.errors)}" if pair.errors else ""
        if said := "; ".join(filter(None, (failed, pair.reason))):
            notes.append(Text(clean(f"{pair.model} x {pair.dataset}: {said}"), STYLES.get(pair.infer, "")))
    shown = notes[:SHOWN]
    if len(notes) > SHOWN:
        shown.append(Text(f"... and {len(notes) - SHOWN} more with --json"))
    return Group(*lines, Text(whole), Text(""), table, *([Text("")] if shown else []), *shown)


def leaderboard_table(report: Report) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in board.head(report):
        table.add_column(plain(column), justify="left" if column == "model" else "right")
    for row in board.rows(report):
        table.add_row(*map(plain, row))
    lines = [Text(clean(board.counts(report)))]
    lines += [Text(clean(note), "yellow") for note in board.notes(report)]
    lines += [Text(clean(f"{e.model} x {e.dataset} ({e.stage}): {e.reason}"), "red") for e in report.errors[:SHOWN]]
    if len(report.errors) > SHOWN:
        lines.append(Text(f"... and {len(report.errors) - SHOWN} more errors in summary/report.json", "red"))
    return Group(table, Text(""), *lines)


def clean(text: str) -> str:
    """Nothing in it that a terminal would act on: names and reasons come from files and models."""
    return "".join(char if char.isprintable() else " " for char in text)


def plain(text: str) -> Text:
    """As it is, without rich's markup."""
    return Text(clean(text))


def _daemon(name: str, view: DaemonView) -> Text:
    where = f" (process {view.pid} on {view.host})" if view.pid and view.state not in ("finished", "aborted") else ""
    reason = f": {view.reason}" if view.reason else ""
    text = Text(f"{name}  ")
    text.append(view.state, STYLES.get(view.state, ""))
    return text.append(clean(f"{where}, {view.meaning}{reason}"))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
