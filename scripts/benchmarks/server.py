"""A chat completions endpoint that costs next to nothing, so that what is measured is the client.

A process of its own, which imports next to nothing:

    with Server() as server:
        server.reset(requests=1000, workers=64)
        base_url = server.url("d200", "t1-2000")     # http://127.0.0.1:N/d200/t1-2000/v1
        server.stats()

The path's first parts, up to `v1`, say how long an answer takes: `d<ms>` all of them, `t<percent>-<ms>` those of so
many percent of the bodies, chosen by a hash of the body. Every answer is the same one. What was asked is counted, not
looked at: a body is known by its hash.

    POST /reset?requests=N&workers=C    forget what was seen; N and C are what is to come
    GET /stats                          see counts.Stats.report
    GET /latencies                      seconds, in the order in which the requests came; only of paths with a `t` part
    GET /slow                           the bodies of slow requests that are in flight

One request at a time on a connection. `counts` has what is counted.
"""

from __future__ import annotations

import gc
import http.client
import json
import re
import resource
import select
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from time import monotonic, time
from types import TracebackType
from typing import Any
from zlib import crc32

from scripts.benchmarks.counts import Stats

ROOT = Path(__file__).resolve().parents[2]
BACKLOG = 8192
SLACK = 0.0005  # epoll waits for whole milliseconds, rounded up: so an answer is half of one early or late, at most
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_BODY = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
    }
).encode()


def is_slow(body: bytes, percent: float) -> bool:
    """Whether a body is one of the `percent` that are answered slowly. The same body always is, or never."""
    return crc32(body) % 10_000 < percent * 100


def _http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


_ANSWER = _http(_BODY)
_MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Pace:
    """How long the answers of one path take, in seconds."""

    def __init__(self, path: str) -> None:
        self.delay = self.slow_delay = self.percent = 0.0
        for part in path.split("/")[1:]:
            if part == "v1":
                break
            if part.startswith("d"):
                self.delay = int(part[1:]) / 1000
            elif part.startswith("t"):
                percent, _, delay = part[1:].partition("-")
                self.percent, self.slow_delay = float(percent), int(delay) / 1000


class Connection:
    """A keep-alive connection; one request at a time."""

    __slots__ = ("body", "buffer", "busy", "serial", "socket")

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.buffer = b""
        self.body = b""  # of a slow request
        self.serial = 0  # of the request that is answered, or was last
        self.busy = False


