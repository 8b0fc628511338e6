"""Users' patterns on models' texts: RE2, refused in words where it doesn't know them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.patterns import TAIL, Pattern, compiled, pattern_fault


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(a", "missing )"),
        ("[a-", "missing ]"),
        (r"(a)\1", "invalid escape sequence"),
        ("(?<=a)b", "no look-around"),
        ("(?!a)b", "no look-around"),
        ("x{5000}", "invalid repetition size"),
        ("a" * 1001, "at most 1000"),
        ("\ud800", "pattern"),
    ],
)
def test_what_is_no_pattern(pattern: str, fault: str) -> None:
    found = pattern_fault(pattern)
    assert found is not None
    assert fault in found


@pytest.mark.parametrize("pattern", [r"\d+", "(?i)yes", "中+", r"(?P<n>-?[0-9.,]+)", "^a$", ""])
def test_what_is_one(pattern: str) -> None:
    assert pattern_fault(pattern) is None


def test_found() -> None:
    """Offsets don't matter, texts do: of any script, with groups that took no part as None."""
    pattern = compiled("(é)|(中)b?")
    assert pattern.groups == 2
    assert [(one.text, *one.groups) for one in pattern.finditer("é\ud800中b")] == [
        ("é", "é", None),
        ("中b", None, "中"),
    ]
    first = pattern.search("x中")
    assert first is not None
    assert first.text == "中"
    assert pattern.search("x") is None
    assert compiled("yes", ignore_case=True).matches("YES")
    assert not compiled("yes").matches("YES")
    assert not compiled("b").matches("abc", full=True)


def test_no_pattern_is_catastrophic() -> None:
    """What takes a backtracking engine the age of the universe ends; all matches are looked for in the tail alone."""
    assert not compiled("(a+)+$").matches("a" * 1_000_000 + "b")
    assert len(list(compiled("b.*?c|b").finditer("b" * 200_000))) == TAIL


@given(st.text("ab1 .\n", max_size=40), st.sampled_from(["a+b", "[0-9]", "(?s)a.b", "^a", "b$", r"\bb"]))
def test_it_agrees_with_python(text: str, pattern: str) -> None:
    """On what both know alike."""
    assert Pattern(pattern).matches(text) == (re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None)
