"""The adapter for every endpoint that speaks OpenAI's chat completions, whole or as an event stream.

Owns the body that goes out and the meaning of what comes back. Invariant: a call ends with the answer that the
endpoint gave or with a classed error; nothing is invented (no finish_reason, no usage), and no part of an answer
passes for the whole.

    status                                      becomes
    2xx, choices in it                          a Generation
    2xx, an error object in it                  as the status its code or type names; bad_response if they name none
    2xx, anything else                          Retryable   bad_response
    a stream without finish_reason and [DONE]   Retryable   incomplete_stream
    3xx                                         Permanent   not_found: redirects aren't followed
    429, 529; 503 that asks to wait             Retryable   rate_limited
    408, 409, 425, other 5xx                    Retryable   server_error
    402; any with a code of a used-up quota     Permanent   quota
    400, 413, 422 about the context's length    Permanent   context_length
    401, 403, 407 / 404 / other 4xx             Permanent   auth / not_found / bad_request
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Raw, Struct

from inferd.adapters.transport import Redactor, Reply, Transport, public_url
from shared.config import ModelConfig
from shared.errors import AttemptError, ErrorClass, Permanent, Retryable, UsageError
from shared.records import Generation, GenerationSettings, Prompt, TaskSpec, Usage

DONE_GRACE = 1.0
FINISH_GRACE = 5.0
"""Seconds of silence after [DONE], and after a finish_reason, before a stream that isn't closed counts as complete."""

_BOM = b"\xef\xbb\xbf"
_MAX_LINES = 64  # of one event
_SETTINGS = tuple(name for name in GenerationSettings.__struct_fields__ if name != "max_tokens")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN_HEADERS = frozenset({"content-type", "accept", "user-agent"})

Secret = Callable[[str], str | None]


# --- what comes back, as far as it is read ---------------------------------------------------------------------------


class _Part(Struct):
    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class _Turn(Struct):
    content: str | list[_Part | str] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[Raw] | None = None


class _Token(Struct):
    logprob: float | None = None


class _Logprobs(Struct):
    content: list[_Token] | None = None


class _Choice(Struct):
    index: int | None = 0
    message: _Turn | None = None
    delta: _Turn | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    error: Any = None


class _Details(Struct):
    reasoning_tokens: int | float | None = None
    cached_tokens: int | float | None = None