class Endpoint:
    """One thread and one epoll: it costs half of what asyncio does, and a client on this machine pays for both."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._paces: dict[bytes, Pace] = {}
        self._due: dict[float, deque[tuple[float, Connection, int]]] = {}  # by delay, so each in order
        self._slow: set[Connection] = set()  # in flight
        self.stats = Stats()

    def serve(self) -> None:
        listener, connections = self._listener.fileno(), self._connections
        while True:
            for fd, _ in self._epoll.poll(self._patience(), 256):
                if fd == listener:
                    self._accept()
                else:
                    self._read(connections[fd])
            self._answer_due()

    def _patience(self) -> float | None:
        """Seconds until the next answer is due."""
        moments = [queue[0][0] for queue in self._due.values() if queue]
        return max(0.0, min(moments) - SLACK - monotonic()) if moments else None

    def _answer_due(self) -> None:
        now = monotonic() + SLACK
        for queue in self._due.values():
            while queue and queue[0][0] <= now:
                _, connection, serial = queue.popleft()
                if connection.busy and serial == connection.serial:  # else the client went away
                    self._answer(connection)

    def _accept(self) -> None:
        stats = self.stats
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[sock.fileno()] = Connection(sock)
            self._epoll.register(sock, select.EPOLLIN)
            stats.connections += 1
            stats.opened += 1
            stats.peak_connections = max(stats.peak_connections, stats.connections)

    def _close(self, connection: Connection) -> None:
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        self.stats.connections -= 1
        if connection.busy:
            self._leave(connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(65536)
        except OSError:
            data = b""
        if data:
            self._take(connection, data)
        else:
            self._close(connection)

    def _take(self, connection: Connection, data: bytes) -> None:
        if connection.buffer:
            data = connection.buffer + data
        end = data.find(b"\r\n\r\n")
        found = _LENGTH.search(data, 0, end) if end >= 0 else None
        stop = end + 4 + (int(found[1]) if found else 0)
        if end < 0 or len(data) < stop:
            connection.buffer = data
            return
        connection.buffer = data[stop:]
        method, path, _ = data.split(b" ", 2)
        if method == b"POST" and path.endswith(b"/chat/completions"):
            self._complete(connection, path, data[end + 4 : stop])
        else:
            self._send(connection, self._tell(method, path.decode("latin-1")))

    def _complete(self, connection: Connection, path: bytes, body: bytes) -> None:
        now = monotonic()
        connection.busy = True
        connection.serial += 1
        self.stats.arrive(now, time(), body)
        if (pace := self._paces.get(path)) is None:
            pace = self._paces[path] = Pace(path.decode("latin-1"))
        delay = pace.delay
        if pace.percent:
            if is_slow(body, pace.percent):
                delay = pace.slow_delay
                connection.body = body
                self._slow.add(connection)
            self.stats.latencies.append(delay)
        if delay:
            self._due.setdefault(delay, deque()).append((now + delay, connection, connection.serial))
        else:
            self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        self.stats.last = self._leave(connection)
        self.stats.answered += 1
        self._send(connection, _ANSWER)

    def _leave(self, connection: Connection) -> float:
        connection.busy = False
        self._slow.discard(connection)
        now = monotonic()
        self.stats.leave(now)
        return now

    def _send(self, connection: Connection, data: bytes) -> None:
        try:
            if connection.socket.send(data) < len(data):
                raise BlockingIOError
        except BlockingIOError:
            raise SystemExit("an answer didn't fit into a socket: the client doesn't read") from None
        except OSError:
            pass  # the client went away: the next read tells

    def _tell(self, method: bytes, target: str) -> bytes:
        """The answer to what isn't a completion."""
        path, _, query = target.partition("?")
        if path == "/stats":
            return _http(json.dumps(self.stats.report()).encode())
        if path == "/latencies":
            return _http(json.dumps(self.stats.latencies.tolist()).encode())
        if path == "/slow":
            return _http(json.dumps([connection.body.decode() for connection in self._slow]).encode())
        if path.endswith("/models"):
            return _http(b'{"object": "list", "data": [{"id": "m", "object": "model"}]}')
        if path == "/reset" and method == b"POST":
            asked = dict(pair.split("=") for pair in query.split("&"))
            self.stats.reset(int(asked["requests"]), int(asked["workers"]))
            return _http(b"{}")
        return _MISSING


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536 if hard == resource.RLIM_INFINITY else min(hard, 65536), hard))
    gc.disable()  # no pauses; nothing here makes cycles
    endpoint = Endpoint()
    print(json.dumps({"port": endpoint.port}), flush=True)
    endpoint.serve()


class Server:
    """The process, and what the bench asks of it."""

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scripts.benchmarks.server"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["port"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def url(self, *parts: str) -> str:
        return "/".join([f"http://127.0.0.1:{self.port}", *parts, "v1"])

    def reset(self, *, requests: int, workers: int) -> None:
        self._ask("POST", f"/reset?requests={requests}&workers={workers}")

    def stats(self) -> dict[str, float]:
        found: dict[str, float] = self._ask("GET", "/stats")
        return found

    def latencies(self) -> list[float]:
        found: list[float] = self._ask("GET", "/latencies")
        return found

    def slow(self) -> list[str]:
        found: list[str] = self._ask("GET", "/slow")
        return found

    def _ask(self, method: str, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


if __name__ == "__main__":
    main()
