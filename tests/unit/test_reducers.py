"""Repeats become one score; what isn't there is not invented."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.reducers import pass_at_k, pass_hat_k, possible, reduced
from shared.vocabulary import MetricParameters, Reducer


def reduce(how: Reducer, scores: list[float], k: int | None = None, answers: list[str | None] | None = None) -> float:
    return reduced(MetricParameters(reduce=how, k=k), scores, answers or ["x"] * len(scores), 1.0)


def test_mean_and_best_over_the_first_k() -> None:
    """Without k over all."""
    scores = [0.0, 1.0, 1.0, 0.0]
    assert [reduce("mean", scores, k) for k in (None, 1, 2, 3)] == [0.5, 0.0, 0.5, 2 / 3]
    assert [reduce("best", scores, k) for k in (None, 1, 2)] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("answers", "scores", "expected"),
    [
        (["a", "b", "b"], [1.0, 0.0, 0.0], 0.0),
        (["b", "a", "a"], [0.0, 1.0, 1.0], 1.0),
        (["a", "b"], [1.0, 0.0], 1.0),  # equally frequent: the first to come
        ([None, None, "a"], [0.0, 0.0, 1.0], 1.0),  # nothing has no vote
        ([None, None], [0.0, 0.0], 0.0),
        (["b", "Paris", "Paris\n", " Paris"], [0.0, 1.0, 1.0, 1.0], 1.0),  # white space makes no other answer
    ],
)
def test_majority(answers: list[str | None], scores: list[float], expected: float) -> None:
    """The score of the most frequent answer, not of the most frequent score."""
    assert reduce("majority", scores, answers=answers) == expected


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws(case: tuple[int, int, int]) -> None:
    """Both estimators equal the count over all draws of k without replacement."""
    n, correct, k = case
    draws = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
    assert math.isclose(pass_at_k(n, correct, k), sum(map(any, draws)) / len(draws), abs_tol=1e-12)
    assert math.isclose(pass_hat_k(n, correct, k), sum(map(all, draws)) / len(draws), abs_tol=1e-12)


UNIT = st.floats(0, 1, allow_nan=False)
REDUCERS: tuple[Reducer, ...] = ("mean", "best", "majority", "pass_at_k", "pass_hat_k")


@given(
    st.sampled_from(REDUCERS),
    st.lists(st.tuples(UNIT, st.booleans(), UNIT, st.sampled_from("ab")), min_size=1, max_size=6),
    st.data(),
)
def test_what_is_possible_holds_whatever_is_missing(
    how: Reducer, repeats: list[tuple[float, bool, float, str]], data: st.DataObject
) -> None:
    """Neither the score of the answered repeats nor that of all of them, whatever the missing ones would have been,
    lies outside; with nothing missing both ends are the score, but for a majority.
    """
    answered = [score for score, there, _, _ in repeats if there]
    if not answered:
        return
    k = data.draw(st.integers(1, len(answered)))
    parameters = MetricParameters(reduce=how, k=k)
    low, high = possible(parameters, [score if there else None for score, there, _, _ in repeats], 0.5)
    votes: list[str | None] = [vote for _, _, _, vote in repeats]
    whole = [score if there else other for score, there, other, _ in repeats]
    of_those = [vote for vote, (_, there, _, _) in zip(votes, repeats, strict=True) if there]
    for score in (reduced(parameters, answered, of_those, 0.5), reduced(parameters, whole, votes, 0.5)):
        assert low - 1e-12 <= score <= high + 1e-12
    if len(answered) == len(repeats) and how != "majority":
        assert low == high


@pytest.mark.parametrize("how", REDUCERS)
def test_too_few_repeats_are_refused(how: Reducer) -> None:
    """n < k gives no number."""
    with pytest.raises(ValueError, match="over 3 repeats, and 2 were answered"):
        reduce(how, [1.0, 1.0], 3)
