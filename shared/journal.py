"""The journal: one line an attempt that ended, one file a claim, one writer a file.

Invariant: a line counts once its fsync returned. Writing is group commit: a thread of its own gathers what came in
during the last `commit_interval` and appends it with one write and one fdatasync a file. Reading splits bytes on
newline only (an answer may hold U+2028); a torn last line is ignored, a line that is no record is counted and skipped,
and its request is asked again. Journals are never rewritten or shortened (but for the half-written end of a failed
write, by its own writer).
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from shared.atomic import AppendFile
from shared.layout import WorkDir
from shared.records import ANSWER_KINDS, ANSWERS, SCHEMA, Attempt, Outcome, Prediction, Usage, check_schema

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
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens
        self.cost += cost


def read_rows(
    path: Path, kind: type[Attempt] | type[Prediction], on_damage: Callable[[], None]
) -> Iterator[tuple[int, int, Attempt | Prediction]]:
    """(offset, length, record) of every line that is a whole and sound record: what is told here can be merged."""
    decode: Callable[[bytes], Attempt | Prediction] = msgspec.json.Decoder(kind).decode
    with path.open("rb") as file:
        for offset, line in split_lines(file):
            try:
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


class AnswerIndex:
    """Where the first answer of each request lies, over all journals of a shard.

    Memory: 39 bytes a journalled answer, whatever the answers' size. An answer is found by (doc_id, idx, repeat) AND
    the request_key: a row whose key no longer matches isn't an answer to what is asked now. Keys are held as their
    first 64 bits; as the triple must match too, a false match needs a 1 in 2^64 accident at that very place.

    tally, told: over all attempts in the journals. damaged: lines that are no records. duplicates: answers in the
    journals beyond the first to the same request: paid for twice.

    What is journalled after the reading can be added, so that nobody needs to read it again.
    """

    def __init__(
        self, journals: Iterable[Path], predictions: Path | None = None, *, tick: Callable[[], None] = lambda: None
    ) -> None:
        """predictions: the shard's predictions file, if there is one: it answers for journals that were
        cleared away.
        """
        found = tuple(path for path in journals if path.is_file())  # to open a FIFO would block for ever
        self.paths = found + ((predictions,) if predictions is not None else ())
        self.damaged = 0
        self.tally = Tally()
        self.told = Told()
        self._columns = columns = _Columns()
        asked = 0
        for number, path in enumerate(self.paths):
            kind: type[Attempt] | type[Prediction] = Prediction if path is predictions else Attempt
            for offset, length, row in read_rows(path, kind, self._count_damage):
                generation = row.generation
                if path is not predictions:
                    self.tally.count(row.error, generation.usage if generation else None, row.cost)
                if generation is not None:
                    self.told.add(generation.served_model, generation.system_fingerprint)
                    order = order_of(row.doc_id, row.idx, row.repeat)
                    columns.add(order, key64(row.key), number, length, offset, _CODES[row.outcome])
                    if len(columns) % _BLOCK == 0:
                        tick()
            if path is not predictions:
                asked = len(columns)
        self._table = columns.table()
        self.duplicates = self._table.duplicates(asked)
        self._fresh = _Columns()
        self._fresh_paths: dict[Path, int] = {}

    def __len__(self) -> int:
        """How many answers were found."""
        return len(self._table)

    def cursor(self) -> Cursor:
        """Over what was found."""
        return Cursor(self._table)

    def add(self, path: Path, answers: Iterable[tuple[int, int, int, int, str]]) -> None:
        """(order, key, offset, length, outcome) of answers that were appended to the journal `path` since."""
        number = self._fresh_paths.setdefault(path, len(self.paths) + len(self._fresh_paths))
        for order, key, offset, length, outcome in answers:
            self._fresh.add(order, key, number, length, offset, _CODES[outcome])

    def renew(self) -> None:
        """Take what was added among what was found. No earlier cursor may be in use."""
        self.paths += tuple(self._fresh_paths)
        self._columns.extend(self._fresh)
        self._fresh, self._fresh_paths = _Columns(), {}
        self._table = self._columns.table()

    def _count_damage(self) -> None:
        self.damaged += 1


class _Columns:
    """The index while it grows: arrays of machine words, not of objects."""

    def __init__(self) -> None:
        self.order, self.key, self.offset = array("Q"), array("Q"), array("Q")
        self.file, self.length = array("I"), array("I")
        self.outcome = array("B")

    def __len__(self) -> int:
        return len(self.order)

    def add(self, order: int, key: int, file: int, length: int, offset: int, outcome: int) -> None:
        self.order.append(order)
        self.key.append(key)
        self.offset.append(offset)
        self.file.append(file)
        self.length.append(length)
        self.outcome.append(outcome)

    def extend(self, more: _Columns) -> None:
        for name in ("order", "key", "offset", "file", "length", "outcome"):
            getattr(self, name).extend(getattr(more, name))

    def table(self) -> _Table:
        order = np.frombuffer(self.order, np.uint64) if self.order else np.empty(0, np.uint64)
        # Stable: among equal requests the answer journalled first stays first, and wins.
        rows = np.argsort(order, kind="stable").astype(np.uint32 if len(order) < 1 << 32 else np.uint64)
        return _Table(self, rows)


class _Table:
    """The rows of an index in (doc_id, idx, repeat) order. Read in blocks: there is never a sorted copy of them all."""

    def __init__(self, columns: _Columns, rows: np.ndarray[Any, Any]) -> None:
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """(order, key, file, length, offset, outcome)"""
        columns = self._columns
        all_of = [
            np.frombuffer(column, column.typecode)
            for column in (columns.order, columns.key, columns.file, columns.length, columns.offset, columns.outcome)
            if column
        ]
        for start in range(0, len(self._rows), _BLOCK):
            rows = self._rows[start : start + _BLOCK]
            yield from zip(*(column[rows].tolist() for column in all_of), strict=True)

    def duplicates(self, first: int) -> int:
        """Among the first so many rows that were added: how many have the order and the key of an earlier one."""
        if first < 2:
            return 0
        order = np.frombuffer(self._columns.order, np.uint64)
        rows = self._rows[self._rows < first]
        again = np.flatnonzero(order[rows[1:]] == order[rows[:-1]])
        if not len(again):
            return 0
        key = np.frombuffer(self._columns.key, np.uint64)
        pairs = {(int(order[row]), int(key[row])) for row in rows[np.union1d(again, again + 1)]}
        return len(np.union1d(again, again + 1)) - len(pairs)


class Found(NamedTuple):
    file: int  # position in AnswerIndex.paths
    offset: int
    length: int
    outcome: Outcome


class Cursor:
    """Finds answers for requests that are asked about in increasing (doc_id, idx, repeat) order; one pass in all."""

    def __init__(self, table: _Table) -> None:
        self._rows = iter(table)
        self._row = next(self._rows, None)

    def find(self, doc_id: int, idx: int, repeat: int, key: str) -> Found | None:
        """Where the request's answer lies, or None when it has none."""
        return self.find_order(order_of(doc_id, idx, repeat), key64(key))

    def find_order(self, wanted: int, prefix: int) -> Found | None:
        """The same by `order_of` the request and `key64` of its key."""
        row = self._row
        while row is not None and row[0] < wanted:
            row = next(self._rows, None)
        found = None
        while row is not None and row[0] == wanted:
            if found is None and row[1] == prefix:
                found = Found(row[2], row[4], row[3], ANSWER_KINDS[row[5]])
            row = next(self._rows, None)
        self._row = row
        return found


