"""Two models over common docs, and the random numbers behind it."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald.stats import paired
from evald.stats.draws import Floats, poisson_weights, pooled, signs, unit_keys
from evald.stats.overall import Overall, PairFigures
from evald.stats.paired import Comparison, PairSums
from evald.stats.significance import Z, mcnemar, t_quantile

NAN = math.nan


def sums_of(
    rows: Sequence[Sequence[float]], clusters: Sequence[str] = (), name: str = "d", step: int = 7, draws: int = 512
) -> PairSums:
    """rows: one a doc, a score a model."""
    scores = np.array(rows, np.float64)
    names = list(clusters) or [""] * len(scores)
    comparison = Comparison(name, scores.shape[1])
    for start in range(0, len(scores), step):
        comparison.add(names[start : start + step], scores[start : start + step])
    return comparison.result(draws)


def figures_of(*datasets: PairSums, models: int = 2, draws: int = 512) -> list[PairFigures]:
    overall = Overall(models, draws)
    for sums in datasets:
        overall.add(list(range(models)), sums, [None] * models)
    return [found for _, _, found in overall.results()]


def alone(
    rows: Sequence[Sequence[float]], clusters: Sequence[str] = (), name: str = "d", draws: int = 512
) -> PairFigures:
    (found,) = figures_of(sums_of(rows, clusters, name, draws=draws), draws=draws)
    return found


def random_rows(n: int, models: int, seed: int) -> Floats:
    keys = unit_keys(f"rows {seed}", np.arange(n, dtype=np.int64))
    return np.asarray(signs(keys, models).T > 0, np.float64)


# --- draws ------------------------------------------------------------------------------------------------------------


def test_draws_are_these_numbers() -> None:
    """Not such numbers: these, on every machine and under every version of numpy; results depend on them."""
    keys = unit_keys("gsm8k", np.arange(6, dtype=np.int64))
    assert poisson_weights(keys, 4).astype(int).tolist() == WEIGHTS
    assert signs(keys, 3).astype(int).tolist() == SIGNS


def test_a_units_draws_are_its_own() -> None:
    """They depend on the dataset, the unit and the draw alone: not on which other units or draws are asked for."""
    keys = unit_keys("d", np.arange(50, dtype=np.int64))
    assert (poisson_weights(keys[7:9], 40) == poisson_weights(keys, 100)[:40, 7:9]).all()
    assert (poisson_weights(keys, 40, 256) == poisson_weights(keys, 296)[256:]).all()
    assert (signs(keys, 70, 64) == signs(keys, 134)[64:]).all()
    assert (poisson_weights(keys, 40) != poisson_weights(unit_keys("e", np.arange(50, dtype=np.int64)), 40)).any()


def test_draws_are_random() -> None:
    """Weights have the mean and variance of Poisson(1), signs those of a coin; units don't follow each other."""
    keys = unit_keys("d", np.arange(400, dtype=np.int64))
    weights, turned = poisson_weights(keys, 1000), signs(keys, 1000)
    assert weights.mean() == pytest.approx(1.0, abs=0.01)
    assert weights.var() == pytest.approx(1.0, abs=0.02)
    assert turned.mean() == pytest.approx(0.0, abs=0.01)
    for drawn in (weights, turned):
        off_diagonal = np.corrcoef(drawn.T) - np.eye(400)
        assert np.abs(off_diagonal).max() < 0.2
        assert off_diagonal.std() == pytest.approx(1 / math.sqrt(1000), rel=0.05)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50), st.integers(1, 1000))
def test_pooled(numbers: list[int], limit: int) -> None:
    """Units below the limit keep their place, the others get one below it, always the same."""
    found = pooled(np.array(numbers, np.int64), limit)
    assert all(0 <= unit < limit for unit in found)
    assert all(unit == number for unit, number in zip(found.tolist(), numbers, strict=True) if number < limit)
    assert (found == pooled(np.array(numbers, np.int64), limit)).all()


# --- one dataset ------------------------------------------------------------------------------------------------------


