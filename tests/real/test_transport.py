"""How answers come over the wire, by both transports: the fake server stands behind a real nginx or a proxy."""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferd.adapters import ModelAdapter
from inferd.ask import Ended
from shared.errors import UsageError
from shared.layout import WorkDir
from shared.records import ANSWERS, Attempt
from tests.asking import HOWS, How, Reports, ask, endpoint, engine, job
from tests.daemons.runs import ended, submitted, tasks
from tests.harness import inferd, journal, openai, predictions, running, until
from tests.real.certificates import PASSWORD, Certificates
from tests.real.forward_proxy import ForwardProxy
from tests.real.nginx import Nginx
from tests.server import FakeServer

PASSWORDS = {"KEY_PASSWORD": PASSWORD}
USER, SECRET = "proxy-user", "proxy-p@ss:word"
SO_ATTACH_FILTER = 26  # of Linux's asm-generic/socket.h
USERINFO = "proxy-user:proxy-p%40ss:word"

pytestmark = pytest.mark.parametrize("how", HOWS)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers are on loopback, whatever proxies the machine has, and trusted by nobody but who names them."""
    names = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")
    for name in (*names, "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


def need(command: str, package: str) -> None:
    if shutil.which(command) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{command} is not installed")
        pytest.skip(f"{command} is not installed (Debian's package `{package}`)")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    need("openssl", "openssl")
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def nginx(
    tmp_path_factory: pytest.TempPathFactory, shared_server: FakeServer, certificates: Certificates
) -> Iterator[Nginx]:
    need("nginx", "nginx-light")
    with Nginx(tmp_path_factory.mktemp("front") / "nginx", shared_server.port, certificates) as front:
        yield front


def failure(how: How, base_url: str, **more: Any) -> Ended:
    (what,) = ask(how, endpoint(base_url, **more))
    assert what.error is not None
    assert what.error.message == what.message
    return what


def answer(how: How, base_url: str, **more: Any) -> Attempt:
    (what,) = ask(how, endpoint(base_url, **more))
    assert what.error is None, what.message
    return msgspec.json.decode(what.line, type=Attempt)


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [("self_signed", "self-signed certificate"), ("elsewhere", "127.0.0.1"), ("expired", "certificate has expired")],
)
def test_a_wrong_certificate_is_told(
    how: How, nginx: Nginx, certificates: Certificates, server: FakeServer, name: str, words: str
) -> None:
    """As a connection error that says what is wrong with it; nothing is asked."""
    what = failure(how, nginx.url(name), ca_file=certificates.authority)
    assert what.error is not None
    assert (what.error.kind, what.error.status) == ("connection", None)
    assert words in what.message
    assert "certificate" in what.message
    assert server.stats()["posts"] == 0


def test_an_authority_of_ones_own(how: How, nginx: Nginx, certificates: Certificates, server: FakeServer) -> None:
    """Nobody trusts it but the model whose ca_file it is, and that one trusts it alone."""
    error = failure(how, nginx.url("good")).error
    assert error is not None
    assert (error.kind, server.stats()["posts"]) == ("connection", 0)
    assert "issuer certificate" in error.message
    assert answer(how, nginx.url("good"), ca_file=certificates.authority).outcome == "ok"
    other = str(certificates.pem("self_signed"))
    assert "issuer certificate" in failure(how, nginx.url("good"), ca_file=other).message


@pytest.mark.parametrize("key", ["plain", "locked", "in the certificate's file"])
def test_a_certificate_of_the_client(how: How, nginx: Nginx, certificates: Certificates, key: str) -> None:
    """The server knows us by it: its key may be encrypted, or lie in the same file."""
    before = len(nginx.seen("client"))
    given: dict[str, Any] = {"client_cert": str(certificates.pem("client")), "ca_file": certificates.authority}
    if key == "plain":
        given |= {"client_key": str(certificates.key("client"))}
    elif key == "locked":
        given |= {"client_key": str(certificates.key("client_locked")), "client_key_password_env": "KEY_PASSWORD"}
    else:
        given |= {"client_cert": str(certificates.pem("client_and_key"))}
    assert answer(how, nginx.url("client"), secrets=PASSWORDS, **given).outcome == "ok"
    until(lambda: nginx.seen("client")[before:], "nginx wrote its log")
    assert nginx.seen("client")[-1].client == "CN=client"


def test_without_its_certificate_a_client_is_refused(how: How, nginx: Nginx, certificates: Certificates) -> None:
    """For good, in the server's own words."""
    error = failure(how, nginx.url("client"), ca_file=certificates.authority).error
    assert error is not None
    assert (error.kind, error.status) == ("bad_request", 400)
    assert "No required SSL certificate was sent" in error.message


