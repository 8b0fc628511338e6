"""HTTP POST by libcurl: what a transfer is, and how to make one on the caller's own thread.

    Call                       what an adapter wants sent, and who takes the answer
    Transport.exchange(call)   makes the transfer here and now, on this thread's own handle
    Transport.handle()         one handle more, for whoever drives many at once (`inferd.adapters.multi`)

Invariants. One call sends at most one request: libcurl's own resend after a dead kept connection is refused (the body
comes from a read function that can't rewind), redirects aren't followed. A thread's handle keeps one connection, so
there are never more sockets than threads, and no pool has a limit of its own. A transfer that is broken off, by a
deadline or by `feed`, closes its connection (of HTTP/2 its stream). What libcurl fails with becomes Retryable of kind
connection, timeout or bad_response.

Proxies and NO_PROXY come from the environment, as libcurl reads them. Certificates are checked: against the model's own
`ca_file`, else CURL_CA_BUNDLE, else SSL_CERT_FILE, else the system's.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote

import pycurl

from inferd.adapters.redact import Redactor, public_url, url_secrets
from shared.config import ModelConfig
from shared.errors import Permanent, Retryable, UsageError
from shared.records import Generation

MAX_BODY = 64 << 20
"""Bytes of an answer, unpacked. No answer of a model is so long; what is longer is a mistake or a decompression bomb.
"""

SETTLE_LOOKS = 1.0
"""Seconds between two looks at whether a stream that fell silent may be taken as complete."""

_MAX_MILLISECONDS = 2**31 - 1
_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")

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


class Call(Protocol):
    """One attempt's exchange: an adapter makes it, a transport carries it, the adapter reads what came. Used once.

    body: what is sent. feed: takes the pieces of a 2xx answer as they come, which are then not in the reply; None: the
    answer is wanted whole. settle: asked about once a second while a fed transfer lasts, since a server may say that it
    is done and leave the connection open.
    """

    body: bytes
    feed: Feed | None
    settle: Settle | None

    def answer(self, came: Reply | Exception) -> Generation:
        """What the answer means. came: an exception is what broke the transfer off: a Retryable, or what `feed`
        raised. Raises shared.errors.Retryable or Permanent.
        """


class Transport:
    """POSTs to one address, as a model of the suite asks for it. Thread-safe.

    url: http or https. headers: lines as they go out, Content-Type included. timeout: seconds for the whole call,
    whatever comes or doesn't. secrets: what must not appear in any text; the userinfo and query values of `url` and of
    the environment's proxies are added to them. password: of the client's key. Raises UsageError when one of the
    model's certificate files can't be used.
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
        proxies = filter(None, (os.environ.get(name, "") for name in _PROXY_VARIABLES))
        hidden = [*url_secrets(url), *(secret for proxy in proxies for secret in _proxy_secrets(proxy))]
        self.redact = Redactor([*secrets, *hidden, *([password] if password else [])])
        if fault := _certificate_fault(model, password):
            raise UsageError(f"model {model.abbr}: {fault}")
        self.address = public_url(url)
        self.timeout = timeout
        self.connect_timeout = min(model.connect_timeout, timeout)
        self.slowness = model.low_speed_limit, model.low_speed_time
        self._url = url
        self._headers = [*headers, b"Expect:"]
        self._options = [*_options(model, url), *([(pycurl.KEYPASSWD, password)] if password else [])]
        self._threads = threading.local()

    def exchange(self, call: Call) -> Reply | Exception:
        """The whole transfer, on this thread's own handle."""
        handle: Handle | None = getattr(self._threads, "handle", None)
        if handle is None:
            handle = self._threads.handle = self.handle()  # it goes, and its connection with it, when the thread ends
        return handle.perform(call)

    def handle(self) -> Handle:
        return Handle(self, self._curl())

    def _curl(self) -> pycurl.Curl:
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, self._url)
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.HTTPHEADER, self._headers)
        curl.setopt(pycurl.USERAGENT, "tandem-eval")
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.FOLLOWLOCATION, 0)
        curl.setopt(pycurl.NOSIGNAL, 1)  # else libcurl's resolver timeouts would raise SIGALRM in a threaded process
        curl.setopt(pycurl.TCP_NODELAY, 1)
        curl.setopt(pycurl.TCP_KEEPALIVE, 1)
        curl.setopt(pycurl.MAXCONNECTS, 1)
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
        self._exchange = exchange = _Exchange()
        curl.setopt(pycurl.READFUNCTION, exchange.read)
        curl.setopt(pycurl.HEADERFUNCTION, exchange.lines.append)
        curl.setopt(pycurl.WRITEFUNCTION, exchange.write)
        curl.setopt(pycurl.XFERINFOFUNCTION, exchange.progress)

    def perform(self, call: Call) -> Reply | Exception:
        self.begin(call)
        self.curl.setopt(pycurl.NOPROGRESS, call.settle is None)
        try:
            self.curl.perform()
        except pycurl.error as error:
            failed = error.args
        else:
            return self.succeeded()
        return self.failed(*failed)  # out here, so that no traceback quotes libcurl's own words

    def begin(self, call: Call) -> None:
        self._exchange.begin(call)
        self.curl.setopt(pycurl.POSTFIELDSIZE, len(call.body))

    def settled(self) -> bool:
        """Whether the stream on this handle may be taken as complete, though its connection is open."""
        return bool(self._exchange.progress())

    def succeeded(self) -> Reply:
        return self._exchange.end(self.curl.getinfo(pycurl.RESPONSE_CODE))

    def failed(self, code: int, text: str = "") -> Reply | Exception:
        """What a transfer that failed comes to. Its connection is closed: libcurl keeps none after an error."""
        exchange, transport = self._exchange, self._transport
        status = (
            self.curl.getinfo(pycurl.RESPONSE_CODE) or None
        )  # of the endpoint's: what a proxy said to CONNECT isn't
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
        if self.curl.getinfo(pycurl.TOTAL_TIME) >= transport.timeout - 0.002:
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

    def begin(self, call: Call) -> None:
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