def test_paired_difference() -> None:
    """Over common docs alone; literal mean, error and interval with t of 2 degrees of freedom."""
    found = alone([[1, 0], [0, 0], [1, 1], [1, NAN], [NAN, 0]])
    assert (found.n, found.datasets) == (3, 1)
    assert found.mean == pytest.approx(1 / 3)
    assert found.stderr == pytest.approx(1 / 3)  # sd 1/sqrt(3), over sqrt(3)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(max(-1.0, 1 / 3 - t_quantile(2) / 3))
    assert (found.only_first, found.only_second, found.p_mcnemar) == (1, 0, 1.0)


def test_nothing_in_common() -> None:
    """No number, no p; of one doc the difference alone."""
    assert alone([[1, NAN], [NAN, 0]]) == PairFigures(n=0, datasets=0)
    one = alone([[1, 0]])
    assert (one.n, one.mean, one.stderr, one.interval, one.p) == (1, 1.0, None, None, 1.0)


def test_equal_models() -> None:
    """No doc differs: the difference is 0, not known for certain, and p is 1."""
    found = alone([[n % 2, n % 2] for n in range(1000)])
    assert (found.mean, found.stderr, found.p, found.p_permutation, found.p_bootstrap) == (0.0, 0.0, 1.0, 1.0, 1.0)
    assert found.interval is not None
    assert -0.004 < found.interval.low < 0 < found.interval.high < 0.004
    assert found.detectable is not None
    assert 0 < found.detectable < 0.02


def test_always_better() -> None:
    """100 docs that one has right and the other wrong: as sure as 2^-99; of graded scores the closed form says less,
    but more than draws can. No p is 0.
    """
    found = alone([[1, 0]] * 100)
    assert found.p == mcnemar(100, 0)
    assert found.p_permutation == 1 / 513
    graded = alone([[0.9, 0.1]] * 100)
    assert graded.p_mcnemar is None
    assert 2.0**-99 <= graded.p < 1e-20
    assert graded.interval is not None
    assert graded.interval.low > 0.7


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0, NAN]), st.sampled_from([0.0, 0.5, 1.0, NAN])), max_size=30))
@settings(max_examples=50)
def test_the_textbook(rows: list[tuple[float, float]]) -> None:
    """Mean, error and counts are those of the list of differences."""
    found = alone(rows) if rows else PairFigures(n=0, datasets=0)
    off = [one - two for one, two in rows if not math.isnan(one - two)]
    assert found.n == len(off)
    if off:
        assert found.mean == pytest.approx(statistics.fmean(off), abs=1e-12)
    if len(off) > 1:
        assert found.stderr == pytest.approx(statistics.stdev(off) / math.sqrt(len(off)), abs=1e-9)


@given(st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=20)
def test_the_order_of_two_models_turns_the_sign_alone(n: int, seed: int) -> None:
    """And nothing else."""
    rows = random_rows(n, 2, seed)
    there, back = alone(rows.tolist()), alone(rows[:, ::-1].tolist())
    assert (there.mean or 0.0) == pytest.approx(-(back.mean or 0.0))
    assert (there.p_permutation, there.p_bootstrap, there.p_mcnemar) == (
        back.p_permutation, back.p_bootstrap, back.p_mcnemar,
    )  # fmt: skip


def test_resamples_agree_with_the_closed_form() -> None:
    """Bootstrap and permutation spread as the standard error says, whether or not docs are missing; the p-values of
    three tests of one thing are close.
    """
    rows = random_rows(600, 3, 5)
    rows[:, 0] = np.where(np.arange(600) % 12 == 0, 1.0, rows[:, 0])
    holed = rows.copy()
    holed[:3, 2] = NAN
    for table in (rows, holed):
        sums = sums_of(table.tolist(), step=100)
        stderr = np.sqrt(sums.variance)
        assert sums.boot.std(axis=0) == pytest.approx(stderr, rel=0.1)
        assert sums.flips.std(axis=0) == pytest.approx(stderr, rel=0.1)
        for found in figures_of(sums, models=3):
            assert found.p_permutation == pytest.approx(found.p_mcnemar, abs=0.07)
            assert found.p_bootstrap == pytest.approx(found.p_mcnemar, abs=0.07)
    # The first pair has all docs in both tables: computed for each model, or for each pair, it is the same to the bit.
    assert (sums_of(rows.tolist()).boot[:, 0] == sums_of(holed.tolist()).boot[:, 0]).all()


