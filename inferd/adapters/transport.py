"""HTTP POST by libcurl: one easy handle a thread, kept connections, one wall-clock deadline, no secret in any text.

    Transport.post(body)          -> Reply        the whole answer
    Transport.stream(body, feed)  -> Reply        hands on each piece as it comes

Invariants. One call sends at most one request: libcurl's own resend after a dead kept connection is refused (the body
comes from a read function that can't rewind), redirects aren't followed. A handle belongs to its thread and keeps one
connection, so there are never more sockets than threads and no pool has a limit of its own. A transfer that is broken
off, by a deadline or by `feed`, closes its connection. What libcurl fails with becomes Retryable of kind connection,
timeout or bad_response.

Proxies and NO_PROXY come from the environment, as libcurl reads them. Certificates are checked, against
CURL_CA_BUNDLE, else SSL_CERT_FILE, else the system's.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec
import pycurl

from shared.errors import Retryable

MAX_BODY = 64 << 20
"""Bytes of an answer, unpacked. No answer of a model is so long; what is longer is a mistake or a decompression bomb.
"""

QUOTED = 300
"""Characters of an answer that an error text quotes."""

_MAX_MILLISECONDS = 2**31 - 1
_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]+")

Feed = Callable[[bytes], None]
"""Takes the next piece of a stream's body; raises to break the transfer off."""

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


class Redactor:
    """Takes secrets out of texts, and makes what others wrote fit to be quoted.

    A secret is found as it is, as JSON writes it and as a URL does. Those under 4 characters are none: to blot them out
    would only garble the text.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= 4:
                forms |= {
                    secret,
                    msgspec.json.encode(secret).decode()[1:-1],
                    quote(secret, safe=""),
                    ascii(secret)[1:-1],
                }
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if longest_first else None
        self._longest = max(map(len, forms), default=0)

    def __call__(self, text: str) -> str:
        return self._pattern.sub("[redacted]", text) if self._pattern else text

    def quote(self, text: str | bytes, limit: int = QUOTED) -> str:
        """The text in one line of at most about `limit` characters: no secrets, no control characters."""
        room = 65536 + self._longest
        head = text[:room]
        told = self(head if isinstance(head, str) else head.decode("utf-8", "replace"))
        if len(text) > room:
            told = told[: max(0, len(told) - self._longest)]  # the start of a secret may stand at the cut
        line = _CONTROL.sub(_escape, _SPACE.sub(" ", told).strip())
        return line if len(line) <= limit else line[:limit] + "..."


class Transport:
    """POSTs to one address. Thread-safe: each thread has its own handle and connection.

    url: http or https. headers: lines as they go out, Content-Type included. timeout: seconds for the whole call,
    whatever comes or doesn't. secrets: what must not appear in any text; the userinfo and query values of `url` are
    added to them. direct: through no proxy, whatever the environment says (for a server that we run ourselves).
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Sequence[bytes],
        timeout: float,
        connect_timeout: float,
        secrets: Sequence[str] = (),
        direct: bool = False,
    ) -> None:
        self.redact = Redactor([*secrets, *url_secrets(url)])
        self._address = public_url(url)
        self._url = url
        self._headers = [*headers, b"Expect:"]
        self._timeout = timeout
        self._connect_timeout = min(connect_timeout, timeout)
        self._options = [*_authority(), *([(pycurl.NOPROXY, "*")] if direct else [])]
        self._threads = threading.local()

    def post(self, body: bytes) -> Reply:
        """Send `body`, wait for the whole answer. Raises Retryable (connection, timeout, bad_response)."""
        curl, exchange = self._handle()
        return self._perform(curl, exchange, body)

    def stream(self, body: bytes, feed: Feed, settle: Settle) -> Reply:
        """Send `body`; `feed` gets the answer's pieces if its status is 2xx, else they are the reply's body.

        settle: asked about once a second while the transfer lasts, since a server may say that it is done and leave the
        connection open. What `feed` raises is raised from here, with the connection closed. Else raises as `post` does.
        """
        curl, exchange = self._handle()
        exchange.feed, exchange.settle = feed, settle
        curl.setopt(pycurl.NOPROGRESS, 0)
        try:
            return self._perform(curl, exchange, body)
        finally:
            exchange.feed = exchange.settle = exchange.raised = None
            curl.setopt(pycurl.NOPROGRESS, 1)

    def _handle(self) -> tuple[pycurl.Curl, _Exchange]:
        """This thread's own. It goes, and its connection with it, when the thread ends."""
        handle: tuple[pycurl.Curl, _Exchange] | None = getattr(self._threads, "handle", None)
        if handle is None:
            exchange = _Exchange()
            handle = self._threads.handle = (self._new_handle(exchange), exchange)
        return handle

    def _new_handle(self, exchange: _Exchange) -> pycurl.Curl:
        curl = pycurl.Curl()
        curl.setopt(pycurl.READFUNCTION, exchange.read)
        curl.setopt(pycurl.HEADERFUNCTION, exchange.lines.append)
        curl.setopt(pycurl.WRITEFUNCTION, exchange.write)
        curl.setopt(pycurl.XFERINFOFUNCTION, exchange.progress)
        curl.setopt(pycurl.URL, self._url)
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.HTTPHEADER, self._headers)
        curl.setopt(pycurl.USERAGENT, "tandem-eval")
        curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.FOLLOWLOCATION, 0)
        curl.setopt(pycurl.NOSIGNAL, 1)  # else libcurl's resolver timeouts would raise SIGALRM in a threaded process
        curl.setopt(pycurl.TCP_NODELAY, 1)
        curl.setopt(pycurl.TCP_KEEPALIVE, 1)
        curl.setopt(pycurl.MAXCONNECTS, 1)
        curl.setopt(pycurl.ENCODING, "gzip, deflate")
        curl.setopt(pycurl.TIMEOUT_MS, _milliseconds(self._timeout))
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, _milliseconds(self._connect_timeout))
        for option, value in self._options:
            curl.setopt(option, value)  # None unsets it
        return curl

    def _perform(self, curl: pycurl.Curl, exchange: _Exchange, body: bytes) -> Reply:
        exchange.begin(body)
        curl.setopt(pycurl.POSTFIELDSIZE, len(body))
        try:
            curl.perform()
        except pycurl.error as error:
            failed = error.args
        else:
            return exchange.reply(curl.getinfo(pycurl.RESPONSE_CODE))
        return self._failed(curl, exchange, *failed)  # out here, so that no traceback quotes libcurl's own words

    def _failed(self, curl: pycurl.Curl, exchange: _Exchange, code: int, text: str = "") -> Reply:
        """What a transfer that failed comes to. Its connection is closed: libcurl keeps none after an error."""
        if exchange.raised is not None:
            raise exchange.raised
        if exchange.settled:
            return exchange.reply(200)
        status = exchange.status or None
        if exchange.overflow:
            raise Retryable("bad_response", f"the answer is longer than {MAX_BODY >> 20} MiB: given up", status=status)
        if code == pycurl.E_OPERATION_TIMEDOUT:
            if self._connect_timeout < self._timeout and curl.getinfo(pycurl.TOTAL_TIME) < self._timeout - 0.002:
                raise Retryable("connection", f"no connection to {self._address} within {self._connect_timeout:g} s")
            raise Retryable("timeout", f"no whole answer within {self._timeout:g} s", status=status)
        if code in _GARBLED:
            raise Retryable("bad_response", f"the answer can't be read: {self.redact.quote(text)}", status=status)
        if code == pycurl.E_SEND_FAIL_REWIND:
            # Servers close idle connections when they like: a fresh one is worth asking at once.
            text = "the kept connection was closed without an answer"
            raise Retryable("connection", f"{self._address}: {text}", status=status, retry_after=0.0)
        raise Retryable("connection", f"{self._address}: {self.redact.quote(text)} (curl {code})", status=status)


