"""Chats: which turns are asked, what stands before each, what counts as right, and a chat as text."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from inferd.adapters.builtin import RuleAdapter
from shared.chat import chat_faults, chatml, placed_targets, targets_of_turns, text_of
from shared.config import DatasetConfig, ModelConfig
from shared.records import Example, Generation, Message, TaskSpec
from shared.requests import (
    Later,
    Request,
    follow_up,
    identity,
    instances_of,
    pair_settings,
    plain_text,
    render,
    requests_of,
)
from shared.tasks.native import task_faults

MODEL = ModelConfig(abbr="m", base_url="http://h/v1")
CHAT = (
    Message("system", "be brief"),
    Message("user", "q0"),
    Message("assistant", "g0"),
    Message("user", "q1"),
    Message("assistant", "g1"),
    Message("user", "q2"),
)
SHOTS = (Example("e0", "x0"), Example("e1", "x1"))
WORDS = (Message("user", "q"), Message("assistant", "no number"))


def chat(mode: Any = "every", **more: Any) -> TaskSpec:
    return TaskSpec(**{"task_id": "t", "messages": CHAT, "targets": ("g2",), "chat_mode": mode} | more)


def asked(task: TaskSpec, model: ModelConfig = MODEL, repeats: int = 1) -> list[Request | Later]:
    return list(requests_of(task, 3, model, identity(model), repeats))


def spoken(request: Request | Later) -> list[str]:
    assert isinstance(request, Request)
    return [turn.content for turn in request.prompt.messages]


def go_on(request: Request | Later, text: str, model: ModelConfig = MODEL, **more: Any) -> Request:
    assert isinstance(request, Request)
    return follow_up(request, Generation(text=text, **more), model, identity(model))


def test_one_instance_a_turn_that_is_asked() -> None:
    """The plan counts them so in both modes; `last` is one request with all that was said before."""
    assert [len(instances_of(chat(mode))) for mode in ("last", "every", "every_with_gt")] == [1, 3, 3]
    (last,) = asked(chat("last"))
    assert spoken(last) == ["be brief", "q0", "g0", "q1", "g1", "q2"]


def test_gold_turns_stand_before_each_turn() -> None:
    """#9: every turn of every chat has a place of its own, (doc_id, idx, repeat)."""
    made = asked(chat("every_with_gt"), repeats=2)
    assert [(one.doc_id, one.idx, one.repeat) for one in made] == [(3, idx, n) for idx in range(3) for n in range(2)]
    assert [spoken(one)[1:] for one in made[::2]] == [["q0"], ["q0", "g0", "q1"], ["q0", "g0", "q1", "g1", "q2"]]
    assert len({one.key for one in made if isinstance(one, Request)}) == 6


def test_the_models_own_answers_stand_before_the_next_turn() -> None:
    """Its first turn can be asked at once; each other one once the answer before it is there. No gold turn is sent."""
    first, *later = asked(chat())
    assert later == [Later(3, 1, 0), Later(3, 2, 0)]
    assert isinstance(first, Request)
    assert (spoken(first), first.later) == (["be brief", "q0"], 2)
    second = go_on(first, "a0")
    assert spoken(second) == ["be brief", "q0", "a0", "q1"]
    third = go_on(second, "")
    assert spoken(third) == ["be brief", "q0", "a0", "q1", "", "q2"]
    assert [(one.idx, one.later) for one in (first, second, third)] == [(0, 2), (1, 1), (2, 0)]


def test_keys_are_chained() -> None:
    """Another earlier answer is another request; the gold turns are no part of it, nor is how it is scored."""
    (first, *_), (gold, *_) = asked(chat()), asked(chat(messages=(*CHAT[:2], Message("assistant", "G"), *CHAT[3:])))
    assert go_on(first, "a").key == go_on(gold, "a").key != go_on(first, "b").key
    assert go_on(go_on(first, "a"), "x").key != go_on(go_on(first, "b"), "x").key


