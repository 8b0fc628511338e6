"""Means, errors and intervals. Names in brackets are cases of /work/shared/cases."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.stats import (
    Difference,
    Estimate,
    Interval,
    Moments,
    Z,
    bounds,
    interval,
    macro_difference,
    macro_mean,
    mean_se,
    micro_mean,
    paired_difference,
    wilson,
)

scores = st.lists(st.floats(0, 1), max_size=50)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [  # [stderr-zero-at-boundary]
        (0, 25, 0.0, 0.133192),
        (25, 25, 0.866808, 1.0),
        (0, 5000, 0.0, 0.000768),
        (1, 1, 0.206549, 1.0),
    ],
)
def test_wilson(successes: int, n: int, low: float, high: float) -> None:
    """Literal values; the ends are exactly 0 and 1; 0 of 25 is less sure than 0 of 5000."""
    found = wilson(successes, n)
    assert found is not None
    assert (round(found.low, 6), round(found.high, 6)) == (low, high)


def test_wilson_of_nothing() -> None:
    """Of no items there is no interval; more right than there are is a defect."""
    assert wilson(0, 0) is None
    with pytest.raises(ValueError, match="no proportion"):
        wilson(2, 1)


@given(st.integers(1, 10**6), st.data())
def test_wilson_holds_the_proportion(n: int, data: st.DataObject) -> None:
    """0 <= low <= p <= high <= 1."""
    successes = data.draw(st.integers(0, n))
    found = wilson(successes, n)
    assert found is not None
    assert 0 <= found.low <= successes / n <= found.high <= 1


def test_stderr_of_a_proportion() -> None:
    """[stderr-zero-at-boundary] 14 of 307: sqrt(p (1 - p) / (n - 1))."""
    found = mean_se([1.0] * 14 + [0.0] * 293)
    assert found.mean == 14 / 307
    assert round(found.stderr or 0, 6) == 0.011926


def test_too_few_for_an_error() -> None:
    """[bootstrap-one-sample] One item has a mean and no error; none has neither; never NaN."""
    assert mean_se([1.0]) == Estimate(1, 1.0, None)
    assert mean_se([]) == Estimate(0, None, None)
    assert interval(mean_se([1.0])) is None
    assert interval(mean_se([])) is None


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused(score: float) -> None:
    """It would make every mean after it NaN."""
    with pytest.raises(ValueError, match="finite"):
        mean_se([0.5, score])


@given(scores, scores)
def test_moments_agree_with_the_textbook(one: list[float], two: list[float]) -> None:
    """Streamed or merged, mean and error are those of all scores."""
    both = one + two
    merged = Moments()
    for part in (one, two):
        moments = Moments()
        for score in part:
            moments.add(score)
        merged.merge(moments)
    for found in (mean_se(both), merged.estimate()):
        assert found.n == len(both)
        assert found.mean == (pytest.approx(statistics.fmean(both), abs=1e-12) if both else None)
        expected = statistics.stdev(both) / math.sqrt(len(both)) if len(both) > 1 else None
        assert found.stderr == (None if expected is None else pytest.approx(expected, abs=1e-9))


@given(scores)
def test_interval_holds_the_mean_and_stays_in_range(values: list[float]) -> None:
    """An interval of graded scores never leaves [0, 1] and is never narrower than a point."""
    estimate = mean_se(values)
    found = interval(estimate)
    assert (found is None) == (estimate.n < 2)
    if found is not None and estimate.mean is not None:
        assert 0 <= found.low <= estimate.mean + 1e-12
        assert estimate.mean - 1e-12 <= found.high <= 1 + 1e-12


def test_interval_literals() -> None:
    """1.96 standard errors, clipped; equal scores say as little as Wilson's 0 of n does."""
    assert interval(Estimate(100, 0.5, 0.1)) == Interval(0.5 - 0.1 * Z, 0.5 + 0.1 * Z)
    assert interval(Estimate(100, 0.05, 0.1)) == Interval(0.0, 0.05 + 0.1 * Z)
    flat = interval(mean_se([0.0] * 25))
    assert flat is not None
    assert (flat.low, round(flat.high, 6)) == (0.0, 0.133192)
    tenths = interval(mean_se([0.1] * 25))
    assert tenths is not None
    assert tenths.high - tenths.low > 0.1


def test_bounds() -> None:
    """288 of 294 scored: the six that are missing could all be wrong, or all be right."""
    assert bounds(144.0, 288, 294) == Interval(144 / 294, 150 / 294)
    assert bounds(2.0, 2, 2) == Interval(1.0, 1.0)
    assert bounds(0.0, 0, 5) == Interval(0.0, 1.0)
    assert bounds(0.0, 0, 0) is None
    with pytest.raises(ValueError, match="3 scored of 2"):
        bounds(1.0, 3, 2)