class _Usage(Struct):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    completion_tokens_details: _Details | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(Struct):
    """A whole completion or one chunk of a stream."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    object: Any = None
    error: Any = None


class _Told(NamedTuple):
    """What an endpoint said about its error."""

    message: str
    code: str
    type: str
    param: str
    names: frozenset[str]


_decode_fast = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


# --- the adapter -----------------------------------------------------------------------------------------------------


class OpenAIAdapter:
    """One model behind one base_url. Immutable and thread-safe; each thread keeps its own connection.

    timeout: wall-clock seconds a call. secret: gives the value of a variable that the suite names. Raises UsageError
    when the configuration can't be used. endpoint: the address as it may be shown.
    """

    def __init__(self, model: ModelConfig, *, timeout: float, secret: Secret) -> None:
        problems = [*address_problems(model.base_url), *header_problems(model.headers)]
        if problems:
            raise UsageError(f"model {model.abbr}: {'; '.join(problems)}")
        self.model_id = model.abbr
        self.endpoint = public_url(model.base_url)
        key = _usable(model, model.api_key_env, (secret(model.api_key_env) or "").strip()) if model.api_key_env else ""
        self._keyless = (
            f"no key was sent: the variable {model.api_key_env} is empty" if model.api_key_env else "no key was sent"
        )
        headers, secrets = _headers(model, key, secret)
        if any(line.lower().startswith(b"authorization:") for line in headers):
            self._keyless = ""
        self._transport = Transport(
            _chat_url(model.base_url),
            headers=headers,
            timeout=timeout,
            connect_timeout=model.connect_timeout,
            secrets=secrets,
            direct=model.type == "local",
        )
        self._model = model.served_name
        self._max_tokens_field = model.max_tokens_field
        stream = {"stream": True, "stream_options": {"include_usage": True}} if model.stream else {}
        self._last = {**stream, **model.extra_body}
        self._stream = bool(self._last.get("stream"))

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        """One call. Raises Retryable or Permanent (see the table above)."""
        body = self.body(prompt)
        redact = self._transport.redact
        if self._stream:
            stream = _Stream(redact)
            reply = self._streamed(body, stream)
            if reply.status // 100 == 2:
                return stream.generation()
        else:
            reply = self._transport.post(body)
            if reply.status // 100 == 2:
                return _whole_answer(reply, redact)
        raise self._refused(reply, prompt)

    def body(self, prompt: Prompt) -> bytes:
        """The request as it goes out. What is unset isn't in it; extra_body comes last and wins."""
        body: dict[str, Any] = {"model": self._model, "messages": prompt.messages}
        settings = prompt.generation
        for name in _SETTINGS:
            value = getattr(settings, name)
            if value is not UNSET:
                body[name] = value
        if settings.max_tokens is not UNSET:
            body[self._max_tokens_field] = settings.max_tokens
        if self._last:
            body.update(self._last)
        return _encode(body)

    def _streamed(self, body: bytes, stream: _Stream) -> Reply:
        try:
            reply = self._transport.stream(body, stream.feed, stream.settle)
        except Retryable as error:
            if error.kind not in ("connection", "timeout"):
                raise
            if stream.complete:  # all of it had come before the connection broke
                return Reply(200, (), b"")
            if stream.begun and error.kind == "connection":
                raise Retryable("incomplete_stream", f"the stream broke off: {error.message}", status=200) from None
            raise
        stream.end()
        return reply

    def _refused(self, reply: Reply, prompt: Prompt) -> AttemptError:
        status = reply.status
        headers = reply.headers()
        redact = self._transport.redact
        if status // 100 == 3:
            where = redact.quote(public_url(headers.get("location", "?")))
            text = f"HTTP {status}: redirected to {where}, which isn't followed: name the final address as base_url"
            return Permanent("not_found", text, status=status)
        told = _told(_loose(reply.body))
        if told is None:
            told = _Told(redact.quote(reply.body) or "no further word", "", "", "", frozenset())
        asks_to_wait = "retry-after" in headers or "retry-after-ms" in headers
        decision, kind = _classed(status, told, asks_to_wait)
        text = f"HTTP {status}: {_text(told, redact)}"
        if kind == "auth" and self._keyless:
            text += f" ({self._keyless})"
        if status >= 500 and (prompt.generation.logprobs is True or self._last.get("logprobs")):
            text += " (logprobs were requested)"
        return decision(kind, text, status=status, retry_after=retry_after(headers))


# --- the request -----------------------------------------------------------------------------------------------------


