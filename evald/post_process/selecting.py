"""Steps over all responses of a doc: which of them are kept."""

from __future__ import annotations

from collections.abc import Sequence

from evald.reducers import majority

Answers = Sequence[str | None]  # in the order of the repeats; None where a step found nothing


def first(answers: Answers) -> Sequence[int]:
    """As lm-evaluation-harness's `take_first`."""
    return (0,)


def first_k(k: int, answers: Answers) -> Sequence[int]:
    """As lm-evaluation-harness's `take_first_k`. Raises ValueError where there are fewer than k."""
    if len(answers) < k:
        raise ValueError(f"take_first_k needs {k} responses, and there are {len(answers)}")
    return range(k)


def majority_vote(answers: Answers) -> Sequence[int]:
    """The first of the responses that occur most often. As lm-evaluation-harness's step of that name, but what a step
    found nothing in has no vote, as with the reducer `majority`.
    """
    return (majority(answers),)
