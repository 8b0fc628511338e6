"""HTTP POST by libcurl: what a transfer is, and how to make one on the caller's own thread.

    Call                       what an adapter wants sent, and who takes the answer
    Transport.exchange(call)   makes the transfer here and now, on this thread's own handle
    Transport.handle()         one handle more, for whoever drives many at once (`inferd.adapters.multi`)

Invariants. One call sends at most one request: libcurl's own resend after a dead kept connection is refused (the body
comes from a read function that can't rewind), redirects aren't followed. A thread's handle keeps one connection, so
there are never more sockets than threads, and no pool has a limit of its own. A transfer that is broken off, by a
deadline or by `feed`, closes its connection (of HTTP/2 its stream). What libcurl fails with becomes Retryable of kind
connection, timeout or bad_response; a proxy that wants a password is Permanent, auth.

How it connects (proxies, certificates, HTTP/2) is `inferd.adapters.connections`'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import pycurl

from inferd.adapters.connections import certificate_fault, connection_options, on_new_socket, proxy_secrets
from inferd.adapters.redact import Redactor, public_url, url_secrets
from shared.config import ModelConfig
from shared.errors import Permanent, Retryable, UsageError
from shared.records import Generation

MAX_BODY = 64 << 20
"""Bytes of an answer, unpacked. No answer of a model is so long; what is longer is a mistake or a decompression bomb.
"""

SETTLE_LOOKS = 1.0
"""Seconds between two looks at whether a stream that fell silent may be taken as complete."""

DNS_SECONDS = 2
"""For how long a name's addresses are remembered; that it was not found, half of that. Connections are kept, so a name
is seldom looked up, and one that is unknown for a moment must not use up a request's attempts.
"""

_MAX_MILLISECONDS = 2**31 - 1

Feed = Callable[[bytes], None]
"""Takes the next piece of a 2xx answer's body; raises to break the transfer off."""

Settle = Callable[[], float | None]
"""After how many seconds without a further byte a stream may be taken as complete; None: not yet."""


class Reply(NamedTuple):
    """An answer as it came; its header lines are taken apart only when somebody asks."""

    status: int
    lines: Sequence[bytes]
    body: bytes

    def headers(self) -> dict[str, str]:
        """By name in lower case; the last one of a name wins."""
        return _headers(self.lines)


class Sending(Protocol):
    """What a transport carries.

    body: what is sent. url: where to, on the host of the transport's own address; empty, or left out: to that one.
    feed: takes the pieces of a 2xx answer as they come, which are then not in the reply; None: the answer is wanted
    whole. settle: asked about once a second while a fed transfer lasts, since a server may say that it is done and
    leave the connection open.
    """

    body: bytes
    feed: Feed | None
    settle: Settle | None


class Call(Sending, Protocol):
    """One attempt's exchange: an adapter makes it, a transport carries it, the adapter reads what came. Used once."""

    def answer(self, came: Reply | Exception) -> Generation:
        """What the answer means. came: an exception is what broke the transfer off: a Retryable, or what `feed`
        raised. Raises shared.errors.Retryable or Permanent.
        """


