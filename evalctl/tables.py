"""Tables on a terminal: the state of a work_dir, and the leaderboard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalctl.state import DaemonView, PairView, State
from evalctl.watching import is_silent
from evald.leaderboard import Report
from evald.report import board, breakdown, numbers
from shared.records import Straggler

LEFT = ("model", "dataset", "group", "first", "second")
COLUMNS = 6  # datasets that stand beside the models; more get a table of their own
STRAGGLERS = 3
ELSEWHERE = ("p", "detectable", "docs")  # columns that a narrow terminal has no room for; report.md shows them
BAR = 10  # characters
SHOWN_PAIRS = 10  # rows of groups, and of pairs of models
SHOWN = 20  # notes and errors below a table; all of them stand in the JSON
STYLES = {
    "done": "green",
    "running": "cyan",
    "fail": "red",
    "pending": "dim",
    "gone": "red",
    "stalled": "red",
    "unreadable": "red",
    "paused": "yellow",
    "aborted": "yellow",
    "finished": "green",
}


def state_table(state: State, *, rows: int | None = None) -> RenderableType:
    """rows: at most so many pairs, those that run or failed first; the others are counted below."""
    order = {"fail": 0, "running": 1, "pending": 2, "done": 3}
    pairs = state.pairs if rows is None else sorted(state.pairs, key=lambda pair: order[pair.infer])[:rows]
    columns = {
        "model": [plain(pair.model) for pair in pairs],
        "dataset": [plain(pair.dataset) for pair in pairs],
        "inference": [Text(pair.infer, STYLES.get(pair.infer, "")) for pair in pairs],
        "done": [Text(bar(pair.completed, pair.total) if pair.infer == "running" else "") for pair in pairs],
        "answered": [Text(f"{pair.answered}/{pair.total}") for pair in pairs],
        "in flight": [Text(str(pair.in_flight or "")) for pair in pairs],
        "rate": [Text(f"{pair.rate:.1f}/s" if pair.rate and pair.infer == "running" else "") for pair in pairs],
        "ETA": [Text(duration(pair.eta_seconds)) for pair in pairs],
        "scoring": [Text(pair.eval, STYLES.get(pair.eval, "")) for pair in pairs],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}  # an empty column needs no room
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown:
        right = name in ("answered", "in flight", "rate", "ETA")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    lines = [_daemon("inferd", view) for view in state.inferd] + [_daemon("evald ", state.evald)]
    # Below the table, where a line has the whole width.
    notes = [note for pair in pairs if (note := _note(pair)) is not None]
    below = notes[:SHOWN]
    if len(notes) > SHOWN:
        below.append(Text(f"... and {len(notes) - SHOWN} more with --json"))
    if len(pairs) < len(state.pairs):
        below.insert(0, Text(f"... and {len(state.pairs) - len(pairs)} more pairs"))
    return Group(*lines, Text(progress_line(state)), Text(load_line(state)), Text(""), table, *below)


def progress_line(state: State) -> str:
    """The whole run in one line."""
    scored = sum(pair.eval == "done" for pair in state.pairs)
    parts = [
        f"{state.answered}/{state.requests} requests answered ({state.docs} docs, {state.instances} instances)",
        f"{state.attempts} attempts",
        f"{scored}/{len(state.pairs)} pairs scored",
    ]
    if state.rate is not None:
        parts.append(f"{state.rate:.1f}/s, ETA {duration(state.eta_seconds)}")
    if state.errors:
        parts.append(f"failed attempts: {numbers.errors(state.errors)}")
    parts.append(numbers.wasted(state.late_answers, state.duplicates))
    return ", ".join(filter(None, parts))


def load_line(state: State) -> str:
    """What is under way, and what was spent so far."""
    parts = []
    if state.limit:
        parts += [f"in flight {state.in_flight} of {state.limit}", f"{state.retries_waiting} retries waiting"]
    if refused := state.errors.get("rate_limited"):
        parts.append(f"429s: {refused}")
    parts.append(f"tokens {state.prompt_tokens} prompt, {state.completion_tokens} completion")
    if state.cost:
        parts.append(f"{state.cost:.4f} USD")
    return ", ".join(parts)


def bar(done: int, total: int) -> str:
    """Full only when all is done."""
    full = min(BAR, BAR * done // total) if total else 0
    return "━" * full + "─" * (BAR - full)


def _note(pair: PairView) -> Text | None:
    odd = {outcome: count for outcome, count in pair.outcomes.items() if outcome != "ok"}
    said = "; ".join(
        filter(
            None,
            (
                f"answers: {_counts(odd)}" if odd else "",
                f"failed attempts: {numbers.errors(pair.errors)}" if pair.errors else "",
                f"failed for good: {numbers.errors(pair.failed)}" if pair.failed and pair.infer != "fail" else "",
                numbers.wasted(pair.late_answers, pair.duplicates),
                numbers.drift(pair.served_models, pair.system_fingerprints),
                _stragglers(pair.stragglers),
                pair.reason,
            ),
        )
    )
    return Text(clean(f"{pair.model} x {pair.dataset}: {said}"), STYLES.get(pair.infer, "")) if said else None


def _stragglers(stragglers: Sequence[Straggler]) -> str:
    """The requests that are longest in flight, by name."""
    oldest = sorted(stragglers, key=lambda one: -one.seconds)
    named = [
        f"{one.task_id}{f' repeat {one.repeat}' if one.repeat else ''} ({one.seconds:.0f} s, attempt {one.attempt})"
        for one in oldest[:STRAGGLERS]
    ]
    more = [f"{len(oldest) - STRAGGLERS} more"] if len(oldest) > STRAGGLERS else []
    return f"long in flight: {', '.join(named + more)}" if named else ""


def leaderboard_table(report: Report) -> RenderableType:
    wide = len(board.names(report)) > COLUMNS
    parts: list[RenderableType] = [_table(board.head(report, datasets=not wide), board.rows(report, datasets=not wide))]
    if wide:
        heads = ["dataset", *(standing.model for standing in report.leaderboard)]
        parts += [Text(""), _table(heads, board.by_dataset(report))]
    for table in (breakdown.groups(report), breakdown.pairs(report)):
        if table.rows:
            shown = [at for at, name in enumerate(table.head) if name not in ELSEWHERE]
            rows = [[row[at] for at in shown] for row in table.rows[:SHOWN_PAIRS]]
            parts += [Text(""), _table([table.head[at] for at in shown], rows)]
            if hidden := len(table.rows) + table.left_out - len(rows):
                parts.append(Text(f"... and {hidden} more rows in report.json"))
    lines = [Text(clean(text)) for text in (board.legend(report), board.counts(report), board.failures(report)) if text]
    lines += [Text(clean(note), "yellow") for note in list(board.limits(report))[:SHOWN]]
    lines += [Text(clean(note), "yellow") for note in board.notes(report) if note.startswith("*")]
    lines += [Text(clean(note), "yellow") for note in list(board.drift(report))[:SHOWN]]
    faults = [Text(clean(f"{e.model} x {e.dataset}: {e.reason}"), "red") for e in report.errors if e.stage == "task"]
    lines += faults[:SHOWN]
    if len(faults) > SHOWN:
        lines.append(Text(f"... and {len(faults) - SHOWN} more tasks that can't be scored: summary/report.json", "red"))
    return Group(*parts, Text(""), *lines)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in heads:
        table.add_column(plain(name), justify="left" if name in LEFT else "right")
    for row in rows:
        table.add_row(*map(plain, row))
    return table


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
    text.append(clean(f"{where}, {view.meaning}{reason}"))
    if view.beat_seconds is not None:
        hangs = ": it hangs, or its mount does" if is_silent(view) else ""
        text.append(f", beat {view.seq} came {view.beat_seconds:.0f} s ago{hangs}", "red" if hangs else "dim")
    return text


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
