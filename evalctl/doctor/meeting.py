"""Two doctors find each other through files alone, and take turns.

Each writes one file, `<token>.json`, which it replaces as it goes on, and reads the other's by listing the folder. A
word counts once it names this doctor's own token among those heard: so what a killed doctor left behind speaks for
nobody. Two claims say who leads; where claims don't exclude, both have the first one, and the tokens decide.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.atomic import make_folder, remove
from shared.claims import take
from shared.clock import Clock
from shared.errors import TandemError, UsageError, WorkDirError
from shared.records import Record
from shared.status import read_record, write_record

LOOK_EVERY = 0.05  # seconds
LISTED = 64  # names looked at
MAX_BYTES = 1 << 16
CLAIMS = ("first.lock", "second.lock")

_Short = Annotated[str, Meta(max_length=300)]


class Word(Record, frozen=True, kw_only=True):
    """`.doctor/<token>.json`: what a doctor says to the other.

    {"schema":1,"token":"0a1b","first":true,"host":"h1","kernel":"6e2c","heard":["2c3d"],"step":"laid",
    "time":1700000000.0,"heard_at":0.0,"measured":{"wins":14.0}}

    first: it has the first claim. kernel: the machine's boot id. heard: the tokens whose words it saw. time: its wall
    clock as it wrote this; heard_at: as it heard what this answers. measured: null stands for never.
    """

    token: _Short
    first: bool
    host: _Short
    kernel: _Short
    heard: Annotated[tuple[_Short, ...], Meta(max_length=LISTED)] = ()
    step: _Short = ""
    time: float = 0.0
    heard_at: float = 0.0
    measured: dict[_Short, float | None] = msgspec.field(default_factory=dict)


class Silent(TandemError):
    """The other one said nothing for too long."""


class Meeting:
    """One doctor's side of it, until `leave`."""

    def __init__(self, folder: Path, host: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        token = uuid.uuid4().hex
        self.own = folder / token
        held = next(((name, claim) for name in CLAIMS if (claim := take(folder / name)) is not None), None)
        if held is None:
            raise UsageError(f"two doctors are at work in {folder.parent} already: wait until they have ended")
        self._claim = held[1]
        self.word = Word(token=token, first=held[0] == CLAIMS[0], host=host, kernel=_kernel())
        self.other: Word | None = None

    def meet(self, seconds: float) -> Word:
        """Wait for the other one; its first word. Raises Silent."""
        deadline = self._clock.monotonic() + seconds
        while self._clock.monotonic() < deadline:
            words = list(self._words())
            heard = tuple(sorted(word.token for word in words))
            if heard != self.word.heard or not self.word.time:
                self.say("here", heard=heard)
            self.other = next((word for word in words if self.word.token in word.heard), None)
            if self.other is not None:
                return self.other
            time.sleep(LOOK_EVERY)
        raise Silent(f"no other host came within {seconds:g} s")

    @property
    def leads(self) -> bool:
        """Exactly one of the two does."""
        assert self.other is not None, "after `meet`"
        if self.word.first != self.other.first:
            return self.word.first
        return self.word.token < self.other.token

    def say(self, step: str, **more: Any) -> None:
        self.word = msgspec.structs.replace(self.word, step=step, time=self._clock.time(), **more)
        write_record(self._path(self.word.token), self.word)

    def hear(self) -> Word:
        """The other's last word."""
        assert self.other is not None, "after `meet`"
        for word in self._words():
            if word.token == self.other.token:
                self.other = word
        return self.other

    def wait(self, step: str, seconds: float) -> Word:
        """The other's word when it has come to that step. Raises Silent."""
        deadline = self._clock.monotonic() + seconds
        while (word := self.hear()).step != step:
            if self._clock.monotonic() > deadline:
                raise Silent(f"{word.host} said nothing more within {seconds:g} s (after {word.step!r})")
            time.sleep(LOOK_EVERY)
        return word

    def leave(self) -> None:
        """Take back what is this doctor's; the last one out leaves nothing."""
        shutil.rmtree(self.own, ignore_errors=True)
        remove(self._path(self.word.token))
        self._claim.release()
        claims = [take(self._folder / name) for name in CLAIMS]
        if all(claims):
            for name in CLAIMS:
                for path in (self._folder / name, self._folder / f"{name}.owner"):
                    remove(path)
            for word in self._words():
                remove(self._path(word.token))  # of one that was killed
        for claim in claims:
            if claim is not None:
                claim.release()

    def _words(self) -> Iterator[Word]:
        """Those of others, found by listing: a name once missed stays missing on NFS for a while."""
        make_folder(self._folder)
        with os.scandir(self._folder) as entries:
            names = [entry.name for entry in islice(entries, LISTED)]
        for name in names:
            token = name.removesuffix(".json")
            if token in (name, self.word.token) or len(token) != 32:
                continue
            try:
                word = read_record(self._path(token), Word, MAX_BYTES)
            except (OSError, WorkDirError):
                continue  # just replaced, or planted
            if word is not None and word.token == token:
                yield word

    def _path(self, token: str) -> Path:
        return self._folder / f"{token}.json"


def _kernel() -> str:
    """Which machine this is, whatever it is called: new at each boot. "" where that can't be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
