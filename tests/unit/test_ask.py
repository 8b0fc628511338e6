"""An attempt ends as an outcome or a classed error, whatever the adapter does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from inferd.adapters import is_carried
from inferd.ask import Asker, Redact
from shared.clock import ManualClock
from shared.config import Price
from shared.errors import AttemptError, Permanent, Retryable
from shared.records import Attempt, Generation, Prompt, TaskSpec, decode_record
from shared.requests import Request

REQUEST = Request("0" * 64, 0, 0, 0, TaskSpec(task_id="t", prompt="?", targets=("x",)), Prompt(messages=()))


class Bare(Retryable):
    """A class of an adapter's own that leaves our fields out."""

    def __init__(self) -> None:
        Exception.__init__(self, "busy")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Raising:
    model_id = "m"

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self._make = make

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        raise self._make()


def odd(**fields: Any) -> AttemptError:
    return Retryable("rate_limited", "slow down", **fields)


@pytest.mark.parametrize(
    ("make", "kind", "status", "wait"),
    [
        (lambda: odd(retry_after="1"), "rate_limited", None, None),
        (lambda: odd(retry_after=float("nan")), "rate_limited", None, None),
        (lambda: odd(retry_after=float("inf")), "rate_limited", None, None),
        (lambda: odd(retry_after=2), "rate_limited", None, 2.0),
        (lambda: odd(status="400"), "rate_limited", None, None),
        (lambda: odd(status=429, retry_after=0.0), "rate_limited", 429, 0.0),
        (Bare, "adapter", None, None),
        (lambda: Permanent("no-such-class", "x"), "adapter", None, None),  # type: ignore[arg-type]
        (Unspeakable, "adapter", None, None),
        (KeyboardInterrupt, "adapter", None, None),
    ],
)
def test_odd_errors(make: Callable[[], BaseException], kind: str, status: int | None, wait: float | None) -> None:
    """What a field may not hold is left out; the journal line can be read again."""
    ended = Asker(Raising(make), Price(), ManualClock(), Redact()).ask(REQUEST, 1)
    assert ended.error is not None
    assert (ended.error.kind, ended.error.status, ended.error.retry_after) == (kind, status, wait)
    line = decode_record(ended.line, Attempt, "line")
    assert (line.outcome, line.error, line.status) == ("error", kind, status)


class Likely:
    model_id = "m"

    def __init__(self, told: Any) -> None:
        self._told = told

    def loglikelihood(self, prompt: Prompt, task: TaskSpec) -> Generation:
        return Generation(text="", loglikelihood=self._told, is_greedy=False)


@pytest.mark.parametrize("told", [None, math.nan, math.inf, 0.5, "-1"])
def test_what_is_no_likelihood_is_an_error(told: Any) -> None:
    """Nothing is made of a Generation without one; it is the adapter's defect, asked once."""
    prompt = Prompt(messages=(), request_type="loglikelihood", text="It is", continuation=" x")
    ended = Asker(Likely(told), Price(), ManualClock(), Redact()).ask(replace(REQUEST, prompt=prompt), 1)  # type: ignore[arg-type]
    assert ended.error is not None
    assert ended.error.kind == "adapter"


@pytest.mark.parametrize(("told", "kept"), [(-1.5, -1.5), (0.0, 0.0), (1e-7, 1e-7), (-math.inf, None)])
def test_likelihoods_are_kept(told: float, kept: float | None) -> None:
    """No chance at all is a likelihood, null in JSON; what rounding puts above 0 is one, too."""
    prompt = Prompt(messages=(), request_type="loglikelihood", text="It is", continuation=" x")
    ended = Asker(Likely(told), Price(), ManualClock(), Redact()).ask(replace(REQUEST, prompt=prompt), 1)  # type: ignore[arg-type]
    line = decode_record(ended.line, Attempt, "line")
    assert line.generation is not None
    assert (line.outcome, line.generation.loglikelihood) == ("ok", kept)


def test_only_who_can_be_carried_is_carried() -> None:
    """A transport alone doesn't make an adapter one that builds calls for others to carry."""
    adapter = Raising(KeyError)
    adapter.transport = object()  # type: ignore[attr-defined]
    assert not is_carried(adapter)
