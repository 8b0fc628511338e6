"""The threads on which a process waits for its sandboxes: as many as there are cores for it, so that one pair uses them
all. They live as long as the process, since a sandbox ends with the thread that started it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def each(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The function of each item, in order."""
    return list(_threads().map(function, items))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "sandbox")
