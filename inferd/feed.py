"""A shard's requests as a stream: those that still need an answer are given, the others passed over.

A chat's later turns are made of the answers before them: of those that are journalled here, of those that come in this
run by `follow_up`. Until then only their place is known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from inferd.lines import Lines
from shared.answers import AnswerIndex, Cursor, Found, key64, order_of
from shared.errors import ErrorClass, WorkDirError
from shared.records import Generation
from shared.requests import NO_KEY, Later, Request

Where = tuple[int, int, int]  # (doc_id, idx, repeat)
ANOTHER_JOURNAL = "a journal isn't what was written into it any more: start inferd again"
LOOK = 20_000  # requests that a feed looks at in one go: progress is told in between


@dataclass(frozen=True)
class Failure:
    """Why a request has no answer; what its line in the predictions says. error: None of a turn that wasn't asked."""

    key: str
    error: ErrorClass | None
    message: str
    attempts: int
    latency: float


def not_run(turn: int) -> Failure:
    """Of the turns behind turn number `turn`, which has no answer."""
    return Failure(NO_KEY, None, f"not asked: turn {turn} before it has no answer", 0, 0.0)


@dataclass(frozen=True)
class Batch:
    """What a feed gave: requests to send; reused: answers passed over because they are journalled, by outcome."""

    requests: list[Request]
    reused: dict[str, int]
    exhausted: bool


class Asked:
    """Which requests a shard consists of, in their order, so that merging need not render them again. Memory: 8 bytes
    each while their places follow each other (docs from `first` on, each with its repeats), else 16. The key of a turn
    that can't be made yet is 0.
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

    def set_key(self, order: int, key: int) -> None:
        """Of a turn that was added before it could be made. From any thread."""
        self._keys[self._place(order)] = key

    def key_of(self, order: int) -> int:
        return self._keys[self._place(order)]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        orders = map(self._usual, range(len(self._keys))) if self._orders is None else self._orders
        return zip(orders, self._keys, strict=True)

    def _usual(self, number: int) -> int:
        doc, repeat = divmod(number, self._repeats)
        return order_of(self._first + doc, 0, repeat)

    def _place(self, order: int) -> int:
        assert self._orders is not None  # a later turn's place is never the usual one
        return bisect_left(self._orders, order)


class Feed:
    """Streams a shard's requests and passes over those that are answered. One loader thread at a time calls `take`.

    A chat that has to be asked from some turn on may have answers behind it: `follow` makes its next request,
    `journalled` tells whether that is answered, `pass_over` goes on to the turn that isn't.

    follow_up: makes the request for a chat's next turn of one before it and the answer to that.
    """

    def __init__(
        self,
        stream: Iterator[Request | Later],
        index: AnswerIndex,
        asked: Asked,
        follow_up: Callable[[Request, Generation], Request],
    ) -> None:
        self.asked = asked
        self._follow_up = follow_up
        self._stream = stream
        self._next: Request | Later | None = None
        self._begun = False
        self._paths = index.paths
        self._cursor: Cursor | None = index.cursor()
        self._lookup: Callable[[int, int], Found | None] | None = index.lookup()
        self._broken_off = False  # a chat's later turn can't be made yet
        self._turns: dict[tuple[int, int], Request] = {}  # that could be made, of the chat that is looked at

    def take(self, count: int) -> Batch:
        """About `count` requests that are to be sent; looks at about LOOK requests to find them. A chat is looked at as
        a whole, so that the place of its last turn is known before its first is sent.
        """
        wanted: list[Request] = []
        reused: dict[str, int] = {}
        if self._cursor is None:
            return Batch(wanted, reused, exhausted=True)
        if not self._begun:
            self._begun = True
            self._next = next(self._stream, None)
        looked = 0
        with ExitStack() as files:
            journals = _Journals(self._paths, files)
            while (place := self._next) is not None:
                self._next = next(self._stream, None)
                looked += 1
                found = self._look(place, self._cursor, wanted)
                if found is not None:
                    request, answer = found
                    reused[answer.outcome] = reused.get(answer.outcome, 0) + 1
                    if request.later:
                        said = journals.said(answer, request.key)
                        self._turns[request.idx + 1, request.repeat] = self._follow_up(request, said)
                if (len(wanted) >= count or looked >= LOOK) and not isinstance(self._next, Later):
                    break
        exhausted = self._next is None
        if exhausted:
            self._cursor = None  # it holds on to the index, which is about to grow
            if not self._broken_off:
                self._lookup = None
        return Batch(wanted, reused, exhausted)

    def follow(self, request: Request, said: Generation) -> Request:
        """The request for the turn behind `request`, to which `said` is the answer. From any thread."""
        following = self._follow_up(request, said)
        order = order_of(following.doc_id, following.idx, following.repeat)
        self.asked.set_key(order, key64(following.key))
        return following

    def journalled(self, request: Request) -> Found | None:
        """Where an answer of an earlier run to a turn that could only be made now lies. From any thread."""
        if self._lookup is None:
            return None
        return self._lookup(order_of(request.doc_id, request.idx, request.repeat), key64(request.key))

    def pass_over(self, request: Request) -> Batch:
        """The chat's first turn from `request` on that has no journalled answer, if there is one. Reads the disk."""
        reused: dict[str, int] = {}
        with ExitStack() as files:
            journals = _Journals(self._paths, files)
            while (answer := self.journalled(request)) is not None:
                reused[answer.outcome] = reused.get(answer.outcome, 0) + 1
                if not request.later:
                    return Batch([], reused, exhausted=True)
                request = self.follow(request, journals.said(answer, request.key))
        return Batch([request], reused, exhausted=False)

    def _look(self, place: Request | Later, cursor: Cursor, wanted: list[Request]) -> tuple[Request, Found] | None:
        """The request and its answer, if it has one."""
        order = order_of(place.doc_id, place.idx, place.repeat)
        request = self._turns.pop((place.idx, place.repeat), None) if isinstance(place, Later) else place
        if request is None:
            self.asked.add(order, 0)
            self._broken_off = True
            return None
        key = key64(request.key)
        self.asked.add(order, key)
        found = cursor.find_order(order, key)
        if found is not None:
            return request, found
        wanted.append(request)
        return None


class _Journals:
    """Reads answers back. files: closes what is opened here."""

    def __init__(self, paths: tuple[Path, ...], files: ExitStack) -> None:
        self._paths = paths
        self._files = files
        self._open: dict[int, Lines] = {}

    def said(self, answer: Found, key: str) -> Generation:
        """Raises WorkDirError when the answer to `key` doesn't lie there any more."""
        if answer.file not in self._open:
            self._open[answer.file] = self._files.enter_context(closing(Lines(self._paths[answer.file])))
        try:
            row = _decode(self._open[answer.file].read(answer.offset, answer.length))
        except (msgspec.DecodeError, UnicodeDecodeError):
            row = None
        if row is None or row.key != key:
            raise WorkDirError(ANOTHER_JOURNAL)
        return row.generation


class _Said(msgspec.Struct):
    key: str
    generation: Generation


_decode = msgspec.json.Decoder(_Said).decode