def test_certificates_that_cant_be_used(how: How, certificates: Certificates, tmp_path: Path) -> None:
    """Told before the first request, with the file and without the password; never asked for on a terminal."""
    del how  # before there is any transport

    def fault(secrets: dict[str, str] | None = None, **given: Any) -> str:
        with pytest.raises(UsageError) as caught:
            endpoint("https://127.0.0.1:1/v1", secrets=secrets, **given)
        return str(caught.value)

    cert, locked = str(certificates.pem("client")), str(certificates.key("client_locked"))
    with_password = {"client_cert": cert, "client_key": locked, "client_key_password_env": "KEY_PASSWORD"}
    missing = str(tmp_path / "none.pem")
    for name in ("ca_file", "client_cert"):
        assert fault(**{name: missing}) == f"model m: {name}: can't be read: No such file or directory: {missing}"
    assert fault(client_cert=cert, client_key=missing).startswith("model m: client_key: can't be read: ")
    assert fault(ca_file=locked) == f"model m: ca_file: holds no certificate in PEM: {locked}"
    assert fault(client_cert=cert, client_key=locked) == (
        f"model m: client_key: is encrypted: name the variable with its password as client_key_password_env: {locked}"
    )
    told = fault({"KEY_PASSWORD": "wrong-password"}, **with_password)
    assert told == f"model m: client_key: can't be read with the password in KEY_PASSWORD: {locked}"
    other = str(certificates.key("good"))
    assert fault(client_cert=cert, client_key=other).startswith("model m: client_cert: can't be used: ")
    endpoint("https://127.0.0.1:1/v1", secrets=PASSWORDS, **with_password)


