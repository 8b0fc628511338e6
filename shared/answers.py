"""Where the answers of a shard lie: an index over its journals, and how one walks it beside the requests."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.journal import Tally, Told, read_rows
from shared.records import ANSWER_KINDS, Attempt, Outcome, Prediction

_BLOCK = 65536
_CODES: dict[str, int] = {outcome: code for code, outcome in enumerate(ANSWER_KINDS)}


class AnswerIndex:
    """Where the first answer of each request lies, over all journals of a shard.

    Memory: 37 bytes a journalled answer, whatever the answers' size. An answer is found by (doc_id, idx, repeat) AND
    the request_key: a row whose key no longer matches isn't an answer to what is asked now. Keys are held as their
    first 64 bits; as the triple must match too, a false match needs a 1 in 2^64 accident at that very place.

    tally, told: over all attempts in the journals. damaged: lines that are no records. duplicates: answers in the
    journals beyond the first to the same request: paid for twice.

    merged: which of the paths are predictions. What is journalled after the reading can be added, so that nobody needs
    to read it again.
    """

    def __init__(
        self,
        journals: Iterable[Path],
        predictions: Iterable[Path] = (),
        *,
        docs: range | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """predictions: they answer for journals that were cleared away. docs: the shard's, None for all; what the files
        say of others is none of its business. What isn't there is passed over.
        """
        # To open a FIFO would block for ever.
        found, merged = ([path for path in paths if path.is_file()] for paths in (journals, predictions))
        self.paths = (*found, *merged)
        self.merged = frozenset(merged)
        self.damaged = 0
        self.tally = Tally()
        self.told = Told()
        self._columns = columns = _Columns()
        asked = journalled = 0
        for number, path in enumerate(self.paths):
            kind: type[Attempt] | type[Prediction] = Prediction if path in self.merged else Attempt
            for offset, length, row in read_rows(path, kind, self._count_damage, docs):
                generation = row.generation
                if isinstance(row, Attempt):
                    self.tally.count(row.error, generation.usage if generation else None, row.cost)
                elif not journalled:  # the journals were cleared away: it says what was paid
                    self.tally.attempts += row.attempts
                    self.tally.pay(generation.usage if generation else None, row.cost)
                if generation is not None:
                    self.told.add(generation.served_model, generation.system_fingerprint)
                    order = order_of(row.doc_id, row.idx, row.repeat)
                    columns.add(order, key64(row.key), number, length, offset, _CODES[row.outcome])
                    if len(columns) % _BLOCK == 0:
                        tick()
            if path not in self.merged:
                asked, journalled = len(columns), self.tally.attempts
        self._table = columns.table()
        self.duplicates = self._table.duplicates(asked)
        self._fresh = Fresh()

    def __len__(self) -> int:
        """How many answers were found."""
        return len(self._table)

    def cursor(self, start: int = 0) -> Cursor:
        """Over what was found, from the order `start` on. None may be in use when more is absorbed."""
        return Cursor(self._table, start)

    def lookup(self) -> Callable[[int, int], Found | None]:
        """Finds an answer among what was found, by `order_of` and `key64`, whatever was asked about before; from any
        thread, and while more is absorbed. Holds on to 4 bytes an answer.
        """
        return self._table.find

    def add(self, path: Path, answers: Iterable[tuple[int, int, int, int, str]]) -> None:
        """(order, key, offset, length, outcome) of answers that were appended to the journal `path` since."""
        for order, key, offset, length, outcome in answers:
            self._fresh.columns.add(order, key, self._fresh.number(path), length, offset, _CODES[outcome])

    def take_fresh(self) -> Fresh:
        """What was added since the last time: `absorb` it, on whatever thread."""
        fresh, self._fresh = self._fresh, Fresh()
        return fresh

    def absorb(self, fresh: Fresh) -> None:
        """Take it among what was found."""
        if not fresh.columns:
            return
        known = {path: number for number, path in enumerate(self.paths)}
        self.paths += tuple(path for path in fresh.paths if path not in known)
        known = {path: number for number, path in enumerate(self.paths)}
        numbers = [known[path] for path in fresh.paths]
        if not self._columns and numbers == list(range(len(numbers))):
            self._columns = fresh.columns  # as they are: a run that found nothing holds its answers' places once
        else:
            self._columns.extend(fresh.columns, numbers)
        self._table = _Table(self._columns, np.empty(0, np.uint32))  # the old one goes before the new one comes
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

    def extend(self, more: _Columns, files: Sequence[int]) -> None:
        """files: which number each of the other's files has here."""
        for name in ("order", "key", "offset", "length", "outcome"):
            getattr(self, name).extend(getattr(more, name))
        self.file.extend(files[number] for number in more.file)

    def table(self) -> _Table:
        order = np.frombuffer(self.order, np.uint64) if self.order else np.empty(0, np.uint64)
        # Stable: among equal requests the answer journalled first stays first, and wins.
        rows = np.argsort(order, kind="stable").astype(np.uint32 if len(order) < 1 << 32 else np.uint64)
        return _Table(self, rows)