def test_chunks_make_no_difference() -> None:
    """However the docs come, all that is counted is the same to the bit."""
    rows, names = random_rows(100, 3, 1).tolist(), [f"c{n // 3}" for n in range(100)]
    one, two = sums_of(rows, names, step=100), sums_of(rows, names, step=9)
    assert (one.boot == two.boot).all()
    assert (one.flips == two.flips).all()
    assert (one.units == two.units).all()


def test_more_units_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docs past the limit share sums: mean and error stay exact, resamples stay valid."""
    rows = random_rows(1500, 2, 3).tolist()
    exact = sums_of(rows, step=100)
    monkeypatch.setattr(paired, "MAX_UNITS", 200)
    coarse = sums_of(rows, step=100)
    assert coarse.mean == exact.mean
    assert coarse.variance == exact.variance
    assert coarse.boot.std() == pytest.approx(math.sqrt(exact.variance[0]), rel=0.2)
    assert coarse.flips.std() == pytest.approx(math.sqrt(exact.variance[0]), rel=0.2)
    names = [f"c{n // 3}" for n in range(1500)]
    clustered = sums_of(rows, names, step=100)
    assert clustered.units[0] <= 200
    assert clustered.variance[0] == pytest.approx(exact.variance[0], rel=0.4)


# --- clusters ---------------------------------------------------------------------------------------------------------


def test_clusters_are_drawn_as_a_whole() -> None:
    """Copies of a doc as one cluster: the error is that of the docs, in closed form and in the resamples; McNemar's
    test, which knows no clusters, says nothing.
    """
    rows = random_rows(80, 2, 9)
    copied = np.repeat(rows, 5, axis=0).tolist()
    names = [f"doc{n}" for n in range(80) for _ in range(5)]
    single, many, wrong = sums_of(rows.tolist()), sums_of(copied, names), sums_of(copied)
    assert many.variance[0] == pytest.approx(single.variance[0])
    assert many.flips.std() == pytest.approx(math.sqrt(single.variance[0]), rel=0.1)
    assert wrong.variance[0] < many.variance[0] / 4
    assert figures_of(many)[0].p_mcnemar is None
    assert figures_of(wrong)[0].p_mcnemar is not None


def test_false_alarms_stay_rare_under_clustering() -> None:
    """200 comparisons of two equally good models on 20 texts of 6 questions, of which a text's go together: with
    clusters about 5 % of them are called different, without far more.
    """
    alarms = {True: 0, False: 0}
    names = [f"text{n // 6}" for n in range(120)]
    for seed in range(200):
        rows = np.repeat(random_rows(20, 2, seed), 6, axis=0)
        flipped = random_rows(120, 2, 1000 + seed)
        rows = np.where(random_rows(120, 2, 5000 + seed) * random_rows(120, 2, 9000 + seed) > 0, flipped, rows)
        for clustered in alarms:
            found = alone(rows.tolist(), names if clustered else (), f"{seed}")
            alarms[clustered] += (found.p or 0.0) < 0.05
    assert alarms[True] <= 22
    assert alarms[False] >= 50


# --- several datasets -------------------------------------------------------------------------------------------------


def test_datasets_weigh_the_same() -> None:
    """Whatever their sizes; errors add up as those of independent means."""
    small, large = sums_of(random_rows(10, 2, 1).tolist(), name="s"), sums_of(random_rows(990, 2, 2).tolist(), name="l")
    (found,) = figures_of(small, large)
    assert (found.n, found.datasets) == (1000, 2)
    assert found.mean == pytest.approx((small.mean[0] + large.mean[0]) / 2)
    assert found.stderr == pytest.approx(math.sqrt(small.variance[0] + large.variance[0]) / 2)
    assert found.only_first == small.only_first[0] + large.only_first[0]
    flips = (small.flips + large.flips)[:, 0] / 2
    extreme = int((np.abs(flips) >= abs(found.mean or 0.0) - 1e-12).sum())
    assert found.p == found.p_permutation == (extreme + 1) / 513


def test_datasets_without_spread() -> None:
    """Where no dataset shows a difference the interval isn't a point; two such are surer than one, by squares."""
    flat = sums_of([[1, 1]] * 100)
    (found,) = figures_of(flat, flat)
    (one,) = figures_of(flat)
    assert found.interval is not None
    assert one.interval is not None
    assert one.interval.low < 0 < one.interval.high
    assert found.interval.high == pytest.approx(one.interval.high / math.sqrt(2))
    assert found.interval.low == -found.interval.high