def test_the_keys_password_is_written_nowhere(
    how: How, nginx: Nginx, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither into the work_dir nor onto the terminal; files are named as the suite's folder has them."""
    (tmp_path / "suite").mkdir()
    for source, name in (("client.pem", "c.pem"), ("client_locked.key", "c.key"), ("authority.pem", "ca.pem")):
        shutil.copy(certificates.folder / source, tmp_path / "suite" / name)
    files = {"ca_file": "ca.pem", "client_cert": "./c.pem", "client_key": "c.key"}
    model = openai(nginx.url("client"), transport=how, client_key_password_env="KEY_PASSWORD", **files)
    monkeypatch.setenv("KEY_PASSWORD", PASSWORD)
    work = submitted(tmp_path, [model], {"d": tasks(3)})
    process = ended(inferd(work, "-v"), 0)
    assert len(predictions(work)) == 3
    written = [path.read_bytes() for path in work.root.rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in text for text in written)
    assert PASSWORD not in process.out + process.err
    (tmp_path / "suite" / "c.key").unlink()  # as on a host that the work_dir came to alone
    process = ended(inferd(work), 2)
    assert f"model m: client_key: can't be read: No such file or directory: {tmp_path}/suite/c.key" in process.err


# --- HTTP/2 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("http2", "protocol"), [(True, "HTTP/2.0"), (False, "HTTP/1.1")])
def test_http2_where_it_is_offered(
    how: How, nginx: Nginx, certificates: Certificates, server: FakeServer, http2: bool, protocol: str, stream: bool
) -> None:
    """Agreed on in the TLS handshake (ALPN); answers are whole or streamed, packed or not."""
    adapter = endpoint(nginx.url("good"), ca_file=certificates.authority, http2=http2, stream=stream)
    before = len(nginx.seen("good"))
    said = [msgspec.json.decode(what.line, type=Attempt) for what in ask(how, adapter, ["one", "two"])]
    assert [line.generation.text for line in said if line.generation] == ["echo: one", "echo: two"]
    until(lambda: len(nginx.seen("good")) == before + 2, "nginx wrote its log")
    for request in nginx.seen("good")[before:]:
        assert (request.protocol, request.status) == (protocol, 200)
        assert request.encoding == ("-" if stream else "gzip")
    for line in said:
        assert line.generation is not None
        assert (line.generation.first_token_seconds is not None) == stream


def test_what_it_can_unpack(how: How) -> None:
    """gzip and deflate are asked for, which every build of libcurl knows, and not brotli."""
    heads: list[bytes] = []
    body = gzip.compress(b'{"choices": [{"message": {"content": "packed"}}]}')

    def serve() -> None:
        conn, _ = listening.accept()
        with conn:
            heads.append(conn.recv(65536))
            head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
            conn.sendall(head + body)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        line = answer(how, f"http://127.0.0.1:{listening.getsockname()[1]}/v1")
        thread.join(30)
    assert line.generation is not None
    assert line.generation.text == "packed"
    assert b"\r\nAccept-Encoding: gzip, deflate\r\n" in heads[0]


def test_many_streams_over_few_connections(
    how: How, nginx: Nginx, certificates: Certificates, server: FakeServer, tmp_path: Path
) -> None:
    """An engine's 300 in flight share three connections; each thread has its own. Nothing caps either."""
    before = nginx.streams("good")
    model = openai(nginx.url("good", "d1000"), max_workers=300, transport=how, ca_file=certificates.authority)
    work = submitted(tmp_path, [model], {"d": tasks(600)})
    ended(inferd(work), 0)
    assert server.stats()["peak_in_flight"] == 300
    assert_each_answered_once(work, 600)
    until(lambda: (nginx.streams("good") - before).total() == 600, "nginx wrote its log")
    streams = nginx.streams("good") - before
    assert len(streams) <= 4 if how == "engine" else len(streams) == 300


@pytest.mark.parametrize("accident", ["reload", "kill", "goaway"])
def test_nothing_is_lost_with_a_connection(
    how: How, nginx: Nginx, certificates: Certificates, server: FakeServer, tmp_path: Path, accident: str
) -> None:
    """nginx is reloaded, its worker is killed, or it ends each connection after 50 requests (GOAWAY), with 300 in
    flight: each request has one answer in the journal, whatever had to be asked again.
    """
    name = "brief" if accident == "goaway" else "good"
    before = nginx.streams(name)
    model = openai(nginx.url(name, "d200"), max_workers=300, transport=how, ca_file=certificates.authority)
    # Streams that a connection's end left out are asked again; of 100 that start at once, 50 are each time.
    work = submitted(tmp_path, [model], {"d": tasks(900)}, infer={"max_attempts": 50, "unhealthy_after": 10_000})
    with running(inferd(work)) as process:
        until(lambda: server.stats()["answered"] >= 300, "the first are answered")
        if accident == "reload":
            nginx.reload()
        elif accident == "kill":
            nginx.kill_worker()
        ended(process, 0)
    assert_each_answered_once(work, 900)
    if accident == "goaway":
        assert max((nginx.streams(name) - before).values()) <= 50


def assert_each_answered_once(work: WorkDir, count: int) -> None:
    rows = predictions(work)
    assert [row.generation.text for row in rows if row.generation] == [str(number) for number in range(count)]
    answers = Counter(line.key for line in journal(work) if line.outcome in ANSWERS)
    assert set(answers.values()) <= {1}


def test_300_connections(how: How, tmp_path: Path) -> None:
    """#35: over HTTP/1.1 300 in flight are 300 connections, kept to the end."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("d1000"), max_workers=300, transport=how)], {"d": tasks(600)})
        ended(inferd(work), 0)
        stats = server.stats()
    assert (stats["posts"], stats["peak_in_flight"], stats["connections_peak"]) == (600, 300, 300)
    assert_each_answered_once(work, 600)


def test_a_drain_with_many_in_flight(how: How, tmp_path: Path) -> None:
    """SIGTERM: what is in flight ends and is kept. A second one: it is let go of at once. Either way no answer is lost
    and none is kept twice.
    """
    many = 1000 if how == "engine" else 200
    with FakeServer() as server:
        server.behave("d1000")
        models = [openai(server.url(), max_workers=many, transport=how)]
        work = submitted(tmp_path, models, {"d": tasks(2 * many)}, infer={"drain_timeout": 60.0})
        with running(inferd(work)) as process:
            until(lambda: server.stats()["in_flight"] >= many, "all workers wait")
            process.signal(signal.SIGTERM)
            ended(process, 3)
        kept = [line.key for line in journal(work) if line.outcome in ANSWERS]
        assert many <= len(kept) == len(set(kept)) == server.stats()["answered"]
        server.behave("hang")
        with running(inferd(work)) as process:
            until(lambda: server.stats()["in_flight"] >= min(many, 2 * many - len(kept)), "they wait again")
            process.signal(signal.SIGTERM)
            until(lambda: "draining" in work.infer_heartbeat("").read_text(), "it drains")
            process.signal(signal.SIGTERM)
            ended(process, 3)
        server.behave()
        ended(inferd(work), 0)
        assert server.stats()["answered"] == 2 * many
    assert_each_answered_once(work, 2 * many)


# --- proxies --------------------------------------------------------------------------------------------------------


def test_a_proxy_with_a_password(
    how: How, nginx: Nginx, certificates: Certificates, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the environment, for http and, by CONNECT, for https; NO_PROXY is heeded."""
    with ForwardProxy(f"{USER}:{SECRET}") as proxy:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://{USERINFO}@127.0.0.1:{proxy.port}")
        assert answer(how, server.url()).outcome == "ok"
        assert answer(how, nginx.url("good"), ca_file=certificates.authority).outcome == "ok"
        host = nginx.url("good").split("/")[2]
        assert proxy.seen == [f"POST {server.url()}/chat/completions HTTP/1.1", f"CONNECT {host} HTTP/1.1"]
        error = failure(how, nginx.url("expired"), ca_file=certificates.authority).error
        assert error is not None
        assert (error.kind, error.status) == ("connection", None)  # the proxy's 200 to CONNECT is no answer
        monkeypatch.setenv("NO_PROXY", "model.invalid,127.0.0.1")
        assert answer(how, nginx.url("good"), ca_file=certificates.authority).outcome == "ok"
        assert len(proxy.seen) == 3


@pytest.mark.parametrize(
    "userinfo", [f"{USER}:proxy-wrong", "proxy-wrong:", "proxy%2Dwrong%3A:x", f"{USER}:proxy-wr#ng", "proxy-wr ng:y"]
)
@pytest.mark.parametrize("form", ["http://{}@127.0.0.1:{}", "{}@127.0.0.1:{}"])
def test_no_error_tells_a_proxys_password(
    how: How, server: FakeServer, monkeypatch: pytest.MonkeyPatch, userinfo: str, form: str
) -> None:
    """Whether it refuses, can't be reached, or its address can't even be read."""
    with ForwardProxy(f"{USER}:{SECRET}") as proxy:
        for port in (proxy.port, 9):
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, form.format(userinfo, port))
            for url in (server.url(), server.url().replace("http:", "https:")):
                what = failure(how, url)
                assert what.error is not None
                assert what.error.kind in ("auth", "connection")
                assert "wr" not in what.message.replace("[redacted]", "")
                assert "cHJveHk" not in what.message  # the begin of it in base64
    assert server.stats()["posts"] == 0


