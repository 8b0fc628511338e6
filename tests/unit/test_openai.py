"""The openai adapter against a real server: every behaviour becomes an answer or a classed error, never a wrong
answer.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.adapters.endpoint_errors import retry_after
from inferd.adapters.event_stream import EventStream
from inferd.adapters.multi import Multi
from inferd.adapters.openai import OpenAIAdapter
from inferd.adapters.redact import Redactor, public_url, url_secrets
from inferd.adapters.transport import Reply
from inferd.outcome import outcome_of
from shared.config import ModelConfig
from shared.errors import AttemptError, Permanent, Retryable, UsageError
from shared.records import Generation, GenerationSettings, Message, Prompt, TaskSpec, encode_record
from tests.server import FakeServer, _chunk, _event

KEY = "sk-test-SECRET123"
TASK = TaskSpec(task_id="t", prompt="?", targets=("x",))
PROMPT = Prompt(messages=())


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own server is on loopback, whatever proxies the machine has."""
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def make(
    server: FakeServer, behaviour: str = "", *, secrets: dict[str, str] | None = None, **options: Any
) -> OpenAIAdapter:
    fields: dict[str, Any] = {"abbr": "m", "base_url": server.url(behaviour), "attempt_timeout": 20.0}
    model = ModelConfig(**(fields | options))
    return OpenAIAdapter(model, timeout=model.attempt_timeout or 20.0, secret=(secrets or {}).get)


class Carrier(threading.local):
    """How a call is carried: on the caller's thread, or by a multi (here one a thread)."""

    by_multi = False

    def __init__(self) -> None:
        self.multi: Multi[None] | None = None

    def carry(self, adapter: OpenAIAdapter, prompt: Prompt) -> Generation:
        if not self.by_multi:
            return adapter.generate(prompt, TASK)
        self.multi = multi = Multi(4) if self.multi is None else self.multi
        call = adapter.call(prompt, TASK)
        multi.start(adapter.transport, call, None)
        while not (ended := multi.poll(30.0)):
            assert len(multi) == 1
        ((_, came),) = ended
        return call.answer(came)

    def let_go(self) -> None:
        """Of this thread's connections."""
        if self.multi is not None:
            self.multi.close()
            self.multi = None


CARRIER = Carrier()


