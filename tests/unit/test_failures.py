"""The table of failures: each row happens for real, to the adapter over a real server, and leads to the row's class."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferd.adapters import build_adapter
from inferd.adapters.failures import NAMED_STATUS, REFUSALS, TABLE, Refusal, Row, refusal_class
from inferd.outcome import outcome_of
from shared.config import InferConfig, ModelConfig
from shared.errors import ERROR_CLASSES, MEANINGS, AttemptError, Permanent, Retryable
from shared.records import Generation, Message, Prompt, TaskSpec
from tests.likelihood_server import LikelihoodServer
from tests.server import FakeServer

TASK = TaskSpec(task_id="t", prompt="?", targets=("x",))
STREAM = {"stream": True}
DRIVEN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "the connection is refused": [("", {"base_url": "http://127.0.0.1:9/v1"})],
    "the host's name": [("", {"base_url": "http://no-such-host.invalid/v1"})],
    "TLS fails": [("speaks-no-tls", {})],
    "no connection within": [("silent", {"connect_timeout": 0.3})],
    "reset before": [("reset", {}), ("reset", STREAM)],
    "closed before": [("shut", {}), ("shut", STREAM)],
    "closed in the middle": [("midclose", {})],
    "no whole answer": [("hang", {"attempt_timeout": 0.3}), ("drip", {"attempt_timeout": 0.3})],
    "slower than": [("drip", {"low_speed_limit": 10, "low_speed_time": 1.0})],
    "what answers isn't HTTP": [("garbled", {}), ("garbled", STREAM)],
    "an answer that can't be unpacked": [("badgzip", {}), ("badgzip", STREAM)],
    "an answer longer": [("gzipbomb", {})],
    "no JSON": [("html", {}), ("badjson", {}), ("cutjson", {}), ("nobody", {}), ("wrongtype", {}), ("html", STREAM)],
    "no choices": [("empty-choices", {})],
    "an error object that names no": [("error200", {}), ("error200", STREAM)],
    "finish_reason": [("finish-error", {})],
    "an event of a stream": [("stream-bad", STREAM)],
    "a stream that ends": [("stream-cut", STREAM), ("stream-close", STREAM), ("stream-nothing", STREAM)],
    "402": [("402", {})],
    "any status with code or type `arrearage`": [("quota", {}), ("billing", {}), ("quota", STREAM)],
    "400, 403, 429": [("400credit", {})],
    "any status with code or type `context": [("400ctx", {}), ("400llama", {})],
    "400, 413, 422": [("400neg", {})],
    "429, 529": [("429", {}), ("429-none", {}), ("529", {}), ("stream-error-429", STREAM)],
    "503": [("503", {}), ("503-ms20", {})],
    "408": [("408", {}), ("409", {}), ("425", {})],
    "500 and above": [("500", {}), ("502-text", {}), ("503-none", {}), ("599", {}), ("error200-502", {})],
    "401": [("401", {}), ("403", {}), ("407", {})],
    "404": [("404", {}), ("error200-flat", {})],
    "3xx": [("redirect", {})],
    "any other status": [("400", {}), ("400param", {}), ("422detail", {}), ("405", {}), ("418", STREAM)],
}
"""By how a row's words begin: what makes it happen, as a behaviour of the fake server and options of the model."""
LIKELIHOODS = {
    "a log-probability": [("nan", "echo"), ("null-middle", "echo"), ("llama/infinite", "logit_bias")],
    "of a likelihood: what": [("no-echo", "echo"), ("echo-other", "echo"), ("too-few", "echo_tokens")],
    "of a likelihood: another": [("unforced", "logit_bias"), ("biased", "logit_bias")],
}
"""The same of `tests.likelihood_server`, and the model's way of asking."""
ELSEWHERE = {
    "its call hasn't ended": "test_late_answer_is_dropped in tests/daemons/test_faults.py: it is the dispatcher's",
    "it raises what": "test_odd_adapter there",
    "it returns what": "test_odd_adapter there",
}


def rows_of(start: str) -> list[Row]:
    return [row for row in TABLE if row.what.startswith(start)]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def strangers() -> Iterator[Callable[[str], str]]:
    """Addresses where something listens that is no endpoint: it accepts and is `silent`, or it `speaks-no-tls`."""
    opened: list[socket.socket] = []

    def serve(listener: socket.socket, says: bytes) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            opened.append(peer)
            if says:
                peer.sendall(says)
                peer.close()

    def address(kind: str) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        opened.append(listener)
        says = b"" if kind == "silent" else b"220 mail.example ESMTP ready\r\n"
        threading.Thread(target=serve, args=(listener, says), daemon=True).start()
        return f"https://127.0.0.1:{listener.getsockname()[1]}/v1"

    yield address
    for one in opened:
        one.close()


def ask(base_url: str, **options: Any) -> Generation:
    model = ModelConfig(**({"abbr": "m", "base_url": base_url, "attempt_timeout": 20.0} | options))
    adapter = build_adapter(model, infer=InferConfig(), secret=lambda name: None)
    return adapter.generate(Prompt(messages=(Message(role="user", content="hello"),)), TASK)