def address_problems(base_url: str) -> list[str]:
    """What is wrong with a base_url, as texts that show no more of it than may be shown."""
    if not base_url:
        return ["base_url is missing: the address up to and including /v1"]
    if not base_url.isascii() or not base_url.isprintable() or " " in base_url:
        return ["base_url holds characters that no address may hold: write them percent-encoded, a host as xn--"]
    try:
        parts = urlsplit(base_url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError as error:
        return [f"base_url is no address: {error}"] if "@" not in base_url else ["base_url is no address"]
    if parts.scheme not in ("http", "https"):
        return ["base_url must begin with http:// or https://"]
    if not parts.hostname or not port_is_good:
        return ["base_url names no host" if not parts.hostname else "base_url names no usable port"]
    if parts.path.rstrip("/").endswith("/chat/completions"):
        return ["base_url must end before /chat/completions, which is added to it"]
    return []


def header_problems(headers: dict[str, str]) -> list[str]:
    """What is wrong with configured headers, without their values."""
    wrong = [name for name in headers if not _HEADER_NAME.fullmatch(name)]
    split = [name for name, value in headers.items() if not _is_line(value)]
    return [f"headers: {name!r} is no header's name" for name in wrong] + [
        f"headers: the value of {name} holds control characters" for name in split
    ]


def _chat_url(base_url: str) -> str:
    parts = urlsplit(base_url)
    return parts._replace(path=parts.path.rstrip("/") + "/chat/completions", fragment="").geturl()


def _headers(model: ModelConfig, key: str, secret: Secret) -> tuple[list[bytes], list[str]]:
    """The header lines that go out, and what of them must never be shown."""
    values = {"content-type": ("Content-Type", "application/json")}
    secrets = [key] if key else []
    if key:
        values["authorization"] = ("Authorization", f"Bearer {key}")
    for name, pattern in model.headers.items():
        value = pattern
        for variable in dict.fromkeys(_VARIABLE.findall(pattern)):
            told = secret(variable)
            if told is None:
                raise UsageError(f"model {model.abbr}: headers: {name} needs the variable {variable}, which isn't set")
            secrets.append(_usable(model, variable, told.strip()))
        value = _VARIABLE.sub(lambda found: (secret(found[1]) or "").strip(), pattern)
        values[name.lower()] = (name, value)
        if name.lower() not in _PLAIN_HEADERS:
            secrets += [value, *(word for word in value.split() if len(word) >= 8)]
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in values.values()]
    return [line.encode() for line in lines], secrets


def _usable(model: ModelConfig, variable: str, value: str) -> str:
    if not _is_line(value):
        raise UsageError(f"model {model.abbr}: the value of {variable} holds control characters, which no header may")
    return value


def _is_line(value: str) -> bool:
    return not any(character < " " or character == "\x7f" for character in value)


# --- the answer ------------------------------------------------------------------------------------------------------


def _whole_answer(reply: Reply, redact: Redactor) -> Generation:
    answer = _decode(reply.body)
    if answer is None or answer.error or answer.object == "error" or not answer.choices:
        raise _no_answer(reply.body, redact)
    choice = answer.choices[0]
    turn = choice.message
    if turn is None or choice.finish_reason == "error":
        raise _no_answer(reply.body, redact, choice.error)
    said = _Said()
    said.add(turn)
    return said.generation(answer, choice.finish_reason, choice.logprobs.content if choice.logprobs else None, None)


