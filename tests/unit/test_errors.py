"""The classes of errors: each has one meaning, and no error can be made that contradicts it."""

from __future__ import annotations

from typing import get_args

import pytest

from shared.errors import ERROR_CLASSES, MEANINGS, AttemptError, ErrorClass, Fault, Permanent, Retryable, decision


def test_every_class_has_a_meaning() -> None:
    """The table holds the Literal's classes, in its order, and every fault is somebody's."""
    assert tuple(MEANINGS) == ERROR_CLASSES
    assert {meaning.fault for meaning in MEANINGS.values()} == set(get_args(Fault))


@pytest.mark.parametrize("kind", ERROR_CLASSES)
def test_no_error_contradicts_the_table(kind: ErrorClass) -> None:
    """A class that is retried is a Retryable and nothing else, also in a user's adapter; so for Permanent."""
    right, wrong = (Retryable, Permanent) if MEANINGS[kind].retried else (Permanent, Retryable)
    assert decision(kind) is right
    assert right(kind, "x").kind == kind
    with pytest.raises(ValueError, match=f"{kind} is .*a {right.__name__}$"):
        wrong(kind, "x")


def test_subclasses_are_held_to_it_and_unknown_classes_are_told_later() -> None:
    """An adapter may have error classes of its own; a kind that isn't in the table is recorded as the adapter's defect
    when the attempt ends, with its name.
    """

    class Busy(Retryable):
        pass

    assert isinstance(Busy("rate_limited", "x"), AttemptError)
    with pytest.raises(ValueError, match="auth is not retried"):
        Busy("auth", "x")
    assert Retryable("busy", "x").kind == "busy"  # type: ignore[arg-type]