def test_every_row_is_driven() -> None:
    """A row that is added without a test for it fails here; each beginning means one row."""
    starts = (*DRIVEN, *LIKELIHOODS, *ELSEWHERE)
    for start in starts:
        assert len(rows_of(start)) == 1, start
    covered = {row.what for start in starts for row in rows_of(start)}
    assert covered == {row.what for row in TABLE}
    assert {row.kind for row in TABLE} == set(ERROR_CLASSES)


@pytest.mark.parametrize(
    ("start", "behaviour", "options"),
    [(start, behaviour, options) for start, cases in DRIVEN.items() for behaviour, options in cases],
)
def test_a_row_happens(
    server: FakeServer, strangers: Callable[[str], str], start: str, behaviour: str, options: dict[str, Any]
) -> None:
    """What happens ends the one attempt with the row's class, which is retried or not as the class's meaning says."""
    (row,) = rows_of(start)
    url = strangers(behaviour) if behaviour in ("silent", "speaks-no-tls") else server.url(behaviour)
    server.reset_stats()
    with pytest.raises(AttemptError) as caught:
        ask(**({"base_url": url} | options))
    error = caught.value
    assert error.kind == row.kind
    assert type(error) is (Retryable if MEANINGS[row.kind].retried else Permanent)
    assert error.message.isprintable()
    assert server.stats()["max_per_body"] <= 1  # no hidden retry


@pytest.mark.parametrize(
    ("start", "behaviour", "way"),
    [(start, behaviour, way) for start, cases in LIKELIHOODS.items() for behaviour, way in cases],
)
def test_a_row_of_likelihoods_happens(start: str, behaviour: str, way: Any) -> None:
    """The same where a likelihood was asked for."""
    (row,) = rows_of(start)
    asked = Prompt(messages=(), request_type="loglikelihood", text="It is", continuation=" so")
    with LikelihoodServer() as server:
        model = ModelConfig(abbr="m", base_url=server.url(behaviour), loglikelihood=way)
        adapter: Any = build_adapter(model, infer=InferConfig(), secret=lambda name: None)
        with pytest.raises(AttemptError) as caught:
            adapter.loglikelihood(asked, TASK)
    assert caught.value.kind == row.kind
    assert type(caught.value) is (Retryable if MEANINGS[row.kind].retried else Permanent)


@pytest.mark.parametrize(
    ("when", "status", "names", "message", "asks_to_wait"),
    [
        ("402", 402, set(), "", False),
        ("any status with code or type `arrearage`", 500, {"insufficient_quota", "429"}, "", True),
        ("400, 403, 429", 429, {"rate_limit_error"}, "Your credit balance is too low", False),
        ("any status with code or type `context", 500, {"context_length_exceeded"}, "", False),
        ("400, 413, 422", 413, set(), "the input is too long", False),
        ("429, 529", 429, set(), "the context length", True),
        ("503", 503, set(), "", True),
        ("408", 425, set(), "", False),
        ("500 and above", 503, set(), "", False),
        ("500 and above", 999, set(), "", False),
        ("401", 403, set(), "", False),
        ("404", 404, set(), "", False),
        ("3xx", 302, set(), "", False),
        ("any other status", 400, {"invalid_request_error"}, "", False),
        ("any other status", 0, set(), "", False),
    ],
)
def test_the_first_row_that_holds_wins(
    when: str, status: int, names: set[str], message: str, asks_to_wait: bool
) -> None:
    """No row stands in another's shadow: each is the first for something."""
    (row,) = rows_of(when)
    assert isinstance(row.when, Refusal)
    first = next(rule for rule, _ in REFUSALS if rule.holds(status, frozenset(names), message, asks_to_wait))
    assert first is row.when
    assert refusal_class(status, frozenset(names), message, asks_to_wait=asks_to_wait) == row.kind


def test_a_named_status_is_one() -> None:
    """What an error object's code or type stands for is a status that is an error, and the code is in lower case."""
    assert all(400 <= status < 600 for status in NAMED_STATUS.values())
    assert all(name == name.lower() for name in NAMED_STATUS)


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        ("filter", "filtered"),
        ("400filter", "filtered"),
        ("refusal", "refused"),
        ("long", "truncated"),
        ("empty", "empty"),
        ("null", "empty"),
        ("prompt-too-long", "empty"),
        ("reasoning-only", "reasoning_only"),
        ("tool", "tool_call"),
        ("function", "tool_call"),
        ("reasoning", "ok"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_odd_answers_are_no_errors(server: FakeServer, behaviour: str, outcome: str, stream: bool) -> None:
    """The other half of the table: what is an answer, though not the one that was wanted, has its own outcome."""
    answer = ask(server.url(behaviour), stream=stream)
    assert outcome_of(answer) == outcome
    if behaviour == "400filter":
        assert (answer.text, answer.finish_reason) == ("", "content_filter")
        assert (answer.refusal or "").startswith("The response was filtered")
