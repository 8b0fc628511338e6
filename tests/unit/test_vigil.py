"""[notify]: what is news, and a webhook that hangs, refuses, fails or lies holds nothing up and learns no secret."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import structlog

import shared.vigil
from shared import webhook
from shared.clock import SystemClock
from shared.config import NotifyConfig
from shared.errors import SuiteError
from shared.layout import WorkDir
from shared.suite import asked_for, parse_suite
from shared.vigil import Judge, Vigil
from shared.webhook import TRIES, post, text_of, url_fault
from tests.daemons.by_hand import planned, say
from tests.harness import until

SECRET = "T0PS3CRET"


@contextmanager
def hook(*answers: int | str) -> Iterator[tuple[str, list[Any]]]:
    """A webhook, its URL and the bodies that it got. It gives these answers, the last one for ever: a status, `hang`
    (accepts, and says nothing), or `trickle` (a header that never ends).
    """
    bodies: list[Any] = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = answers[min(len(bodies), len(answers) - 1)]
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if answer == "hang":
                ended.wait()
            elif answer == "trickle":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                while not ended.wait(0.02):
                    self.wfile.write(b"x")
            elif isinstance(answer, int):
                self.send_response(answer)
                self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/elsewhere")
                self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/services/{SECRET}", bodies
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "DEADLINE", 0.3)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.parametrize(
    ("answers", "tries", "fault"),
    [
        ((200,), 1, ""),
        ((204,), 1, ""),
        ((500, 200), 2, ""),
        ((429, 200), 2, ""),
        ((503,), TRIES, "status 503"),
        ((404,), 1, "status 404"),
        ((302,), 1, "status 302"),
        (("hang",), TRIES, "no answer within"),
        (("trickle",), TRIES, "no answer within"),
    ],
)
def test_one_retry_within_deadlines(answers: tuple[int | str, ...], tries: int, fault: str) -> None:
    """What may pass is tried once more; what won't isn't; no redirect is followed; no fault tells the URL."""
    waited: list[float] = []
    with hook(*answers) as (url, bodies):
        said = post(url, {"a": 1}, waited.append)
    assert bodies == [{"a": 1}] * tries
    assert len(waited) == tries - 1
    assert said.startswith(fault)
    assert bool(said) == bool(fault)
    assert SECRET not in said


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://127.0.0.1:x/", "http://[::1", "http://a.invalid/"])
def test_nobody_there(url: str) -> None:
    """Refused, no address, no such host: a fault, and nothing is raised."""
    said = post(url + SECRET, {}, lambda seconds: None)
    assert said.startswith("no ")
    assert SECRET not in said


def test_what_is_a_url() -> None:
    """Anything but http and https is refused, and never quoted."""
    assert url_fault("https://hooks.example/x") == ""
    for url in (f"file:///{SECRET}", SECRET, f"https://a/ {SECRET}", f"http://a/{SECRET}\r\nX: y"):
        assert "https://" in url_fault(url)
        assert SECRET not in url_fault(url)


def test_text_that_mentions_nobody() -> None:
    """A reason that a model or an endpoint wrote stays one plain, bounded line."""
    assert text_of("w", "", "<!channel> a&b\n\x1b[31m") == "w: &lt;!channel&gt; a&amp;b  [31m"
    assert len(text_of("<" * 99999)) == webhook.MAX_TEXT


def test_a_stall_is_told_once() -> None:
    """When nothing was answered for so long; again only after something was; never while nothing is expected."""
    judge = Judge(10.0, 0.0, "completed", "pairs_failed")
    seen = [
        judge.stall({"completed": done, "in_flight": 3, "retries_waiting": 2}, now, idle=idle)
        for now, done, idle in (
            (1, 5, False), (10, 5, False), (12, 5, False), (13, 5, False), (30, 6, False), (41, 6, True),
            (50, 6, False), (51, 6, False), (52, 6, False),
        )
    ]  # fmt: skip
    assert [at for at, news in enumerate(seen) if news] == [2, 7]
    assert seen[2] is not None
    assert "no request was answered for 11 s (3 in flight, 2 wait" in seen[2].reason


def test_failures_are_counted_once() -> None:
    """How many more, at each look."""
    judge = Judge(1.0, 0.0, "completed", "pairs_failed")
    assert [judge.failures({"pairs_failed": failed}) for failed in (0, 2, 2, 3)] == [0, 2, 0, 1]


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    return planned(tmp_path, {"d": 2})


def vigil(work: WorkDir, monkeypatch: pytest.MonkeyPatch, url: str, counters: dict[str, float], **more: Any) -> Vigil:
    monkeypatch.setenv("HOOK_URL", url)
    config = NotifyConfig(url_env="HOOK_URL", **more)
    return Vigil(config, work, "inferd", SystemClock(), structlog.get_logger(), lambda: counters)


def test_news_of_a_run(work: WorkDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair that failed with its reason, then the end; each body has the event, the counts and a text."""
    say(work, b"", state="fail", reason="3 failed: auth: 401")
    with hook(200) as (url, bodies):
        told = vigil(work, monkeypatch, url, {"pairs_failed": 1.0})
        told.start()
        told.end(3, "")
    failure, end = bodies
    assert set(failure) == {
        "schema", "text", "event", "work_dir", "daemon", "host", "reason", "counts", "time",
    }  # fmt: skip
    assert (failure["event"], failure["work_dir"], failure["counts"]) == ("failure", "work", {"pairs_failed": 1.0})
    assert failure["text"] == "work: inferd: failure: 1 more failed: m/d: 3 failed: auth: 401"
    assert (end["event"], end["reason"]) == ("failure", "ended with status 3")


