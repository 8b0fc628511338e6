"""Means, errors and intervals. Names in brackets are cases of ../shared/cases."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.stats import (
    Clusters,
    Estimate,
    Interval,
    Moments,
    bounds,
    interval,
    macro_mean,
    mean_se,
    micro_mean,
    proportion_interval,
    weighted_mean,
    wilson,
)
from evald.stats import means as means_module
from evald.stats.significance import Z, t_quantile

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
    """Student's t standard errors, clipped; equal scores say as little as Wilson's 0 of n does."""
    t99 = t_quantile(99)
    assert interval(Estimate(100, 0.5, 0.1)) == Interval(0.5 - 0.1 * t99, 0.5 + 0.1 * t99)
    assert interval(Estimate(100, 0.05, 0.1)) == Interval(0.0, 0.05 + 0.1 * t99)
    assert interval(Estimate(100, 0.5, 0.1, None, 1e9)) == Interval(
        pytest.approx(0.5 - 0.1 * Z), pytest.approx(0.5 + 0.1 * Z)
    )
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
    assert (macro_mean(one).mean, macro_mean(one).stderr) == (0.7, None)
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


# --- clusters ---------------------------------------------------------------------------------------------------------

clustered = st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["", "a", "b", "c", "d"])), max_size=40)


def sandwich(items: list[tuple[float, str]]) -> float | None:
    """The clustered standard error, written out: sqrt(G / (G - 1) sum_c (sum of score - mean)^2) / n."""
    mean = statistics.fmean(score for score, _ in items)
    sums: dict[object, float] = {}
    for number, (score, cluster) in enumerate(items):
        key = cluster or number
        sums[key] = sums.get(key, 0.0) + score - mean
    if len(sums) < 2:
        return None
    return math.sqrt(len(sums) / (len(sums) - 1) * math.fsum(off * off for off in sums.values())) / len(items)


@given(clustered.filter(bool))
def test_clustered_standard_error(items: list[tuple[float, str]]) -> None:
    """Docs of one cluster count together; a doc without one is its own."""
    found = mean_se([score for score, _ in items], [cluster for _, cluster in items])
    expected = sandwich(items)
    assert found.n == len(items)
    assert (found.stderr is None) == (expected is None)
    assert (found.stderr or 0.0) == pytest.approx(expected or 0.0, abs=1e-9)
    if all(not cluster for _, cluster in items):
        assert found == mean_se([score for score, _ in items])


def test_clustered_standard_error_of_miller() -> None:
    """With many clusters it is Miller's (2024, "Adding Error Bars to Evals", section 2.2): the plain variance plus what
    pairs within a cluster add; he leaves out the factor G / (G - 1), which has to be 1 where no two docs share one.
    """
    items = [(float((7 * n) % 11 < 4 + (n // 3) % 5), f"c{n // 3}") for n in range(900)]
    scores = [score for score, _ in items]
    mean = statistics.fmean(scores)
    within = sum(
        (scores[i] - mean) * (scores[j] - mean)
        for start in range(0, 900, 3)
        for i in range(start, start + 3)
        for j in range(start, start + 3)
        if i != j
    )
    miller = math.sqrt(statistics.variance(scores) / 900 + within / 900**2)
    found = mean_se(scores, [cluster for _, cluster in items])
    assert found.units == 300
    assert found.stderr == pytest.approx(miller, rel=0.002)


def test_copies_of_a_doc_make_nothing_surer() -> None:
    """Four copies of each of 50 docs as clusters: the error of the 50, not half of it."""
    scores = [float(n % 3 == 0) for n in range(50)]
    copied = [score for score in scores for _ in range(4)]
    found = mean_se(copied, [f"doc{n}" for n in range(50) for _ in range(4)])
    assert found.stderr == pytest.approx(mean_se(scores).stderr)
    assert found.stderr == pytest.approx(2 * (mean_se(copied).stderr or 0), rel=0.02)
    few, many = proportion_interval(mean_se(scores)), proportion_interval(found)
    assert few is not None
    assert many is not None
    # t with 49 degrees of freedom instead of the normal makes it a little wider.
    assert (many.low, many.high) == (pytest.approx(few.low, abs=0.006), pytest.approx(few.high, abs=0.006))
    assert many.high - many.low > few.high - few.low


def test_clustered_proportion_at_the_boundary() -> None:
    """[stderr-zero-at-boundary] 0 of 100 in 25 clusters says no more than 0 of 25; in one cluster next to nothing."""
    names = [f"c{n // 4}" for n in range(100)]
    found, plain = proportion_interval(mean_se([0.0] * 100, names)), wilson(0, 25)
    assert found is not None
    assert plain is not None
    assert found.low == 0.0
    assert plain.high < found.high < 0.16
    one = proportion_interval(mean_se([1.0] * 100, ["c"] * 100))
    assert one is not None
    assert (round(one.low, 3), one.high) == (0.207, 1.0)


@given(clustered.filter(bool))
def test_clustered_intervals_hold_the_mean(items: list[tuple[float, str]]) -> None:
    """Of graded scores and of proportions: within [0, 1], about the mean."""
    for scores in ([score for score, _ in items], [float(score > 0.5) for score, _ in items]):
        moments = Moments()
        for score, (_, cluster) in zip(scores, items, strict=True):
            moments.add(score, cluster)
        found, mean = moments.interval(), moments.estimate().mean
        if found is not None and mean is not None:
            assert 0.0 <= found.low <= mean + 1e-9
            assert mean - 1e-9 <= found.high <= 1.0


@given(clustered, clustered)
def test_clusters_merge(one: list[tuple[float, str]], two: list[tuple[float, str]]) -> None:
    """Merged moments are those of all scores; a cluster that both have is one."""
    merged, whole = Moments(), Moments()
    for part in (one, two):
        moments = Moments()
        for score, cluster in part:
            moments.add(score, cluster)
            whole.add(score, cluster)
        merged.merge(moments)
    assert merged.n == whole.n
    assert merged.estimate().units == whole.estimate().units
    assert (merged.estimate().stderr or 0.0) == pytest.approx(whole.estimate().stderr or 0.0, abs=1e-9)


@given(st.lists(clustered.filter(bool), min_size=1, max_size=4))
def test_micro_mean_of_clustered_datasets(datasets: list[list[tuple[float, str]]]) -> None:
    """The pooled error needs no more than each dataset's estimate; clusters of two datasets are never the same."""
    micro = micro_mean([mean_se([s for s, _ in items], [c for _, c in items]) for items in datasets])
    pooled = [(score, c and f"{number} {c}") for number, items in enumerate(datasets) for score, c in items]
    if all(mean_se([s for s, _ in items], [c for _, c in items]).stderr is not None for items in datasets):
        assert (micro.stderr or 0.0) == pytest.approx(sandwich(pooled) or 0.0, abs=1e-7)
    again = micro_mean([micro])  # its own clusters are enough to pool it further
    assert (again.stderr or 0.0) == pytest.approx(micro.stderr or 0.0, abs=1e-9)


