"""Tables that users wrote: every problem, at its place, in words that come from the types."""

from __future__ import annotations

import datetime
import math
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from shared.config import DatasetConfig, FieldMapping, ModelConfig, Suite
from shared.tables import convert_table, show


class Inner(Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1)]
    share: Annotated[float, Meta(ge=0, lt=1)] = 0.5


class Outer(Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=4)]
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    color: Literal["red", "green"] | None = None
    either: str | tuple[str, ...] = ""
    flag: bool = False
    labels: dict[str, int] = {}
    free: Any = None


def problems(value: Any, kind: type = Outer, place: str = "") -> list[str]:
    made, found = convert_table(value, kind, place)
    assert (made is None) == bool(found)
    return [str(problem) for problem in found]


def test_a_right_table_becomes_the_instance() -> None:
    """Nested tables, arrays and unions are built; an integer is a number."""
    made, found = convert_table(
        {
            "name": "x",
            "inner": {"size": 2, "share": 0},
            "many": [{"size": 1}],
            "either": ["a"],
            "free": {"a": [1, None]},
        },
        Outer,
        "",
    )
    assert found == []
    assert made == Outer("x", Inner(2, 0.0), (Inner(1),), None, ("a",), False, {}, {"a": [1, None]})


def test_every_problem_is_told_at_its_place() -> None:
    """One pass names all that is wrong, in the order of the file."""
    value = {
        "inner": {"size": 0, "share": 1, "sizes": 3},
        "many": [{"size": 1}, {"size": True, "share": "0.1"}, 7, {}],
        "colour": "red",
        "color": "gren",
        "either": ["a", 3],
        "flag": 1,
        "labels": {"a b": "x"},
        "free": {"x": math.nan, "y": [datetime.date(2026, 11, 30)]},
    }
    assert problems(value) == [
        "inner.size: expected an integer >= 1, got 0",
        "inner.share: expected a number >= 0 and < 1, got 1",
        "inner.sizes: unknown key; did you mean size?",
        "many[1].size: expected an integer >= 1, got true",
        'many[1].share: expected a number >= 0 and < 1, got "0.1"',
        "many[2]: expected a table, got 7",
        "many[3].size: is required",
        "colour: unknown key; did you mean color?",
        'color: expected one of "green", "red", got "gren"; did you mean green?',
        "either[1]: expected a string, got 3; quote it",
        "flag: expected true or false, got 1",
        'labels."a b": expected an integer, got "x"',
        "free.x: expected a finite number, got nan",
        "free.y[0]: expected a value that JSON has, got the date or time 2026-11-30; quote it",
        "name: is required",
    ]


def test_the_messages_of_configuration_read_as_promised() -> None:
    """The forms that users of suites see, from the real types."""
    assert problems({"abbr": "m", "max_workers": "16"}, ModelConfig, "models[1]") == [
        'models[1].max_workers: expected an integer >= 1, got "16"'
    ]
    assert problems({"abbr": "m", "max_worker": 3}, ModelConfig, "models[0]") == [
        "models[0].max_worker: unknown key; did you mean max_workers?"
    ]
    assert problems({"abbr": "m", "temperature": 0}, ModelConfig, "models[0]") == [
        "models[0].temperature: unknown key; did you mean generation.temperature?"
    ]
    assert problems({"abbr": "d"}, DatasetConfig, "datasets[0]") == ["datasets[0].path: is required"]
    assert problems({"xyz": 1}, FieldMapping, "f") == [
        "f.xyz: unknown key; known here: "
        "prompt, target, task_id, category, cluster, metadata, choices, gold, turn_targets"
    ]
    assert problems({"models": [], "datasets": {}}, Suite) == [
        "models: expected an array of tables of at least 1 item, got 0 items",
        "datasets: expected an array of tables of at least 1 item, got a table",
    ]
    assert problems({"abbr": "", "path": "x"}, DatasetConfig, "datasets[0]") == [
        'datasets[0].abbr: expected a string of 1 to 200 characters, got ""'
    ]
    assert problems({"abbr": "d", "path": "x", "metric": 1}, DatasetConfig, "datasets[0]") == [
        "datasets[0].metric: expected a string or a table or an array of values, got 1; quote it"
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, True, "1e-5", None, [1.0]])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    """NaN, infinities, booleans and numbers in quotes are no numbers; they are never passed on as if they were."""
    (text,) = problems({"size": 1, "share": value}, Inner)
    assert text.startswith("share: expected a number >= 0 and < 1, got ")


def test_integers_beyond_64_bits_are_refused() -> None:
    """JSON readers elsewhere would round them."""
    assert problems({"size": 2**63}, Inner) == ["size: expected an integer >= 1, got 9223372036854775808"]
    assert problems({"name": "x", "free": 2**63}) == [
        "free: expected an integer of at most 64 bits, got 9223372036854775808"
    ]


def test_depth_is_bounded() -> None:
    """A value nested without end is a problem, not a crash."""
    value: Any = 1
    for _ in range(5000):
        value = [value]
    (text,) = problems({"name": "x", "free": value})
    assert text.endswith(": nested more than 32 levels deep")


def test_a_string_in_place_of_a_table_is_not_repeated() -> None:
    """It may be a header with its secret."""
    assert problems({"abbr": "m", "headers": "Authorization: Bearer s3cret"}, ModelConfig, "models[0]") == [
        "models[0].headers: expected a table, got a string"
    ]


def test_long_values_are_shown_short() -> None:
    """A message stays readable whatever stands in the file."""
    (text,) = problems({"name": "x", "flag": "y" * 1000})
    assert text == 'flag: expected true or false, got "' + "y" * 57 + '..."'


@pytest.mark.parametrize(
    "text", ["sk-live-0123456789", "Authorization: Bearer abc", "AIzaSyA1234567", "0123456789abcdef0123", "Basic dTpw"]
)
def test_what_may_be_a_key_is_not_repeated(text: str) -> None:
    """Its length alone, so that who wrote it finds it."""
    assert show(text) == f"a text of {len(text)} characters"


@pytest.mark.parametrize(
    "text", ["16", "exact_mach", "meta-llama/Llama-3.1-70B-Instruct", "sk-SK", "task-0123456789", "a" * 40, "1" * 40]
)
def test_what_is_no_key_is_quoted(text: str) -> None:
    """Names, numbers and words."""
    assert show(text) == f'"{text}"'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "inner", "size", "share", "flag", "free", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(json_values)
def test_the_walk_and_msgspec_agree(value: Any) -> None:
    """Whatever msgspec refuses is refused with a place, and nothing that is refused is built."""
    made, found = convert_table(value, Outer, "here")
    try:
        expected = msgspec.convert(value, Outer)
    except msgspec.ValidationError:
        assert made is None
        assert all(problem.place.startswith("here") for problem in found)
    else:
        assert found or made == expected