def test_a_dataset_without_spread_is_not_known_exactly() -> None:
    """Nine datasets in which the two docs have the same difference, and one large: the nine leave far more open than
    the standard error of the one.
    """
    small, large = sums_of([[1, 0]] * 2, name="s"), sums_of(random_rows(500, 2, 4).tolist(), name="l")
    (found,) = figures_of(*[small] * 9, large)
    assert found.interval is not None
    assert found.mean is not None
    assert found.stderr is not None
    away = Z * Z / (2 + Z * Z)
    alone = math.sqrt(large.variance[0])
    assert found.stderr == pytest.approx(math.sqrt(9 * (away / Z) ** 2 + alone**2) / 10)
    assert found.mean - found.interval.low == pytest.approx(math.hypot(3 * 2 * away, t_quantile(499) * alone) / 10)
    assert found.interval.high - found.mean == pytest.approx(t_quantile(499) * alone / 10)


# --- ties -------------------------------------------------------------------------------------------------------------


def signed(size: float, up: int, down: int) -> list[list[float]]:
    """Docs that one model leads by `size`, then docs that the other leads."""
    return [[size, 0.0]] * up + [[0.0, size]] * down


def exact_p(up: int, down: int) -> float:
    """The share of all sign patterns of equal differences that are as extreme, counted."""
    n = up + down
    return sum(math.comb(n, k) for k in range(n + 1) if abs(2 * k - n) >= abs(up - down)) / 2**n


@pytest.mark.parametrize("size", [1 / 3, 0.1, 0.3, 0.25])
@pytest.mark.parametrize("n", range(1, 13))
def test_ties_count_as_in_full_enumeration(size: float, n: int) -> None:
    """p is that of all 2^n sign patterns, within the noise of 2,000 draws, whatever rounding makes of the size; with
    each doc a cluster of its own nothing changes.
    """
    for down in range(n // 2 + 1):
        rows, expected = signed(size, n - down, down), exact_p(n - down, down)
        found = alone(rows, draws=2000)
        noise = 4.5 * math.sqrt(expected / 2000) + 2 / 2001
        assert found.p_permutation == pytest.approx(expected, abs=noise)
        assert found.p == pytest.approx(expected, abs=noise)
        each = alone(rows, [f"c{doc}" for doc in range(n)], draws=2000)
        assert (each.p, each.p_permutation, each.p_bootstrap) == (found.p, found.p_permutation, found.p_bootstrap)
        assert (each.stderr is None) == (found.stderr is None)
        assert (each.stderr or 0.0) == pytest.approx(found.stderr or 0.0, abs=1e-7)


@pytest.mark.parametrize(("up", "down"), [(17, 1), (22, 2), (26, 4), (25, 5), (60, 20)])
def test_p_values_that_draws_cannot_count(up: int, down: int) -> None:
    """Where no draw is as extreme the closed form is near the counted patterns, and not far below them."""
    for name in "abcdefgh":
        found = alone(signed(1 / 3, up, down), name=name)
        assert found.p is not None
        if found.p_permutation == 1 / 513:
            assert 0.6 * exact_p(up, down) < found.p < 2 * exact_p(up, down)
        else:
            assert found.p == found.p_permutation


def test_ties_of_differences_that_round_apart() -> None:
    """2/3 - 1/3 and 1 - 2/3 are the same difference though the scores' roundings aren't; 14 for and 5 against have the
    p of the counted patterns, 0.0636, over one dataset and over two halves of it.
    """
    rows = [[2 / 3, 1 / 3], [1, 2 / 3]] * 7 + [[1 / 3, 2 / 3], [2 / 3, 1], [0, 1 / 3], [1 / 3, 2 / 3], [2 / 3, 1]]
    assert exact_p(14, 5) == pytest.approx(0.0636, abs=1e-4)
    assert alone(rows, draws=4000).p == pytest.approx(exact_p(14, 5), abs=0.016)
    mixed = [*rows[:7], *rows[-3:]], [*rows[7:14], *rows[14:17]]
    parts = [sums_of(part, name=f"{at}", draws=4000) for at, part in enumerate(mixed)]
    (both,) = figures_of(*parts, draws=4000)
    assert both.p == pytest.approx(exact_p(14, 6), abs=0.02)


@pytest.mark.parametrize("clusters", [(), ("c",)])
def test_one_doc_shows_nothing(clusters: tuple[str, ...]) -> None:
    """p is 1, and there is no p of a bootstrap that has nothing to draw from; the same of one cluster of many docs, and
    where a second dataset has just one doc too the p is 1/2.
    """
    for size in (1 / 3, 0.1, 0.7):
        found = alone([[size, 0.0]] * 1, clusters)
        assert (found.p, found.p_permutation, found.p_bootstrap) == (1.0, 1.0, None)
    many = alone([[0.4, 0.1]] * 20, ["c"] * 20)
    assert (many.p, many.p_bootstrap, many.stderr, many.interval) == (1.0, None, None, None)
    (two,) = figures_of(sums_of([[0.3, 0.0]], name="x"), sums_of([[0.3, 0.0]], name="y"))
    assert two.p == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("one", "two"), [(0.3, 0.2), (1 / 3, 0.1), (0.9, 0.1)])
