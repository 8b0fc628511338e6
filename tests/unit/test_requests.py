"""The request_key: the same everywhere, and another one exactly when the answer could be another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from shared.config import DatasetConfig, ModelConfig
from shared.records import Example, GenerationSettings, Message, TaskSpec
from shared.requests import identity, instances_of, pair_settings, render, request_key, requests_of

ROOT = Path(__file__).parents[2]

MODEL = ModelConfig(
    abbr="m",
    type="openai",
    base_url="http://h/v1",
    model="served",
    generation=GenerationSettings(temperature=0.0, max_tokens=8),
    extra_body={"b": 1, "a": {"d": [1, 2], "c": None}},
)
TASK = TaskSpec(
    task_id="t",
    prompt="7 plus 5?",
    targets=("12",),
    few_shot=(Example("1 plus 1?", "2"),),
    generation=GenerationSettings(stop=("\n",)),
)


def keys(model: ModelConfig = MODEL, task: TaskSpec = TASK, repeats: int = 1) -> list[str]:
    return [request.key for request in requests_of(task, 0, model, identity(model), repeats)]


def with_model(**changes: Any) -> ModelConfig:
    return msgspec.structs.replace(MODEL, **changes)


def with_task(**changes: Any) -> TaskSpec:
    return msgspec.structs.replace(TASK, **changes)


def test_the_key_is_what_it_always_was() -> None:
    """A literal: a change here makes every journal worthless, so it must be meant."""
    (key,) = keys()
    assert len(key) == 64
    assert key == LITERAL


LITERAL = "0d0f90a661d1e0ddbfe365238d77babc35941cde6c0cc720b71643e0345d236b"


@pytest.mark.parametrize("seed", ["0", "1", "12345"])
def test_the_key_is_the_same_in_every_process(seed: str) -> None:
    """Whatever PYTHONHASHSEED does to the order of sets and dicts, and in whatever order a table was written."""
    code = "from tests.unit.test_requests import keys, with_model; print(keys()[0])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == LITERAL
    assert keys(with_model(extra_body={"a": {"c": None, "d": [1, 2]}, "b": 1})) == keys()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"version": "2"},
        {"type": "local"},
        {"extra_body": {"b": 2, "a": {"d": [1, 2], "c": None}}},
        {"extra_body": {}},
        {"options": {"x": 1}},
        {"max_tokens_field": "max_completion_tokens"},
        {"stream": True},
        {"generation": GenerationSettings(temperature=0.1, max_tokens=8)},
        {"generation": GenerationSettings(temperature=0.0, max_tokens=9)},
        {"generation": GenerationSettings(temperature=0.0, max_tokens=8, seed=1)},
        {"generation": GenerationSettings(temperature=0.0)},
    ],
    ids=str,
)
def test_what_can_change_the_answer_changes_the_key(change: dict[str, Any]) -> None:
    """Each of these alone."""
    assert keys(with_model(**change)) != keys()


@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "http://elsewhere:1/v1"},
        {"api_key_env": "KEY"},
        {"headers": {"x-a": "b"}},
        {"max_workers": 99},
        {"attempt_timeout": 1.0},
        {"connect_timeout": 1.0},
        {"transport": "engine"},
        {"http2": False},
        {"ca_file": "ca.pem"},
        {"client_cert": "c.pem", "client_key": "c.key", "client_key_password_env": "KEY"},
        {"low_speed_limit": 1, "low_speed_time": 5.0},
        {"abbr": "renamed"},
    ],
    ids=str,
)
def test_what_cannot_change_the_answer_keeps_the_key(change: dict[str, Any]) -> None:
    """Servers move, keys are renewed, and speed is another matter."""
    assert keys(with_model(**change)) == keys()


@pytest.mark.parametrize("change", [{"loglikelihood": "logit_bias"}, {"bos": "<s>"}, {"max_length": 99}], ids=str)
def test_how_likelihoods_are_told_is_in_their_keys_alone(change: dict[str, Any]) -> None:
    """What is said of them later asks no text again."""
    echo = with_model(loglikelihood="echo")
    assert keys(msgspec.structs.replace(echo, **change)) == keys(echo) == keys()
    likelihood = with_task(request_type="loglikelihood", metric_name="acc")
    assert keys(msgspec.structs.replace(echo, **change), likelihood) != keys(echo, likelihood) != keys(task=likelihood)
    dataset = DatasetConfig(abbr="d", path="d")
    assert pair_settings(with_model(**change), dataset) != pair_settings(MODEL, dataset)


def test_a_model_without_a_served_name_is_known_by_its_abbr() -> None:
    """Then the abbr is what is sent, so it is in the key."""
    assert keys(with_model(model="", abbr="a")) != keys(with_model(model="", abbr="b"))
    assert keys(with_model(model="", abbr="served")) == keys()


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "7 plus 6?"},
        {"prompt": None, "messages": (Message("system", "s"), Message("user", "7 plus 5?"))},
        {"few_shot": ()},
        {"few_shot": (Example("1 plus 1?", "3"),)},
        {"generation": GenerationSettings(stop=("\n",), temperature=1.0)},
        {"generation": GenerationSettings()},
    ],
    ids=str,
)
def test_the_prompt_and_its_settings_are_in_the_key(change: dict[str, Any]) -> None:
    """What goes out to the endpoint."""
    assert keys(task=with_task(**change)) != keys()


@pytest.mark.parametrize(
    "change", [{"targets": ("13",)}, {"metric_name": "f1"}, {"category": "c"}, {"task_id": "u"}], ids=str
)
def test_how_it_is_scored_is_in_the_key_only_where_the_adapter_sees_it(change: dict[str, Any]) -> None:
    """An endpoint is never told the targets; the rule adapter looks at nothing else."""
    assert keys(task=with_task(**change)) == keys()
    rule = with_model(type="rule")
    assert keys(rule, with_task(**change)) != keys(rule)


@pytest.mark.parametrize("seed", [UNSET, 7, 0])
def test_repeats_have_keys_of_their_own(seed: Any) -> None:
    """With and without a seed; the first repeat's is the same however many there are."""
    model = with_model(generation=GenerationSettings(seed=seed))
    found = keys(model, repeats=20)
    assert len(set(found)) == 20
    assert found[:1] == keys(model, repeats=1)


