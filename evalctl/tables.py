"""Tables on a terminal: the state of a work_dir, and the leaderboard."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalctl.state import DaemonView, State
from evald.leaderboard import Report
from evald.report import numbers

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
    for column in ("model", "dataset", "inference", "answered", "in flight", "rate", "ETA", "errors", "scoring", ""):
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
            plain(_counts(pair.errors)),
            Text(pair.eval, STYLES.get(pair.eval, "")),
            plain(pair.reason),
        )
    lines = [_daemon("inferd", view) for view in state.inferd] + [_daemon("evald ", state.evald)]
    whole = (
        f"{state.completed}/{state.requests} requests ({state.docs} docs, {state.instances} instances), "
        f"{state.attempts} attempts"
        + (f", {state.rate:.1f}/s, ETA {_duration(state.eta_seconds)}" if state.rate is not None else "")
        + (f", {state.cost:.4f} USD" if state.cost else "")
    )
    return Group(*lines, Text(whole), Text(""), table)


def leaderboard_table(report: Report) -> RenderableType:
    datasets = list(dict.fromkeys(name for standing in report.leaderboard for name in standing.datasets))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("rank", "model", "score", "95 %", "docs", "ECE", *datasets):
        table.add_column(plain(column), justify="left" if column == "model" else "right")
    for s in report.leaderboard:
        calibration = report.calibration.get(s.model)
        table.add_row(
            numbers.rank(s),
            plain(s.model),
            numbers.score(s.score),
            numbers.span(s.interval),
            f"{s.n_scored}/{s.n_docs}",
            numbers.plain(calibration.ece if calibration is not None else None),
            *(numbers.cell(s.datasets[name]) if name in s.datasets else numbers.UNKNOWN for name in datasets),
        )
    counts = report.summary
    notes = [
        Text(
            f"{counts.pairs_scored} of {counts.pairs} pairs scored, {counts.tasks} tasks, {counts.requests} requests, "
            f"{counts.attempts} attempts, coverage {numbers.share(counts.coverage)}, "
            f"inference {numbers.seconds(counts.wall_seconds)}"
        )
    ]
    notes += [Text(clean(f"{e.model} x {e.dataset} ({e.stage}): {e.reason}"), "red") for e in report.errors[:20]]
    if len(report.errors) > 20:
        notes.append(Text(f"... and {len(report.errors) - 20} more errors in summary/report.json", "red"))
    return Group(table, Text(""), *notes)


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