def test_equal_differences_under_clusters_leave_no_false_precision(one: float, two: float) -> None:
    """Ten clusters of two docs with the same difference are no surer than ten docs: the error is 0, which says nothing,
    so that the interval allows for what ten units can't show.
    """
    found = alone([[one, two], [one + 1e-9, two]] * 10, [f"c{n // 2}" for n in range(20)])
    plain = alone([[one, two]] * 10)
    assert found.stderr == 0.0
    assert found.interval is not None
    assert plain.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((plain.interval.low, plain.interval.high))
    assert found.interval.high - found.interval.low > 0.3


def test_models_that_lack_a_dataset() -> None:
    """They are compared on what they share with each, and get nobody else's numbers."""
    overall = Overall(3, 512)
    overall.add([0, 2], sums_of([[1, 0]] * 5, name="x"), [None, None])
    overall.add([1, 2], sums_of([[0, 1]] * 4, name="y"), [None, None])
    found = {(first, second): figures for first, second, figures in overall.results()}
    assert [(pair, figures.n, figures.mean) for pair, figures in found.items()] == [
        ((0, 1), 0, None), ((0, 2), 5, 1.0), ((1, 2), 4, -1.0),
    ]  # fmt: skip


def test_small_p_values_are_as_small_as_they_can_be_told() -> None:
    """Beyond what draws can count the closed form speaks, so that Holm over many pairs can still find something; but
    never less than sign patterns allow: 6 docs can't be surer than 1/32.
    """
    (clear,) = figures_of(sums_of([[0.8 + n % 2 / 10, 0.2 - n % 3 / 10] for n in range(200)]))
    assert clear.p_permutation == 1 / 513
    assert clear.p is not None
    assert clear.p < 1e-9
    for docs in range(2, 12):
        (few,) = figures_of(sums_of([[0.8 + n / 1000, 0.2] for n in range(docs)]))
        assert few.p is not None
        assert few.p >= 2.0 ** (1 - docs) * (1 - 1e-9)
        exact = sum(abs(sum(turn)) == docs for turn in itertools.product((-1, 1), repeat=docs)) / 2**docs
        assert few.p == pytest.approx(exact, abs=4 * math.sqrt(exact / 512) + 2 / 512)


WEIGHTS = [[1, 0, 3, 1, 2, 0], [0, 2, 0, 1, 1, 1], [1, 2, 1, 2, 1, 0], [0, 0, 2, 1, 2, 0]]
SIGNS = [[-1, 1, -1, 1, -1, -1], [1, -1, 1, 1, -1, -1], [-1, -1, 1, -1, -1, -1]]