def test_a_seed_differs_by_repeat() -> None:
    """seed + repeat; no seed is made up where none is given."""
    model = with_model(generation=GenerationSettings(seed=40))
    assert [render(TASK, model, repeat).generation.seed for repeat in range(3)] == [40, 41, 42]
    assert render(with_task(generation=GenerationSettings(seed=7)), model, 1).generation.seed == 8
    assert render(TASK, MODEL, 5).generation.seed is UNSET
    assert render(TASK, MODEL, 5).repeat == 5
    assert render(TASK, model, 2, seed_per_repeat=False).generation.seed == 40
    assert render(TASK, MODEL, 2, seed_per_repeat=False).generation.seed is UNSET


def test_repeats_with_one_seed_are_other_requests() -> None:
    """Each repeat is a request of its own, whatever its seed; the first one's is the same either way. The pair notices
    the choice; as usual it is as it was before there was one.
    """
    model = with_model(generation=GenerationSettings(seed=40))
    usual = list(requests_of(TASK, 0, model, identity(model), 3))
    same = list(requests_of(TASK, 0, model, identity(model), 3, seed_per_repeat=False))
    assert len({request.key for request in same}) == 3
    assert [a.key == b.key for a, b in zip(usual, same, strict=True)] == [True, False, False]
    dataset = DatasetConfig(abbr="d", path="d", repeats=3)
    before = b"\0".join((identity(model), b'{"seed":40}', b"3"))
    assert pair_settings(model, dataset) == before
    assert pair_settings(model, msgspec.structs.replace(dataset, seed_per_repeat=False)) != before


def test_the_order_of_turns() -> None:
    """Few-shot examples as turns of the chat, before the question; a system turn stays before them."""
    shots = (Example("q1", "a1"), Example("q2", "a2"))
    examples = [("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2")]
    chat = (Message("user", "earlier"), Message("assistant", "yes"), Message("user", "now"))

    def turns(**task: Any) -> list[tuple[str, str]]:
        made = render(TaskSpec(task_id="t", targets=("1",), few_shot=shots, **task), MODEL, 0)
        return [(turn.role, turn.content) for turn in made.messages]

    assert turns(prompt="now") == [*examples, ("user", "now")]
    spoken = [("user", "earlier"), ("assistant", "yes"), ("user", "now")]
    assert turns(messages=chat) == [*examples, *spoken]
    assert turns(messages=(Message("system", "be brief"), *chat)) == [("system", "be brief"), *examples, *spoken]


def test_a_tasks_settings_win_over_the_models() -> None:
    """Each on its own; what neither sets isn't sent."""
    task = with_task(generation=GenerationSettings(temperature=1.0, stop=("x",)))
    settings = render(task, MODEL, 0).generation
    assert settings == GenerationSettings(temperature=1.0, max_tokens=8, stop=("x",))


def test_requests_come_in_order() -> None:
    """#9: (idx, repeat), each with its task and what is sent for it; one instance a task."""
    made = list(requests_of(TASK, 17, MODEL, identity(MODEL), 3))
    assert [(request.doc_id, request.idx, request.repeat) for request in made] == [(17, 0, 0), (17, 0, 1), (17, 0, 2)]
    assert all(request.task is TASK for request in made)
    assert [request.prompt.repeat for request in made] == [0, 1, 2]
    assert len(instances_of(TASK)) == 1


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text('ab\x00",', max_size=3)), max_size=3)
)
def test_no_two_chats_share_a_key(turns: list[tuple[Any, str]]) -> None:
    """However texts are cut into turns, NULs and quotes included: another chat has another key."""
    chat = render(with_task(prompt=None, messages=tuple(Message(*turn) for turn in turns), few_shot=()), MODEL, 0)
    joined = "".join(text for _, text in turns)
    other = render(with_task(prompt=joined, few_shot=()), MODEL, 0)
    same = chat.messages == other.messages
    assert (request_key(b"i", chat, None) == request_key(b"i", other, None)) == same