def test_repeats_are_chats_of_their_own() -> None:
    """Each has its own seed all the way, and its own keys."""
    model = replace(MODEL, generation=replace(MODEL.generation, seed=40))
    chains = [go_on(one, "a", model) for one in asked(chat(), model, 3)[:3]]
    assert [one.prompt.generation.seed for one in chains] == [40, 41, 42]
    assert len({one.key for one in chains}) == 3


@pytest.mark.parametrize("replayed", [False, True])
def test_reasoning_is_replayed_or_not(replayed: bool) -> None:
    """Kept apart from the answer, it goes back with it only where the model is set so."""
    model = replace(MODEL, replay_reasoning=replayed)
    second = go_on(asked(chat(), model)[0], "a0", model, reasoning="thought")
    assert second.prompt.messages[2] == Message("assistant", "a0", "thought" if replayed else UNSET)
    assert go_on(asked(chat(), model)[0], "a0", model).prompt.messages[2] == Message("assistant", "a0")


# --- what counts as right ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (None, None, ("g2",))),
        ({"targets": (), "turn_targets": (("a", "b"), (), ("c",))}, (("a", "b"), None, ("c",))),
        ({"targets": ()}, (("g0",), ("g1",), None)),
        ({"targets": (), "messages": (Message("user", "q"), Message("user", "r"))}, ((), ())),
    ],
)
def test_what_counts_as_right(more: dict[str, Any], expected: object) -> None:
    """`targets` are the last turn's; `turn_targets` a list a turn; else the gold turns; else nothing, for metrics that
    need no target.
    """
    assert targets_of_turns(chat(**more)) == expected
    told = [target for targets in targets_of_turns(chat(**more)) for target in targets or ()]
    assert [target for _, target in placed_targets(chat(**more))] == told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"messages": None, "prompt": "q"}, "messages: chat_mode every asks the user's turns, and there is none"),
        ({"messages": CHAT[:1]}, "messages: chat_mode every asks the user's turns, and there is none"),
        ({"turn_targets": (("a",), ("b",), ())}, "leave one of both out"),
        ({"targets": (), "turn_targets": (("a",),)}, "turn_targets: expected one list a user turn, 3, got 1"),
        ({"targets": (), "turn_targets": ((), (), ())}, "turn_targets: no turn has any"),
        ({"targets": (), "turn_targets": (("a",), (" ",), ())}, "turn_targets[1][0]: is empty"),
        ({"chat_mode": "last", "turn_targets": ((), (), ())}, "turn_targets: are for chat_mode every"),
        (
            {"chat_mode": "every_with_gt", "messages": CHAT[3:4] * 2},
            "messages[1]: chat_mode every_with_gt needs a gold",
        ),
        ({"targets": (), "messages": CHAT[1:2] * 2}, "targets: expected at least one for exact_match, got none"),
        (
            {"targets": (), "messages": WORDS, "post_process": "last_number"},
            "messages[1]: post_process last_number needs a number",
        ),
        ({"request_type": "loglikelihood", "metric_name": "acc"}, "every is for request_type generate_until"),
    ],
)
def test_a_chat_that_cannot_be_asked_is_refused(more: dict[str, Any], said: str) -> None:
    """With the place and what is expected there."""
    assert any(said in fault for fault in task_faults(chat(**more))), task_faults(chat(**more))


def test_a_sound_chat_is_not_refused() -> None:
    for mode in ("last", "every", "every_with_gt"):
        assert task_faults(chat(mode)) == [] == list(chat_faults(chat(mode)))


@pytest.mark.parametrize("mode", ["every", "every_with_gt"])
def test_the_built_in_adapters_answer_turn_by_turn(mode: Any) -> None:
    """They see the targets of the turn that they are asked, few-shot turns before it or not."""
    task = chat(mode, targets=(), turn_targets=(("x",), ("y",), ("z",)), few_shot=SHOTS, task_id="right")
    adapter = RuleAdapter("m")
    request, *_ = asked(task)
    said = []
    for _ in range(3):
        assert isinstance(request, Request)
        said.append(adapter.generate(request.prompt, task).text)
        if mode == "every":
            request = go_on(request, said[-1]) if request.later else request
        else:
            request = asked(task)[min(len(said), 2)]
    assert said == ["x", "y", "z"]