class Fresh:
    """Answers that were journalled since an index was made."""

    def __init__(self) -> None:
        self.columns = _Columns()
        self.paths: list[Path] = []

    def number(self, path: Path) -> int:
        if path not in self.paths:
            self.paths.append(path)
        return self.paths.index(path)


class _Table:
    """The rows of an index in (doc_id, idx, repeat) order. Read in blocks: there is never a sorted copy of them all."""

    def __init__(self, columns: _Columns, rows: np.ndarray[Any, Any]) -> None:
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int) -> Iterator[tuple[int, int, int, int, int, int]]:
        """(order, key, file, length, offset, outcome), from the order `start` on."""
        columns = self._columns
        first = self._place(start)
        all_of = [
            np.frombuffer(column, column.typecode)
            for column in (columns.order, columns.key, columns.file, columns.length, columns.offset, columns.outcome)
            if column
        ]
        for block in range(first, len(self._rows), _BLOCK):
            rows = self._rows[block : block + _BLOCK]
            yield from zip(*(column[rows].tolist() for column in all_of), strict=True)

    def find(self, order: int, key: int) -> Found | None:
        columns = self._columns
        for place in range(self._place(order), len(self._rows)):
            row = int(self._rows[place])
            if columns.order[row] != order:
                return None
            if columns.key[row] == key:
                outcome = ANSWER_KINDS[columns.outcome[row]]
                return Found(columns.file[row], columns.offset[row], columns.length[row], outcome)
        return None

    def _place(self, order: int) -> int:
        """Of the first row that isn't before it."""
        orders = self._columns.order
        return bisect_left(range(len(self._rows)), order, key=lambda place: orders[self._rows[place]])

    def duplicates(self, first: int) -> int:
        """Among the first so many rows that were added: how many have the order and the key of an earlier one."""
        columns = self._columns
        rows = self._rows if first == len(self._rows) else self._rows[self._rows < first]
        places: set[int] = set()  # where the same order stands twice or more, side by side
        for start in range(0, len(rows), _BLOCK):
            orders = np.frombuffer(columns.order, np.uint64)[rows[start : start + _BLOCK + 1]]
            for place in (np.flatnonzero(orders[1:] == orders[:-1]) + start).tolist():
                places |= {place, place + 1}
        asked = [int(rows[place]) for place in places]
        return len(asked) - len({(columns.order[row], columns.key[row]) for row in asked})


class Found(NamedTuple):
    file: int  # position in AnswerIndex.paths
    offset: int
    length: int
    outcome: Outcome


class Cursor:
    """Finds answers for requests that are asked about in increasing (doc_id, idx, repeat) order; one pass in all."""

    def __init__(self, table: _Table, start: int = 0) -> None:
        self._rows = table.rows(start)
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


def order_of(doc_id: int, idx: int, repeat: int) -> int:
    """(doc_id, idx, repeat) as one sortable number."""
    return doc_id << 32 | idx << 16 | repeat


def where_of(order: int) -> tuple[int, int, int]:
    """(doc_id, idx, repeat) of such a number."""
    return order >> 32, order >> 16 & 0xFFFF, order & 0xFFFF


def key64(key: str) -> int:
    """The first 64 bits of a request_key."""
    return int(key[:16], 16)
