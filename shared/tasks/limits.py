"""Which rows of a dataset's file its `limit` leaves. Pure but for `total_rows`.

A row's place in the file is what counts, never what is in it, so rows that are left out are skipped unread. They come
in the file's order whatever the limit. A bottom-k sample: the rows whose SHA-256 of (seed, place) is smallest. So a
smaller sample of the same seed lies within a larger one.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from shared.config import DatasetConfig
from shared.records import Limit, SampleLimit
from shared.tables import show
from shared.tasks.rows import format_of, read_lines, read_rows

T = TypeVar("T")

_RANGE = re.compile(r"([0-9]{0,18}):([0-9]{0,18})")


class Wanted(NamedTuple):
    """Places first <= place < end, and of those, where `only` is given, the ones in it. end: None for no end."""

    first: int = 0
    end: int | None = None
    only: frozenset[int] | None = None

    def of(self, rows: Iterator[T]) -> Iterator[tuple[int, T]]:
        """(place, row) of the wanted ones. Reads no further than it must."""
        for place, row in islice(enumerate(rows), self.first, self.end):
            if self.only is None or place in self.only:
                yield place, row


ALL = Wanted()


def wanted(limit: Limit | None, total: Callable[[], int]) -> Wanted:
    """total: how many rows there are, asked only where it matters."""
    match limit:
        case None:
            return ALL
        case int():
            return Wanted(end=limit)
        case float():
            return Wanted(end=math.ceil(limit * total()))  # as lm-evaluation-harness rounds
        case str():
            first, end = range_of(limit)
            return Wanted(first, end)
        case SampleLimit():
            only = nsmallest(limit.sample, range(total()), key=lambda place: _draw(limit.seed, place))
            return Wanted(end=max(only, default=-1) + 1, only=frozenset(only))


def range_of(text: str) -> tuple[int, int | None]:
    """(first, end) of "100:200", "100:" or ":200". Raises ValueError when it is none of these."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f'expected a range such as "100:200", got {show(text)}')
    return int(found[1] or 0), int(found[2]) if found[2] else None


def total_rows(dataset: DatasetConfig, path: Path) -> int:
    """Rows of the file, bad ones too. Raises SuiteError when it can't be read to its end."""
    kind = format_of(dataset)
    assert kind is not None, "the suite's check refuses a dataset without a format"
    rows: Iterator[object] = read_lines(path) if kind in ("json", "jsonl") else read_rows(path, kind, dataset.columns)
    return sum(1 for _ in rows)


def _draw(seed: int, place: int) -> bytes:
    return hashlib.sha256(f"{seed}\0{place}".encode()).digest()