_GARBLED = frozenset({pycurl.E_BAD_CONTENT_ENCODING, pycurl.E_WRITE_ERROR, pycurl.E_FTP_WEIRD_SERVER_REPLY, 100})
"""Unpacking failed; what answered doesn't speak HTTP; its headers are too large (100)."""


class _Exchange:
    """The request and the answer that pass over a thread's handle. Its methods are libcurl's callbacks.

    A callback must not raise (pycurl would print a traceback and go on): what goes wrong is kept and ends the
    transfer. It doesn't know its handle: a circle of the two would keep a dead thread's connection open until the
    next collection.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.feed: Feed | None = None
        self.settle: Settle | None = None
        self.begin(b"")

    def begin(self, body: bytes) -> None:
        self.rest = body
        self.lines.clear()
        self.pieces: list[bytes] = []
        self.size = 0
        self.status = 0
        self.last_byte = 0.0
        self.overflow = False
        self.settled = False
        self.raised: Exception | None = None

    def reply(self, status: int) -> Reply:
        return Reply(status, tuple(self.lines), b"".join(self.pieces))

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
        except Exception as error:  # noqa: BLE001  # nothing may pass through libcurl's frames; it is raised again outside
            self.raised = error
            return -1
        return None

    def progress(self, *_totals: float) -> int:
        silence = self.settle() if self.settle else None
        self.settled = silence is not None and time.monotonic() - self.last_byte >= silence
        return int(self.settled)


def public_url(url: str) -> str:
    """The address as it may be shown: without userinfo, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that can't be read"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl().rstrip("/")


def url_secrets(url: str) -> list[str]:
    """What a URL may hold that is nobody else's business: user and password in every form they go out in, query
    values.
    """
    parts = urlsplit(url)
    found = [value for pair in parts.query.split("&") if len(value := pair.partition("=")[2]) >= 8]
    info = parts.netloc.rpartition("@")[0]
    if info:
        plain = unquote(info)
        found += [info, info.partition(":")[2], b64encode(plain.encode()).decode()]
    return [form for value in found for form in (value, unquote(value)) if form]


def _authority() -> list[tuple[int, str | None]]:
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


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}"
