"""Why a program failed, in one word and cleaned: whatever it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.sandbox.contract import KilledBy, Outcome
from evald.sandbox.failure import FAILURES, LIMITS, LONGEST, of_exception, shown
from evald.sandbox.trial import _bad_end, _verdict


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ("AssertionError: ", "assertion"),
        ("AssertionError", "assertion"),
        ("NameError: name 'x' is not defined", "exception"),
        ("IndentationError: unexpected indent", "syntax"),
        ("MemoryError: ", "memory"),
        ("PermissionError: no errno", "blocked"),
        ("OSError: [Errno 30] Read-only file system: '/x'", "blocked"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "blocked"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "blocked"),
        ("FileNotFoundError: [Errno 2] No such file or directory", "exception"),
        ("OSError: [Errno 99999999999999999999999]", "exception"),
        ("print: x", None),
        ("Own: x", None),
        ("", None),
        ("__import__: x", None),
    ],
)
def test_exceptions(said: str, failure: str | None) -> None:
    assert of_exception(said) == failure


@pytest.mark.parametrize("limit", ["wall", "cpu", "memory", "output", "processes"])
def test_every_limit_has_a_word(limit: KilledBy) -> None:
    """Whoever reaches it, a program by itself or one that is asked."""
    by_itself = _bad_end(Outcome(137, limit, b"", b""))
    assert by_itself is not None
    asked = _verdict(Outcome(0, "", b"ready\nmet\npassed\n", b""), Outcome(137, limit, b"", b""))
    assert by_itself.failure == asked.failure == LIMITS[limit]


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("the program ended: it ended before it answered", "ended_early"),
        ("the test ended with exit status 1", "assertion"),
        ("no memory is left", "memory"),
        ("Own: x", "exception"),
        ("KeyError: 'the program ended: '", "exception"),
    ],
)
def test_words_of_the_process_of_the_tests(line: str, failure: str) -> None:
    found = _verdict(Outcome(0, "", f"ready\nmet\nfailed {line}\n".encode(), b""), Outcome(0, "", b"", b""))
    assert (found.passed, found.failure) == (False, failure)


@pytest.mark.parametrize(
    ("stderr", "failure"),
    [(b"Traceback ...\nZeroDivisionError: division by zero\n", "exception"), (b"sh: 1: Syntax error", "exit_status")],
)
def test_a_commands_last_line(stderr: bytes, failure: str) -> None:
    found = _bad_end(Outcome(2, "", b"", stderr))
    assert found is not None
    assert found.failure == failure


@given(st.text() | st.text(alphabet="\x1b[0x9aF\n ", max_size=6000))
def test_what_is_shown_is_harmless(said: str) -> None:
    """One line of bounded length that a terminal can't act on; any text has a word or none."""
    text = shown(said)
    assert len(text) <= LONGEST
    assert text.isprintable()
    assert of_exception(said) in (*FAILURES, None)


def test_addresses_are_others_each_time() -> None:
    """So that scores come out the same to the byte."""
    assert shown("AssertionError: <f object at 0x7f3a5c0d1e80>") == "AssertionError: <f object at 0x...>"