@pytest.fixture(autouse=True, params=["thread", "multi"])
def carrier(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whoever carries a call, it comes to the same."""
    Carrier.by_multi = request.param == "multi"
    yield
    CARRIER.let_go()


def ask(adapter: OpenAIAdapter, content: str = "hello", **settings: Any) -> Generation:
    turn = Message(role="user", content=content)
    return CARRIER.carry(adapter, Prompt(messages=(turn,), generation=GenerationSettings(**settings)))


def failure(adapter: OpenAIAdapter, content: str = "hello", **settings: Any) -> AttemptError:
    with pytest.raises(AttemptError) as caught:
        ask(adapter, content, **settings)
    assert type(caught.value) in (Retryable, Permanent)
    return caught.value


# --- what goes out ---------------------------------------------------------------------------------------------------


def test_body_holds_what_is_set_and_nothing_else(server: FakeServer) -> None:
    """Unset settings are left out, never null; extra_body comes last and wins."""
    prompt = Prompt(messages=(Message(role="system", content="s"), Message(role="user", content="u")))
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert json.loads(make(server, model="served").body(prompt)) == {"model": "served", "messages": turns}

    settings = GenerationSettings(temperature=0.0, max_tokens=5, stop=tuple("abcdef"), logprobs=False)
    prompt = Prompt(messages=prompt.messages, generation=settings)
    adapter = make(server, max_tokens_field="max_completion_tokens", extra_body={"temperature": 1, "x": {"y": None}})
    assert json.loads(adapter.body(prompt)) == {
        "model": "m",
        "messages": turns,
        "temperature": 1,
        "stop": list("abcdef"),  # all of them: whether six are too many is the server's to say
        "logprobs": False,
        "max_completion_tokens": 5,
        "x": {"y": None},
    }
    streamed = json.loads(make(server, stream=True).body(prompt))
    assert streamed["stream"] is True
    assert streamed["stream_options"] == {"include_usage": True}


def test_every_setting_goes_out(server: FakeServer) -> None:
    """Each field of GenerationSettings reaches the body under its own name."""
    values: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 7,
        "stop": ["x"],
        "seed": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "low",
    }
    assert set(values) == set(GenerationSettings.__struct_fields__)
    settings = GenerationSettings(**{**values, "stop": ("x",)})
    body = json.loads(make(server).body(Prompt(messages=(), generation=settings)))
    assert {name: body[name] for name in values} == values
    # An endpoint that takes no more than four says so itself: none is dropped on the way.
    many = GenerationSettings(stop=tuple("abcdef"))
    assert json.loads(make(server).body(Prompt(messages=(), generation=many)))["stop"] == list("abcdef")


def echoed_head(server: FakeServer, **options: Any) -> str:
    """The header lines as the server got them; secrets are let through by reading past the redaction."""
    adapter = make(server, "echo-key", **options)
    reply = adapter.transport.exchange(adapter.call(PROMPT, TASK))
    return str(json.loads(reply.body)["error"]["message"])


def test_key_only_if_there_is_one(server: FakeServer) -> None:
    """Authorization goes out only when api_key_env gives a key, which is stripped."""
    assert "Authorization" not in echoed_head(server)
    assert "Authorization" not in echoed_head(server, api_key_env="KEY")
    assert f"Authorization: Bearer {KEY}\r\n" in echoed_head(server, api_key_env="KEY", secrets={"KEY": KEY + "\n"})


def test_headers(server: FakeServer) -> None:
    """Variables are filled in; a header of the user's replaces ours; no Expect; an empty value goes out empty."""
    head = echoed_head(
        server,
        headers={
            "X-Team": "a ${TEAM} b",
            "authorization": "Basic ${TOKEN}",
            "Content-Type": "application/json; v=1",
            "X-E": "",
        },
        api_key_env="KEY",
        secrets={"KEY": KEY, "TEAM": "blé", "TOKEN": "tok"},
    )
    assert "X-Team: a blé b\r\n".encode().decode("latin-1") in head
    assert "authorization: Basic tok" in head
    assert KEY not in head
    assert head.lower().count("content-type") == 1
    assert "X-E:" in head
    assert "expect" not in head.lower()


@pytest.mark.parametrize(
    ("options", "secrets", "text"),
    [
        ({"headers": {"X": "${NOPE}"}}, {}, "needs the variable NOPE"),
        ({"headers": {"X": "${BAD}"}}, {"BAD": "a-secret\r\nHost: evil"}, "value of BAD holds control characters"),
        ({"api_key_env": "BAD"}, {"BAD": "a-secret\nb"}, "value of BAD holds control characters"),
    ],
)
def test_unusable_secrets_are_refused(server: FakeServer, options: Any, secrets: dict[str, str], text: str) -> None:
    """A missing variable or one that would smuggle in a header is told by its name, not its value."""
    with pytest.raises(UsageError, match=text) as caught:
        make(server, secrets=secrets, **options)
    assert "a-secret" not in str(caught.value)


def test_address(server: FakeServer) -> None:
    """/chat/completions is added; a slash at the end changes nothing; one with a password is refused without it."""
    adapter = make(server, base_url=server.url("echo-key") + "/")
    assert adapter.endpoint == server.url("echo-key")
    head = json.loads(adapter.transport.exchange(adapter.call(PROMPT, TASK)).body)["error"]["message"]
    assert "POST /echo-key/v1/chat/completions HTTP/1.1" in head
    with pytest.raises(UsageError, match="holds a user name or password") as caught:
        make(server, base_url=server.url().replace("http://", "http://me:pass-word@"))
    assert "pass-word" not in str(caught.value)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_plain_answer(server: FakeServer) -> None:
    """Text, finish_reason, usage and the served model as told."""
    answer = ask(make(server), "say ANSWER=42 now")
    assert answer.text == "42"
    assert answer.finish_reason == "stop"
    assert answer.served_model == "fake-2026-01"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 3)
    assert (answer.confidence, answer.token_nll, answer.token_count) == (None, None, None)
    assert not answer.tool_calls