class Transport:
    """POSTs to one address, as a model of the suite asks for it. Thread-safe.

    url: http or https; where a call goes that names no other. headers: lines as they go out, Content-Type included.
    timeout: seconds for the whole call, whatever comes or doesn't. secrets: what must not appear in any text; the
    userinfo and query values of `url` and of the environment's proxies are added to them. password: of the client's
    key. Raises UsageError when one of the model's certificate files can't be used.
    """

    def __init__(
        self,
        url: str,
        model: ModelConfig,
        *,
        headers: Sequence[bytes],
        timeout: float,
        secrets: Sequence[str] = (),
        password: str = "",
    ) -> None:
        self.redact = Redactor([*secrets, *url_secrets(url), *proxy_secrets(), *([password] if password else [])])
        if fault := certificate_fault(model, password):
            raise UsageError(f"model {model.abbr}: {fault}")
        self.address = public_url(url)
        self.timeout = timeout
        self.connect_timeout = min(model.connect_timeout, timeout)
        self.slowness = model.low_speed_limit, model.low_speed_time
        self.url = url
        self._headers = [*headers, b"Expect:"]
        self._options = [*connection_options(model, url), *([(pycurl.KEYPASSWD, password)] if password else [])]
        self._threads = threading.local()

    def exchange(self, call: Sending, timeout: float | None = None) -> Reply | Exception:
        """The whole transfer, on this thread's own handle. timeout: seconds, where fewer than usual are left for it."""
        handle: Handle | None = getattr(self._threads, "handle", None)
        if handle is None:
            handle = self._threads.handle = self.handle()  # it goes, and its connection with it, when the thread ends
        return handle.perform(call, timeout)

    def handle(self) -> Handle:
        return Handle(self, self._curl())

    def _curl(self) -> pycurl.Curl:
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, self.url)
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.HTTPHEADER, self._headers)
        curl.setopt(pycurl.USERAGENT, "tandem-eval")
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.FOLLOWLOCATION, 0)
        curl.setopt(pycurl.NOSIGNAL, 1)  # else libcurl's resolver timeouts would raise SIGALRM in a threaded process
        curl.setopt(pycurl.TCP_NODELAY, 1)
        curl.setopt(pycurl.TCP_KEEPALIVE, 1)
        curl.setopt(pycurl.SOCKOPTFUNCTION, on_new_socket)
        curl.setopt(pycurl.MAXCONNECTS, 1)
        curl.setopt(pycurl.DNS_CACHE_TIMEOUT, DNS_SECONDS)
        curl.setopt(pycurl.ENCODING, "gzip, deflate")
        curl.setopt(pycurl.TIMEOUT_MS, _milliseconds(self.timeout))
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, _milliseconds(self.connect_timeout))
        for option, value in self._options:
            curl.setopt(option, value)  # None unsets it
        return curl


class Handle:
    """A libcurl handle and the one exchange that passes over it at a time.

    `perform` makes the transfer; who drives the handle by other means calls `begin` before and `succeeded` or `failed`
    after it.
    """

    def __init__(self, transport: Transport, curl: pycurl.Curl) -> None:
        self.curl = curl
        self._transport = transport
        self._url = transport.url
        self._timeout = transport.timeout
        self._exchange = exchange = _Exchange()
        curl.setopt(pycurl.READFUNCTION, exchange.read)
        curl.setopt(pycurl.HEADERFUNCTION, exchange.lines.append)
        curl.setopt(pycurl.WRITEFUNCTION, exchange.write)
        curl.setopt(pycurl.XFERINFOFUNCTION, exchange.progress)

    def perform(self, call: Sending, timeout: float | None = None) -> Reply | Exception:
        self.begin(call, timeout)
        self.curl.setopt(pycurl.NOPROGRESS, call.settle is None)
        try:
            self.curl.perform()
        except pycurl.error as error:
            failed = error.args
        else:
            return self.succeeded()
        return self.failed(*failed)  # out here, so that no traceback quotes libcurl's own words

    def begin(self, call: Sending, timeout: float | None = None) -> None:
        self._exchange.begin(call)
        self.curl.setopt(pycurl.POSTFIELDSIZE, len(call.body))
        url = getattr(call, "url", "") or self._transport.url
        if url != self._url:
            self.curl.setopt(pycurl.URL, url)
            self._url = url
        seconds = self._transport.timeout if timeout is None else timeout
        if seconds != self._timeout:
            self.curl.setopt(pycurl.TIMEOUT_MS, _milliseconds(seconds))
            self._timeout = seconds

    def settled(self) -> bool:
        """Whether the stream on this handle may be taken as complete, though its connection is open."""
        return bool(self._exchange.progress())

    def succeeded(self) -> Reply:
        return self._exchange.end(self.curl.getinfo(pycurl.RESPONSE_CODE))

    def failed(self, code: int, text: str = "") -> Reply | Exception:
        """What a transfer that failed comes to. Its connection is closed: libcurl keeps none after an error."""
        exchange, transport = self._exchange, self._transport
        # Of the endpoint: what a proxy said to CONNECT isn't among it.
        status = self.curl.getinfo(pycurl.RESPONSE_CODE) or None
        reply = exchange.end(200)
        if exchange.raised is not None:
            return exchange.raised
        if exchange.settled:
            return reply
        if exchange.overflow:
            return Retryable("bad_response", f"the answer is longer than {MAX_BODY >> 20} MiB: given up", status=status)
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return self._timed_out(status)
        if self.curl.getinfo(pycurl.HTTP_CONNECTCODE) == 407:
            return Permanent("auth", "the proxy wants a user name and password: HTTP 407", status=407)
        quoted = transport.redact.quote(text)
        if code in _GARBLED:
            return Retryable("bad_response", f"the answer can't be read: {quoted}", status=status)
        if code in _NOT_SENT:
            # Servers close idle connections when they like: a fresh one is worth asking at once.
            text = "the kept connection was closed without an answer"
            return Retryable("connection", f"{transport.address}: {text}", status=status, retry_after=0.0)
        return Retryable("connection", f"{transport.address}: {quoted} (curl {code})", status=status)

    def _timed_out(self, status: int | None) -> Retryable:
        transport = self._transport
        if self.curl.getinfo(pycurl.TOTAL_TIME) >= self._timeout - 0.002:
            return Retryable("timeout", f"no whole answer within {transport.timeout:g} s", status=status)
        if not self.curl.getinfo(pycurl.REQUEST_SIZE):  # nothing went out yet
            within = f"within {transport.connect_timeout:g} s"
            return Retryable("connection", f"no connection to {transport.address} {within}")
        limit, seconds = transport.slowness
        return Retryable("timeout", f"slower than {limit} bytes a second for {seconds:g} s", status=status)


