"""Beats, judged by change on the reader's own clock."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.clock import ManualClock
from shared.heartbeat import HeartbeatReader, HeartbeatWriter
from shared.layout import WorkDir
from shared.records import DaemonState, Heartbeat
from shared.status import read_record, write_record

TIMEOUT = 60.0


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def beat(
    path: Path, seq: int, boot: str = "b1", state: DaemonState = "running", when: str = "2026-11-30T12:00:00.000Z"
) -> None:
    write_record(
        path, Heartbeat(time=when, seq=seq, boot_id=boot, host="h", pid=1, state=state, interval=5.0, counters={})
    )


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    return WorkDir(tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic=1000.0)


@pytest.fixture
def reader(work: WorkDir, clock: ManualClock) -> HeartbeatReader:
    return HeartbeatReader(work.infer_heartbeats, clock, TIMEOUT)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_no_beat_is_missing(reader: HeartbeatReader, clock: ManualClock) -> None:
    """However long one looks; the silence is counted from when one began to look."""
    assert reader.look() == "missing"
    clock.advance(500)
    assert reader.look() == "missing"
    assert reader.silent_for() == 500
    assert reader.last is None
    assert reader.trouble == ""


def test_alive_while_it_changes_stale_when_it_does_not(
    work: WorkDir, reader: HeartbeatReader, clock: ManualClock
) -> None:
    """Changes keep it alive for ever; `timeout` seconds without one make it stale; the next change revives it."""
    for seq in range(1, 50):
        beat(work.infer_heartbeat(), seq)
        assert reader.look() == "alive"
        clock.advance(TIMEOUT - 1)
        assert reader.look() == "alive"
    assert reader.silent_for() == TIMEOUT - 1
    clock.advance(1)
    assert reader.look() == "stale"
    beat(work.infer_heartbeat(), 50)
    assert reader.look() == "alive"
    assert reader.silent_for() == 0


def test_one_old_copy_for_a_while(work: WorkDir, reader: HeartbeatReader, clock: ManualClock) -> None:
    """`transport-lag-vs-dead`: a mount that shows one old beat, though the writer beats on: alive for as long as that
    lasts less than `timeout`, whatever the beat's own time says; stale after it; alive with the next change.
    """
    beat(work.infer_heartbeat(), 7)
    assert reader.look() == "alive"
    for _ in range(59):
        clock.advance(1)
        assert reader.look() == "alive"
    beat(work.infer_heartbeat(), 19)  # the copy is renewed: twelve beats at once
    assert reader.look() == "alive"
    clock.advance(TIMEOUT - 1)
    assert reader.look() == "alive"
    clock.advance(1)
    assert reader.look() == "stale"
    beat(work.infer_heartbeat(), 32)
    assert reader.look() == "alive"


def test_the_writers_time_says_nothing(work: WorkDir, reader: HeartbeatReader, clock: ManualClock) -> None:
    """A clock a year off doesn't kill, a clock that runs doesn't revive, and the reader's own may be stepped."""
    beat(work.infer_heartbeat(), 1, when="1999-01-01T00:00:00.000Z")
    assert reader.look() == "alive"
    clock.step_wall(-1e9)
    assert reader.look() == "alive"
    clock.step_wall(2e9)
    assert reader.look() == "alive"
    clock.advance(TIMEOUT)
    beat(work.infer_heartbeat(), 1, when="2099-01-01T00:00:00.000Z")
    assert reader.look() == "stale"


def test_a_new_start_is_a_change(work: WorkDir, reader: HeartbeatReader, clock: ManualClock) -> None:
    """The same number under another boot_id, and a number that went back, are another process's beats."""
    beat(work.infer_heartbeat(), 7, boot="b1")
    reader.look()
    clock.advance(TIMEOUT)
    assert reader.look() == "stale"
    beat(work.infer_heartbeat(), 7, boot="b2")
    assert reader.look() == "alive"
    clock.advance(TIMEOUT)
    beat(work.infer_heartbeat(), 1, boot="b2")
    assert reader.look() == "alive"


