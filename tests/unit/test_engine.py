"""The engine: every job that is submitted is reported exactly once, whatever an adapter or the network does."""

from __future__ import annotations

import asyncio
import gc
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.adapters import CarriedAdapter, build_adapter, check_adapter, is_carried
from inferd.adapters.multi import Multi
from inferd.adapters.transport import Call, Reply, Transport
from inferd.ask import Ended
from shared.config import InferConfig, ModelConfig
from shared.records import Generation, Prompt, TaskSpec
from tests.asking import HOWS, Job, Reports, ask, endpoint, engine, job
from tests.faults.endpoint import Endpoint
from tests.server import FakeServer

EXTEND = Path(__file__).parents[2] / "docs" / "extend.md"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def outcomes(ended: list[tuple[Job, Ended]]) -> dict[int, str]:
    """What each job came to; each is there once."""
    counts = Counter(one.request.doc_id for one, _ in ended)
    assert max(counts.values(), default=1) == 1
    return {one.request.doc_id: what.error.kind if what.error else what.outcome for one, what in ended}


def raising(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: Any) -> Any:
        raise error

    return raise_it


class Odd:
    """An adapter whose calls do what `acts` says of their prompts; others are answered."""

    def __init__(self, url: str, acts: dict[str, Callable[..., Any]], making: bool) -> None:
        self.model_id = "odd"
        self.transport = Transport(f"{url}/chat/completions", ModelConfig(abbr="odd"), headers=[], timeout=20.0)
        self._acts = acts
        self._making = making

    def call(self, prompt: Prompt, task: TaskSpec) -> Call:
        act = self._acts.get(task.prompt or "")
        if act is not None and self._making:
            made: Call = act()
            return made
        return _OddCall(act)

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        call = self.call(prompt, task)
        return call.answer(self.transport.exchange(call))


class _OddCall:
    feed = None
    settle = None

    def __init__(self, act: Callable[..., Any] | None, body: Any = b"{}") -> None:
        self.body = body
        self._act = act

    def answer(self, came: Reply | Exception) -> Generation:
        assert isinstance(came, Reply)
        given: Generation = self._act() if self._act else Generation(text="good")
        return given


class _Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("nor can it be told")


