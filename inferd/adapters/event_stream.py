"""Server-sent events: a completion that comes in pieces, read as they come."""

from __future__ import annotations

import time

from inferd.adapters.completion import Answer, Choice, Said, Token, decode, whole_answer
from inferd.adapters.endpoint_errors import loose, no_answer, told_by
from inferd.adapters.redact import Redactor
from inferd.adapters.transport import Reply
from shared.errors import Retryable
from shared.records import Generation

DONE_GRACE = 1.0
FINISH_GRACE = 5.0
"""Seconds of silence after [DONE], and after a finish_reason, before a stream that isn't closed counts as complete."""

_BOM = b"\xef\xbb\xbf"
_MAX_LINES = 64  # of one event


class EventStream:
    """An event stream on its way. It takes bytes as they come, however they are cut.

    A body that is no event stream (from an endpoint that can't, from a proxy) is kept and read as a whole answer.
    """

    def __init__(self, redact: Redactor) -> None:
        self.begun = False
        self.complete = False
        self._done = False
        self._finish_reason: str | None = None
        self._redact = redact
        self._start = time.monotonic()
        self._first: float | None = None
        self._said = Said()
        self._tokens: list[Token] = []
        self._whole = Answer()
        self._parts: list[bytes] = []
        self._pending = b""
        self._plain: list[bytes] | None = None

    def feed(self, piece: bytes) -> None:
        """Raises Retryable or Permanent for an error that the stream tells, and for an event that can't be read."""
        if self._plain is not None:
            self._plain.append(piece)
            return
        if not self.begun:
            piece = (b"".join(self._parts) + piece).lstrip()
            self._parts.clear()
            if len(piece) < 3 and _BOM.startswith(piece):
                self._parts.append(piece)
                return
            piece = piece.removeprefix(_BOM)
            self.begun = True
            if piece[:1] in (b"{", b"[", b"<"):
                self._plain = [piece]
                return
        if b"\n" not in piece and b"\r" not in piece:
            # Put together when its line ends, so that a long line costs no more than its length.
            self._parts.append(piece)
            return
        data = b"".join(self._parts) + piece
        if b"\r" in data:
            held = b"\r" if data.endswith(b"\r") else b""  # perhaps the first half of a CRLF
            data = data[: len(data) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            held = b""
        *lines, rest = data.split(b"\n")
        self._parts = [rest + held]
        for line in lines:
            self._line(line)

    def settle(self) -> float | None:
        if self._done:
            return DONE_GRACE
        return FINISH_GRACE if self._finish_reason else None

    def end(self) -> None:
        """Nothing more comes: take what has no line feed after it."""
        if self._plain is None and self.begun:
            for line in (*b"".join(self._parts).split(b"\r"), b""):
                self._line(line)
            self._parts.clear()

    def generation(self) -> Generation:
        """The answer. Raises Retryable incomplete_stream if the stream ended before it did."""
        if self._plain is not None:
            return whole_answer(Reply(200, (), b"".join(self._plain)), self._redact)
        if not self.complete:
            got = sum(map(len, self._said.texts))
            text = f"the stream ended after {got} characters with neither finish_reason nor [DONE]"
            raise Retryable("incomplete_stream", text, status=200)
        return self._said.generation(self._whole, self._finish_reason, self._tokens or None, self._first)

    def _line(self, line: bytes) -> None:
        if line[:5] == b"data:":
            data = line[5:].strip()
            if data == b"[DONE]":
                self._done = self.complete = True
            elif data and not self._done:
                self._data(data)
        elif not line and self._pending:
            raise Retryable("bad_response", f"an event isn't JSON: {self._redact.quote(self._pending)}", status=200)

    def _data(self, data: bytes) -> None:
        """One data line: mostly an event of its own, sometimes a part of one."""
        if self._pending:
            data = self._pending + b"\n" + data
        chunk = decode(data)
        if chunk is None:
            self._pending = data
            if data.count(b"\n") >= _MAX_LINES:
                self._line(b"")
            return
        self._pending = b""
        if chunk.error or chunk.object == "error" or (not chunk.choices and chunk.usage is None):
            self._trouble(data)
        whole = self._whole
        if chunk.usage is not None:
            whole.usage = chunk.usage
        whole.model = whole.model or chunk.model
        whole.system_fingerprint = whole.system_fingerprint or chunk.system_fingerprint
        for choice in chunk.choices or ():
            if not choice.index:
                self._choice(choice, data)

    def _choice(self, choice: Choice, data: bytes) -> None:
        said = self._said
        turn = choice.delta
        if turn is None:  # of /completions, whose pieces have no form of their own, or of an endpoint that can't stream
            turn = choice.turn() if choice.text is not None or not said.texts else None
        if turn is not None:
            said.add(turn)
            if self._first is None and (said.texts or said.reasoning):
                self._first = time.monotonic() - self._start
        if choice.logprobs is not None:
            self._tokens += choice.logprobs.tokens() or ()
        if choice.finish_reason:
            if choice.finish_reason == "error":
                raise no_answer(data, self._redact, choice.error)
            self._finish_reason = choice.finish_reason
            self.complete = True

    def _trouble(self, data: bytes) -> None:
        if told_by(loose(data)) is not None:
            raise no_answer(data, self._redact)
