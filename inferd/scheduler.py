"""Which request next: round robin over every open shard of a model. Pure: no I/O, no thread, no clock.

Invariant: what was offered is handed out exactly once, in each shard's own order; between two requests of one shard
every other shard that has one gets its turn. There is no barrier between datasets, request types or settings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
R = TypeVar("R")


class Scheduler(Generic[S, R]):
    def __init__(self) -> None:
        self._queues: dict[S, deque[R]] = {}
        self._turns: deque[S] = deque()  # the shards that have something, each once

    def offer(self, shard: S, requests: Iterable[R]) -> None:
        queue = self._queues.setdefault(shard, deque())
        had = bool(queue)
        queue.extend(requests)
        if queue and not had:
            self._turns.append(shard)

    def next(self) -> tuple[S, R] | None:
        """The next request and whose it is; None when nothing waits."""
        if not self._turns:
            return None
        shard = self._turns.popleft()
        queue = self._queues[shard]
        request = queue.popleft()
        if queue:
            self._turns.append(shard)
        return shard, request

    def waiting(self, shard: S) -> int:
        queue = self._queues.get(shard)
        return len(queue) if queue else 0

    def drop(self, shard: S) -> int:
        """Forget what waits of a shard; returns how many that were."""
        queue = self._queues.pop(shard, None)
        if queue:
            self._turns.remove(shard)
        return len(queue) if queue else 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())