@pytest.mark.parametrize(
    ("behaviour", "text", "finish_reason", "outcome"),
    [
        ("null", "", "stop", "empty"),
        ("empty", "", "stop", "empty"),
        ("parts", "one two", "stop", "ok"),
        ("norole", "bare", None, "ok"),
        ("long", "echo: hello", "length", "truncated"),
        ("filter", "", "content_filter", "filtered"),
        ("refusal", "", "stop", "refused"),
        ("tool", "", "tool_calls", "tool_call"),
        ("prompt-too-long", "", "length", "empty"),
        ("u2028", "one\u2028two\u2029three\x85four", "stop", "ok"),
        ("surrogate", "half: \ufffd", "stop", "ok"),
        ("gzip", "echo: hello", "stop", "ok"),
        ("nousage", "echo: hello", "stop", "ok"),
    ],
)
def test_odd_answers(server: FakeServer, behaviour: str, text: str, finish_reason: str | None, outcome: str) -> None:
    """Kept as they came (case prompt-too-long-silent-empty among them), and writable as JSON."""
    answer = ask(make(server, behaviour))
    assert (answer.text, answer.finish_reason, outcome_of(answer)) == (text, finish_reason, outcome)
    assert answer.tool_calls == (behaviour == "tool")
    assert (answer.refusal is not None) == (behaviour == "refusal")
    assert (answer.usage is None) == (behaviour == "nousage")
    encode_record(answer)


def test_reasoning_and_details(server: FakeServer) -> None:
    """Reasoning is kept apart from the text; usage has its details; the fingerprint is kept."""
    answer = ask(make(server, "reasoning"))
    assert (answer.text, answer.reasoning, answer.system_fingerprint) == ("echo: hello", "two and two", "fp_1")
    assert answer.usage is not None
    assert (answer.usage.reasoning_tokens, answer.usage.cached_tokens) == (27, 8)


def test_logprobs(server: FakeServer) -> None:
    """token_nll is the sum of -ln p, confidence the geometric mean of the tokens' probabilities."""
    answer = ask(make(server, "logprobs"), logprobs=True)
    assert (answer.token_nll, answer.token_count) == (0.75, 2)
    assert answer.confidence == pytest.approx(math.exp(-0.375))
    assert ask(make(server, "stream-logprobs", stream=True)).confidence == answer.confidence


def test_logprobs_minus_infinity(server: FakeServer) -> None:
    """Case logprobs-inf-500 (2): a bare -Infinity is taken as probability 0, and no infinity reaches our own JSON."""
    answer = ask(make(server, "logprobs-inf"), logprobs=True)
    assert (answer.text, answer.confidence, answer.token_nll, answer.token_count) == ("echo: hello", 0.0, None, 2)
    line = encode_record(answer)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in our JSON"))


def test_logprobs_that_tell_nothing(server: FakeServer) -> None:
    """Case logprobs-null: null or NaN is unknown, not 0 or 1; a logprob above 0 is rounding, not a confidence above
    1.
    """
    for behaviour in ("logprobs-null", "logprobs-nan"):
        answer = ask(make(server, behaviour), logprobs=True)
        assert (answer.confidence, answer.token_nll, answer.token_count) == (None, None, None)
    assert ask(make(server, "logprobs-positive")).token_nll == 0.5


