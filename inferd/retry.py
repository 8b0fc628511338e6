"""From a failed attempt to what happens next: wait and try again, or give the request up. Pure.

Backoff with full jitter, as in Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): the wait
is uniform in [0, min(backoff_max, backoff_base * 2^(attempt-1))], but never shorter than the endpoint's Retry-After,
itself capped.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.config import InferConfig
from shared.errors import AttemptError, Permanent


def next_wait(
    error: AttemptError, attempt: int, policy: InferConfig, uniform: Callable[[float, float], float]
) -> float | None:
    """Seconds until the request's next attempt; None when it is given up.

    Waits for nothing where the error says that it needs none (retry_after 0).

    attempt: the number of the attempt that failed, from 1. uniform(a, b): a random number between the two.
    """
    if isinstance(error, Permanent) or attempt >= policy.max_attempts:
        return None
    ceiling = min(policy.backoff_max, policy.backoff_base * 2.0 ** min(attempt - 1, 60))
    wait = uniform(0.0, ceiling)
    if error.retry_after == 0.0:
        return 0.0
    if error.retry_after is not None:
        asked = min(max(error.retry_after, 0.0), policy.retry_after_max)
        # Spread out those who were all told the same moment, never before it.
        wait = asked + min(wait, 0.1 * asked + policy.backoff_base)
    return wait
