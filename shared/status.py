"""Status files: one record a shard or pair, replaced atomically by its one owner; transitions are checked."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from shared.atomic import read_regular, replace
from shared.errors import TandemError, WorkDirError
from shared.records import EvalStatus, InferStatus, PairState, Plan, decode_record, encode_record

MAX_STATUS_BYTES = 1 << 20
MAX_PLAN_BYTES = 1 << 30

TRANSITIONS: dict[PairState, frozenset[PairState]] = {
    "pending": frozenset({"pending", "running", "done", "fail"}),
    "running": frozenset({"running", "done", "fail", "pending"}),  # pending: stopped before the end, to be resumed
    "done": frozenset({"done"}),
    "fail": frozenset({"fail"}),
}

T = TypeVar("T")


class IllegalTransition(TandemError):
    """A state was about to be overwritten by one that can't follow it: a defect in the caller."""


def check_transition(old: PairState, new: PairState) -> None:
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"a pair that is {old} can't become {new}")


def read_record(path: Path, kind: type[T], limit: int = MAX_STATUS_BYTES) -> T | None:
    """The record in `path`, by a fresh open; None when there is no such file.

    Raises WorkDirError when it is damaged, and OSError (ESTALE, EIO) when the filesystem can't tell now: look again
    later.
    """
    try:
        data = read_regular(path, limit)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise WorkDirError(str(error)) from None
    return decode_record(data, kind, str(path))


def write_record(path: Path, record: Plan | InferStatus | EvalStatus | object) -> None:
    replace(path, encode_record(record) + b"\n")
