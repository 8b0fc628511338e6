"""Texts asked for over `/completions`: what goes out, and what comes back, whole or as a stream."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from inferd.adapters.completion import whole_answer
from inferd.adapters.event_stream import EventStream
from inferd.adapters.openai import OpenAIAdapter
from inferd.adapters.redact import Redactor
from inferd.adapters.transport import Reply
from shared.config import ModelConfig
from shared.errors import Retryable
from shared.records import Generation, GenerationSettings, Message, Prompt, TaskSpec
from tests.server import FakeServer

TASK = TaskSpec(task_id="t", targets=())
CHAT = Prompt(messages=(Message("user", "q ANSWER=7 then"),))
TEXT = Prompt(messages=CHAT.messages, text="q ANSWER=7 then")


def make(url: str = "http://h/v1", **more: Any) -> OpenAIAdapter:
    return OpenAIAdapter(ModelConfig(abbr="m", base_url=url, **more), timeout=10.0, secret=lambda name: None)


def body(prompt: Prompt, **more: Any) -> dict[str, Any]:
    return json.loads(make(**more).body(prompt))  # type: ignore[no-any-return]


def test_what_goes_out() -> None:
    """The text in place of the messages, to another address; the settings are the same, but that logprobs is a number
    of tokens there.
    """
    settings = GenerationSettings(temperature=0.5, max_tokens=5, stop=("x",), logprobs=True, top_logprobs=3)
    prompt = Prompt(messages=TEXT.messages, text="q", generation=settings)
    told = {"model": "m", "prompt": "q", "temperature": 0.5, "stop": ["x"], "max_tokens": 5, "logprobs": 3}
    assert body(prompt) == told
    assert body(prompt, max_tokens_field="max_completion_tokens")["max_completion_tokens"] == 5
    assert body(Prompt(messages=(), text="", generation=GenerationSettings(logprobs=True)))["logprobs"] == 1
    assert body(Prompt(messages=(), text="q", generation=GenerationSettings(logprobs=False))) == {
        "model": "m",
        "prompt": "q",
    }
    adapter = make("http://h/v1/")
    assert adapter.call(TEXT, TASK).url == "http://h/v1/completions"  # type: ignore[attr-defined]
    assert adapter.call(CHAT, TASK).url == ""  # type: ignore[attr-defined]  # the usual one


def test_reasoning_goes_out_with_its_turn() -> None:
    """As `reasoning_content` of the assistant's turn; where there is none, there is no such key."""
    turns = (Message("user", "q"), Message("assistant", "a", "thought"), Message("user", "r"))
    sent = body(Prompt(messages=turns))["messages"]
    assert sent[1] == {"role": "assistant", "content": "a", "reasoning_content": "thought"}
    assert sent[2] == {"role": "user", "content": "r"}


@pytest.mark.parametrize("stream", [False, True])
def test_what_comes_back(server: FakeServer, stream: bool) -> None:
    """Text, finish_reason, usage and log-probabilities, from a real server; chats and texts take turns on one
    connection.
    """
    adapter = make(server.url(), stream=stream)
    assert adapter.generate(CHAT, TASK).text == "7"
    answer = adapter.generate(TEXT, TASK)
    assert (answer.text, answer.finish_reason, answer.served_model) == ("7", "stop", "fake-2026-01")
    assert (answer.confidence, answer.token_nll, answer.token_count) == (0.5, math.log(2), 1)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert adapter.generate(CHAT, TASK).text == "7"


def read(**choice: Any) -> Generation:
    return whole_answer(Reply(200, (), json.dumps({"choices": [choice]}).encode()), Redactor(()))


def test_log_probabilities_of_either_form() -> None:
    """The older form, and a chat's, which llama.cpp's server gives here too; null is unknown, never 0."""
    older = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.25], "text_offset": [0, 1]}
    assert read(text="ab", logprobs=older).token_nll == 0.75
    chats = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]}
    assert read(text="ab", logprobs=chats).token_nll == 0.75
    assert read(text="ab", logprobs=older | {"token_logprobs": [None, -0.25]}).confidence is None
    assert read(text="ab", logprobs=None).confidence is None
    assert read(text="").text == ""


def test_what_is_no_answer() -> None:
    """Neither a text nor a message: an error, never an empty answer."""
    for choice in ({}, {"text": None}, {"message": None, "finish_reason": "stop"}):
        with pytest.raises(Retryable):
            read(**choice)


def test_a_stream_in_pieces() -> None:
    """However it is cut; what ended before it was whole is no answer."""
    events = [{"choices": [{"text": text, "finish_reason": None}]} for text in ("a", "", "b", "c")]
    lines = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    last = b'data: {"choices": [{"text": "d", "finish_reason": "length"}]}\n\n'
    for step in (1, 7, 1000):
        stream = EventStream(Redactor(()))
        for at in range(0, len(lines + last), step):
            stream.feed((lines + last)[at : at + step])
        stream.end()
        assert (stream.generation().text, stream.generation().finish_reason) == ("abcd", "length")
    cut = EventStream(Redactor(()))
    cut.feed(lines)
    cut.end()
    with pytest.raises(Retryable, match="ended after 3 characters"):
        cut.generation()


def test_nothing_of_a_prompt_stays_on_the_adapter() -> None:
    """#35: one adapter for all datasets, whose templates, system texts and formats differ: it holds nothing of them."""
    adapter = make()
    before = {name: repr(value) for name, value in vars(adapter).items()}
    first = adapter.body(CHAT)
    for prompt in (
        TEXT,
        Prompt(messages=(Message("system", "s"), *CHAT.messages)),
        Prompt(messages=(), text="<|im_start|>"),
    ):
        adapter.call(prompt, TASK)
    assert {name: repr(value) for name, value in vars(adapter).items()} == before
    assert adapter.body(CHAT) == first
