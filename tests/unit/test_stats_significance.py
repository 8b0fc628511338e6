"""p-values and quantiles in closed form, against tables and against counting."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.stats.significance import Z, detectable, holm, mcnemar, normal_tail, t_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980), (1e9, 1.960)],
)
def test_t_quantile(freedom: float, expected: float) -> None:
    """The 97.5 % column of any table of Student's t."""
    assert t_quantile(freedom) == pytest.approx(expected, rel=0.002)


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_t_quantile_falls(one: float, two: float) -> None:
    """More degrees of freedom never make an interval wider."""
    assert t_quantile(min(one, two)) >= t_quantile(max(one, two))


@pytest.mark.parametrize(("z", "p"), [(0.0, 1.0), (Z, 0.05), (3.0, 0.0026998), (6.0, 1.973e-9)])
def test_normal_tail(z: float, p: float) -> None:
    """Any table of the normal distribution, both ways; far out never 0."""
    assert normal_tail(z) == normal_tail(-z) == pytest.approx(p, rel=1e-4)
    assert normal_tail(100.0) > 0.0


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [(0, 0, 1.0), (5, 0, 0.0625), (0, 6, 0.03125), (10, 2, 2 * 79 / 4096), (7, 7, 1.0), (1, 1, 1.0)],
)
def test_mcnemar(only_first: int, only_second: int, p: float) -> None:
    """2 P(X <= min), X binomial(b + c, 1/2), never above 1."""
    assert mcnemar(only_first, only_second) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_the_binomial_count(b: int, c: int) -> None:
    """Against whole numbers."""
    count = sum(math.comb(b + c, k) for k in range(min(b, c) + 1))
    assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * count / 2 ** (b + c)), rel=1e-9)
    assert mcnemar(b, c) == mcnemar(c, b)


def test_mcnemar_of_a_million_docs() -> None:
    """It neither overflows nor becomes NaN."""
    assert mcnemar(500_000, 500_000) == 1.0
    assert 0.0 < mcnemar(251_000, 249_000) < 0.05


@pytest.mark.parametrize("n", [1030, 2000, 1_000_000])
def test_no_p_is_zero(n: int) -> None:
    """However sure, chance is never ruled out: what no float holds is the smallest one."""
    assert 0.0 < mcnemar(n, 0) < 1e-307


def test_holm() -> None:
    """Literal values; adjusted p-values keep their order, and None is neither adjusted nor counted."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, None, 0.04]) == [0.02, None, 0.04]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_is_never_below_and_never_above_bonferroni(p_values: list[float]) -> None:
    """p <= Holm <= min(1, m p)."""
    for p, adjusted in zip(p_values, holm(p_values), strict=True):
        assert adjusted is not None
        assert p <= adjusted <= min(1.0, len(p_values) * p) + 1e-12


def test_detectable() -> None:
    """(1.96 + 0.8416) standard errors."""
    assert detectable(0.01) == pytest.approx(0.028016, abs=1e-6)