_GARBLED = frozenset(
    {
        pycurl.E_BAD_CONTENT_ENCODING,
        pycurl.E_WRITE_ERROR,
        pycurl.E_FTP_WEIRD_SERVER_REPLY,
        pycurl.E_UNSUPPORTED_PROTOCOL,
        100,
    }
)
"""Unpacking failed; what answered doesn't speak HTTP; its headers are too large (100)."""

_NOT_SENT = frozenset({pycurl.E_SEND_FAIL_REWIND})
"""libcurl would have sent the request again by itself: the server closed the connection, or refused the stream,
without touching it.
"""


class _Exchange:
    """The request and the answer that pass over a handle. Its methods are libcurl's callbacks.

    A callback must not raise (pycurl would print a traceback and go on): what goes wrong is kept and ends the
    transfer. It doesn't know its handle: a circle of the two would keep a dead thread's connection open until the
    next collection.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.pieces: list[bytes] = []
        self.rest = b""
        self.feed: Feed | None = None
        self.settle: Settle | None = None

    def begin(self, call: Sending) -> None:
        if not isinstance(call.body, bytes):
            raise TypeError(f"a call's body must be bytes, not {type(call.body).__name__}")
        self.rest = call.body
        self.feed = call.feed
        self.settle = call.settle
        self.lines.clear()
        self.pieces.clear()
        self.size = 0
        self.status = 0
        self.last_byte = 0.0
        self.overflow = False
        self.settled = False
        self.raised: Exception | None = None

    def end(self, status: int) -> Reply:
        """The reply; lets go of the call, whose handle may rest for long."""
        self.feed = self.settle = None
        pieces = self.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return Reply(status, tuple(self.lines), body)

    def read(self, room: int) -> bytes:
        rest = self.rest
        if len(rest) <= room:
            self.rest = b""
            return rest
        self.rest = rest[room:]
        return rest[:room]

    def write(self, piece: bytes) -> int | None:
        self.size += len(piece)
        if self.size > MAX_BODY:
            self.overflow = True
            return -1
        if self.feed is None:
            self.pieces.append(piece)
            return None
        if not self.status:
            self.status = _status(self.lines)
        if self.status // 100 != 2:
            self.pieces.append(piece)
            return None
        self.last_byte = time.monotonic()
        try:
            self.feed(piece)
        except BaseException as error:  # noqa: BLE001  # nothing may pass through libcurl's frames
            return self._break_off(error)
        return None

    def progress(self, *_totals: float) -> int:
        try:
            silence = self.settle() if self.settle else None
            self.settled = silence is not None and time.monotonic() - self.last_byte >= silence
        except BaseException as error:  # noqa: BLE001  # as above
            return self._break_off(error)
        return int(self.settled)

    def _break_off(self, error: BaseException) -> int:
        """It is raised again outside: in here a SystemExit would end the process."""
        self.raised = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        return -1


def _headers(lines: Sequence[bytes]) -> dict[str, str]:
    """The last header block; before it there may be those of a proxy or of a 100 Continue."""
    headers: dict[str, str] = {}
    for line in lines:
        if line.startswith(b"HTTP/"):
            headers.clear()
            continue
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return headers


def _status(lines: Sequence[bytes]) -> int:
    for line in reversed(lines):
        if line.startswith(b"HTTP/"):
            word = line.split(None, 2)[1:2]
            return int(word[0]) if word and word[0].isdigit() else 0
    return 0


def _milliseconds(seconds: float) -> int:
    return max(1, min(round(seconds * 1000), _MAX_MILLISECONDS))  # 0 would mean: no limit