def test_a_proxy_that_refuses(how: How, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """407 is a wrong key, over http as over https: for good."""
    with ForwardProxy(f"{USER}:{SECRET}") as proxy:
        monkeypatch.setenv("all_proxy", f"http://127.0.0.1:{proxy.port}")
        for url in (server.url(), server.url().replace("http:", "https:")):
            error = failure(how, url).error
            assert error is not None
            assert (error.kind, error.status) == ("auth", 407)


def test_a_proxy_that_is_silent(how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is no connection, after connect_timeout."""
    with ForwardProxy(swallow=True) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        what = failure(how, "https://model.invalid/v1", connect_timeout=0.3)
        assert what.error is not None
        assert (what.error.kind, what.error.status) == ("connection", None)
        assert "within 0.3 s" in what.message
        assert len(proxy.seen) == 1


def test_a_proxy_over_tls(
    how: How, certificates: Certificates, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is checked against the environment's authorities; a model's ca_file is for the model."""
    pair = {"cert": certificates.pem("good"), "key": certificates.key("good")}
    with ForwardProxy(f"{USER}:{SECRET}", **pair) as proxy:
        monkeypatch.setenv("http_proxy", f"https://{USERINFO}@127.0.0.1:{proxy.port}")
        error = failure(how, server.url(), ca_file=certificates.authority).error
        assert error is not None
        assert error.kind == "connection"
        assert "certificate" in error.message
        monkeypatch.setenv("SSL_CERT_FILE", certificates.authority)
        assert answer(how, server.url()).outcome == "ok"


# --- limits of time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("behaviour", "stream"), [("drip", False), ("hang", True)])
def test_an_answer_that_is_too_slow(how: How, server: FakeServer, behaviour: str, stream: bool) -> None:
    """Is broken off long before its deadline, as a timeout that names the limit."""
    limit = {"low_speed_limit": 100, "low_speed_time": 1.0}
    started = time.monotonic()
    what = failure(how, server.url(behaviour), attempt_timeout=120.0, stream=stream, **limit)
    assert what.error is not None
    assert what.error.kind == "timeout"
    assert what.message == "slower than 100 bytes a second for 1 s"
    assert time.monotonic() - started < 60  # not the deadline


def test_a_deadline_in_the_middle_of_an_answer(how: How, server: FakeServer) -> None:
    """Ends a call whose bytes keep coming."""
    what = failure(how, server.url("drip"), attempt_timeout=0.5, low_speed_limit=1, low_speed_time=60.0)
    assert what.error is not None
    assert (what.error.kind, what.message) == ("timeout", "no whole answer within 0.5 s")


def test_a_path_that_died(how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept connection over which nothing arrives any more is given up long before the deadline, as a connection
    error; the next call goes over another.
    """
    monkeypatch.setattr("inferd.adapters.connections.UNCONFIRMED", 0.5)
    drop_all = struct.pack("HBBI", 0x06, 0, 0, 0)  # a socket filter of one instruction: nothing passes
    program = ctypes.create_string_buffer(drop_all)

    def serve() -> None:
        for _ in range(2):
            conn, _ = listening.accept()
            stack.enter_context(conn)
            conn.recv(65536)
            body = b'{"choices": [{"message": {"content": "yes"}}]}'
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            conn.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))

    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        adapter = endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", attempt_timeout=120.0)
        outcomes = [what.error.kind if what.error else what.outcome for what in in_turn(how, adapter, 3)]
        assert outcomes == ["ok", "connection", "ok"]
        thread.join(30)


def in_turn(how: How, adapter: ModelAdapter, count: int) -> list[Ended]:
    """Each asked when the one before it has ended."""
    if how == "threads":
        return ask(how, adapter, ["hello"] * count)
    reports = Reports()
    carrier = engine(adapter, reports)
    for number in range(count):
        carrier.submit(job(number))
        reports.wait(number + 1)
    carrier.end()
    assert carrier.wait(10.0) == 0
    return [what for _, what in reports.ended]


def test_no_connection_in_time(how: How) -> None:
    """A host that takes no connection is a connection error after connect_timeout, long before the deadline."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # what waits to be accepted fills its queue
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        what = failure(how, url, connect_timeout=0.3, attempt_timeout=120.0)
    assert what.error is not None
    assert what.error.kind == "connection"
    assert "within 0.3 s" in what.message
