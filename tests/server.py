"""A real HTTP server that plays a chat completions endpoint, for tests and benchmarks.

It runs as a process of its own (`python -m tests.server --port 0` prints `{"port": N}`), or for the length of a `with`:

    with FakeServer() as server:
        base_url = server.url("d50")    # http://127.0.0.1:N/d50/v1
        server.stats()

The path's first parts, up to `v1`, say how it behaves; a prompt that holds `BEHAVE=<parts>` says it for itself.
`d<ms>` answers so much later and goes with any other part. A `x<N>` after a fault has it only on the first N tries of
each distinct body; then the answer is the default one.

    (nothing), answer   the last `ANSWER=xyz` in the last user message; without one `echo: <the message>`.
                        As an event stream if the body asks for one
    <status>[x<N>][-<how>]   that status. 429 and 503 send `Retry-After: 1`; how: `none` no such header, `ms<M>`
                        retry-after-ms, `ra<text>` that text (percent-encoded), `text` a plain text body
    drip                headers, then a byte a second
    hang                never answers
    midclose[x<N>]      closes in the middle of the body
    reset[x<N>]         resets the connection unanswered
    shut[x<N>]          closes it unanswered
    redirect            307 to another address
    gzip, gzipbomb, badgzip   a compressed body; one of 200 MiB once unpacked; one that only says so
    huge                80 MiB that aren't compressed
    failif-<word>       400 for good when the prompt holds the word
    html, null, parts, empty-choices, empty, nousage, badjson, cutjson, nonutf8, surrogate, wrongtype, nobody, norole,
    error200, error200-502, error200-flat, logprobs, logprobs-inf, logprobs-null, logprobs-nan, logprobs-positive,
    long, filter, refusal, tool, function, reasoning, reasoning-only, prompt-too-long, finish-error, u2028, seed
                        status 200, and such a body; seed: the text is the seed that was sent, or `none`
    history             the text is a digest of all turns as they came (`told_of`)
    drift<N>            the model and the fingerprint that are named change with the number in the prompt, modulo N
    garbled             what is no HTTP
    401, 404, 400ctx, 400neg, 400llama, 400param, 400flat, 400filter, 400credit, errorlist, 422detail, quota, billing,
    echo-key, echo-key-422
                        such an error
    stream, stream-cut, stream-close, stream-split, stream-nofinish, stream-nodone, stream-open, stream-finish-open,
    stream-tail, stream-error, stream-error-429, stream-bad, stream-reasoning, stream-logprobs, stream-nothing,
    stream-single       an event stream, and what is peculiar about it

`GET /stats` tells what was seen, `POST /reset-stats` forgets it. `POST /behave/<parts>` has every further request
treated so, whatever its path says, until `POST /behave/`. With `--log FILE` a line `<sha256 of the body> <status>` is
appended before each full answer is sent, so that it is there however the process or its client ends; with `--asked
FILE` a line `<sha256 of the body>` as each request has come.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import json
import math
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import unquote

import msgspec

ROOT = Path(__file__).resolve().parent.parent
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_FAULT = re.compile(r"(?P<name>midclose|reset|shut|garbled|\d{3})(?:x(?P<times>\d+))?(?:-(?P<how>.*))?")
_MARK = re.compile(r"ANSWER=(\S+)")
_BEHAVE = re.compile(r"BEHAVE=(\S+)")
_REASONS = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


class _Turn(msgspec.Struct):
    role: str = ""
    content: str = ""


class _Asked(msgspec.Struct):
    messages: list[_Turn] = []
    prompt: str | None = None  # of /completions
    stream: bool = False


_decode = msgspec.json.Decoder(_Asked).decode
_encode = msgspec.json.Encoder().encode


class Stats:
    """What the server saw since it began, or since the last reset."""

    def __init__(self) -> None:
        self.open = self.in_flight = 0
        self.behave = ""
        self.reset()

    def reset(self) -> None:
        self.posts = 0
        self.asked: Counter[bytes] = Counter()
        self.answered: Counter[bytes] = Counter()
        self.tries: Counter[tuple[str, bytes]] = Counter()
        self.peak_in_flight = self.in_flight
        self.peak_open = self.open
        self.connections = self.open

    def report(self) -> dict[str, Any]:
        return {
            "posts": self.posts,
            "distinct": len(self.asked),
            "max_per_body": max(self.asked.values(), default=0),
            "answered": sum(self.answered.values()),
            "answered_distinct": len(self.answered),
            "answered_twice": [digest.hex() for digest, count in self.answered.items() if count > 1],
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "connections_open": self.open,
            "connections_peak": self.peak_open,
            "connections_total": self.connections,
        }


class Request:
    """One request as it came; how: the behaviour that was asked for."""

    __slots__ = ("body", "digest", "head", "how", "plain", "stream", "text")

    def __init__(self, head: bytes, body: bytes) -> None:
        self.head = head
        self.body = body
        self.how = ""
        self.digest = hashlib.sha256(body).digest()
        try:
            asked = _decode(body)
            self.plain = asked.prompt is not None
            last = next((turn.content for turn in reversed(asked.messages) if turn.role == "user"), "")
            self.text = last if asked.prompt is None else asked.prompt
            self.stream = asked.stream
        except msgspec.DecodeError:
            self.text = ""
            self.stream = self.plain = False

    def header(self, name: str) -> str:
        found = re.search(rb"\r\n" + name.encode() + rb": *([^\r]*)", self.head, re.IGNORECASE)
        return found[1].decode("latin-1") if found else ""


class Connection(asyncio.Protocol):
    """A keep-alive connection; one request at a time."""

    def __init__(self, stats: Stats, log: int | None, asked: int | None = None) -> None:
        self.stats = stats
        self.log = log
        self.asked = asked
        self.buffer = b""
        self.busy = False
        self.transport: asyncio.Transport
        self.timers: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stats.open += 1
        self.stats.connections += 1
        self.stats.peak_open = max(self.stats.peak_open, self.stats.open)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stats.open -= 1
        if self.busy:
            self.stats.in_flight -= 1
            self.busy = False
        for timer in self.timers:
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        if not self.busy:
            self.next_request()

    def next_request(self) -> None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end]
        found = _LENGTH.search(head)
        stop = end + 4 + (int(found[1]) if found else 0)
        if len(self.buffer) < stop:
            return
        body = self.buffer[end + 4 : stop]
        self.buffer = self.buffer[stop:]
        method, path, _ = head[: head.index(b"\r\n")].split(b" ", 2)
        self.begin(method, path.decode("latin-1"), head, body)

    def begin(self, method: bytes, path: str, head: bytes, body: bytes) -> None:
        stats = self.stats
        if method == b"GET":
            found = path == "/stats" or path.endswith("/models")
            self.send(200 if found else 404, _encode(stats.report() if path == "/stats" else {"data": []}))
            return
        if path == "/reset-stats":
            stats.reset()
            self.send(200, b"{}")
            return
        if path.startswith("/behave/"):
            stats.behave = path[len("/behave/") :]
            self.send(200, b"{}")
            return
        if path.startswith("http://"):  # asked as a proxy
            path = path[path.index("/", 7) :]
        request = Request(head, body)
        own = _BEHAVE.search(request.text) if "BEHAVE=" in request.text else None
        delay = 0.0
        for part in stats.behave.split("/") if stats.behave else own[1].split("/") if own else path.split("/")[1:]:
            if part == "v1":
                break
            if part[0:1] == "d" and part[1:].isdigit():
                delay = int(part[1:]) / 1000
            else:
                request.how = part
        self.busy = True
        stats.posts += 1
        stats.asked[request.digest] += 1
        if self.asked is not None:
            os.write(self.asked, b"%b\n" % request.digest.hex().encode())
        stats.in_flight += 1
        if stats.in_flight > stats.peak_in_flight:
            stats.peak_in_flight = stats.in_flight
        if delay:
            self.later(delay, self.answer, request)
        else:
            self.answer(request)

    def later(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.timers = [asyncio.get_running_loop().call_later(delay, call, *args)]

    def answer(self, request: Request) -> None:
        how = request.how
        fault = _FAULT.fullmatch(how) if how else None
        if not how or how in ("answer", "stream"):
            self.answer_well(request)
        elif fault and not (fault["name"] in ("401", "404") and how == fault["name"]):
            self.stats.tries[how, request.digest] += 1
            if fault["times"] and self.stats.tries[how, request.digest] > int(fault["times"]):
                self.answer_well(request)
            else:
                self.fail(request, fault["name"], fault["how"] or "")
        elif how.startswith("stream"):
            self.answer_stream(request)
        elif how.startswith("failif-"):
            if unquote(how[7:]) in request.text:
                self.finish(request, 400, _error("this prompt is refused for good", type="invalid_request_error"))
            else:
                self.answer_well(request)
        elif how in ("drip", "hang"):
            if how == "drip":
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
                )
                self.drip()
        else:
            self.finish(request, *_canned(request))

    def answer_well(self, request: Request) -> None:
        if request.plain:
            reply = [*_reply(request.text)] if request.stream else [_reply(request.text)]
            whole = [_plain_completion(text, "stop" if last else None) for text, last in _with_last(reply)]
            if request.stream:
                self.finish_stream(request, b"".join([*map(_event, whole), b"data: [DONE]\n\n"]))
            else:
                self.finish(request, 200, whole[0])
        elif request.stream or request.how == "stream":
            self.finish_stream(request, _events([_reply(request.text)]))
        else:
            self.finish(request, 200, _completion(_reply(request.text)))

    def answer_stream(self, request: Request) -> None:
        pieces, ending, gap = _stream(request)
        if gap:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            parts = [head, *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]
            self.note(request, 200)
            self.trickle(parts)
        else:
            self.finish_stream(request, b"".join(pieces), ending)

    def fail(self, request: Request, name: str, how: str) -> None:
        if name == "midclose":
            body = _completion(_reply(request.text))
            self.transport.write(_head(200, len(body)) + body[: len(body) // 2])
            self.transport.close()
        elif name == "shut":
            self.transport.close()
        elif name == "garbled":
            self.transport.write(b"220 mail.example ESMTP ready\r\n")
            self.transport.close()
        elif name == "reset":
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            status = int(name)
            extra = b""
            if how.startswith("ms"):
                extra = b"retry-after-ms: %b\r\n" % how[2:].encode()
            elif how.startswith("ra"):
                extra = b"Retry-After: %b\r\n" % unquote(how[2:]).encode()
            elif status in (429, 503) and how != "none":
                extra = b"Retry-After: 1\r\n"
            if how == "text":
                self.finish(request, status, b"Internal Server Error", b"", b"text/plain")
            else:
                kind = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "some_error"
                self.finish(request, status, _error(f"answered {status} as told", type=kind, code=kind), extra)

    def drip(self) -> None:
        self.transport.write(b" ")
        self.later(1.0, self.drip)

    def trickle(self, parts: list[bytes]) -> None:
        self.transport.write(parts[0])
        if parts[1:]:
            self.later(0.005, self.trickle, parts[1:])
        else:
            self.free()

    def finish_stream(self, request: Request, events: bytes, ending: str = "end") -> None:
        """ending: `end` the stream ends in order, `cut` it breaks off, `close` it ends with the connection, `open` it
        doesn't.
        """
        length = b"Connection: close" if ending == "close" else b"Transfer-Encoding: chunked"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%b\r\n\r\n" % length
        if ending == "close":
            whole = head + events
        else:
            whole = head + b"%x\r\n%b\r\n" % (len(events), events) + (b"0\r\n\r\n" if ending == "end" else b"")
        if ending in ("end", "open"):
            self.note(request, 200)
        self.transport.write(whole)
        if ending in ("cut", "close"):
            self.transport.close()
        elif ending == "end":
            self.free()

    def finish(
        self, request: Request, status: int, body: bytes, extra: bytes = b"", kind: bytes = b"application/json"
    ) -> None:
        self.note(request, status)
        self.send(status, body, extra, kind)
        self.free()

    def note(self, request: Request, status: int) -> None:
        if status == 200:
            self.stats.answered[request.digest] += 1
        if self.log is not None:
            os.write(self.log, b"%b %d\n" % (request.digest.hex().encode(), status))

    def send(self, status: int, body: bytes, extra: bytes = b"", kind: bytes = b"application/json") -> None:
        self.transport.write(_head(status, len(body), extra, kind) + body)

    def free(self) -> None:
        if self.busy:
            self.busy = False
            self.stats.in_flight -= 1
        if self.buffer:
            self.next_request()


def _head(status: int, length: int, extra: bytes = b"", kind: bytes = b"application/json") -> bytes:
    reason = _REASONS.get(status, "Status").encode()
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n" % (status, reason, kind, length, extra)


def _reply(text: str) -> str:
    marks = _MARK.findall(text) if "ANSWER=" in text else None
    return marks[-1] if marks else f"echo: {text}"


def _usage(text: str) -> dict[str, Any]:
    return {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


def _completion(text: str) -> bytes:
    return _encode(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "fake-2026-01",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": _usage(text),
        }
    )


def _with_last(texts: list[str]) -> list[tuple[str, bool]]:
    return [(text, at == len(texts) - 1) for at, text in enumerate(texts)]


def _plain_completion(text: str, finish: str | None) -> bytes:
    """As `/completions` has it, whole or a piece of a stream; each text is a token of probability 1/2."""
    logprobs = {"tokens": [text], "token_logprobs": [-math.log(2)], "top_logprobs": None, "text_offset": [0]}
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}
    return _encode({"object": "text_completion", "model": "fake-2026-01", "choices": [choice], "usage": _usage(text)})


def told_of(messages: list[dict[str, str]]) -> str:
    """What `history` answers to a chat."""
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:8]


def _chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish, **more.pop("choice", {})}]
    return _encode({"id": "c1", "object": "chat.completion.chunk", "model": "fake-2026-01", "choices": choices, **more})


def _event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def _events(texts: list[str], finish: str | None = "stop", done: bool = True) -> bytes:
    events = [_event(_chunk({"role": "assistant", "content": ""}))]
    events += [_event(_chunk({"content": text})) for text in texts]
    if finish:
        events += [_event(_chunk({}, finish)), _event(_chunk(None, usage=_usage("")))]
    if done:
        events.append(b"data: [DONE]\n\n")
    return b"".join(events)


def _error(message: str, **more: Any) -> bytes:
    return _encode({"error": {"message": message, "param": None, **more}})


def _stream(request: Request) -> tuple[list[bytes], str, bool]:
    """The pieces of a stream's body, how it ends, and whether the pieces go out one by one."""
    how = request.how
    done = b"data: [DONE]\n\n"
    texts = ["The answer ", "is 4"]
    if how == "stream-cut":
        return [_events(texts, finish=None, done=False)], "cut", False
    if how == "stream-close":
        return [_events(texts, finish=None, done=False)], "close", False
    if how == "stream-nofinish":
        return [_events(texts, finish=None)], "end", False
    if how == "stream-nodone":
        return [_events(texts, done=False)], "end", False
    if how == "stream-open":
        return [_events(texts)], "open", False
    if how == "stream-finish-open":
        return [_events(texts, done=False)], "open", False
    if how == "stream-tail":
        return [_event(_chunk({"content": "12"})), _event(_chunk({"content": "34"}, "length")), done], "end", False
    if how == "stream-error":
        error = _encode({"error": {"message": "engine died", "type": "server_error", "code": 500}})
        return [_event(_chunk({"content": "The"})), b"event: error\n", _event(error)], "end", False
    if how == "stream-error-429":
        error = _encode({"error": {"message": "slow down", "type": "rate_limit_exceeded", "code": "429"}})
        return [_event(error), done], "end", False
    if how == "stream-bad":
        return [_event(_chunk({"content": "The"})), _event(b'{"choices": [{"delta"'), done], "end", False
    if how == "stream-nothing":
        return [b": ping\n\n"], "end", False
    if how == "stream-single":  # one line feed after each event, no blank line, and no space after the colon
        whole = _events(texts).replace(b"\n\n", b"\n").replace(b"data: ", b"data:")
        return [whole], "end", False
    if how == "stream-reasoning":
        think = _event(_chunk({"reasoning_content": "two and "})) + _event(_chunk({"reasoning_content": "two"}))
        return [think, _events(["4"])], "end", False
    if how == "stream-logprobs":
        events = [
            _event(_chunk({"content": text}, choice={"logprobs": {"content": [{"token": text, "logprob": value}]}}))
            for text, value in (("a", -0.5), ("b", -0.25))
        ]
        return [*events, _event(_chunk({}, "stop")), done], "end", False
    if how == "stream-split":  # CRLF, comments, other fields, and a write that ends inside each character
        whole = (
            b": welcome\r\n\r\n"
            + b"event: message\r\nid: 7\r\nretry: 10\r\n"
            + b"data: %b\r\n\r\n"
            % json.dumps({"choices": [{"delta": {"content": "日本"}}]}, ensure_ascii=False).encode()
            + b": keep-alive\r\n\r\n"
            + b"data: %b\r\n\r\n" % _chunk({"content": "語 naïve 🙂"})
            + b"data: %b\r\n\r\n" % _chunk({}, "stop")
            + b"data: [DONE]\r\n\r\n"
        )
        cuts = [at + 1 for at, byte in enumerate(whole) if byte >= 0xC0 or byte == 0x0D]
        edges = [0, *cuts, len(whole)]
        return [whole[a:b] for a, b in pairwise(edges) if a < b], "end", True
    raise ValueError(how)