class _Said:
    """The texts of a turn, gathered from a whole message or from the deltas of a stream."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.tool_calls = False

    def add(self, turn: _Turn) -> None:
        content = turn.content
        if isinstance(content, str):
            if content:
                self.texts.append(content)
        elif content:
            for part in content:
                if isinstance(part, str):
                    self.texts.append(part)
                elif part.type in ("text", "output_text") and part.text:
                    self.texts.append(part.text)
                elif part.refusal:
                    self.refusal.append(part.refusal)
        thought = turn.reasoning_content or turn.reasoning
        if thought and isinstance(thought, str):
            self.reasoning.append(thought)
        if turn.refusal:
            self.refusal.append(turn.refusal)
        if turn.tool_calls:
            self.tool_calls = True

    def generation(
        self, answer: _Answer, finish_reason: str | None, tokens: list[_Token] | None, first: float | None
    ) -> Generation:
        confidence, nll, count = _certainty(tokens) if tokens else (None, None, None)
        return Generation(
            text=_joined(self.texts) or "",
            confidence=confidence,
            token_nll=nll,
            token_count=count,
            finish_reason=finish_reason or None,
            reasoning=_joined(self.reasoning),
            refusal=_joined(self.refusal),
            tool_calls=self.tool_calls,
            usage=_usage(answer.usage) if answer.usage else None,
            served_model=answer.model,
            system_fingerprint=answer.system_fingerprint,
            first_token_seconds=first,
        )


def _joined(texts: list[str]) -> str | None:
    """The texts as one, None if there are none. Halves of surrogate pairs are joined; a lone one becomes U+FFFD."""
    if not texts:
        return None
    text = texts[0] if len(texts) == 1 else "".join(texts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _certainty(tokens: list[_Token]) -> tuple[float | None, float | None, int | None]:
    """Confidence, token_nll and token_count of a non-empty answer.

    token_nll = sum of -ln p over the tokens, in nats; confidence = exp(-token_nll / token_count), the geometric mean
    of the tokens' probabilities. A token of probability 0 gives confidence 0 and no token_nll: the sum is infinite,
    and JSON has no infinity. All three are None if a token has no logprob.
    """
    nll = 0.0
    for token in tokens:
        if token.logprob is None or token.logprob != token.logprob:
            return None, None, None
        nll -= min(token.logprob, 0.0)  # rounding makes some endpoints say +1e-7
    count = len(tokens)
    if math.isinf(nll):
        return 0.0, None, count
    return math.exp(-nll / count), nll, count


def _usage(usage: _Usage) -> Usage | None:
    if usage.prompt_tokens is None and usage.completion_tokens is None:
        return None
    made, given = usage.completion_tokens_details, usage.prompt_tokens_details
    return Usage(
        prompt_tokens=_count(usage.prompt_tokens),
        completion_tokens=_count(usage.completion_tokens),
        reasoning_tokens=_count(made.reasoning_tokens) if made else 0,
        cached_tokens=_count(given.cached_tokens) if given else 0,
    )


def _count(value: int | float | None) -> int:
    return max(0, int(value)) if value is not None and math.isfinite(value) else 0


def _decode(data: bytes) -> _Answer | None:
    """The answer, or None if it is none. What msgspec refuses and some send (-Infinity, half a pair) is tried again."""
    try:
        return _decode_fast(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(_loose(data), _Answer, strict=False)
    except (msgspec.ValidationError, RecursionError):
        return None


def _loose(data: bytes) -> Any:
    """Any JSON, NaN and infinities included; None if it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


class _Stream:
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
        self._said = _Said()
        self._tokens: list[_Token] = []
        self._whole = _Answer()
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
            self._parts.append(
                piece
            )  # put together when its line ends, so that a long line costs no more than its length
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
            return _whole_answer(Reply(200, (), b"".join(self._plain)), self._redact)
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
        chunk = _decode(data)
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

    def _choice(self, choice: _Choice, data: bytes) -> None:
        said = self._said
        turn = choice.delta or (None if said.texts else choice.message)
        if turn is not None:
            said.add(turn)
            if self._first is None and (said.texts or said.reasoning):
                self._first = time.monotonic() - self._start
        if choice.logprobs is not None and choice.logprobs.content:
            self._tokens += choice.logprobs.content
        if choice.finish_reason:
            if choice.finish_reason == "error":
                raise _no_answer(data, self._redact, choice.error)
            self._finish_reason = choice.finish_reason
            self.complete = True

    def _trouble(self, data: bytes) -> None:
        if _told(_loose(data)) is not None:
            raise _no_answer(data, self._redact)


# --- errors ----------------------------------------------------------------------------------------------------------

_QUOTA = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
        "insufficient_credits",
    }
)
_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_CONTEXT_WORDS = re.compile(
    r"context (?:length|window|size)|maximum model length|max_(?:completion_)?tokens must be at least 1, got -\d"
    r"|(?:prompt|input) is too long|tokens.{0,3} \+ .{0,3}max_new_tokens.{0,3} must be",
    re.IGNORECASE,
)
_STATUS_OF = {
    **dict.fromkeys(("rate_limit_exceeded", "rate_limit_error", "too_many_requests", "resource_exhausted"), 429),
    **dict.fromkeys(("overloaded_error", "overloaded"), 529),
    **dict.fromkeys(("server_error", "internal_error", "internal_server_error", "internalservererror"), 500),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "permission_error"), 401),
    **dict.fromkeys(("not_found_error", "notfounderror", "model_not_found"), 404),
    **dict.fromkeys(("invalid_request_error", "badrequesterror", *_CONTEXT_CODES), 400),
    **dict.fromkeys(_QUOTA, 429),
}
"""Which status an error under 200 would have had, by its code or type in lower case."""


