"""Status files are written by a thread of their own: the newest wins, and what failed is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd import publisher as module
from inferd.publisher import Publisher
from shared.records import InferStatus, PairState
from shared.status import IllegalTransition, read_record, write_record


def status(completed: int, state: PairState = "running") -> InferStatus:
    return InferStatus(model="m", dataset="d", stem="d", state=state, plan_digest="p", total=1000, completed=completed)


class Gate:
    """Stands before the disk: closed, it holds the writer; refusing, it is full."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.refusals = 0
        self.written: list[tuple[str, int]] = []
        patch.setattr(module, "write_record", self._write)

    def _write(self, path: Path, record: InferStatus) -> None:
        self.reached.set()
        assert self.open.wait(10)
        if self.refusals:
            self.refusals -= 1
            raise OSError(28, "No space left on device")
        write_record(path, record)
        self.written.append((path.name, record.completed))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def errors() -> list[Exception]:
    return []


@pytest.fixture
def publisher(gate: Gate, errors: list[Exception]) -> Iterator[Publisher]:
    made = Publisher(lambda _, error: errors.append(error))
    yield made
    gate.open.set()
    made.stop(10.0)


def test_the_newest_wins(tmp_path: Path, gate: Gate, publisher: Publisher) -> None:
    """Of a thousand records for one file, posted while the disk was busy, one write is made: of the last."""
    gate.open.clear()
    publisher.post(tmp_path / "a", status(0))
    assert gate.reached.wait(10)
    for number in range(1, 1000):
        publisher.post(tmp_path / "a", status(number))
    publisher.post(tmp_path / "b", status(5))
    gate.open.set()
    assert publisher.stop(10.0)
    assert sorted(gate.written) == [("a", 0), ("a", 999), ("b", 5)]
    assert read_record(tmp_path / "a", InferStatus) == status(999)


def test_stop_writes_what_is_left(tmp_path: Path, publisher: Publisher) -> None:
    """Every file has its newest record when stop returns True."""
    for number in range(50):
        publisher.post(tmp_path / f"{number}", status(number, "done"))
    assert publisher.stop(10.0)
    assert all(read_record(tmp_path / f"{number}", InferStatus) == status(number, "done") for number in range(50))


def test_what_failed_is_written_again(
    tmp_path: Path, gate: Gate, publisher: Publisher, errors: list[Exception]
) -> None:
    """A full disk: told, kept, and tried again at the stop at the latest; a newer record takes the place of the old."""
    gate.refusals = 1
    publisher.post(tmp_path / "a", status(1))
    publisher.post(tmp_path / "b", status(2))
    deadline = time.monotonic() + 10
    while not (errors and gate.written):
        assert time.monotonic() < deadline, "the error is told, and the other file written"
        time.sleep(0.002)
    publisher.post(tmp_path / "a", status(3))
    assert publisher.stop(10.0)
    assert len(errors) == 1
    assert sorted(gate.written) == [("a", 3), ("b", 2)]
    assert read_record(tmp_path / "a", InferStatus) == status(3)


def test_an_old_record_never_follows_a_newer_one(tmp_path: Path, gate: Gate, publisher: Publisher) -> None:
    """#12: the write that fails is of `running`; meanwhile `done` was posted: `done` is what is tried again."""
    gate.refusals = 1
    gate.open.clear()
    publisher.post(tmp_path / "a", status(1))
    assert gate.reached.wait(10)
    publisher.post(tmp_path / "a", status(9, "done"))
    threading.Timer(0.2, gate.open.set).start()
    assert publisher.stop(10.0)
    assert gate.written == [("a", 9)]


def test_stop_tells_what_could_not_be_written(
    tmp_path: Path, gate: Gate, publisher: Publisher, errors: list[Exception]
) -> None:
    """The disk stays full: False, after one more try."""
    gate.refusals = 10**6
    publisher.post(tmp_path / "a", status(1))
    assert not publisher.stop(10.0)
    assert errors
    assert not (tmp_path / "a").exists()


def test_stop_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, gate: Gate, publisher: Publisher) -> None:
    """No longer than its timeout."""
    gate.open.clear()
    publisher.post(tmp_path / "a", status(1))
    assert gate.reached.wait(10)
    assert not publisher.stop(0.05)


@pytest.mark.parametrize("state", ["done", "fail"])
def test_a_pair_that_ended_stays_so(tmp_path: Path, publisher: Publisher, state: PairState) -> None:
    """Whoever would overwrite it has a defect: told where it happens, before and after it was written."""
    publisher.post(tmp_path / "a", status(1))
    publisher.post(tmp_path / "a", status(2, state))
    with pytest.raises(IllegalTransition):
        publisher.post(tmp_path / "a", status(3, "running"))
    assert publisher.stop(10.0)
    with pytest.raises(IllegalTransition):
        publisher.post(tmp_path / "a", status(3, "pending"))
    assert read_record(tmp_path / "a", InferStatus) == status(2, state)


def test_settled_is_what_is_on_disk(tmp_path: Path, gate: Gate, publisher: Publisher) -> None:
    """`settle` waits for the write that is under way and for what was posted behind it; with a disk that refuses it
    gives up, and what was posted is still written later.
    """
    gate.open.clear()
    publisher.post(tmp_path / "a", status(1))
    assert gate.reached.wait(10)
    publisher.post(tmp_path / "b", status(2))
    assert not publisher.settle(0.01)
    gate.open.set()
    assert publisher.settle(10.0)
    assert gate.written == [("a", 1), ("b", 2)]
    gate.refusals = 1
    publisher.post(tmp_path / "a", status(3))
    assert not publisher.settle(0.01)
    assert publisher.settle(10.0)
    assert gate.written[-1] == ("a", 3)