@cache
def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b" " * (1 << 20)
    return b"".join(packer.compress(block) for _ in range(200)) + packer.flush()


def _canned(request: Request) -> tuple[int, bytes] | tuple[int, bytes, bytes] | tuple[int, bytes, bytes, bytes]:
    """Status, body, further headers and content type of the behaviours that are one fixed answer."""
    how = request.how
    message: dict[str, Any] = {"role": "assistant", "content": _reply(request.text)}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
    answer: dict[str, Any] = {"model": "fake-2026-01", "choices": [choice], "usage": _usage("")}
    if how == "html":
        return 200, b"<html><body>Welcome to the proxy</body></html>", b"", b"text/html"
    if how == "redirect":
        return 307, b"", b"Location: https://elsewhere.example/v1/chat/completions?token=abc\r\n"
    if how == "badjson":
        return 200, b'{"choices": nonsense}'
    if how == "cutjson":
        return 200, _completion("cut")[:60]
    if how == "nonutf8":
        return 200, _completion("caf*").replace(b"*", b"\xe9")
    if how == "surrogate":
        return 200, _completion("half: *").replace(b"*", b"\\ud83d")
    if how == "nobody":
        return 200, b""
    if how == "error200":
        return 200, _error("the engine is sad", type="odd_error", code="engine_error")
    if how == "error200-502":
        return 200, _error("Provider returned error", code=502)
    if how == "error200-flat":
        return 200, _encode({"object": "error", "message": "no such model", "type": "NotFoundError", "code": 404})
    if how == "errorlist":
        return 400, _encode([{"error": {"code": 400, "message": "wrapped in a list", "status": "INVALID_ARGUMENT"}}])
    if how == "401":
        return 401, _error("Incorrect API key provided", type="invalid_request_error", code="invalid_api_key")
    if how == "404":
        return 404, _error("The model `m` does not exist", code="model_not_found")
    if how == "400ctx":
        text = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."
        return 400, _error(text, type="invalid_request_error", code="context_length_exceeded")
    if how == "400neg":
        text = "max_tokens must be at least 1, got -186."
        return 400, _encode({"object": "error", "message": text, "type": "BadRequestError", "param": None, "code": 400})
    if how == "400llama":
        return 400, _error("the request exceeds the available context size", type="exceed_context_size_error", code=400)
    if how == "400param":
        error = {
            "message": "Unsupported value: 'temperature' is 3",
            "param": "temperature",
            "code": "unsupported_value",
        }
        return 400, _encode({"error": error})
    if how == "400filter":
        text = "The response was filtered due to the prompt triggering the content management policy."
        inner = {"code": "ResponsibleAIPolicyViolation"}
        return 400, _error(text, type=None, code="content_filter", status=400, innererror=inner)
    if how == "400credit":
        return 400, _error("Your credit balance is too low to access the API.", type="invalid_request_error")
    if how == "400flat":
        return 400, _encode({"error": "model is required"})
    if how == "422detail":
        detail = [{"loc": ["body", "messages"], "msg": "Field required", "type": "missing"}]
        return 422, _encode({"detail": detail})
    if how == "quota":
        text = "You exceeded your current quota, please check your plan and billing details."
        return 429, _error(text, type="insufficient_quota", code="insufficient_quota")
    if how == "billing":
        return 429, _error("Your account is not active", type="billing_not_active", code="billing_not_active")
    if how == "echo-key":
        head = request.head.decode("latin-1")
        text = f"Incorrect API key provided: {request.header('authorization')}\n\x1b[31mred. {head}"
        return 401, _error(text, code="invalid_api_key")
    if how == "echo-key-422":
        sent = {"headers": {"Authorization": request.header("authorization"), "X-Team": request.header("x-team")}}
        return 422, _encode({"detail": [{"loc": ["body"], "input": sent, "more": "x" * 5000}]})
    if how == "gzip":
        return 200, gzip.compress(_completion(_reply(request.text))), b"Content-Encoding: gzip\r\n"
    if how == "badgzip":
        return 200, _completion(_reply(request.text)), b"Content-Encoding: gzip\r\n"
    if how == "gzipbomb":
        return 200, _bomb(), b"Content-Encoding: gzip\r\n"
    if how == "huge":
        return 200, b" " * (80 << 20)
    if how == "u2028":
        message["content"] = "one\u2028two\u2029three\u0085four"
    elif how == "null":
        message["content"] = None
    elif how == "empty":
        message["content"] = ""
    elif how == "parts":
        message["content"] = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}, {"type": "image_url"}]
    elif how == "norole":
        choice["message"] = {"content": "bare"}
        choice["finish_reason"] = None
    elif how == "wrongtype":
        message["content"] = 12
    elif how == "empty-choices":
        answer["choices"] = []
    elif how == "nousage":
        del answer["usage"]
    elif how == "long":
        choice["finish_reason"] = "length"
    elif how == "prompt-too-long":
        message["content"] = ""
        choice["finish_reason"] = "length"
        answer["usage"] = {"prompt_tokens": 2664, "completion_tokens": 0, "total_tokens": 2664}
    elif how == "filter":
        message["content"] = ""
        choice["finish_reason"] = "content_filter"
    elif how == "refusal":
        message.update(content=None, refusal="I can't help with that.")
    elif how == "tool":
        message.update(content=None, tool_calls=[{"id": "1", "type": "function", "function": {"name": "f"}}])
        choice["finish_reason"] = "tool_calls"
    elif how == "function":
        message.update(content=None, function_call={"name": "f", "arguments": "{}"})
        choice["finish_reason"] = "function_call"
    elif how == "finish-error":
        message["content"] = ""
        choice["finish_reason"] = "error"
    elif how == "history":
        message["content"] = told_of(json.loads(request.body)["messages"])
    elif how == "seed":
        message["content"] = str(json.loads(request.body).get("seed", "none"))
    elif how.startswith("drift"):
        number = int(_reply(request.text)) % int(how[5:])
        answer.update(model=f"fake-{number}", system_fingerprint=f"fp_{number}")
    elif how == "reasoning-only":
        message.update(content=None, reasoning_content="two and two and two and")
        choice["finish_reason"] = "length"
    elif how == "reasoning":
        message["reasoning_content"] = "two and two"
        answer["system_fingerprint"] = "fp_1"
        answer["usage"] = {
            "prompt_tokens": 12,
            "completion_tokens": 30,
            "completion_tokens_details": {"reasoning_tokens": 27},
            "prompt_tokens_details": {"cached_tokens": 8},
        }
    elif how.startswith("logprobs"):
        value = {"-inf": "@-Infinity@", "-nan": "@NaN@", "-positive": 0.001}.get(how[8:], -0.25)
        tokens = [{"token": "a", "logprob": -0.5, "top_logprobs": []}, {"token": "b", "logprob": value}]
        choice["logprobs"] = None if how == "logprobs-null" else {"content": tokens}
        return 200, _encode(answer).replace(b'"@', b"").replace(b'@"', b"")
    else:
        return 404, _error(f"no behaviour is called {how}")
    return 200, _encode(answer)


