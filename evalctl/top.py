"""Every daemon of every work_dir under a folder, a line each: `evalctl top`. Reads only."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalctl.runs import find
from evalctl.state import AT_WORK, DaemonView, State, count, read_state
from evalctl.tables import STYLES, duration, plain
from evalctl.watching import Beats, is_silent
from shared.clock import Clock, utc
from shared.errors import TandemError, UsageError
from shared.layout import WorkDir
from shared.records import Record


class Row(Struct, frozen=True, kw_only=True):
    """A daemon. state: as in `evalctl status`; `silent`: its beat was watched, and doesn't change; `unreadable`:
    `reason` says why, and of which work_dir nothing else is known. in_flight: requests, or pairs that are scored now;
    limit: of those, null where there is none. errors: an inferd's: failed attempts of its work_dir; an evald's: pairs
    that it couldn't score. rate, eta_seconds, requests, answered: of the whole work_dir, in its inferds' lines.
    """

    work_dir: str
    daemon: str = ""
    host: str = ""
    pid: int = 0
    state: str
    reason: str = ""
    in_flight: int = 0
    limit: int | None = None
    retries_waiting: int = 0
    rate: float | None = None
    requests: int = 0
    answered: int = 0
    errors: int = 0
    eta_seconds: float | None = None
    beat_seconds: float | None = None


class Top(Record, frozen=True, kw_only=True):
    """The whole of `evalctl top --json`."""

    root: str
    as_of: str
    rows: tuple[Row, ...]


class Looker:
    """Looks at a folder again and again."""

    def __init__(self, root: Path, clock: Clock) -> None:
        """Raises UsageError when there is no such folder."""
        if not root.is_dir():
            raise UsageError(f"{root}: no such folder")
        self._root = root
        self._clock = clock
        self._beats: dict[Path, Beats] = {}

    def look(self) -> Top:
        rows: list[Row] = []
        for path in sorted(find(self._root)):
            try:
                state = read_state(WorkDir(path), self._clock.time())
            except (TandemError, OSError) as error:
                rows.append(Row(work_dir=str(path), state="unreadable", reason=str(error)))
                continue
            rows += rows_of(self._beats.setdefault(path, Beats()).look(state, self._clock.monotonic()))
        return Top(root=str(self._root), as_of=utc(self._clock.time()), rows=tuple(rows))


def rows_of(state: State) -> list[Row]:
    """A work_dir's lines."""
    inferds = [
        structs.replace(
            _row(state, view, "inferd"),
            in_flight=count(view, "in_flight") if view.state in AT_WORK else 0,
            limit=count(view, "limit") if view.state in AT_WORK else None,
            retries_waiting=count(view, "retries_waiting") if view.state in AT_WORK else 0,
            rate=state.rate,
            requests=state.requests,
            answered=state.answered,
            errors=sum(state.errors.values()),
            eta_seconds=state.eta_seconds,
        )
        for view in state.inferd
    ]
    scoring = count(state.evald, "running") if state.evald.state in AT_WORK else 0
    failed = sum(pair.eval == "fail" for pair in state.pairs)
    return [*inferds, structs.replace(_row(state, state.evald, "evald"), in_flight=scoring, errors=failed)]


def top_table(top: Top) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("work_dir", "daemon", "host", "state", "in flight", "answered", "rate", "errors", "ETA", "beat"):
        left = head in ("work_dir", "daemon", "host", "state")
        table.add_column(head, justify="left" if left else "right", no_wrap=True)
    for row in top.rows:
        table.add_row(
            plain(os.path.relpath(row.work_dir, top.root)),
            Text(row.daemon),
            plain(row.host),
            Text(row.state, STYLES.get(row.state, "")),
            Text(f"{row.in_flight}/{row.limit}" if row.limit is not None else str(row.in_flight or "")),
            Text(f"{row.answered}/{row.requests}" if row.daemon == "inferd" else ""),
            Text(f"{row.rate:.1f}/s" if row.rate else ""),
            Text(str(row.errors or "")),
            Text(duration(row.eta_seconds)),
            Text(f"{row.beat_seconds:.0f} s" if row.beat_seconds is not None else ""),
        )
    return Group(table, *(plain(f"{row.work_dir}: {row.reason}") for row in top.rows if row.reason))


def _row(state: State, view: DaemonView, daemon: str) -> Row:
    """Who and where it is."""
    return Row(
        work_dir=state.work_dir,
        daemon=daemon,
        host=view.host,
        pid=view.pid,
        state="silent" if is_silent(view) else view.state,
        reason=view.reason,
        beat_seconds=view.beat_seconds,
    )
