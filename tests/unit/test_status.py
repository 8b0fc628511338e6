"""Status files: what may follow what, and reading them while somebody writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from shared.errors import TandemError, WorkDirError
from shared.records import EvalStatus, InferStatus, PairState
from shared.status import MAX_STATUS_BYTES, IllegalTransition, check_transition, read_record, write_record

STATUS = EvalStatus(model="m", dataset="d", state="done", reason="é\u2028\n")

ALLOWED = {
    ("pending", "pending"),
    ("pending", "running"),
    ("pending", "done"),
    ("pending", "fail"),
    ("running", "running"),
    ("running", "done"),
    ("running", "fail"),
    ("running", "pending"),
    ("done", "done"),
    ("fail", "fail"),
}


@pytest.mark.parametrize("new", get_args(PairState))
@pytest.mark.parametrize("old", get_args(PairState))
def test_transitions(old: PairState, new: PairState) -> None:
    """Exactly these; a pair that ended stays as it ended."""
    if (old, new) in ALLOWED:
        check_transition(old, new)
    else:
        with pytest.raises(IllegalTransition, match=f"^a pair that is {old} can't become {new}$") as caught:
            check_transition(old, new)
        assert isinstance(caught.value, TandemError)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """One line of JSON with its newline; None where there is no file."""
    path = tmp_path / "eval_status" / "m" / "d.json"
    assert read_record(path, EvalStatus) is None
    write_record(path, STATUS)
    assert read_record(path, EvalStatus) == STATUS
    data = path.read_bytes()
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\x00" * 50,
        b"\xff",
        b"[]",
        b'{"schema":7}',
        b'{"schema":1,"model":"m"}',
        b"x" * (MAX_STATUS_BYTES + 1),
    ],
    ids=["empty", "cut", "NULs", "no text", "list", "schema", "fields missing", "too large"],
)
def test_damage_is_told_with_the_place(tmp_path: Path, content: bytes) -> None:
    """A WorkDirError that names the file, whatever lies there."""
    path = tmp_path / "d.json"
    path.write_bytes(content)
    with pytest.raises(WorkDirError, match=str(path)):
        read_record(path, InferStatus)


def test_what_is_no_file_is_told_without_waiting(tmp_path: Path) -> None:
    """A FIFO in its place doesn't hang the reader."""
    os.mkfifo(tmp_path / "d.json")
    with pytest.raises(WorkDirError, match="not a regular file"):
        read_record(tmp_path / "d.json", InferStatus)


def test_a_filesystem_that_cannot_tell_now_is_another_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ESTALE means look again: it comes through as the OSError it is, never as `no such file`."""

    def stale(*_: object) -> bytes:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("shared.status.read_regular", stale)
    with pytest.raises(OSError, match="Stale"):
        read_record(tmp_path / "d.json", InferStatus)