def test_a_million_clusters_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit clusters share sums: as valid, and the error is nearly the same."""
    items = [(float((n * 7919) % 10 < 3), f"c{n // 2}") for n in range(4000)]
    exact = mean_se([s for s, _ in items], [c for _, c in items])
    monkeypatch.setattr(means_module, "MAX_CLUSTERS", 500)
    coarse = mean_se([s for s, _ in items], [c for _, c in items])
    assert coarse.clusters is not None
    assert coarse.clusters.count == 500
    assert coarse.mean == exact.mean
    assert coarse.stderr == pytest.approx(exact.stderr, rel=0.15)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_weighted_mean() -> None:
    """sum w mean / sum w with an error of the same weights; equal weights are the macro mean."""
    parts = [Estimate(50, 0.9, 0.03), Estimate(50, 0.5, 0.04)]
    found = weighted_mean(parts, [3.0, 1.0])
    assert found.mean == pytest.approx(0.8)
    assert found.stderr == pytest.approx(math.hypot(0.75 * 0.03, 0.25 * 0.04))
    assert weighted_mean(parts, [2.0, 2.0]).mean == macro_mean(parts).mean
    assert weighted_mean([Estimate(0, None, None), *parts], [1.0, 1.0, 1.0]).mean is None


def test_few_docs_make_wide_macro_intervals() -> None:
    """Welch and Satterthwaite: two datasets of 3 docs have t with about 4 degrees of freedom, not the normal."""
    found = macro_mean([Estimate(3, 0.5, 0.1), Estimate(3, 0.5, 0.1)])
    assert found.freedom == pytest.approx(4.0)
    span = interval(found)
    assert span is not None
    assert span.high - 0.5 == pytest.approx(2.776 * 0.1 / math.sqrt(2), rel=0.002)


def test_a_dataset_whose_scores_are_all_equal_is_not_known_exactly() -> None:
    """Nine datasets of 2 of 2 and one of 250 of 500: 0.95, with an error that Wilson's interval on 2 of 2 implies, and
    limits that its limits imply; literal values of docs/statistics.md.
    """
    parts = [*[mean_se([1.0, 1.0])] * 9, mean_se([1.0] * 250 + [0.0] * 250)]
    found = macro_mean(parts)
    low, se = wilson(2, 2), parts[-1].stderr or 0.0
    assert low is not None
    assert found.mean == pytest.approx(0.95)
    assert found.stderr == pytest.approx(math.sqrt(9 * ((1 - low.low) / 2 / Z) ** 2 + se**2) / 10)
    span = interval(found)
    assert span is not None
    assert span.low == pytest.approx(0.95 - math.hypot(3 * (1 - low.low), t_quantile(499) * se) / 10)
    assert span.high == pytest.approx(0.95 + t_quantile(499) * se / 10)
    assert (round(found.stderr or 0, 3), round(span.low, 3), round(span.high, 3)) == (0.05, 0.753, 0.954)
    # Beside weights too, of graded scores as of right and wrong, and where all datasets are such.
    graded = interval(weighted_mean([mean_se([0.4] * 3), mean_se([0.1, 0.9] * 50)], [9.0, 1.0]))
    assert graded is not None
    assert graded.low < 0.3
    assert graded.high > 0.6
    flat = interval(macro_mean([mean_se([1.0, 1.0]), mean_se([1.0] * 500)]))
    assert flat is not None
    assert flat.low == pytest.approx(1 - math.hypot(1 - low.low, Z * Z / (500 + Z * Z)) / 2)


def test_few_clusters_without_spread_are_less_sure_than_docs() -> None:
    """What a dataset of equal scores adds to a macro mean grows as its clusters get fewer."""
    other = mean_se([0.0, 1.0] * 50)
    widths = []
    for clusters in (2, 5, 100):
        span = interval(macro_mean([mean_se([1.0] * 100, [f"c{n % clusters}" for n in range(100)]), other]))
        assert span is not None
        widths.append(span.high - span.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2 * widths[2]


def test_the_mean_over_one_dataset_is_its_own() -> None:
    """Estimate and all, whatever the weights."""
    for one in (mean_se([1.0, 1.0]), mean_se([0.2, 0.9, 0.4], ["a", "a", "b"]), mean_se([1.0]), mean_se([])):
        assert macro_mean([one]) == weighted_mean([one], [0.3]) == one


def test_clusters_sample() -> None:
    """What an estimate keeps of its clusters: two of two docs each, and a doc of its own."""
    found = mean_se([1.0, 1.0, 0.0, 0.0, 1.0], ["a", "a", "b", "b", ""]).clusters
    assert found == Clusters(3, 9.0, pytest.approx(2 * (2 - 1.2) + 2 * (0 - 1.2) + 0.4))