def test_logprobs_500_names_logprobs(server: FakeServer) -> None:
    """Case logprobs-inf-500 (1): the error says that logprobs were requested."""
    error = failure(make(server, "500-text"), logprobs=True)
    assert error.message == "HTTP 500: Internal Server Error (logprobs were requested)"
    assert "logprobs" not in failure(make(server, "500-text")).message


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("html", "<html><body>Welcome to the proxy"),
        ("empty-choices", "no answer in it"),
        ("badjson", "no answer in it"),
        ("cutjson", "no answer in it"),
        ("nonutf8", "no answer in it"),
        ("wrongtype", "no answer in it"),
        ("nobody", "an empty body"),
        ("error200", "the engine is sad"),
        ("gzipbomb", "longer than 64 MiB"),
        ("huge", "longer than 64 MiB"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_no_answer_under_200(server: FakeServer, behaviour: str, text: str, stream: bool) -> None:
    """HTML, cut JSON, no choices, an error object, a decompression bomb: bad_response, whether a stream was asked for
    or not.
    """
    error = failure(make(server, behaviour, stream=stream))
    assert isinstance(error, Retryable)
    kind = "incomplete_stream" if stream and behaviour == "nobody" else "bad_response"
    assert (error.kind, error.status) == (kind, 200)
    assert stream or text in error.message
    assert len(error.message) < 500


def test_error_under_200_is_classed_by_its_code(server: FakeServer) -> None:
    """{"error": {"code": 502}} under 200 is a server error, code 404 in the flat form a wrong model name."""
    error = failure(make(server, "error200-502"))
    assert (type(error), error.kind, error.status) == (Retryable, "server_error", 200)
    error = failure(make(server, "error200-flat"))
    assert (type(error), error.kind) == (Permanent, "not_found")


# --- statuses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "decision", "kind", "text"),
    [
        ("408", Retryable, "server_error", "HTTP 408"),
        ("409", Retryable, "server_error", "HTTP 409"),
        ("425", Retryable, "server_error", "HTTP 425"),
        ("500", Retryable, "server_error", "HTTP 500"),
        ("502", Retryable, "server_error", "HTTP 502"),
        ("599", Retryable, "server_error", "HTTP 599"),
        ("503-none", Retryable, "server_error", "HTTP 503"),
        ("503", Retryable, "rate_limited", "HTTP 503"),
        ("529", Retryable, "rate_limited", "HTTP 529"),
        ("429", Retryable, "rate_limited", "answered 429 as told [code rate_limit_exceeded]"),
        ("quota", Permanent, "quota", "You exceeded your current quota"),
        ("billing", Permanent, "quota", "not active"),
        ("402", Permanent, "quota", "HTTP 402"),
        ("401", Permanent, "auth", "Incorrect API key provided [code invalid_api_key] (no key was sent)"),
        ("403", Permanent, "auth", "HTTP 403"),
        ("407", Permanent, "auth", "HTTP 407"),
        ("404", Permanent, "not_found", "The model `m` does not exist"),
        (
            "redirect",
            Permanent,
            "not_found",
            "redirected to https://elsewhere.example/v1/chat/completions, which isn't",
        ),
        ("400", Permanent, "bad_request", "HTTP 400"),
        ("400param", Permanent, "bad_request", "'temperature' is 3 [param temperature, code unsupported_value]"),
        ("400flat", Permanent, "bad_request", "HTTP 400: model is required"),
        ("errorlist", Permanent, "bad_request", "wrapped in a list"),
        ("422detail", Permanent, "bad_request", "HTTP 422: body.messages: Field required"),
        ("422-text", Permanent, "bad_request", "HTTP 422: Internal Server Error"),
        ("400ctx", Permanent, "context_length", "maximum context length is 4096 tokens"),
        ("400neg", Permanent, "context_length", "max_tokens must be at least 1, got -186."),
        ("400llama", Permanent, "context_length", "exceeds the available context size"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_status_table(
    server: FakeServer, behaviour: str, decision: type, kind: str, text: str, stream: bool
) -> None:
    """#33: cases insufficient-quota-429 and negative-max-tokens-400 are here. Each is one request: no hidden retry."""
    error = failure(make(server, behaviour, stream=stream))
    assert (type(error), error.kind) == (decision, kind)
    assert text in error.message
    assert error.status == (307 if behaviour == "redirect" else int(error.message[5:8]))
    assert server.stats()["posts"] == 1


def test_prompt_refused_for_good(server: FakeServer) -> None:
    """`failif-<word>` refuses the prompts with that word alone."""
    assert failure(make(server, "failif-poison"), "with poison").kind == "bad_request"
    assert ask(make(server, "failif-poison"), "without").text == "echo: without"


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("", 1.0),
        ("-ra7", 7.0),
        ("-ms1500", 1.5),
        ("-ra0.25", 0.25),
        ("-ra86400", 86400.0),
        ("-ra0", None),
        ("-ra-5", None),
        ("-raabc", None),
        ("-rainf", None),
        ("-ranan", None),
        ("-ra", None),
        ("-none", None),
    ],
)
def test_retry_after(server: FakeServer, how: str, seconds: float | None) -> None:
    """Case retry-after-dropped: the wait reaches the error; what isn't usable is None. Capping is the retry policy's
    work.
    """
    assert failure(make(server, "429" + how)).retry_after == seconds


def test_retry_after_date() -> None:
    """A date counts from the answer's own Date, else from this host's clock; one in the past is no wait."""
    now = 1_700_000_000
    later = formatdate(now + 7, usegmt=True)
    assert retry_after({"retry-after": later, "date": formatdate(now, usegmt=True)}) == 7.0
    assert retry_after({"retry-after": later}) is None
    assert retry_after({"retry-after": formatdate(time.time() + 60, usegmt=True)}) == pytest.approx(60, abs=5)
    assert retry_after({"retry-after": "Mon, 99 Nov 2026 99:99:99 GMT"}) is None
    assert retry_after({"retry-after-ms": "x", "retry-after": "3"}) == 3.0
    assert retry_after({}) is None


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "text", "finish_reason"),
    [
        ("", "echo: hello", "stop"),
        ("stream", "echo: hello", "stop"),
        ("stream-nofinish", "The answer is 4", None),
        ("stream-nodone", "The answer is 4", "stop"),
        ("stream-tail", "1234", "length"),
        ("stream-split", "日本語 naïve 🙂", "stop"),
        ("stream-single", "The answer is 4", "stop"),
        ("stream-reasoning", "4", "stop"),
        ("null", "", "stop"),
    ],
)
def test_streams(server: FakeServer, behaviour: str, text: str, finish_reason: str | None) -> None:
    """Cases stream-ends-without-finish (1: kept, finish_reason None) and final-chunk-has-text among them; a server that
    answers whole although a stream was asked for is understood too."""
    answer = ask(make(server, behaviour, stream=True))
    assert (answer.text, answer.finish_reason) == (text, finish_reason)
    assert answer.reasoning == ("two and two" if behaviour == "stream-reasoning" else None)
    if behaviour in ("", "stream", "stream-nodone"):
        assert answer.usage is not None
        assert answer.served_model == "fake-2026-01"
    assert (answer.first_token_seconds is None) == (behaviour == "null")
    assert answer.first_token_seconds is None or 0 < answer.first_token_seconds < 10


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ("stream-cut", "incomplete_stream"),
        ("stream-close", "incomplete_stream"),
        ("stream-nothing", "incomplete_stream"),
        ("stream-bad", "bad_response"),
        ("stream-error", "server_error"),
        ("stream-error-429", "rate_limited"),
    ],
)
def test_broken_streams(server: FakeServer, behaviour: str, kind: str) -> None:
    """#34: case stream-ends-without-finish (2): a part of an answer is never an answer."""
    error = failure(make(server, behaviour, stream=True))
    assert (type(error), error.kind, error.status) == (Retryable, kind, 200)


