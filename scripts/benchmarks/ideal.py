"""The shortest time any client can take, with `workers` requests in flight and nothing lost between them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heapreplace


def waves(requests: int, workers: int, latency: float) -> float:
    """Seconds when every answer takes `latency` seconds: ceil(N / C) x latency."""
    return math.ceil(requests / workers) * latency


def list_schedule(latencies: Sequence[float], workers: int) -> float:
    """Seconds until the last answer, when each worker that gets free takes the next request of the list.

    latencies: seconds each, in the order in which the requests are sent. Nobody knows beforehand which are slow, so
    this order is part of the load; the bench hands in the order in which the server received them.
    """
    if not latencies:
        return 0.0
    ends = list(latencies[:workers])  # when each worker is free again
    last = max(ends)
    heapify(ends)
    for latency in latencies[workers:]:
        end = ends[0] + latency
        heapreplace(ends, end)
        last = max(last, end)
    return last