def _classed(status: int, told: _Told, asks_to_wait: bool) -> tuple[type[AttemptError], ErrorClass]:
    if status == 402 or told.names & _QUOTA:
        return Permanent, "quota"
    if told.names & _CONTEXT_CODES or (status in (400, 413, 422) and _CONTEXT_WORDS.search(told.message)):
        return Permanent, "context_length"
    if status in (429, 529) or (status == 503 and asks_to_wait):
        return Retryable, "rate_limited"
    if status in (408, 409, 425) or status >= 500:
        return Retryable, "server_error"
    if status in (401, 403, 407):
        return Permanent, "auth"
    return Permanent, "not_found" if status == 404 else "bad_request"


def _no_answer(body: bytes, redact: Redactor, within: Any = None) -> AttemptError:
    """The error for a body under status 200 that holds no answer. within: the error object, if it lies deeper."""
    told = _told({"error": within} if within else _loose(body))
    if told is None:
        shown = redact.quote(body)
        return Retryable("bad_response", f"no answer in it: {shown}" if shown else "an empty body", status=200)
    text = f"status 200 with an error in it: {_text(told, redact)}"
    named = int(told.code) if re.fullmatch(r"[45]\d\d", told.code) else 0
    named = named or next((_STATUS_OF[name] for name in (told.code, told.type) if name in _STATUS_OF), 0)
    if not named:
        return Retryable("bad_response", text, status=200)
    decision, kind = _classed(named, told, asks_to_wait=False)
    return decision(kind, text, status=200)


def _told(payload: Any) -> _Told | None:
    """The error in a payload, in any of the forms that are about; None if there is none.

    {"error": {...}}, {"error": "text"}, [{"error": {...}}], {"object": "error", "message": ...}, {"message": ...},
    {"detail": "text"}, {"detail": [{"loc": [...], "msg": "text"}]}
    """
    if isinstance(payload, list):
        payload = payload[0] if payload else None
    if not isinstance(payload, dict):
        return None
    error = payload.get("error")
    source: dict[str, Any] = error if isinstance(error, dict) else payload
    message: Any = source.get("message")
    if error and isinstance(error, str):
        message = error
    elif not isinstance(error, dict) and "detail" in payload and not message:
        message = _detail(payload["detail"])
    elif not error and not message and payload.get("object") != "error":
        return None
    code, kind, state = (_word(source.get(name)) for name in ("code", "type", "status"))
    if not isinstance(message, str) or not message:
        message = _encode_any(source)
    return _Told(message, code, kind, _word(source.get("param")), frozenset({code, kind, state} - {""}))


def _detail(detail: Any) -> str:
    """FastAPI's form, without the input that it quotes: the request is no news, and may hold secrets."""
    if isinstance(detail, list) and detail and all(isinstance(item, dict) and "msg" in item for item in detail):
        return "; ".join(f"{'.'.join(map(str, item.get('loc') or ()))}: {item['msg']}" for item in detail)
    return detail if isinstance(detail, str) else _encode_any(detail)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _encode_any(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(told: _Told, redact: Redactor) -> str:
    named: Iterable[tuple[str, str]] = (("param", told.param), ("code", told.code or told.type))
    notes = ", ".join(f"{name} {redact.quote(value, 60)}" for name, value in named if value)
    return redact.quote(told.message) + (f" [{notes}]" if notes else "")


def retry_after(headers: dict[str, str]) -> float | None:
    """How many seconds the endpoint asks us to wait, by `retry-after-ms` or `Retry-After` (seconds or a date).

    None if it doesn't say, or says nothing usable (0, less, or no number). A date is compared with the answer's own
    `Date`, so that a wrong clock here doesn't matter.
    """
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / scale
        except ValueError:
            continue
        return seconds if 0 < seconds < math.inf else None
    try:
        until = parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (KeyError, ValueError, OverflowError):
        return None
    try:
        now = parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, OverflowError):
        now = time.time()
    return until - now if until > now else None