def test_macro_and_micro_means() -> None:
    """[group-mean-weights] Both means, each with the standard error of its own estimator."""
    small, large = [1.0] * 9 + [0.0], [1.0] * 495 + [0.0] * 495
    parts = [mean_se(small), mean_se(large)]
    macro, micro, pooled = macro_mean(parts), micro_mean(parts), mean_se(small + large)
    assert (macro.n, micro.n) == (1000, 1000)
    assert macro.mean == pytest.approx(0.7)
    assert macro.stderr == pytest.approx(0.5 * math.hypot(math.sqrt(0.09 / 9), math.sqrt(0.25 / 989)))
    assert micro.mean == pytest.approx(0.504)
    assert micro.stderr == pytest.approx(math.sqrt(0.504 * 0.496 / 999))
    assert micro.stderr == pytest.approx(pooled.stderr)


def test_means_over_a_dataset_without_scores() -> None:
    """No number is made from what is missing: a mean over fewer datasets would be another number."""
    parts = [Estimate(10, 0.9, 0.1), Estimate(0, None, None)]
    assert macro_mean(parts) == micro_mean(parts) == Estimate(10, None, None)
    assert macro_mean([]) == micro_mean([]) == Estimate(0, None, None)
    one = [Estimate(10, 0.9, 0.1), Estimate(1, 0.5, None)]
    assert macro_mean(one) == Estimate(11, 0.7, None)
    assert micro_mean(one).mean == pytest.approx(9.5 / 11)


@given(st.lists(scores.filter(bool), min_size=1, max_size=5))
def test_micro_mean_is_the_mean_of_the_pooled_items(datasets: list[list[float]]) -> None:
    """Put together from each dataset's n, mean and error alone."""
    micro = micro_mean([mean_se(dataset) for dataset in datasets])
    pooled = mean_se([score for dataset in datasets for score in dataset])
    assert micro.n == pooled.n
    assert micro.mean == pytest.approx(pooled.mean, abs=1e-12)
    assert (micro.stderr is None) == (pooled.stderr is None)
    assert (micro.stderr or 0) == pytest.approx(pooled.stderr or 0, abs=1e-9)


def test_paired_difference() -> None:
    """Over common items alone; literal mean, error and interval."""
    found = paired_difference({"a": 1.0, "b": 0.0, "c": 1.0, "x": 1.0}, {"a": 0.0, "b": 0.0, "c": 1.0, "y": 0.0})
    assert found.n == 3
    assert found.mean == pytest.approx(1 / 3)
    assert found.stderr == pytest.approx(1 / 3)  # sd 1/sqrt(3), over sqrt(3)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((1 / 3 - Z / 3, 1 / 3 + Z / 3))


def test_paired_difference_of_equal_models() -> None:
    """No item differs: the difference is 0, and not known for certain; nothing in common tells nothing."""
    same = {str(item): item % 2 / 1 for item in range(1000)}
    found = paired_difference(same, same)
    assert (found.n, found.mean, found.stderr) == (1000, 0.0, 0.0)
    assert found.interval is not None
    assert -0.004 < found.interval.low < 0 < found.interval.high < 0.004
    assert paired_difference(same, {}) == Difference(0, None, None, None)
    assert paired_difference({"a": 1.0}, {"a": 0.0}) == Difference(1, 1.0, None, None)


def test_macro_difference() -> None:
    """Datasets weigh the same, whatever their sizes."""
    parts = [Difference(10, 0.2, 0.03, None), Difference(990, 0.0, 0.04, None)]
    found = macro_difference(parts)
    assert (found.n, found.mean) == (1000, 0.1)
    assert found.stderr == pytest.approx(0.025)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((0.1 - Z * 0.025, 0.1 + Z * 0.025))
    none = Difference(0, None, None, None)
    assert macro_difference([*parts, none]) == Difference(1000, None, None, None)
    assert macro_difference([]) == none


def test_macro_difference_without_spread() -> None:
    """Where no dataset shows a difference, the interval isn't a point either."""
    flat = Difference(100, 0.0, 0.0, Interval(-0.04, 0.04))
    assert macro_difference([flat, flat]) == Difference(200, 0.0, 0.0, Interval(-0.04, 0.04))


@given(
    st.dictionaries(st.text(max_size=2), st.floats(0, 1), max_size=20),
    st.dictionaries(st.text(max_size=2), st.floats(0, 1), max_size=20),
)
def test_paired_difference_is_antisymmetric(one: dict[str, float], two: dict[str, float]) -> None:
    """Swapping the models turns the sign, and nothing is NaN or beyond [-1, 1]."""
    there, back = paired_difference(one, two), paired_difference(two, one)
    assert there.n == back.n == len(one.keys() & two.keys())
    assert (there.mean or 0.0) == pytest.approx(-(back.mean or 0.0), abs=1e-12)
    if there.interval is not None:
        assert -1 - 1e-12 <= there.interval.low <= there.interval.high <= 1 + 1e-12
