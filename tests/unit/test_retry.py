"""From an error to a wait, or to the end of a request."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.retry import next_wait
from shared.config import InferConfig
from shared.errors import MEANINGS, ErrorClass, Permanent, Retryable

POLICY = InferConfig(max_attempts=5, backoff_base=1.0, backoff_max=60.0, retry_after_max=300.0)
final: st.SearchStrategy[ErrorClass] = st.sampled_from([kind for kind in MEANINGS if not MEANINGS[kind].retried])


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high


@given(final, st.integers(1, 100), st.none() | st.floats(0, 1e6))
def test_what_is_permanent_is_never_asked_again(kind: ErrorClass, attempt: int, asked: float | None) -> None:
    """Whatever its class, its number, and what the endpoint asked."""
    policy = msgspec.structs.replace(POLICY, max_attempts=10**6)
    assert next_wait(Permanent(kind, "no", retry_after=asked), attempt, policy, highest) is None


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_last_attempt_is_the_last(most: int) -> None:
    """max_attempts calls, the first one counted."""
    policy = msgspec.structs.replace(POLICY, max_attempts=most)
    again = [
        next_wait(Retryable("timeout", "late"), attempt, policy, lowest) is not None for attempt in range(1, most + 2)
    ]
    assert again == [True] * (most - 1) + [False, False]


def test_the_ceiling_doubles_up_to_its_own() -> None:
    """`backoff-exceeds-cap`: 1, 2, 4 ... 60, 60: and far beyond what a float could double to."""
    policy = msgspec.structs.replace(POLICY, max_attempts=10**6)
    waits = [next_wait(Retryable("timeout", "late"), attempt, policy, highest) for attempt in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert next_wait(Retryable("timeout", "late"), 10**6 - 1, policy, highest) == 60


@given(st.integers(1, 4), st.integers())
def test_jitter_is_over_the_whole_range(attempt: int, seed: int) -> None:
    """Full jitter: between nothing and the ceiling."""
    rng = random.Random(seed)
    wait = next_wait(Retryable("server_error", "500"), attempt, POLICY, rng.uniform)
    assert wait is not None
    assert 0 <= wait <= 2 ** (attempt - 1)


def test_jitter_spreads() -> None:
    """A thousand requests that failed together don't come back together."""
    rng = random.Random(1)
    error = Retryable("server_error", "500")
    waits = [next_wait(error, 4, POLICY, rng.uniform) or 0.0 for _ in range(1000)]
    seconds = Counter(int(wait) for wait in waits)
    assert set(seconds) == set(range(8))
    assert max(seconds.values()) < 200


@given(st.integers(1, 4), st.floats(0, 1e9), st.integers())
def test_never_before_the_endpoint_said(attempt: int, asked: float, seed: int) -> None:
    """Retry-After is a floor, under its own cap; the spread above it is bounded."""
    wait = next_wait(Retryable("rate_limited", "429", retry_after=asked), attempt, POLICY, random.Random(seed).uniform)
    floor = min(asked, 300.0)
    assert wait is not None
    assert floor <= wait <= 1.1 * floor + 1.0 + 1e-9  # rounding


@pytest.mark.parametrize(
    ("asked", "low", "high"),
    [(0.0, 0.0, 0.0), (-5.0, 0.0, 1.0), (10.0, 10.0, 12.0), (1e9, 300.0, 308.0), (float("inf"), 300.0, 308.0)],
)
def test_retry_after_literals(asked: float, low: float, high: float) -> None:
    """0 needs no wait, a past date counts as now, what is absurd is capped. 8 s is the fourth attempt's ceiling."""
    error = Retryable("rate_limited", "429", retry_after=asked)
    assert next_wait(error, 4, POLICY, lowest) == low
    assert next_wait(error, 4, POLICY, highest) == high
