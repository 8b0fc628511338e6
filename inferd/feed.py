"""A shard's requests as a stream: those that still need an answer are given, the others passed over."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from shared.answers import AnswerIndex, Cursor, key64, order_of
from shared.errors import ErrorClass
from shared.requests import Request

Where = tuple[int, int, int]  # (doc_id, idx, repeat)
LOOK = 20_000  # requests that a feed looks at in one go: progress is told in between


@dataclass(frozen=True)
class Failure:
    """Why a request has no answer; what its line in the predictions says."""

    key: str
    error: ErrorClass
    message: str
    attempts: int
    latency: float


@dataclass(frozen=True)
class Batch:
    """What a feed gave: requests to send; reused: answers passed over because they are journalled, by outcome."""

    requests: list[Request]
    reused: dict[str, int]
    exhausted: bool


class Asked:
    """Which requests a shard consists of, in their order, so that merging need not render them again. Memory: 8 bytes
    each while their places follow each other (docs from `first` on, each with its repeats), else 16.
    """

    def __init__(self, first: int = 0, repeats: int = 1) -> None:
        self._first = first
        self._repeats = repeats
        self._keys = array("Q")
        self._orders: array[int] | None = None

    def add(self, order: int, key: int) -> None:
        number = len(self._keys)
        if self._orders is None and order != self._usual(number):
            self._orders = array("Q", map(self._usual, range(number)))
        if self._orders is not None:
            self._orders.append(order)
        self._keys.append(key)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        orders = map(self._usual, range(len(self._keys))) if self._orders is None else self._orders
        return zip(orders, self._keys, strict=True)

    def _usual(self, number: int) -> int:
        doc, repeat = divmod(number, self._repeats)
        return order_of(self._first + doc, 0, repeat)


class Feed:
    """Streams a shard's requests and passes over those that are answered. One loader thread at a time calls `take`."""

    def __init__(self, stream: Iterator[Request], index: AnswerIndex, asked: Asked) -> None:
        self._stream = stream
        self._cursor: Cursor | None = index.cursor()
        self.asked = asked

    def take(self, count: int) -> Batch:
        """At most `count` requests that are to be sent; passes over at most LOOK requests to find them."""
        wanted: list[Request] = []
        reused: dict[str, int] = {}
        cursor = self._cursor
        if cursor is None:
            return Batch(wanted, reused, exhausted=True)
        for request in islice(self._stream, LOOK):
            order, key = order_of(request.doc_id, request.idx, request.repeat), key64(request.key)
            self.asked.add(order, key)
            found = cursor.find_order(order, key)
            if found is None:
                wanted.append(request)
                if len(wanted) == count:
                    return Batch(wanted, reused, exhausted=False)
            else:
                reused[found.outcome] = reused.get(found.outcome, 0) + 1
        exhausted = len(wanted) + sum(reused.values()) < LOOK
        if exhausted:
            self._cursor = None  # it holds on to the index, which is about to grow
        return Batch(wanted, reused, exhausted)
