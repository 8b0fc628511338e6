"""Many transfers on one thread: each is given back once, whatever becomes of it, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.adapters.multi import Multi
from inferd.adapters.openai import OpenAIAdapter
from inferd.adapters.transport import Feed, Reply, Settle, Transport
from shared.config import ModelConfig
from shared.errors import AttemptError, Retryable
from shared.records import Generation
from tests.asking import endpoint, job
from tests.server import FakeServer


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Post:
    """A call with a body of one's own and functions that do what they like."""

    def __init__(self, body: Any, feed: Feed | None = None, settle: Settle | None = None) -> None:
        self.body = body
        self.feed = feed
        self.settle = settle

    def answer(self, came: Reply | Exception) -> Generation:
        raise NotImplementedError


def transport(server: FakeServer, behaviour: str = "", **more: Any) -> Transport:
    model = ModelConfig(abbr="m", **more)
    return Transport(f"{server.url(behaviour)}/chat/completions", model, headers=[], timeout=20.0)


@contextmanager
def opened(connections: int = 16) -> Iterator[Multi[Any]]:
    multi: Multi[Any] = Multi(connections)
    try:
        yield multi
    finally:
        multi.close()


def finish(multi: Multi[Any]) -> dict[Any, Reply | Exception]:
    """What comes of all that runs; each token once."""
    came: list[tuple[Any, Reply | Exception]] = []
    while len(multi):
        came += multi.poll(10.0)
    assert multi.poll(0.0) == []
    assert max(Counter(token for token, _ in came).values(), default=1) == 1
    return dict(came)


OUTCOMES = {
    "": "echo",
    "d30": "echo",
    "drip": "timeout",
    "hang": "timeout",
    "reset": "connection",
    "d20/reset": "connection",
    "shut": "connection",
    "midclose": "connection",
    "garbled": "bad_response",
    "500": "server_error",
    "429": "rate_limited",
    "badgzip": "bad_response",
    "stream": "echo",
    "stream-cut": "incomplete_stream",
    "stream-close": "incomplete_stream",
    "stream-bad": "bad_response",
    "stream-finish-open": "The answer is 4",
}
"""What a request that is treated so comes to, with a deadline of 0.3 s. Streams are asked for as such."""