def _options(model: ModelConfig, url: str) -> list[tuple[int, str | int | None]]:
    """What the model's own table says of its transport."""
    offered = model.http2 and url.startswith("https:")  # as ALPN; without TLS nothing can be offered
    options: list[tuple[int, str | int | None]] = [
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS if offered else pycurl.CURL_HTTP_VERSION_1_1),
        # A connection on its way may turn out to carry many streams: then that is better than one each.
        (pycurl.PIPEWAIT, int(offered)),
    ]
    trusted = _authority()
    options += [(pycurl.CAPATH, None), (pycurl.CAINFO, model.ca_file)] if model.ca_file else trusted
    options += [(_OF_PROXY[option], value) for option, value in trusted]
    if model.client_cert:
        options += [(pycurl.SSLCERT, model.client_cert), (pycurl.SSLKEY, model.client_key or model.client_cert)]
    if model.low_speed_limit and model.low_speed_time:
        options += [
            (pycurl.LOW_SPEED_LIMIT, model.low_speed_limit),
            (pycurl.LOW_SPEED_TIME, max(1, round(model.low_speed_time))),
        ]
    if model.type == "local":
        options.append((pycurl.NOPROXY, "*"))  # a server of our own, whatever the environment says
    return options


_OF_PROXY = {pycurl.CAINFO: pycurl.PROXY_CAINFO, pycurl.CAPATH: pycurl.PROXY_CAPATH}


def _certificate_fault(model: ModelConfig, password: str) -> str | None:
    """What is wrong with the model's certificate files, found before the first request: with each one it would look
    like a server that can't be reached, and libcurl would ask the terminal for a password that is missing.
    """
    for name in ("ca_file", "client_cert", "client_key"):
        if path := getattr(model, name):
            try:
                Path(path).read_bytes()
            except OSError as error:
                return f"{name}: can't be read: {error.strerror}: {path}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if model.ca_file:
            context.load_verify_locations(model.ca_file)
    except (OSError, ValueError):  # SSLError is an OSError
        return f"ca_file: holds no certificate in PEM: {model.ca_file}"
    if not model.client_cert:
        return None
    asked = False

    def tell() -> str:
        nonlocal asked
        asked = True
        return password

    key = model.client_key or model.client_cert
    try:
        context.load_cert_chain(model.client_cert, key, tell)
    except (OSError, ValueError) as error:
        if asked and not password:
            return f"client_key: is encrypted: name the variable with its password as client_key_password_env: {key}"
        if asked:
            return f"client_key: can't be read with the password in {model.client_key_password_env}: {key}"
        reason = getattr(error, "reason", None) or "no certificate, or no key, in PEM"
        return f"client_cert: can't be used: {reason}: {model.client_cert}, {key}"
    return None


def _proxy_secrets(proxy: str) -> list[str]:
    """Of a proxy's address as people write it: perhaps without a scheme, perhaps none that can be read, and then quoted
    whole by libcurl.
    """
    info, at, _ = proxy.rpartition("://")[2].rpartition("@")
    if not at:
        return []
    forms = [(text, text.partition(":")[2]) for text in (info, unquote(info))]
    basic = b64encode(unquote(info).encode()).decode()
    return [secret for secret in (proxy, basic, *forms[0], *forms[1]) if secret]


def _authority() -> list[tuple[int, str | int | None]]:
    """Where libcurl shall find the certificates it trusts; its own idea of that is the build machine's.

    Where nobody names a file, a folder with names by hash comes first: of that only what is needed is read, while a
    whole bundle costs each thread 6 ms and 0.7 MB.
    """
    named = os.environ.get("CURL_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    if named:
        return [(pycurl.CAINFO, named)]
    known = ssl.get_default_verify_paths()  # it honours SSL_CERT_DIR
    if known.capath and next(Path(known.capath).glob("*.0"), None):
        return [(pycurl.CAINFO, None), (pycurl.CAPATH, known.capath)]
    file = known.cafile or next(filter(os.path.exists, _CA_BUNDLES), None)
    return [(pycurl.CAINFO, file)] if file else []


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
