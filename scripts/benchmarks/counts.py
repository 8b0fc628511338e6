"""What the server counts, and how busy the client's workers were. Pure: it is told the time.

Invariant: `busy` is the integral of the requests in flight over time. A worker of the client counts as busy from the
moment its request is here to the moment its answer is written; what it spends between the two counts as idle.
"""

from __future__ import annotations

from array import array

TAIL = 0.05  # the last share of the requests, by arrival, that is looked at apart


class Stats:
    """What was seen since the last reset. Times are of the monotonic clock, but `first_at`, the wall clock's."""

    def __init__(self) -> None:
        self.connections = 0
        self.in_flight = 0
        self.reset(0, 0)

    def reset(self, requests: int, workers: int) -> None:
        self.requests, self.workers = requests, workers
        self.tail_begins = requests - int(requests * TAIL)
        self.received = self.answered = self.bytes = 0
        self.distinct: set[int] = set()
        self.peak_in_flight = self.in_flight
        self.peak_connections = self.connections
        self.opened = self.connections
        self.first = self.last = self.full = self.changed = self.first_at = 0.0
        self.busy = 0.0  # worker seconds
        self.at_tail = self.at_last = (0.0, 0.0)  # (moment, busy until then)
        self.latencies = array("d")

    def arrive(self, now: float, wall: float, body: bytes) -> None:
        if not self.received:
            self.first = self.changed = now
            self.first_at = wall
        self.busy += self.in_flight * (now - self.changed)
        self.changed = now
        self.received += 1
        self.in_flight += 1
        self.bytes += len(body)
        self.distinct.add(hash(body))
        if self.in_flight > self.peak_in_flight:
            self.peak_in_flight = self.in_flight
            if self.in_flight == self.workers:
                self.full = now
        if self.received == self.tail_begins:
            self.at_tail = (now, self.busy)
        if self.received == self.requests:
            self.at_last = (now, self.busy)

    def leave(self, now: float) -> None:
        self.busy += self.in_flight * (now - self.changed)
        self.changed = now
        self.in_flight -= 1

    def report(self) -> dict[str, float]:
        """requests .. peak_connections: counts. bytes: of all bodies. seconds: first arrival to last answer.

        first_at: when the first request came, in seconds since the epoch. fill: seconds from there until all workers
        were in flight. busy: the share of the workers' time in which their request was here, from the first arrival to
        the last (when all has been sent there may be idle workers); tail_busy: the same for the last 5 % of arrivals.
        """
        return {
            "requests": self.received,
            "distinct": len(self.distinct),
            "answered": self.answered,
            "bytes": self.bytes,
            "peak_in_flight": self.peak_in_flight,
            "peak_connections": self.peak_connections,
            "connections_opened": self.opened,
            "seconds": self.last - self.first,
            "first_at": self.first_at,
            "fill": self.full - self.first if self.full else 0.0,
            "busy": self._share((self.first, 0.0), self.at_last),
            "tail_busy": self._share(self.at_tail, self.at_last),
        }

    def _share(self, begin: tuple[float, float], end: tuple[float, float]) -> float:
        capacity = (end[0] - begin[0]) * self.workers
        return (end[1] - begin[1]) / capacity if capacity > 0 else 0.0
