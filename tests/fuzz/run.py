"""Gives readers many inputs, and tells what none may do: raise what isn't documented, hang, or take much memory."""

from __future__ import annotations

import random
import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from shared.errors import TandemError
from tests.fuzz.mutations import inputs
from tests.fuzz.readers import READERS, Reader

SECONDS = 5.0  # that one input may take
MEMORY = 256 << 20  # bytes by which all of them together may raise the peak


class Hung(BaseException):
    """Not an Exception, so that no reader takes it for one of its own."""


@dataclass
class Findings:
    """read, refused: how many inputs of each reader were. faults: the first of each kind, with the input."""

    read: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    faults: dict[str, bytes] = field(default_factory=dict)
    grown: int = 0

    @property
    def count(self) -> int:
        return sum(self.read.values()) + sum(self.refused.values())


def fuzz(count: int, folder: Path, seed: int = 1, tell: Callable[[str], None] = lambda text: None) -> Findings:
    """About `count` inputs, the same number to each reader."""
    found = Findings()
    before = signal.signal(signal.SIGALRM, _hung)
    peak = _peak()
    try:
        for reader in READERS:
            _fuzz(reader, count // len(READERS) + 1, folder / reader.name, seed, found)
            tell(f"{reader.name:24} read {found.read[reader.name]:6}, refused {found.refused[reader.name]:6}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGALRM, before)
    found.grown = _peak() - peak
    if found.grown > MEMORY:
        found.faults[f"the peak of memory grew by {found.grown:,} bytes"] = b""
    return found


def _fuzz(reader: Reader, count: int, folder: Path, seed: int, found: Findings) -> None:
    rng = random.Random(f"{seed} {reader.name}")
    path = folder / reader.path
    path.parent.mkdir(parents=True)
    found.read[reader.name] = found.refused[reader.name] = 0
    for number in range(count):
        data = inputs(reader.seeds, rng) if number else reader.seeds[0]
        path.unlink(missing_ok=True)  # to write over a file makes a disk wait
        path.write_bytes(data)
        signal.setitimer(signal.ITIMER_VIRTUAL, 6 * SECONDS)  # kills the process: what hangs in C hears nothing else
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            reader.read(folder)
        except TandemError:
            found.refused[reader.name] += 1
        except (Exception, Hung) as error:  # noqa: BLE001  # what this is for
            signal.setitimer(signal.ITIMER_REAL, 0)
            place = traceback.extract_tb(error.__traceback__)[-1]
            found.faults.setdefault(
                f"{reader.name}: {type(error).__name__}: {error!s:.200} ({_ours(error)}; {place.name})", data
            )
            found.refused[reader.name] += 1
        else:
            found.read[reader.name] += 1


def _ours(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[1:]))[:300]


def _hung(_: int, __: FrameType | None) -> None:
    raise Hung(f"more than {SECONDS:g} s")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