@pytest.mark.parametrize("behaviour", ["stream-open", "stream-finish-open"])
def test_stream_left_open(server: FakeServer, behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case stream-not-closed-leaks-connection: a server that says it is done and keeps the stream open is left, in
    seconds.
    """
    monkeypatch.setattr("inferd.adapters.event_stream.FINISH_GRACE", 0.2)
    answer = ask(make(server, behaviour, stream=True, attempt_timeout=60.0))
    assert (answer.text, answer.finish_reason) == ("The answer is 4", "stop")


def test_deadline_after_the_end_of_the_answer(server: FakeServer) -> None:
    """What was complete when the deadline came is an answer."""
    answer = ask(make(server, "stream-finish-open", stream=True, attempt_timeout=0.5))
    assert answer.text == "The answer is 4"


@pytest.mark.parametrize(
    "behaviour", ["stream", "stream-bad", "stream-cut", "stream-error", "stream-close", "html", "500", "gzipbomb"]
)
def test_no_connection_leaks(server: FakeServer, behaviour: str) -> None:
    """However the answers end, there are no more sockets than threads; they go with the threads."""
    adapter = make(server, behaviour, stream=True)
    before = server.stats()["connections_open"]
    ends = threading.Barrier(5)

    def work() -> None:
        for _ in range(5):
            try:
                ask(adapter)
            except AttemptError:
                pass  # it is the connections that count here
        ends.wait(60)
        ends.wait(60)
        CARRIER.let_go()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    ends.wait(60)
    assert server.stats()["connections_open"] <= before + 4
    ours = [c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == server.port]
    assert len(ours) <= before + 4
    ends.wait(60)
    for thread in threads:
        thread.join()
    wait_until(lambda: server.stats()["connections_open"] <= before)


def test_threads_take_their_connections_along(server: FakeServer) -> None:
    """A thread that ends closes its connection at once, with the collector off."""
    adapter = make(server)
    before = server.stats()["connections_open"]
    gc.disable()
    try:
        for _ in range(5):
            thread = threading.Thread(target=lambda: (ask(adapter), CARRIER.let_go()))
            thread.start()
            thread.join()
        wait_until(lambda: server.stats()["connections_open"] <= before)
    finally:
        gc.enable()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@given(
    texts=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 2000), max_size=20),
    ascii_only=st.booleans(),
)
def test_streams_cut_anywhere(texts: list[str], newline: bytes, cuts: list[int], ascii_only: bool) -> None:
    """However the bytes are cut and the lines are ended, the text is the same."""
    chunks = [
        json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=ascii_only).encode(errors="surrogatepass")
        for text in texts
    ]
    whole = b": hi\n\n" + b"".join(map(_event, chunks)) + _event(_chunk({}, "stop")) + b"data: [DONE]\n\n"
    whole = whole.replace(b"\n", newline)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    stream = EventStream(Redactor([]))
    for start, end in pairwise(edges):
        stream.feed(whole[start:end])
    stream.end()
    assert stream.generation().text == "".join(texts)


def test_pair_split_over_events() -> None:
    """A character whose halves come in two events is put together; an event of several data lines is one."""
    stream = EventStream(Redactor([]))
    stream.feed(b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n')
    stream.feed(b'data: {"choices":\ndata: [{"delta":{"content":"\\ude42"},"finish_reason":"stop"}]}\n\n')
    stream.end()
    assert stream.generation().text == "🙂"


# --- the transport ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", ["drip", "hang", "d30000"])
@pytest.mark.parametrize("stream", [False, True])
def test_deadline(server: FakeServer, behaviour: str, stream: bool) -> None:
    """#33: case last-sample-hang: the whole call has a wall-clock limit, also when bytes keep coming."""
    started = time.monotonic()
    error = failure(make(server, behaviour, stream=stream, attempt_timeout=1.5))
    assert (type(error), error.kind) == (Retryable, "timeout")
    assert 1.4 < time.monotonic() - started < 10
    assert "within 1.5 s" in error.message


def test_nobody_listens(server: FakeServer) -> None:
    """Case all-failed-exit-zero: a refused connection and an unknown host are connection errors that name the
    address.
    """
    error = failure(make(server, base_url="http://127.0.0.1:9/v1"))
    assert (type(error), error.kind, error.status) == (Retryable, "connection", None)
    assert "http://127.0.0.1:9/v1" in error.message
    assert failure(make(server, base_url="http://no-such-host.invalid/v1")).kind == "connection"


@pytest.mark.parametrize("behaviour", ["midclose", "reset", "shut"])
def test_connection_broken(server: FakeServer, behaviour: str) -> None:
    """A connection that breaks is one attempt: on a fresh connection and on a kept one, libcurl sends nothing again."""
    adapter = make(server, f"{behaviour}x1")
    error = failure(adapter, "first")
    assert (type(error), error.kind) == (Retryable, "connection")
    assert ask(adapter, "first").text == "echo: first"
    connections = server.stats()["connections_total"]
    error = failure(adapter, "second")  # over the connection that the answer left
    assert (type(error), error.kind) == (Retryable, "connection")
    assert server.stats()["connections_total"] - connections <= 1  # this look at the statistics is one itself
    assert server.stats()["posts"] == 3


def test_not_http(server: FakeServer) -> None:
    """A TLS handshake that the other side doesn't answer ends with connect_timeout, as a connection error."""
    error = failure(make(server, base_url=server.url().replace("http:", "https:"), connect_timeout=0.5))
    assert (type(error), error.kind) == (Retryable, "connection")
    assert "within 0.5 s" in error.message


def test_256_workers_are_256_in_flight(server: FakeServer) -> None:
    """Cases pool-smaller-than-workers and pool-timeout-storm: nothing caps the connections but the threads."""
    adapter = make(server, "d1000")
    with ThreadPoolExecutor(256) as pool:
        answers = list(pool.map(lambda number: ask(adapter, f"n{number}").text, range(512)))
    assert answers == [f"echo: n{number}" for number in range(512)]
    stats = server.stats()
    assert stats["peak_in_flight"] == 256
    assert stats["max_per_body"] == 1


def test_connections_are_kept(server: FakeServer) -> None:
    """One thread, one connection, whatever the statuses and sizes of the answers."""
    adapter = make(server, "500x1")
    before = server.stats()["connections_total"]
    for number in range(20):
        failure(adapter, "x" * number * 10_000)
        ask(adapter, "x" * number * 10_000)
    assert server.stats()["connections_total"] - before <= 2


def test_proxy_from_the_environment(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """http_proxy is used, NO_PROXY heeded; a `local` model's own server is asked directly."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert ask(make(server, base_url="http://model.invalid/v1")).text == "echo: hello"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert failure(make(server)).kind == "connection"
    assert ask(make(server, type="local")).text == "echo: hello"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert ask(make(server)).text == "echo: hello"


@pytest.mark.parametrize("between", ["\n", "\r\n", ",\n", ", ", " "])
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_no_proxy_over_several_lines(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, name: str, between: str
) -> None:
    """Case no-proxy-newline: as a multi-line YAML text leaves it."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(name, f"localhost{between}127.0.0.1{between}example.com\n")
    assert ask(make(server)).text == "echo: hello"


def test_certificates_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown authority is refused; CURL_CA_BUNDLE, SSL_CERT_FILE and SSL_CERT_DIR name one to trust."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with FakeServer(cert=cert, key=key) as server:
        error = failure(make(server))
        assert (type(error), error.kind) == (Retryable, "connection")
        assert "certificate" in error.message
        for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE"):
            monkeypatch.setenv(name, str(cert))
            assert ask(make(server)).text == "echo: hello"
            monkeypatch.delenv(name)
        folder = tmp_path / "by-hash"
        folder.mkdir()
        name = subprocess.check_output(["openssl", "x509", "-hash", "-noout", "-in", str(cert)], text=True).strip()
        shutil.copy(cert, folder / f"{name}.0")
        monkeypatch.setenv("SSL_CERT_DIR", str(folder))
        assert ask(make(server)).text == "echo: hello"


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", ["echo-key", "echo-key-422"])
def test_echoed_secrets_are_masked(server: FakeServer, behaviour: str) -> None:
    """Case error-body-echoes-secret: no key and no header value in the text, which is short and without control
    characters.
    """
    adapter = make(
        server,
        behaviour,
        api_key_env="KEY",
        headers={"X-Team": "team-${TEAM}", "X-Other": "literal-value"},
        secrets={"KEY": KEY, "TEAM": "blue-secret"},
    )
    error = failure(adapter)
    assert type(error) is Permanent
    for secret in (KEY, "SECRET123", "blue-secret", "literal-value"):
        assert secret not in str(error)
        assert secret not in repr(error.args)
    assert "[redacted]" in error.message
    assert len(error.message) < 450
    assert error.message.isprintable()
    assert error.__context__ is None or KEY not in str(error.__context__)


@given(
    secret=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=4, max_size=40),
    before=st.integers(0, 66_000),
    limit=st.integers(1, 1000),
)
def test_no_secret_is_quoted(secret: str, before: int, limit: int) -> None:
    """Raw, in JSON and in a URL, wherever it stands, also at the cut."""
    redactor = Redactor([secret])
    told = redactor.quote("~" * before + f" {secret} {json.dumps(secret)} {secret.upper()}", limit)
    assert secret not in told.replace("~", "") or secret in "[redacted]..."
    assert len(told) <= 12 * limit + 20


def test_secret_at_the_cut() -> None:
    """A text that is a long row of secrets is quoted without the start of one."""
    secret = "s3cr3t" * 500
    told = Redactor([secret]).quote(secret * 100, 100_000)
    assert "s3cr3t" not in told


def test_secrets_of_an_address() -> None:
    """User, password and long query values are secrets; what is shown has none of them."""
    url = "https://me:p%40ssword@h:8443/v1/?key=abcdefgh1234&v=1#x"
    assert public_url(url) == "https://h:8443/v1"
    assert {"p%40ssword", "p@ssword", "me:p@ssword", "abcdefgh1234"} <= set(url_secrets(url))
    assert url_secrets("http://h/v1?v=1") == []


def test_transport_is_lean(server: FakeServer) -> None:
    """A handle is made once a thread: the second call makes no new one."""
    adapter = make(server)
    handles = set()
    for _ in range(2):
        reply = adapter.transport.exchange(adapter.call(PROMPT, TASK))
        assert isinstance(reply, Reply)
        assert reply.status == 200
        assert reply.headers()["content-type"] == "application/json"
        handles.add(adapter.transport._threads.handle)
    assert len(handles) == 1
