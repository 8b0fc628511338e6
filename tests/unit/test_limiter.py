"""Permits, the health of an endpoint, and the budget."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.limiter import Budget, Health, Permits
from shared.config import BudgetConfig
from shared.errors import ErrorClass, Permanent, Retryable, decision

AFTER, TIMEOUT, FINAL = 5, 60.0, 3


def down(kind: ErrorClass = "connection") -> Retryable:
    return Retryable(kind, "refused")


def no(kind: ErrorClass = "auth") -> Permanent:
    return Permanent(kind, "wrong key")


def health() -> Health:
    return Health(AFTER, TIMEOUT, FINAL)


def unhealthy(now: float = 100.0) -> Health:
    made = health()
    for _ in range(AFTER):
        made.on_error(down(), now)
    assert not made.healthy
    return made


# --- permits ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.lists(st.booleans(), max_size=60))
def test_permits_are_never_more_than_the_limit(limit: int, steps: list[bool]) -> None:
    """Taken and given back in any order: a permit is given exactly while there is one."""
    permits = Permits(limit)
    held = 0
    for take in steps:
        if take:
            assert permits.take() == (held < limit)
            held = min(held + 1, limit)
        elif held:
            permits.give_back()
            held -= 1
        assert permits.in_use == held


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["connection", "timeout", "server_error", "bad_response"])
def test_a_row_of_failures_is_unhealthy(kind: ErrorClass) -> None:
    """At exactly so many in a row; the reason says how many and what."""
    made = health()
    for number in range(AFTER):
        assert made.healthy, number
        assert made.next_look() is None
        made.on_error(down(kind), 10.0)
    assert not made.healthy
    assert not made.given_up
    assert made.reason == f"unhealthy, only probed: 5 failures in a row: {kind}: refused"
    assert made.next_look() == 11.0


@pytest.mark.parametrize("kind", sorted(set(get_args(ErrorClass)) - Health.COUNTED))
def test_what_a_working_endpoint_says_breaks_the_row(kind: ErrorClass) -> None:
    """A 429, a refused request, a prompt that is too long: they come from an endpoint that works."""
    made = health()
    for _ in range(10 * AFTER):
        for _ in range(AFTER - 1):
            made.on_error(down(), 0.0)
        made.on_error(decision(kind)(kind, "x"), 0.0)
    assert made.healthy
    for _ in range(10 * AFTER):
        made.on_error(decision(kind)(kind, "x"), 0.0)
    assert made.healthy


def test_an_answer_breaks_the_row() -> None:
    """One in twenty failing for ever is no reason to stop."""
    made = health()
    for _ in range(100):
        for _ in range(AFTER - 1):
            made.on_error(down(), 0.0)
        made.on_answer()
    assert made.healthy
    assert made.reason == ""


def test_probes_grow_apart_and_go_one_by_one() -> None:
    """After 1 s, then 2, 4, 8, 15, 15 ... later; never while one is out."""
    made = unhealthy(100.0)
    probes = []
    for tenth in range(1000, 1700):
        now = tenth / 10
        assert not made.may_probe(now, in_flight=1)
        if made.may_probe(now, in_flight=0):
            probes.append(now)
            assert not made.may_probe(now, in_flight=0)
            assert made.next_look() is not None
    assert probes == [101.0, 103.0, 107.0, 115.0, 130.0, 145.0, 160.0]


def test_a_probe_that_is_answered_ends_it() -> None:
    """Healthy at once, and the next trouble begins with the short interval again."""
    made = unhealthy(100.0)
    assert made.may_probe(101.0, 0)
    made.on_answer()
    after_answer = made.healthy
    assert after_answer
    assert made.next_look() is None
    for _ in range(AFTER):
        made.on_error(down(), 500.0)
    assert (made.healthy, made.given_up) == (False, False)
    assert made.next_look() == 501.0


def test_given_up_after_the_timeout_without_an_answer() -> None:
    """By the error that comes when the time is over, not by the time alone."""
    made = unhealthy(100.0)
    given_up = []
    for now in (159.9, 160.0):
        made.on_error(down(), now)
        given_up.append(made.given_up)
    assert given_up == [False, True]
    assert made.reason == "given up: 7 failures in a row: connection: refused"


@pytest.mark.parametrize("kind", sorted(Health.FINAL))
def test_refusals_that_nothing_mends_give_up_at_once(kind: ErrorClass) -> None:
    """A wrong key, a wrong address, a used-up quota: a few in a row, and no probing."""
    made = health()
    for _ in range(FINAL - 1):
        made.on_error(no(kind), 0.0)
        assert not made.given_up
    made.on_error(no(kind), 0.0)
    assert made.given_up
    assert made.reason == f"given up: 3 refusals in a row: {kind}: wrong key"


def test_refusals_between_answers_do_not_give_up() -> None:
    """A model that refuses one request and answers the next one is no dead end; nor are refusals among failures."""
    made = health()
    for _ in range(20):
        for _ in range(FINAL - 1):
            made.on_error(no(), 0.0)
        made.on_answer()
    for _ in range(2):
        made.on_error(no(), 0.0)
        made.on_error(down(), 0.0)
    assert not made.given_up


@given(st.lists(st.sampled_from(["answer", "down", "no", "busy"]), max_size=60))
def test_an_endpoint_that_answered_last_is_healthy(events: list[str]) -> None:
    """Whatever came before, unless it was given up: then it stays so."""
    made = health()
    for now, event in enumerate(events):
        if event == "answer":
            made.on_answer()
            assert made.healthy
        else:
            made.on_error({"down": down(), "no": no(), "busy": down("rate_limited")}[event], float(now))
        assert (made.next_look() is None) == made.healthy


# --- budget -----------------------------------------------------------------------------------------------------------


def test_no_ceiling_is_never_reached() -> None:
    """What isn't named isn't limited."""
    budget = Budget(BudgetConfig())
    budget.load(10**9, 10**12, 1e9)
    budget.reserve()
    assert budget.exhausted() is None


@given(st.integers(1, 20), st.integers(0, 30))
def test_requests_are_met_exactly(ceiling: int, before: int) -> None:
    """With what earlier runs spent: as many as are allowed, and no more."""
    budget = Budget(BudgetConfig(requests=ceiling))
    budget.load(before, 0, 0.0)
    sent = 0
    while budget.exhausted() is None:
        budget.reserve()
        sent += 1
        assert sent <= ceiling
    assert sent == max(ceiling - before, 0)
    assert budget.exhausted() == f"budget reached: {max(ceiling, before)} of {ceiling} requests"


@given(st.integers(1, 30), st.integers(1, 100), st.integers(1, 10_000))
def test_tokens_are_met_closely(workers: int, each: int, ceiling: int) -> None:
    """Requests of equal size, `workers` at once: what is in flight is reckoned with, so one request beyond at most,
    once the first one told its size.
    """
    budget = Budget(BudgetConfig(tokens=ceiling))
    in_flight = 0
    for _ in range(ceiling + workers + 10):
        while in_flight < workers and budget.exhausted() is None:
            budget.reserve()
            in_flight += 1
        if not in_flight:
            break
        budget.settle(each, 0.0)
        in_flight -= 1
    assert in_flight == 0
    assert budget.tokens >= ceiling
    assert budget.tokens < ceiling + each * (workers + 1)
    if ceiling > 2 * workers * each:
        assert budget.tokens <= ceiling + 2 * each
    assert budget.exhausted() == f"budget reached: {budget.tokens} of {ceiling} tokens"


def test_dollars() -> None:
    """The same in USD; what is in flight counts at the mean of what was settled."""
    budget = Budget(BudgetConfig(usd=1.0))
    budget.load(2, 0, 0.5)
    assert budget.exhausted() is None
    budget.reserve()
    assert budget.exhausted() is None  # 0.50 + 0.25
    budget.reserve()
    assert budget.exhausted() == "budget reached: 0.5000 of 1.0 USD"  # 0.50 + 2 * 0.25
    budget.settle(0, 0.1)
    assert budget.exhausted() is None  # 0.60 + 0.20
    budget.settle(0, 0.4)
    assert budget.exhausted() == "budget reached: 1.0000 of 1.0 USD"


def test_an_answer_that_cost_nothing_keeps_the_budget() -> None:
    """Nothing settled yet: the first requests go out whatever the ceiling."""
    budget = Budget(BudgetConfig(usd=0.01, tokens=5))
    for _ in range(100):
        assert budget.exhausted() is None
        budget.reserve()
