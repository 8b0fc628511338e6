"""The embedded model itself: real weights, llama.cpp's real server, real answers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from inferd.adapters import build_adapter, cannot
from inferd.local_model import LocalServer, serve
from shared.config import InferConfig, ModelConfig
from shared.errors import Fatal
from shared.records import Prompt, TaskSpec


def skip_unless_ci(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"in CI this must run: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    if importlib.util.find_spec("xllamacpp") is None:
        skip_unless_ci("the extra `local` isn't installed")
    try:
        stopped = serve(ModelConfig(abbr="smollm2", type="local", options={"context": 4096, "parallel": 2}))
    except Fatal as error:
        skip_unless_ci(str(error))
        raise
    with stopped as running:
        yield running


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as answer:
        return json.load(answer)


def test_a_chat_completion_with_log_probabilities(server: LocalServer) -> None:
    answer = ask(
        f"{server.base_url}/chat/completions",
        {
            "model": "smollm2",
            "messages": [{"role": "user", "content": "What is 7 plus 5?"}],
            "max_tokens": 24,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 2,
        },
    )
    (choice,) = answer["choices"]
    assert choice["message"]["content"].strip()
    assert choice["finish_reason"] in ("stop", "length")
    tokens = choice["logprobs"]["content"]
    assert 0 < len(tokens) <= 24
    assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in tokens)
    assert answer["usage"]["completion_tokens"] >= len(tokens) - 1
    assert answer["usage"]["prompt_tokens"] > 0
    assert "/" not in answer["model"], "no path of this machine"


def test_each_request_has_its_whole_context(server: LocalServer) -> None:
    props = ask(server.base_url.removesuffix("/v1") + "/props")
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] >= 4096


def test_a_prompt_longer_than_the_context_is_refused_not_cut(server: LocalServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(
            f"{server.base_url}/chat/completions",
            {"model": "smollm2", "messages": [{"role": "user", "content": "seven " * 6000}], "max_tokens": 4},
        )
    with caught.value as refusal:
        assert refusal.code == 400
        assert "context" in refusal.read().decode()


def test_it_stops_when_the_block_ends() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        skip_unless_ci("the extra `local` isn't installed")
    try:
        stopped = serve(ModelConfig(abbr="smollm2", type="local"))
    except Fatal as error:
        skip_unless_ci(str(error))
        raise
    with stopped as running:
        process = running._process
        assert isinstance(process, subprocess.Popen)
    assert process.poll() is not None


def test_choices_by_likelihood(server: LocalServer) -> None:
    """A small multiple-choice task: the model holds the right choice to be the likeliest; each log-probability is the
    one that it gives the token when nothing is forced.
    """
    model = ModelConfig(abbr="smollm2", type="local", base_url=server.base_url)
    assert cannot(model, "loglikelihood") is None
    adapter: Any = build_adapter(model, infer=InferConfig(), secret=lambda name: None)
    questions = [
        ("The capital of France is", (" banana", " Paris", " seven")),
        ("Snow is cold and fire is", (" hot", " Tuesday", " Paris")),
        ("Monday, Tuesday,", (" Paris", " cold", " Wednesday")),
    ]
    task = TaskSpec(task_id="t", prompt="?", targets=("?",))
    taken = []
    for text, choices in questions:
        prompts = [
            Prompt(messages=(), request_type="loglikelihood", text=text, continuation=choice) for choice in choices
        ]
        told = [adapter.loglikelihood(prompt, task).loglikelihood for prompt in prompts]
        assert all(value < 0 for value in told)
        taken.append(told.index(max(told)))
    assert taken == [1, 0, 2]
    whole = Prompt(messages=(), request_type="loglikelihood_rolling", text="The capital of France is Paris.")
    rolling = adapter.loglikelihood_rolling(whole, task)
    assert rolling.token_count == 7
    assert -70 < rolling.loglikelihood < -7
    unforced = ask(
        f"{server.base_url}/completions",
        {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0, "logprobs": 6},
    )
    candidates = unforced["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert len(candidates) == 6
    for place, candidate in enumerate(candidates):
        asked = Prompt(
            messages=(), request_type="loglikelihood", text="The capital of France is", continuation=candidate["token"]
        )
        generation = adapter.loglikelihood(asked, task)
        assert generation.token_count == 1
        assert generation.is_greedy == (place == 0)
        # Batches of another make-up round otherwise.
        assert generation.loglikelihood == pytest.approx(candidate["logprob"], abs=0.05)