_BLOCK = 65536
_CODES: dict[str, int] = {outcome: code for code, outcome in enumerate(ANSWER_KINDS)}
MAX_DOCS, MAX_IDX, MAX_REPEATS = 1 << 32, 1 << 16, 1 << 16


def order_of(doc_id: int, idx: int, repeat: int) -> int:
    """(doc_id, idx, repeat) as one sortable number."""
    return doc_id << 32 | idx << 16 | repeat


def where_of(order: int) -> tuple[int, int, int]:
    """(doc_id, idx, repeat) of such a number."""
    return order >> 32, order >> 16 & 0xFFFF, order & 0xFFFF


def key64(key: str) -> int:
    """The first 64 bits of a request_key."""
    return int(key[:16], 16)


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
        """Commit what is left and end the thread; False when lines could not be saved within `timeout` seconds."""
        self._stop.set()
        self._hurry.set()
        self._wake.set()
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
                self._committed(target, told)
        return clean


class Target:
    """One journal file to be: made at its first line, so that opening a shard that needs nothing leaves no
    empty file.
    """

    def __init__(self, work: WorkDir, model: str, stem: str, claim: str) -> None:
        self.path = work.journal(model, stem, claim)
        self._file: AppendFile | None = None

    def file(self) -> AppendFile:
        """Only the journal's thread calls this."""
        if self._file is None:
            self._file = AppendFile(self.path)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
