"""`evalctl run`: both daemons as processes, progress while they work, the table at the end."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from rich.console import Console
from rich.live import Live

from evalctl.state import State, read_state
from evalctl.tables import clean, progress_line, state_table
from shared.clock import SystemClock
from shared.errors import WorkDirError
from shared.layout import WorkDir

REFRESH = 0.5  # seconds between looks at the work_dir
LINE_INTERVAL = 10.0  # seconds between progress lines where there is no terminal
AFTERMATH = 15.0  # seconds that evald gets to score what is complete after inferd was killed
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Ended:
    """Exit statuses of the two daemons. A negative one is the signal that killed it."""

    inferd: int
    evald: int

    @property
    def exit_code(self) -> int:
        """0 clean, 1 failure, 2 usage, 3 some pairs missing."""
        codes = {self.inferd, self.evald}
        if codes == {0}:
            return 0
        if 2 in codes:
            return 2
        return 1 if any(code == 1 or code < 0 for code in codes) else 3


class Daemon:
    """One of the two, as a process of its own; what it says on stderr is kept for when it fails."""

    def __init__(self, name: str, work: WorkDir, *options: str) -> None:
        self.name = name
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the daemon
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", name, "-w", str(work), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C reaches us, and we tell them in order
            preexec_fn=_drain_with_parent,
        )

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def last_words(self, lines: int = 8) -> list[str]:
        self._said.seek(0)
        return [clean(line) for line in self._said.read().decode(errors="replace").splitlines()[-lines:]]


def _drain_with_parent() -> None:
    """In the child, before it becomes a daemon: asked to stop when whoever started it is killed."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG


def run_daemons(
    work: WorkDir, console: Console, *, progress: bool, max_workers: int | None = None, verbose: bool = False
) -> Ended:
    """Start both, show what they do, wait for both. Ctrl-C (or SIGTERM) drains them; a second one kills them.

    max_workers: instead of the suite's own. verbose: their logs tell more.
    """
    more = ("--verbose",) if verbose else ()
    workers = ("--max-workers", str(max_workers)) if max_workers is not None else ()
    with _signals() as caught:
        daemons = [Daemon("inferd", work, *workers, *more), Daemon("evald", work, *more)]
        try:
            _follow(work, console, daemons, caught, progress=progress)
        finally:
            for daemon in daemons:
                if daemon.process.poll() is None:
                    daemon.process.kill()
                daemon.process.wait()
    for daemon in daemons:
        if daemon.process.returncode not in (0, 3, 4):
            console.print(f"{daemon.name} ended with {_status(daemon.process.returncode)}:", markup=False, style="red")
            for line in daemon.last_words():
                console.print(f"  {line}", markup=False, highlight=False)
    return Ended(daemons[0].process.returncode, daemons[1].process.returncode)


def tell_what_is_kept(work: WorkDir, console: Console, ended: Ended) -> None:
    """One line, where a run didn't get to its end."""
    state = _state(work)
    if ended.exit_code in (1, 3) and state is not None:
        kept = sum(sum(pair.outcomes.values()) for pair in state.pairs)
        console.print(
            f"not finished: {kept} of {state.requests} requests are answered and kept; "
            "the same command again goes on from there",
            highlight=False,
        )


def _follow(work: WorkDir, console: Console, daemons: list[Daemon], caught: list[int], *, progress: bool) -> None:
    told = 0
    inferd, evald = daemons
    died_at: float | None = None
    next_line = time.monotonic()
    live = progress and console.is_terminal
    with Live(console=console, refresh_per_second=4, transient=True) if live else _no_live() as view:
        while any(daemon.process.poll() is None for daemon in daemons):
            if len(caught) > told:
                told = len(caught)
                if told > 1:
                    return
                console.print("stopping: what is in flight ends and is kept (again to stop at once)")
                inferd.stop()
            inferd_code = inferd.process.poll()
            if told and inferd_code is not None:
                evald.stop()
            if inferd_code in (1, 2) and not _beats(work):
                evald.stop()  # it never got to work: there is nothing to wait for
            state = _state(work)
            if inferd_code is not None and inferd_code < 0 and died_at is None:
                died_at = time.monotonic()
                console.print(f"inferd died of {_status(inferd_code)}: scoring what is complete", highlight=False)
            if died_at is not None and (time.monotonic() - died_at > AFTERMATH or _nothing_to_score(state)):
                evald.stop()  # its own patience is for an inferd that a supervisor starts again
            if state is not None and isinstance(view, Live):
                view.update(state_table(state, rows=max(console.height - 12, 5)))
            elif state is not None and progress and time.monotonic() >= next_line:
                next_line = time.monotonic() + LINE_INTERVAL
                console.print(progress_line(state), markup=False, highlight=False)
            _wait_any(daemons, REFRESH)


def _nothing_to_score(state: State | None) -> bool:
    return state is not None and all(pair.eval in ("done", "fail") for pair in state.pairs if pair.infer == "done")


def _beats(work: WorkDir) -> bool:
    """Whether inferd got as far as its first beat; then its last one tells evald that it has ended."""
    try:
        return bool(work.infer_heartbeats())
    except OSError:
        return False


def _wait_any(daemons: list[Daemon], timeout: float) -> None:
    """Until one of those that run has ended, or the time is up."""
    for daemon in daemons:
        if daemon.process.poll() is None:
            try:
                daemon.process.wait(timeout)
            except subprocess.TimeoutExpired:
                pass
            return


def _state(work: WorkDir) -> State | None:
    try:
        return read_state(work, SystemClock().time())
    except (OSError, WorkDirError):
        return None  # shown again in a moment; the daemons themselves report what is wrong


def _status(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask us to stop, instead of dying from them while children run."""
    caught: list[int] = []
    before = {number: signal.signal(number, lambda got, _: caught.append(got)) for number in SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _no_live() -> Iterator[None]:
    yield None