@pytest.mark.parametrize(
    ("code", "stopped", "event"),
    [(0, False, "finish"), (3, True, "finish"), (4, False, "budget"), (1, False, "failure")],
)
def test_the_end_is_told(work: WorkDir, monkeypatch: pytest.MonkeyPatch, code: int, stopped: bool, event: str) -> None:
    """By the exit status and whether somebody asked for it; and only the events that are wanted."""
    with hook(200) as (url, bodies):
        for events in ((event,), tuple({"stall", "failure", "budget", "finish"} - {event})):
            told = vigil(work, monkeypatch, url, {}, events=events)
            told.start()
            told.end(code, "why", stopped=stopped)
    assert [(body["event"], body["reason"]) for body in bodies] == [(event, f"ended with status {code}: why")]


def test_a_hook_that_hangs_holds_nothing_up(work: WorkDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for its patience, not for the hook."""
    monkeypatch.setattr(webhook, "DEADLINE", 60.0)
    monkeypatch.setattr(structlog, "get_logger", lambda: structlog.testing.CapturingLogger())  # it outlives the test
    with hook("hang") as (url, bodies):
        told = vigil(work, monkeypatch, url, {})
        told.start()
        told.end(0, "", patience=0.2)
        until(lambda: bodies, "the hook has it")  # and hangs with it still


def test_a_stall_is_posted_while_it_lasts(work: WorkDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any end: nothing was answered for `stall_after` seconds, and how to find out why."""
    monkeypatch.setattr(shared.vigil, "LOOK_EVERY", 0.01)
    with hook(200) as (url, bodies):
        told = vigil(work, monkeypatch, url, {"completed": 5.0, "in_flight": 2.0}, stall_after=0.02)
        told.start()
        (stall,) = until(lambda: bodies, "the stall is told")
        told.end(0, "")
    assert (stall["event"], stall["counts"]) == ("stall", {"completed": 5.0, "in_flight": 2.0})
    assert "evalctl why" in stall["text"]
    assert [body["event"] for body in bodies] == ["stall", "finish"]


@pytest.mark.parametrize("url", ["", f"ftp://{SECRET}"])
def test_no_url_no_thread(work: WorkDir, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """An unset variable, or what is no URL: said once without it, and the daemon goes on."""
    before = threading.active_count()
    with structlog.testing.capture_logs() as logs:
        told = vigil(work, monkeypatch, url, {})
        told.start()
        told.end(0, "")
    assert threading.active_count() == before
    assert [line["event"] for line in logs] == ["no webhook will be told"]
    assert SECRET not in str(logs)


def test_the_suite(tmp_path: Path) -> None:
    """The variable's name, never the URL; unset is told where it is needed; nothing is asked anew for it."""
    (tmp_path / "d.jsonl").write_text('{"task_id":"t","prompt":"p","targets":["x"]}\n')
    text = '[[models]]\nabbr = "r"\ntype = "rule"\n[[datasets]]\nabbr = "d"\npath = "d.jsonl"\n'
    table = '[notify]\nurl_env = "HOOK_URL"\nevents = ["stall"]\nstall_after = 60\n'
    suite = parse_suite(text + table, "s", tmp_path, {"HOOK_URL": "https://a"})
    assert suite.notify == NotifyConfig(url_env="HOOK_URL", events=("stall",), stall_after=60.0)
    assert asked_for(text + table) == asked_for(text)
    for wrong, told, env in (
        (table, "HOOK_URL", {}),
        (f'[notify]\nurl_env = "https://{SECRET}"\n', "such as WEBHOOK_URL", None),
        ('[notify]\nevents = ["stal"]\n', "notify.events", None),
    ):
        with pytest.raises(SuiteError, match="notify") as raised:
            parse_suite(text + wrong, "s", tmp_path, env)
        assert told in str(raised.value)
        assert SECRET not in str(raised.value)