RAISED: list[BaseException] = [
    ValueError("x"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    _Mute(),
]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("making", [True, False])
def test_a_defect_of_an_adapter_ends_one_request(server: FakeServer, how: Any, making: bool) -> None:
    """Whatever it raises or returns, and from wherever: the jobs before and after it are answered."""
    acts = {f"raise {number}": raising(error) for number, error in enumerate(RAISED)}
    acts["none"] = lambda: None
    acts["a number"] = lambda: 7
    if making:
        acts["text for a body"] = lambda: _OddCall(None, "text")
    texts = [word for name in acts for word in (name, "good")]
    ended = ask(how, Odd(server.url(), acts, making), texts)
    for text, what in zip(texts, ended, strict=True):
        assert (what.error.kind if what.error else what.outcome) == ("ok" if text == "good" else "adapter")
    assert server.stats()["posts"] == len(texts) if not making else len(acts)


@settings(max_examples=15)
@given(
    batches=st.lists(
        st.lists(st.sampled_from(["", "d5", "500", "reset", "shut", "midclose"]), max_size=30), min_size=1, max_size=6
    )
)
def test_jobs_of_many_threads_are_each_reported_once(shared_server: FakeServer, batches: list[list[str]]) -> None:
    """Submitted at once by several threads, while others end; none is lost asleep."""
    reports = Reports()
    carrier = engine(endpoint(shared_server.url()), reports, size=200)
    jobs = [
        [job(100 * batch + number, f"BEHAVE={how}/v1") for number, how in enumerate(hows)]
        for batch, hows in enumerate(batches)
    ]
    threads = [threading.Thread(target=lambda part=part: [carrier.submit(one) for one in part]) for part in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = sum(map(len, jobs))
    found = outcomes(reports.wait(count))
    kinds = {"": "ok", "d5": "ok", "500": "server_error"}
    for batch, hows in enumerate(batches):
        for number, how in enumerate(hows):
            assert found[100 * batch + number] == kinds.get(how, "connection")
    carrier.end()
    assert carrier.wait(10.0) == 0
    assert len(reports.ended) == count


@pytest.fixture
def many() -> Iterator[int]:
    """How many connections may be open here, of the 2500 that are wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3000 if hard == resource.RLIM_INFINITY else min(hard, 3000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield wanted - 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_in_flight(server: FakeServer, many: int) -> None:
    """All at once, on one thread; half of the connections are reset; then no file is left open."""
    count = many
    gc.collect()  # what other tests left behind shall not go in between
    descriptors, threads = psutil.Process().num_fds(), threading.active_count()
    reports = Reports()
    carrier = engine(endpoint(server.url()), reports, size=count)
    for number in range(count):
        carrier.submit(job(number, f"n{number} BEHAVE=d4000/{'reset' if number % 2 else ''}/v1"))
    found = outcomes(reports.wait(count))
    assert Counter(found.values()) == {"ok": count // 2, "connection": count // 2}
    assert all((what == "connection") == bool(number % 2) for number, what in found.items())
    stats = server.stats()
    assert (stats["peak_in_flight"], stats["posts"], stats["max_per_body"]) == (count, count, 1)
    assert threading.active_count() == threads + 1
    carrier.end()
    assert carrier.wait(10.0) == 0
    assert psutil.Process().num_fds() == descriptors


def test_a_server_that_is_killed_and_comes_again(tmp_path: Path) -> None:
    """What was on its way is a connection error each, what comes after it is answered."""
    with Endpoint(tmp_path) as far:
        assert far.server is not None
        reports = Reports()
        carrier = engine(endpoint(far.server.url()), reports, size=200)
        done = 0
        for round_ in range(3):
            for number in range(done, done + 200):
                carrier.submit(job(number, f"n{number} BEHAVE=hang/v1"))
            while len(far.asked()) < 200 * (round_ + 1) + 100 * round_:
                time.sleep(0.01)
            far.kill()
            assert set(outcomes(reports.wait(done + 200)[done:]).values()) == {"connection"}
            done += 200
            far.start()
            for number in range(done, done + 100):
                carrier.submit(job(number, f"n{number}"))
            assert set(outcomes(reports.wait(done + 100)[done:]).values()) == {"ok"}
            done += 100
        carrier.end()
        assert carrier.wait(10.0) == 0
        assert len(outcomes(reports.ended)) == done


def test_a_host_without_an_address(server: FakeServer) -> None:
    """Each of many is told so, and what another model is asked goes on meanwhile."""
    reports, others = Reports(), Reports()
    lost = engine(endpoint("http://no-such-host.invalid/v1", connect_timeout=2.0), reports, size=300)
    found = engine(endpoint(server.url()), others, size=300)
    for number in range(300):
        lost.submit(job(number))
        found.submit(job(number, f"n{number}"))
    assert set(outcomes(others.wait(300)).values()) == {"ok"}
    assert set(outcomes(reports.wait(300)).values()) == {"connection"}
    for carrier in (lost, found):
        carrier.end()
        assert carrier.wait(10.0) == 0


def test_a_model_that_hangs_holds_up_no_other(server: FakeServer) -> None:
    """Each has its own engine."""
    hung, well = Reports(), Reports()
    hanging = engine(endpoint(server.url("hang")), hung, size=200)
    other = engine(endpoint(server.url()), well, size=200)
    for number in range(200):
        hanging.submit(job(number))
    while server.stats()["in_flight"] < 200:
        time.sleep(0.01)
    for number in range(1000):
        other.submit(job(number, f"n{number}"))
    assert set(outcomes(well.wait(1000)).values()) == {"ok"}
    assert hung.ended == []
    hanging.end()
    other.end()
    assert other.wait(10.0) == 0
    assert hanging.wait(0.0) == 200  # broken off, and told how many
    assert hung.ended == []


def test_when_libcurl_cant_go_on_the_engine_starts_over(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was on its way is reported as lost, to be asked again; what is submitted then is answered."""
    reports = Reports()
    carrier = engine(endpoint(server.url()), reports)
    broken = threading.Event()
    poll = Multi.poll

    def poll_or_break(self: Multi[Any], timeout: float) -> Any:
        if broken.is_set():
            broken.clear()
            raise OSError("out of something")
        return poll(self, timeout)

    monkeypatch.setattr(Multi, "poll", poll_or_break)
    for number in range(20):
        carrier.submit(job(number, f"n{number} BEHAVE=hang/v1"))
    while server.stats()["in_flight"] < 20:
        time.sleep(0.01)
    broken.set()
    carrier.submit(job(20, "n20 BEHAVE=hang/v1"))
    ended = reports.wait(21)
    assert set(outcomes(ended).values()) == {"connection"}
    assert {what.message for _, what in ended} == {"all connections were lost: OSError: out of something"}
    carrier.submit(job(21))
    assert outcomes(reports.wait(22))[21] == "ok"
    carrier.end()
    assert carrier.wait(10.0) == 0


def test_ending_while_nothing_or_something_is_in_flight(server: FakeServer) -> None:
    """At any moment, from another thread: the engine ends once what it has is reported, and says nothing after it."""
    adapter = endpoint(server.url())
    for count in (0, 1, 5) * 20:
        reports = Reports()
        carrier = engine(adapter, reports)
        for number in range(count):
            carrier.submit(job(number))
        carrier.end()
        assert carrier.wait(10.0) == 0
        assert len(outcomes(reports.ended)) == count
        carrier.end()  # as a late signal may


@pytest.mark.parametrize("how", HOWS)
def test_the_adapter_of_the_documents(
    server: FakeServer, how: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docs/extend.md: the example that an engine can carry works as it stands, by both transports."""
    found = re.search(r"```python\n# my_endpoint\.py\n(.*?)```", EXTEND.read_text(), re.DOTALL)
    assert found
    (tmp_path / "my_endpoint.py").write_text(found[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MY_KEY", "a-key-of-mine")

    def adapter(behaviour: str) -> CarriedAdapter:
        options = {"url": f"{server.url(behaviour)}/chat/completions"}
        model = ModelConfig(abbr="m", type="my_endpoint:MyEndpoint", options=options)
        assert check_adapter(model) == []
        made = build_adapter(model, infer=InferConfig(), secret=lambda name: None)
        assert is_carried(made)
        return made

    assert [what.outcome for what in ask(how, adapter(""), ["a", "b"])] == ["ok", "ok"]
    for behaviour, kind in (("429", "rate_limited"), ("echo-key", "bad_request"), ("reset", "connection")):
        (what,) = ask(how, adapter(behaviour))
        assert what.error is not None
        assert what.error.kind == kind
        assert "a-key-of-mine" not in what.message
