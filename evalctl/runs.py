"""Every work_dir under a folder at a glance: `evalctl list`. Reads only.

A daemon lives while it holds its claim. Where the filesystem can't tell that, its beat is watched for a while: what
changes lives. No clock of another host is believed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evalctl.state import AT_WORK, State, read_state
from evalctl.tables import STYLES, duration, plain
from shared import claims
from shared.clock import Clock, utc
from shared.errors import TandemError, UsageError
from shared.heartbeat import HeartbeatReader
from shared.layout import WorkDir, is_work_dir
from shared.records import DaemonState, Record

DEEP = 4  # levels of folders below the root
MOST = 10_000  # folders looked into
BEAT = 5.0  # seconds between beats, usually
LOOK = 0.2  # seconds between looks at a beat that is watched

RunState = Literal[DaemonState, "scoring", "done", "stopped", "stalled", "gone", "unreadable"]


class Run(Struct, frozen=True, kw_only=True):
    """A work_dir in short. state: of what works there; `done`: every pair is scored; `stopped`: nobody works, and pairs
    are left; `gone`: a daemon died; `stalled`: its beat was watched and didn't change, so it hangs, or died where
    locks can't tell; `unreadable`: `reason` says why.

    beat_seconds: since a beat was last seen to change, where one was watched.
    """

    work_dir: str
    state: RunState
    reason: str = ""
    hosts: tuple[str, ...] = ()
    pairs: int = 0
    scored: int = 0
    failed: int = 0
    requests: int = 0
    answered: int = 0
    in_flight: int = 0
    rate: float | None = None
    eta_seconds: float | None = None
    cost: float = 0.0
    beat_seconds: float | None = None


class Runs(Record, frozen=True, kw_only=True):
    """The whole of `evalctl list --json`."""

    root: str
    as_of: str
    runs: tuple[Run, ...]


def read_runs(root: Path, clock: Clock, wait: Callable[[float], object], observe: float = 0.0) -> Runs:
    """observe: seconds for which every beat is watched; 0: only those of daemons whose claims can't be tested, for two
    beats' time.

    Raises UsageError when there is no such folder.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder")
    works = [WorkDir(path) for path in sorted(find(root))]
    watched = works if observe else [work for work in works if _needs_watching(work)]
    beats = {work.root: HeartbeatReader(_beats_of(work), clock, float("inf")) for work in watched}
    _watch(list(beats.values()), clock, wait, observe or 2 * BEAT + 1, to_the_end=bool(observe))
    runs = tuple(_run(work, clock, beats.get(work.root)) for work in works)
    return Runs(root=str(root), as_of=utc(clock.time()), runs=runs)


def runs_table(found: Runs) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("work_dir", "state", "scored", "failed", "answered", "in flight", "rate", "ETA", "beat", "where"):
        table.add_column(name, justify="left" if name in ("work_dir", "state", "where") else "right", no_wrap=True)
    for run in found.runs:
        table.add_row(
            plain(os.path.relpath(run.work_dir, found.root)),
            Text(run.state, STYLES.get(run.state, "")),
            Text(f"{run.scored}/{run.pairs}"),
            Text(str(run.failed or "")),
            Text(f"{run.answered}/{run.requests}"),
            Text(str(run.in_flight or "")),
            Text(f"{run.rate:.1f}/s" if run.rate else ""),
            Text(duration(run.eta_seconds)),
            Text(f"{run.beat_seconds:.1f} s" if run.beat_seconds is not None else ""),
            plain(", ".join(run.hosts)),
        )
    reasons = [plain(f"{run.work_dir}: {run.reason}") for run in found.runs if run.reason]
    return Group(table, *reasons)


def find(root: Path) -> Iterator[Path]:
    """The work_dirs under a folder, or the folder itself. No link is followed; what can't be listed is passed over."""
    folders, looked = [(root, 0)], 0
    while folders and looked < MOST:
        folder, depth = folders.pop()
        looked += 1
        try:
            with os.scandir(folder) as entries:
                inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            continue
        if is_work_dir(inside):
            yield folder
        elif depth < DEEP:
            below = (name for name, is_folder in inside.items() if is_folder and not name.startswith("."))
            folders += [(folder / name, depth + 1) for name in below]


def _beats_of(work: WorkDir) -> Callable[[], list[Path]]:
    return lambda: [*work.infer_heartbeats(), work.eval_heartbeat]


def _needs_watching(work: WorkDir) -> bool:
    try:
        return any(claims.held(claim) is None for claim in (*work.inferd_claims(), work.evald_claim))
    except OSError:
        return False


def _watch(
    readers: list[HeartbeatReader], clock: Clock, wait: Callable[[float], object], seconds: float, *, to_the_end: bool
) -> None:
    """Look at the beats for so long, or until each was seen to change."""
    deadline = clock.monotonic() + seconds
    while readers:
        for reader in readers:
            reader.look()
        if clock.monotonic() >= deadline or (not to_the_end and all(reader.moved for reader in readers)):
            return
        wait(LOOK)


def _run(work: WorkDir, clock: Clock, beats: HeartbeatReader | None) -> Run:
    try:
        state = read_state(work, clock.time())
    except (TandemError, OSError) as error:
        return Run(work_dir=str(work), state="unreadable", reason=str(error))
    silent = False
    if beats is not None and beats.last is not None:
        silent = not beats.moved and beats.silent_for() > 2 * beats.last.interval
    views = (*state.inferd, state.evald)
    return Run(
        work_dir=str(work),
        state=_state(state, silent=silent),
        hosts=tuple(sorted({view.host for view in views if view.state in AT_WORK})),
        pairs=len(state.pairs),
        scored=sum(pair.eval == "done" for pair in state.pairs),
        failed=sum("fail" in (pair.infer, pair.eval) for pair in state.pairs),
        requests=state.requests,
        answered=state.answered,
        in_flight=sum(pair.in_flight for pair in state.pairs),
        rate=state.rate,
        eta_seconds=state.eta_seconds,
        cost=state.cost,
        beat_seconds=round(beats.silent_for(), 3) if beats is not None and beats.last is not None else None,
    )


def _state(state: State, *, silent: bool) -> RunState:
    """silent: the beats were watched for long, and none changed."""
    infer = [view.state for view in state.inferd if view.state in AT_WORK]
    scoring = state.evald.state in AT_WORK
    if silent and (infer or scoring):
        return "stalled"
    for liveliest in ("running", "draining", "paused", "starting"):
        if liveliest in infer:
            return liveliest
    if all(pair.eval == "done" for pair in state.pairs):
        return "done"
    if scoring:
        return "scoring"
    return "gone" if any(view.state == "gone" for view in (*state.inferd, state.evald)) else "stopped"
