"""The journal: one line an attempt that ended, one file a claim, one writer a file.

Invariant: a line counts once its fsync returned. Writing is group commit: a thread of its own gathers what came in
during the last `commit_interval` and appends it with one write and one fdatasync a file. Reading splits bytes on
newline only (an answer may hold U+2028); a torn last line is ignored, a line that is no record is counted and skipped,
and its request is asked again. Journals are never rewritten or shortened (but for the half-written end of a failed
write, by its own writer).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from shared.atomic import AppendFile, open_regular
from shared.layout import WorkDir
from shared.records import ANSWERS, SCHEMA, Attempt, Prediction, Usage, check_schema

READ_SIZE = 1 << 20
MAX_LINE = 64 << 20  # an answer can't be larger: transports cap bodies below that


def split_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(offset, line without its newline) of every whole line. A tail without newline is torn: it isn't told."""
    rest = b""
    start = 0
    while chunk := file.read(READ_SIZE):
        lines = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield start, line
            start += len(line) + 1
        if len(rest) > MAX_LINE:
            # No newline for so long is damage, not a line. It is told in pieces, each of which readers skip and count.
            yield start, rest
            start += len(rest)
            rest = b""


@dataclass
class Tally:
    """What the attempts of a shard came to, over all its journals."""

    attempts: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def count(self, error: str | None, usage: Usage | None, cost: float) -> None:
        self.attempts += 1
        if error is not None:
            self.errors[error] = self.errors.get(error, 0) + 1
        self.pay(usage, cost)

    def pay(self, usage: Usage | None, cost: float) -> None:
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens
        self.cost += cost


class _Place(msgspec.Struct):
    doc_id: int


_doc_id = msgspec.json.Decoder(_Place).decode


def read_rows(
    path: Path,
    kind: type[Attempt] | type[Prediction],
    on_damage: Callable[[], None],
    docs: range | None = None,
) -> Iterator[tuple[int, int, Attempt | Prediction]]:
    """(offset, length, record) of every line that is a whole and sound record: what is told here can be merged.

    docs: those that matter, None for all; lines of others are passed over half read, at a third of the cost.
    """
    decode: Callable[[bytes], Attempt | Prediction] = msgspec.json.Decoder(kind).decode
    with open_regular(path) as file:
        for offset, line in split_lines(file):
            try:
                if docs is not None and _doc_id(line).doc_id not in docs:
                    continue
                row = decode(line)
                sound = _is_sound(row)
            except (msgspec.DecodeError, ValueError, RecursionError):
                sound = False
            if not sound:
                check_schema(line, str(path))
            if sound:
                yield offset, len(line), row
            else:
                on_damage()


def _is_sound(row: Attempt | Prediction) -> bool:
    """Within the ranges that the index can hold, and an answer where it says so. Raises ValueError when the key isn't
    hexadecimal.
    """
    return (
        row.schema == SCHEMA  # of another version: told by check_schema, not damage
        and len(row.key) == 64  # fromhex alone would pass over spaces
        and len(bytes.fromhex(row.key)) == 32
        and 0 <= row.doc_id < MAX_DOCS
        and 0 <= row.idx < MAX_IDX
        and 0 <= row.repeat < MAX_REPEATS
        and (row.generation is not None) == (row.outcome in ANSWERS)
    )


MAX_NAMES = 16  # that a Told keeps of each kind: a hostile server may call itself something new each time


@dataclass
class Told:
    """What an endpoint called its model, and the build behind it: more than one name is drift."""

    models: set[str] = field(default_factory=set)
    fingerprints: set[str] = field(default_factory=set)

    def add(self, model: str | None, fingerprint: str | None) -> None:
        if model is not None and model not in self.models and len(self.models) < MAX_NAMES:
            self.models.add(model)
        if fingerprint is not None and fingerprint not in self.fingerprints and len(self.fingerprints) < MAX_NAMES:
            self.fingerprints.add(fingerprint)


MAX_DOCS, MAX_IDX, MAX_REPEATS = 1 << 32, 1 << 16, 1 << 16


class JournalWriter:
    """Group commit for all open journals of one process, on a thread of its own.

    Callers `append` lines from any thread and hear through `committed(target, lines)` when they are durable: of each
    line its token, its offset in the file and its length. When the disk refuses, `failed(target, error)` is told once
    for each failed round, the lines are kept, and the next round tries again: nothing that came in is dropped while the
    process lives.
    """

    def __init__(
        self,
        committed: Callable[[Target, list[tuple[Any, int, int]]], None],
        failed: Callable[[Target, OSError], None],
        commit_interval: float,
    ) -> None:
        self._committed = committed
        self._failed = failed
        self._interval = commit_interval
        self._commits = 0
        self._lock = threading.Lock()
        self._pending: dict[Target, list[tuple[bytes, object]]] = {}
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, target: Target, line: bytes, token: object) -> None:
        """Hand over one line (without newline). token: what `committed` will name it by."""
        with self._lock:
            rows = self._pending.get(target)
            if rows is None:
                self._pending[target] = rows = []
            rows.append((line, token))
        if not self._wake.is_set():
            self._wake.set()

    def hurry(self) -> None:
        """Commit what is there at once: no further lines are on their way that would keep it company."""
        self._hurry.set()

    def backlog(self) -> int:
        """Lines that aren't durable yet."""
        with self._lock:
            return sum(len(rows) for rows in self._pending.values())

    def stop(self, timeout: float) -> bool:
        """Commit what is left and end the thread; False when for `timeout` seconds none of it could be saved. A slow
        disk takes the time it takes.
        """
        self._stop.set()
        self._hurry.set()
        self._wake.set()
        before = -1
        while self._thread.is_alive() and before != self._commits:
            before = self._commits
            self._thread.join(timeout)
        return not self._thread.is_alive() and self.backlog() == 0

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            self._hurry.wait(self._interval)  # gather company for the lines that are there
            if not self._stop.is_set():
                self._hurry.clear()
            last = self._stop.is_set()  # asked before the commit: what comes in during it needs another
            clean = self._commit_all()
            if last:
                return  # the caller learns from backlog() what could not be saved
            if not clean:
                self._stop.wait(1.0)  # a full disk doesn't empty itself faster than that
            if not clean or self._stop.is_set():
                self._wake.set()

    def _commit_all(self) -> bool:
        with self._lock:
            batches, self._pending = self._pending, {}
        clean = True
        for target, rows in batches.items():
            try:
                data = b"\n".join([line for line, _ in rows]) + b"\n"
                offset = target.file().append(data)
            except OSError as error:
                clean = False
                with self._lock:
                    self._pending[target] = rows + self._pending.get(target, [])
                self._failed(target, error)
            else:
                told = []
                for line, token in rows:
                    told.append((token, offset, len(line)))
                    offset += len(line) + 1
                self._commits += 1
                self._committed(target, told)
        return clean


class Target:
    """One journal file to be: made at its first line, so that opening a shard that needs nothing leaves no
    empty file.
    """

    def __init__(self, work: WorkDir, model: str, stem: str, claim: str) -> None:
        self.path = work.journal(model, stem, claim)
        self._resume = work.own_journal is not None
        self._file: AppendFile | None = None

    def file(self) -> AppendFile:
        """Only the journal's thread calls this."""
        if self._file is None:
            self._file = AppendFile(self.path, resume=self._resume)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
