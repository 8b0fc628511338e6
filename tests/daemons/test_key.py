"""An API key appears in no file, log line, error, status or process title, whatever the endpoint says of it."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import psutil
import pytest

from shared.layout import WorkDir
from tests.daemons.runs import tasks
from tests.harness import Process, evalctl, evald, inferd, journal, openai, submit, until, write_suite
from tests.server import FakeServer

KEY = "sk-MARKED-3f9c1d27"
OTHER = "team/secret+word=="
PASSWORD = "proxy-PASSWORD-77e1"
ENV = {"TANDEM_TEST_KEY": KEY, "TANDEM_TEST_OTHER": OTHER}


class Telltale:
    """A user's adapter that puts the key into its error."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def generate(self, prompt: Any, task: Any) -> Any:
        raise RuntimeError(f"refused: key {os.environ['TANDEM_TEST_KEY']} is not known")


def _titles(process: Process) -> str:
    """The command lines and names of the process, its threads and what it started; its environment is for its own user
    alone.
    """
    told = []
    try:
        parent = psutil.Process(process.process.pid)
        for each in (parent, *parent.children(recursive=True)):
            folder = Path(f"/proc/{each.pid}")
            told += [path.read_text() for path in (folder / "cmdline", *folder.glob("task/*/comm"))]
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        pass  # it ended meanwhile
    return "\n".join(told)


def _run(folder: Path, models: list[dict[str, Any]], env: dict[str, str]) -> tuple[WorkDir, str]:
    """The whole way, from the suite to the report; what all that took part in it said, and what they were called."""
    suite = write_suite(folder / "suite", models, {"d": tasks(6)}, infer={"max_attempts": 2})
    work = WorkDir(folder / "work")
    submit(suite, work, env=env)
    asking = inferd(work, "-v", env=env)
    until(lambda: not asking.running or any(journal(work, model["abbr"]) for model in models), "an attempt ended")
    said = _titles(asking)
    asking.wait()
    scoring = evald(work, "-v", env=env)
    until(lambda: not scoring.running or work.eval_heartbeat.exists(), "evald runs")
    said += _titles(scoring)
    scoring.wait()
    shown = [
        evalctl("status", "-w", work.root),
        evalctl("status", "-w", work.root, "--json"),
        evalctl("report", "-w", work.root, "--json"),
        evalctl("report", "-w", work.root, "--markdown"),
    ]
    for process in shown:
        process.wait()
    return work, said + "".join(process.out + process.err for process in (asking, scoring, *shown))


def _is_nowhere(folder: Path, said: str, secrets: tuple[str, ...]) -> None:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(found) > 10
    found["what was said"] = said.encode()
    for secret in secrets:
        assert [name for name, content in found.items() if _shows(content, secret)] == []


def _shows(content: bytes, secret: str) -> bool:
    """Whether the secret is in it: as it is, or as writers of JSON, URLs, HTML, UTF-16 and base64 have it."""
    text = content.decode("utf-8", "replace")
    plain = html.unescape(unquote(text))
    plain = re.sub(r"\\+(?:u00|x)([0-9a-fA-F]{2})", lambda code: chr(int(code[1], 16)), plain)
    plain = re.sub(r"\\+(?=[/\"'])|\0", "", plain)
    forms = [secret]
    for shift in range(3):  # where it may begin in a longer text; without the characters that its neighbours share
        coded = b64encode(b"\0" * shift + secret.encode()).decode().rstrip("=")
        forms.append(coded[shift + 1 : -1])
    return any(form.lower() in told.lower() for form in forms for told in (text, plain))


@pytest.mark.parametrize("behaviour", ["echo-key", "echo-key-422", "401", "d1", "hang"])
def test_the_key_is_nowhere(tmp_path: Path, behaviour: str) -> None:
    """#32: error bodies that echo it, refusals of it, answers, timeouts, and an adapter that raises with it in its
    text.
    """
    with FakeServer() as server:
        models = [
            openai(
                server.url(behaviour),
                api_key_env="TANDEM_TEST_KEY",
                headers={"X-Team": "${TANDEM_TEST_OTHER}"},
                attempt_timeout=0.5,
            ),
            {"abbr": "telltale", "type": "tests.daemons.test_key:Telltale"},
        ]
        work, said = _run(tmp_path, models, ENV)
        assert server.stats()["posts"] > 0
    _is_nowhere(tmp_path, said, (KEY, OTHER))
    assert any(line.message for line in journal(work, "telltale")), "the telltale adapter was asked"