@settings(max_examples=12)
@given(
    waves=st.lists(st.lists(st.sampled_from(sorted(OUTCOMES)), max_size=12), min_size=1, max_size=6),
    polls=st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_each_transfer_ends_once_and_with_its_own_answer(
    shared_server: FakeServer, waves: list[list[str]], polls: list[int]
) -> None:
    """However many are started between two polls, and whatever the others over the same kept connections come to."""
    whole, streamed = (endpoint(shared_server.url(), attempt_timeout=0.3, stream=stream) for stream in (False, True))
    calls: dict[int, Any] = {}
    came: list[tuple[int, Reply | Exception]] = []
    with opened() as multi:
        for wave, times in zip(waves, polls, strict=False):
            for behaviour in wave:
                number = len(calls)
                adapter = streamed if behaviour.startswith("stream") else whole
                assert isinstance(adapter, OpenAIAdapter)
                request = job(number, f"no{number} BEHAVE={behaviour}/v1").request
                calls[number] = adapter.call(request.prompt, request.task)
                multi.start(adapter.transport, calls[number], number)
            for _ in range(times):
                came += multi.poll(0.01)
        came += finish(multi).items()
    assert sorted(number for number, _ in came) == sorted(calls)
    expected = [OUTCOMES[behaviour] for wave in waves for behaviour in wave]
    for number, what in came:
        assert expected[number] == outcome(calls[number], what, number)


def outcome(call: Any, came: Reply | Exception, number: int) -> str:
    try:
        text: str = call.answer(came).text
    except AttemptError as error:
        return error.kind
    return "echo" if f"echo: no{number} " in text else text


def test_nothing_limits_how_many(server: FakeServer) -> None:
    """More at once than connections are kept, all to one host."""
    carrier = transport(server, "d500")
    with opened(connections=4) as multi:
        for number in range(400):
            multi.start(carrier, Post(b"{}"), number)
        assert len(multi) == 400
        assert len(finish(multi)) == 400
    assert server.stats()["peak_in_flight"] == 400


def test_connections_are_kept_and_let_go_of(server: FakeServer) -> None:
    """Wave after wave goes over the connections of the first; closing leaves no file open."""
    gc.collect()  # what other tests left behind shall not go in between
    descriptors = psutil.Process().num_fds()
    carrier = transport(server)
    before = server.stats()["connections_total"]
    with opened(connections=30) as multi:
        for _ in range(20):
            for number in range(30):
                multi.start(carrier, Post(b"{}"), number)
            finish(multi)
        assert server.stats()["connections_total"] - before <= 31  # with the one that this asks over
    assert psutil.Process().num_fds() == descriptors


def test_thousands_of_failures_leave_nothing_behind(server: FakeServer) -> None:
    """Sockets, numbers of sockets that are used again, handles: after 2000 broken connections all is as before."""
    carriers = [transport(server, behaviour) for behaviour in ("", "reset", "shut", "midclose")]
    with opened(connections=50) as multi:
        descriptors: list[int] = []
        for _ in range(10):
            for number in range(200):
                multi.start(carriers[number % 4], Post(b"{}"), number)
            kinds = Counter(what.kind if isinstance(what, Retryable) else "ok" for what in finish(multi).values())
            assert kinds == {"ok": 50, "connection": 150}
            descriptors.append(psutil.Process().num_fds())
        assert max(descriptors) <= descriptors[0] + 50  # the connections that are kept
        assert not multi._running
        assert sum(map(len, multi._idle.values())) == 200


@pytest.mark.parametrize("carried_by", ["multi", "thread"])
@pytest.mark.parametrize("raised", [ValueError("odd"), SystemExit("odd"), KeyboardInterrupt("odd")])
@pytest.mark.parametrize("where", ["feed", "settle"])
def test_what_a_call_raises_ends_that_call(
    server: FakeServer, carried_by: str, raised: BaseException, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing passes through libcurl, where a SystemExit would end the process; the next call goes well."""

    def fail(*_: Any) -> Any:
        raise raised

    bad = Post(b"{}", fail if where == "feed" else lambda piece: None, fail if where == "settle" else None)
    behaviour = "hang" if where == "settle" else ""
    if carried_by == "thread":
        came = transport(server, behaviour).exchange(bad)
        after = transport(server).exchange(Post(b"{}"))
    else:
        with opened() as multi:
            multi.start(transport(server, behaviour), bad, "bad")
            multi.start(transport(server), Post(b"{}"), "after")
            both = finish(multi)
        came, after = both["bad"], both["after"]
    assert "odd" in str(came)
    assert isinstance(came, Exception)
    assert came is raised or isinstance(came, RuntimeError)
    assert isinstance(after, Reply)
    assert after.status == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("body", ["text", None, 7])
def test_a_body_that_is_none(server: FakeServer, body: Any) -> None:
    """Is refused where the call is started; nothing of it stays."""
    with opened() as multi:
        with pytest.raises(TypeError, match="a call's body must be bytes, not "):
            multi.start(transport(server), Post(body), 1)
        assert len(multi) == 0
        assert finish(multi) == {}


def test_waking(server: FakeServer) -> None:
    """From any thread ends a poll that waits for nothing; of one that is closed it is nothing."""
    multi: Multi[int] = Multi(1)
    started = time.monotonic()
    waker = threading.Timer(0.05, multi.wake)
    waker.start()
    assert multi.poll(60.0) == []
    assert time.monotonic() - started < 30
    waker.join()
    before = os.dup(0)  # takes the lowest free number, as the eventfd's may be next
    multi.close()
    taken = [os.dup(0) for _ in range(3)]
    multi.wake()
    for descriptor in (before, *taken):
        os.close(descriptor)


def test_closing_tells_what_it_breaks_off(server: FakeServer) -> None:
    """And the server sees them go."""
    multi: Multi[int] = Multi(100)
    for number in range(100):
        multi.start(transport(server, "hang"), Post(b"{}"), number)
    while server.stats()["in_flight"] < 100:
        assert multi.poll(0.05) == []
    assert sorted(multi.close()) == list(range(100))
    deadline = time.monotonic() + 30
    while server.stats()["in_flight"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