# --- as text ----------------------------------------------------------------------------------------------------------


def test_plain_text() -> None:
    """Examples and turns apart by a blank line, answers behind their question, the system text first."""
    task = TaskSpec(task_id="t", prompt="q", targets=("a",), few_shot=SHOTS)
    assert plain_text(task) == "e0 x0\n\ne1 x1\n\nq"
    assert plain_text(replace(task, target_delimiter="\nA: ")) == "e0\nA: x0\n\ne1\nA: x1\n\nq"
    assert plain_text(task, "be brief") == "be brief\n\ne0 x0\n\ne1 x1\n\nq"
    assert plain_text(chat("last")) == "be brief\n\nq0 g0\n\nq1 g1\n\nq2"


def test_prompt_formats() -> None:
    """`chat` sends turns; `text` and `chatml` send a text made of them, also behind the model's own answers."""
    assert asked(chat())[0].prompt.text is UNSET  # type: ignore[union-attr]  # the first turn is a Request
    text, ml = (replace(MODEL, prompt_format=name) for name in ("text", "chatml"))
    assert go_on(asked(chat(), text)[0], "a0", text).prompt.text == "be brief\n\nq0 a0\n\nq1"
    assert go_on(asked(chat(), ml)[0], "a0", ml).prompt.text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nq0<|im_end|>\n"
        "<|im_start|>assistant\na0<|im_end|>\n<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text_of((), " ") == ""
    assert chatml(()) == "<|im_start|>assistant\n"


def test_examples_as_text() -> None:
    """In the one user turn, as in a plain prompt; the system turn stays before it, gold turns stay behind."""
    task = TaskSpec(task_id="t", prompt="q", targets=("a",), few_shot=SHOTS, few_shot_format="text")
    turns = render(task, MODEL, 0).messages
    assert turns == (Message("user", "e0 x0\n\ne1 x1\n\nq"),)
    spoken = render(chat("last", few_shot=SHOTS, few_shot_format="text"), MODEL, 0).messages
    assert spoken == (CHAT[0], Message("user", "e0 x0\n\ne1 x1\n\nq0"), *CHAT[2:])
    assert render(replace(task, few_shot=()), MODEL, 0).messages == (Message("user", "q"),)
    (first, *_) = asked(chat(few_shot=SHOTS, few_shot_format="text"))
    assert [turn.content for turn in go_on(first, "a0").prompt.messages][1:] == ["e0 x0\n\ne1 x1\n\nq0", "a0", "q1"]


def test_the_nearest_system_text_wins() -> None:
    """The task's own turn, then its dataset's text, then the model's; each is first and comes once."""
    model = replace(MODEL, system="model's")

    def first(task: TaskSpec) -> list[str]:
        return [turn.content for turn in render(task, model, 0).messages if turn.role == "system"]

    task = TaskSpec(task_id="t", prompt="q", targets=("a",))
    assert first(task) == ["model's"]
    assert first(replace(task, system="dataset's")) == ["dataset's"]
    assert first(chat("last", system="dataset's")) == ["be brief"]
    rolling = TaskSpec(task_id="t", prompt="q", targets=(), request_type="loglikelihood_rolling")
    assert render(rolling, model, 0, instances_of(rolling)[0]).text == "q"


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_format": "text"},
        {"prompt_format": "chatml"},
        {"system": "s"},
        {"replay_reasoning": True},
        {"chat_template": "sha256:ab"},
        {"tokenizer": "o200k_base"},
    ],
    ids=str,
)
def test_what_makes_tokens_of_a_prompt_is_in_the_key(change: dict[str, Any]) -> None:
    """Each alone changes key and plan; that they are there at all changes neither (the literal of test_requests)."""
    dataset = DatasetConfig(abbr="d", path="d")
    changed = replace(MODEL, **change)
    task = TaskSpec(task_id="t", prompt="q", targets=("a",))
    assert asked(task, changed)[0].key != asked(task)[0].key  # type: ignore[union-attr]
    assert pair_settings(changed, dataset) != pair_settings(MODEL, dataset)
    assert b"chat_template" not in identity(MODEL)