async def _serve(
    port: int, log: int | None, tls: ssl.SSLContext | None, follow_stdin: bool, asked: int | None = None
) -> None:
    stats = Stats()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(stats, log, asked), "127.0.0.1", port, backlog=8192, ssl=tls, reuse_address=True
    )
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    if follow_stdin:  # so that no server outlives the test that began it, however that ends
        threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    await server.serve_forever()


class FakeServer:
    """The server as a process, for the length of a `with`. log, asked: see above. cert, key: files, to serve https."""

    def __init__(
        self,
        *,
        port: int = 0,
        log: Path | None = None,
        asked: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", "tests.server", "--port", str(port), "--follow-stdin"]
        for option, value in (("--log", log), ("--asked", asked), ("--cert", cert), ("--key", key)):
            if value is not None:
                self._command += [option, str(value)]
        self._tls = cert is not None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> FakeServer:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = int(json.loads(_pipe(self._process.stdout).readline())["port"])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        _pipe(self._process.stdin).close()
        _pipe(self._process.stdout).close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, behaviour: str = "") -> str:
        """The base_url under which the server behaves so."""
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}/{behaviour + '/' if behaviour else ''}v1"

    def stats(self) -> dict[str, Any]:
        with self._open("/stats") as answer:
            report: dict[str, Any] = json.load(answer)
            return report

    def reset_stats(self) -> None:
        with self._open("/reset-stats", b""):
            pass

    def behave(self, behaviour: str = "") -> None:
        """Treat every further request so; as its path says again without an argument."""
        with self._open(f"/behave/{behaviour}", b""):
            pass

    def _open(self, path: str, data: bytes | None = None) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(f"http://127.0.0.1:{self.port}{path}", data=data, timeout=30)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.server", description="A fake chat completions endpoint.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", help="append a line for each full answer")
    parser.add_argument("--asked", help="append a line for each request")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--follow-stdin", action="store_true", help="end when stdin does")
    args = parser.parse_args()
    log, asked = (
        os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if name else None
        for name in (args.log, args.asked)
    )
    tls = None
    if args.cert:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(args.cert, args.key)
    try:
        asyncio.run(_serve(args.port, log, tls, args.follow_stdin, asked))
    except KeyboardInterrupt:
        pass  # the ordinary way to end it by hand


if __name__ == "__main__":
    main()