# --- echoes in odd forms ----------------------------------------------------------------------------------------------


class Echo(NamedTuple):
    """What a server makes of the secrets it was sent."""

    status: int
    body: Callable[[str], bytes]
    headers: Callable[[str], dict[str, str]] = lambda told: {}
    reason: Callable[[str], str] = lambda told: "Odd"


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "code": "some_code"}}).encode()


def _answer(text: str = "1", **more: Any) -> bytes:
    message = {"role": "assistant", "content": text} | more.pop("message", {})
    choice = {"index": 0, "message": message, "finish_reason": "stop"} | more.pop("choice", {})
    return json.dumps({"model": "echo-1", "choices": [choice], **more}).encode()


def _events(*pieces: bytes) -> bytes:
    return b"".join(b"data: %b\n\n" % piece for piece in (*pieces, b"[DONE]"))


def _delta(**delta: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


def _in_three(told: str) -> list[str]:
    return [told[:11], told[11:15], told[15:]]


PLAIN = {"Content-Type": "text/plain"}
ECHOES = {
    "json": Echo(401, _error),
    "json in json": Echo(400, lambda told: _error(json.dumps({"detail": told, "sent": [told]}))),
    "slashes escaped": Echo(400, lambda told: _error(json.dumps({"detail": told}).replace("/", "\\/"))),
    "escapes in plain text": Echo(400, lambda told: json.dumps({"x": told}).encode().replace(b"/", b"\\/") + b"}"),
    "all escaped": Echo(400, lambda told: b'{"error": "%b"}' % "".join(f"\\u{ord(c):04x}" for c in told).encode()),
    "url": Echo(502, lambda told: quote(told, safe="").encode()),
    "url in lower case": Echo(502, lambda told: quote(told, safe="").lower().encode()),
    "url with slashes": Echo(502, lambda told: quote(told).encode()),
    "html": Echo(403, lambda told: f"<p>{html.escape(told)}</p>".encode()),
    "html by number": Echo(403, lambda told: re.sub(r"\W", lambda c: f"&#{ord(c[0])};", told).encode()),
    "html by hex": Echo(403, lambda told: re.sub(r"[^\w-]", lambda c: f"&#x{ord(c[0]):X};", told).encode()),
    "base64": Echo(401, lambda told: _error("Bearer " + b64encode(told.encode()).decode())),
    "base64 of the header": Echo(
        401, lambda told: _error(b64encode(f"Authorization: Bearer {told}".encode()).decode())
    ),
    "upper case": Echo(401, lambda told: _error(told.upper())),
    "utf-16": Echo(
        400, lambda told: told.encode("utf-16"), lambda told: {"Content-Type": "text/plain; charset=utf-16"}
    ),
    "latin-1": Echo(400, lambda told: f"caf\xe9 {told} \xff".encode("latin-1")),
    "gzip": Echo(400, lambda told: gzip.compress(_error(told)), lambda told: {"Content-Encoding": "gzip"}),
    "not gzip": Echo(400, _error, lambda told: {"Content-Encoding": "gzip"}),
    "long": Echo(500, lambda told: b"." * 290 + told.encode()),
    "very long": Echo(500, lambda told: (told.encode() + b" ") * 5000),
    "code": Echo(400, lambda told: json.dumps({"error": {"message": "no", "code": told, "param": told}}).encode()),
    "detail": Echo(422, lambda told: json.dumps({"detail": [{"loc": [told], "msg": told, "input": told}]}).encode()),
    "reason": Echo(400, lambda told: b"", reason=lambda told: told),
    "location": Echo(
        307, lambda told: b"", lambda told: {"Location": f"https://elsewhere.example/{told}/v1?key={told}"}
    ),
    "retry-after": Echo(429, lambda told: b"", lambda told: {"Retry-After": told, "X-Echo": told}),
    "length": Echo(200, lambda told: b"", lambda told: {"Transfer-Encoding": told, "X-Echo": told}),
    "no answer": Echo(200, lambda told: told.encode(), lambda told: PLAIN),
    "error in 200": Echo(200, _error),
    "answer": Echo(200, _answer),
    "reasoning": Echo(200, lambda told: _answer(message={"reasoning_content": told})),
    "refusal": Echo(200, lambda told: _answer(message={"content": None, "refusal": told})),
    "filtered": Echo(400, lambda told: json.dumps({"error": {"message": told, "code": "content_filter"}}).encode()),
    "model": Echo(200, lambda told: _answer(model=told)),
    "fingerprint": Echo(200, lambda told: _answer(system_fingerprint=told)),
    "finish": Echo(200, lambda told: _answer(choice={"finish_reason": told})),
    "stream": Echo(200, lambda told: _events(*(_delta(content=text) for text in _in_three(told)))),
    "stream of thoughts": Echo(
        200, lambda told: _events(*(_delta(reasoning=text) for text in _in_three(told)), _delta(content="1"))
    ),
    "stream and error": Echo(200, lambda told: _events(_delta(content="1"), _error(told))),
    "stream and no JSON": Echo(200, lambda told: _events(_delta(content="1"), b'{"choices": ' + told.encode())),
    "stream and model": Echo(200, lambda told: _events(json.dumps({"model": told}).encode(), _delta(content="1"))),
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        sent = (self.headers["Authorization"], self.headers["X-Team"], self.headers["Proxy-Authorization"])
        told = " ".join(filter(None, sent)).removeprefix("Bearer ")
        as_proxy = self.path.startswith("http://")  # it refuses, and tells what it was sent
        echo = Echo(407, _error) if as_proxy else ECHOES[unquote(self.path.split("/")[1])]
        body, headers = echo.body(told), echo.headers(told)
        self.send_response(echo.status, echo.reason(told))
        kind = "text/event-stream" if body.startswith(b"data:") else "application/json"
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _echoing() -> Iterator[str]:
    """The address of the server that echoes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def echoed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WorkDir, str]:
    """A run over models whose servers echo what they were sent, each in its form; one of them lies behind a proxy that
    wants a password.
    """
    folder = tmp_path_factory.mktemp("echoes")
    with _echoing() as address:
        more = {"api_key_env": "TANDEM_TEST_KEY", "headers": {"X-Team": "${TANDEM_TEST_OTHER}"}, "max_workers": 1}
        models = [
            openai(f"http://{address}/{quote(name)}/v1", abbr=name, stream=name.startswith("stream"), **more)
            for name in ECHOES
        ]
        models.append(openai("http://elsewhere.test/v1", abbr="proxied", **more))
        proxy = {"http_proxy": f"http://user:{PASSWORD}@{address}", "no_proxy": "127.0.0.1"}
        work, said = _run(folder, models, ENV | proxy)
    return folder, work, said


@pytest.mark.parametrize("name", [*ECHOES, "proxied"])
def test_an_echo_in_any_form(echoed: tuple[Path, WorkDir, str], name: str) -> None:
    """Whatever form the endpoint gives them when it echoes them, in an error or in any field of an answer, whole or as
    a stream: the key, another header's secret and the proxy's password are in no line of that model's journal.
    """
    _, work, _ = echoed
    lines = b"".join(path.read_bytes() for path in work.journals(name, "d"))
    assert lines, "it was not asked"
    shown = [secret for secret in (KEY, OTHER, PASSWORD) if _shows(lines, secret)]
    assert not shown, lines[: lines.index(b"\n")]


def test_all_echoes_are_nowhere(echoed: tuple[Path, WorkDir, str]) -> None:
    """... and in no other file, log line, status, report or process title."""
    folder, _, said = echoed
    _is_nowhere(folder, said, (KEY, OTHER, PASSWORD))