@pytest.mark.parametrize("state", ["finished", "aborted"])
def test_an_end_is_told_at_once(work: WorkDir, reader: HeartbeatReader, clock: ManualClock, state: DaemonState) -> None:
    """#24: and for ever: it doesn't go stale."""
    beat(work.infer_heartbeat(), 1)
    reader.look()
    beat(work.infer_heartbeat(), 2, state=state)
    assert reader.look() == state
    clock.advance(10 * TIMEOUT)
    assert reader.look() == state


def test_an_end_of_an_earlier_run_has_not_moved(work: WorkDir, reader: HeartbeatReader, clock: ManualClock) -> None:
    """A beat that lay there already is told apart from one that was seen to change."""
    beat(work.infer_heartbeat(), 9, boot="old", state="finished")
    assert reader.look() == "finished"
    clock.advance(10)
    assert reader.look() == "finished"
    before = reader.moved
    beat(work.infer_heartbeat(), 1, boot="new", state="starting")
    assert reader.look() == "alive"
    assert (before, reader.moved) == (False, True)
    assert reader.last is not None
    assert reader.last.boot_id == "new"


def test_inference_lives_while_any_beat_changes(work: WorkDir, reader: HeartbeatReader, clock: ManualClock) -> None:
    """Of three: one finished, one died, one works. Only when no beat changes any more is it over."""
    first, second, third = work.infer_heartbeat(), work.infer_heartbeat("b"), work.infer_heartbeat("c")
    for path in (first, second, third):
        beat(path, 1)
    assert reader.look() == "alive"
    beat(first, 2, state="finished")
    for seq in range(2, 20):
        clock.advance(TIMEOUT / 2)
        beat(third, seq)
        assert reader.look() == "alive"
    clock.advance(TIMEOUT)
    assert reader.look() in ("stale", "finished")
    beat(second, 2, state="aborted")
    beat(third, 99, state="finished")
    assert reader.look() == "aborted"


def test_one_that_is_left_keeps_none_from_having_finished(
    work: WorkDir, reader: HeartbeatReader, clock: ManualClock
) -> None:
    """The beat of a killed inferd lies there for ever; another one finished after it."""
    beat(work.infer_heartbeat("killed"), 5)
    beat(work.infer_heartbeat(), 1)
    reader.look()
    beat(work.infer_heartbeat(), 2, state="finished")
    assert reader.look() == "alive"  # it may still work
    clock.advance(TIMEOUT)
    assert reader.look() == "finished"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\x00" * 100, b'{"schema":9}'], ids=["empty", "cut", "NULs", "other schema"]
)
def test_a_beat_that_cannot_be_read_has_not_changed(
    work: WorkDir, reader: HeartbeatReader, clock: ManualClock, content: bytes
) -> None:
    """Neither death nor life: the last one that could be read counts, and the trouble is told while it lasts."""
    path = work.infer_heartbeat()
    path.write_bytes(content)
    assert reader.look() == "missing"
    beat(path, 1)
    assert reader.look() == "alive"
    assert reader.trouble == ""
    clock.advance(TIMEOUT / 2)
    path.write_bytes(content)
    assert reader.look() == "alive"
    assert str(path) in reader.trouble
    clock.advance(TIMEOUT / 2)
    assert reader.look() == "stale"
    beat(path, 2)
    assert reader.look() == "alive"
    assert reader.trouble == ""


def test_one_damaged_beat_hides_no_other(work: WorkDir, reader: HeartbeatReader, clock: ManualClock) -> None:
    """The first file is damaged for good; the second one's changes are seen all the same."""
    work.infer_heartbeat().write_bytes(b"\x00")
    for seq in range(1, 10):
        beat(work.infer_heartbeat("b"), seq)
        assert reader.look() == "alive"
        clock.advance(TIMEOUT / 2)


def test_a_folder_that_went_away_is_no_death(clock: ManualClock, work: WorkDir) -> None:
    """A vanished mount: unchanged, with the trouble told."""
    gone = [False]

    def paths() -> list[Path]:
        if gone[0]:
            raise OSError(116, "Stale file handle")
        return work.infer_heartbeats()

    reader = HeartbeatReader(paths, clock, TIMEOUT)
    beat(work.infer_heartbeat(), 1)
    assert reader.look() == "alive"
    gone[0] = True
    assert reader.look() == "alive"
    assert "Stale file handle" in reader.trouble
    clock.advance(TIMEOUT)
    assert reader.look() == "stale"


# --- writing ----------------------------------------------------------------------------------------------------------


@contextmanager
def written(work: WorkDir, clock: ManualClock, interval: float = 0.005, **more: Any) -> Iterator[HeartbeatWriter]:
    writer = HeartbeatWriter(work.infer_heartbeat(), clock, interval, **more)
    writer.start()
    try:
        yield writer
    finally:
        writer.finish("aborted")


def now(work: WorkDir) -> Heartbeat:
    found = read_record(work.infer_heartbeat(), Heartbeat)
    assert found is not None
    return found


def test_the_first_beat_is_there_when_start_returns(work: WorkDir, clock: ManualClock) -> None:
    """With who writes it, in the state `starting`; the numbers grow from then on."""
    with written(work, clock, counters=lambda: {"done": 3}) as writer:
        first = now(work)
        assert (first.state, first.boot_id) == ("starting", writer.boot_id)
        assert (first.pid, first.host, first.counters) == (os.getpid(), socket.gethostname(), {"done": 3})
        assert first.time == "2023-11-14T22:13:20.000Z"
        assert first.interval == 0.005
        until(lambda: now(work).seq > first.seq + 3, "it beats on")
    assert HeartbeatWriter(work.infer_heartbeat(), clock, 5.0).boot_id != writer.boot_id


def test_a_work_dir_that_cannot_be_written_fails_at_the_start(tmp_path: Path, clock: ManualClock) -> None:
    """Before any work is done."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"directory|exists"):
        HeartbeatWriter(WorkDir(tmp_path / "file").infer_heartbeat(), clock, 5.0).start()


def test_a_new_state_is_told_at_once(work: WorkDir, clock: ManualClock) -> None:
    """Not at the next beat, which is an hour away."""
    with written(work, clock, interval=3600.0) as writer:
        writer.set_state("draining", "SIGTERM")
        until(lambda: now(work).state == "draining", "the state is told")
        assert now(work).reason == "SIGTERM"


def test_a_stalled_daemon_looks_stalled(work: WorkDir, clock: ManualClock) -> None:
    """#21: the beat is withheld when the work doesn't tick, and goes on when it does."""
    with written(work, clock, stall_after=60.0) as writer:
        writer.set_state("running")
        until(lambda: now(work).state == "running", "it runs")
        clock.advance(59.9)
        seq = now(work).seq
        until(lambda: now(work).seq > seq + 2, "it beats while it isn't stalled")
        clock.advance(0.2)
        settled = threading.Event()
        settled.wait(0.02)  # a beat that was under way
        seq = now(work).seq
        settled.wait(0.1)  # twenty intervals
        assert now(work).seq == seq
        writer.tick()
        until(lambda: now(work).seq > seq + 2, "it beats again")


@pytest.mark.parametrize("state", ["finished", "aborted"])
def test_finish_writes_the_last_state(work: WorkDir, clock: ManualClock, state: Any) -> None:
    """Before it returns, stalled or not, and nothing after it."""
    with written(work, clock) as writer:
        writer.set_state("running")
        clock.advance(1000)
        writer.finish(state, "because")
        last = now(work)
        assert (last.state, last.reason) == (state, "because")
        threading.Event().wait(0.03)
        assert now(work) == last


def test_a_beat_that_cannot_be_written_is_told_and_tried_again(
    work: WorkDir, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk for a while: the error is told, the thread lives, the beat comes back."""
    full = threading.Event()
    errors: list[Exception] = []
    real = write_record

    def refusing(path: Path, record: object) -> None:
        if full.is_set():
            raise OSError(28, "No space left on device")
        real(path, record)

    monkeypatch.setattr("shared.heartbeat.write_record", refusing)
    with written(work, clock, on_error=errors.append):
        full.set()
        until(lambda: len(errors) > 2, "the error is told")
        seq = now(work).seq
        full.clear()
        until(lambda: now(work).seq > seq, "it beats again")


def test_a_beat_that_hangs_does_not_keep_the_process(
    work: WorkDir, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """finish waits for its timeout and no longer."""
    release = threading.Event()
    with written(work, clock) as writer:
        monkeypatch.setattr("shared.heartbeat.write_record", lambda *_: release.wait(30))
        before = time.monotonic()
        writer.finish("finished", timeout=0.05)
        assert time.monotonic() - before < 5
        release.set()
