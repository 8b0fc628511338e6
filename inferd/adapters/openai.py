"""The adapter for every endpoint that speaks OpenAI's chat completions, whole or as an event stream.

Owns the body that goes out and the meaning of what comes back. Invariant: a call ends with the answer that the
endpoint gave or with a classed error; nothing is invented (no finish_reason, no usage), and no part of an answer
passes for the whole.

What is no answer becomes a Retryable or Permanent of the class that `inferd.adapters.failures` names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from inferd.adapters.completion import filtered_prompt, whole_answer
from inferd.adapters.endpoint_errors import Told, classed, loose, retry_after, text_of, told_by
from inferd.adapters.event_stream import EventStream
from inferd.adapters.plain import CHAT_ONLY, completions_url, prompt_fields
from inferd.adapters.redact import public_url
from inferd.adapters.transport import Call, Feed, Reply, Settle, Transport
from shared.addresses import CONTROL, address_fault, header_faults
from shared.config import ModelConfig
from shared.errors import AttemptError, Permanent, Retryable, UsageError
from shared.records import Generation, GenerationSettings, Prompt, TaskSpec
from shared.tables import join_place

_SETTINGS = tuple(name for name in GenerationSettings.__struct_fields__ if name != "max_tokens")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PLAIN_HEADERS = frozenset({"content-type", "accept", "user-agent"})

_encode = msgspec.json.Encoder().encode

Secret = Callable[[str], str | None]


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
        key = _secret_of(model, model.api_key_env, secret)
        self._keyless = (
            f"no key was sent: the variable {model.api_key_env} is empty" if model.api_key_env else "no key was sent"
        )
        headers, secrets = _headers(model, key, secret)
        if any(line.lower().startswith(b"authorization:") for line in headers):
            self._keyless = ""
        self.transport = Transport(
            _chat_url(model.base_url),
            model,
            headers=headers,
            timeout=timeout,
            secrets=secrets,
            password=_secret_of(model, model.client_key_password_env, secret),
        )
        self.completions_url = completions_url(model.base_url)
        self._model = model.served_name
        self._max_tokens_field = model.max_tokens_field
        stream = {"stream": True, "stream_options": {"include_usage": True}} if model.stream else {}
        self._last = {**stream, **model.extra_body}
        self._stream = bool(self._last.get("stream"))

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        """One call, on this thread. Raises Retryable or Permanent."""
        call = self.call(prompt, task)
        return call.answer(self.transport.exchange(call))

    def call(self, prompt: Prompt, task: TaskSpec) -> Call:
        """The same call for whoever carries it by other means."""
        return (_Streamed if self._stream else _Whole)(self, prompt)

    def body(self, prompt: Prompt) -> bytes:
        """The request as it goes out. What is unset isn't in it; extra_body comes last and wins."""
        plain = prompt.text is not UNSET
        asked = prompt_fields(prompt) if plain else {"messages": prompt.messages}
        body: dict[str, Any] = {"model": self._model, **asked}
        settings = prompt.generation
        for name in _SETTINGS:
            value = getattr(settings, name)
            if value is not UNSET and not (plain and name in CHAT_ONLY):
                body[name] = value
        if settings.max_tokens is not UNSET:
            body[self._max_tokens_field] = settings.max_tokens
        if self._last:
            body.update(self._last)
        return _encode(body)

    def refused(self, reply: Reply, prompt: Prompt) -> AttemptError:
        """The error that an answer of another status than 2xx means."""
        status = reply.status
        headers = reply.headers()
        redact = self.transport.redact
        if status // 100 == 3:
            where = redact.quote(public_url(headers.get("location", "?")))
            text = f"HTTP {status}: redirected to {where}, which isn't followed: name the final address as base_url"
            return Permanent("not_found", text, status=status)
        told = told_by(loose(reply.body))
        if told is None:
            told = Told(redact.quote(reply.body) or "no further word", "", "", "", frozenset())
        asks_to_wait = "retry-after" in headers or "retry-after-ms" in headers
        decision, kind = classed(status, told, asks_to_wait)
        text = f"HTTP {status}: {text_of(told, redact)}"
        if kind == "auth" and self._keyless:
            text += f" ({self._keyless})"
        likelihood = prompt.request_type not in (UNSET, "generate_until")
        if status >= 500 and (likelihood or prompt.generation.logprobs is True or self._last.get("logprobs")):
            text += " (logprobs were requested)"
        return decision(kind, text, status=status, retry_after=retry_after(headers))


class _Whole:
    """A call whose answer comes as one body."""

    feed: Feed | None = None
    settle: Settle | None = None

    def __init__(self, adapter: OpenAIAdapter, prompt: Prompt) -> None:
        self.body = adapter.body(prompt)
        self.url = adapter.completions_url if prompt.text is not UNSET else ""
        self._adapter = adapter
        self._prompt = prompt

    def answer(self, came: Reply | Exception) -> Generation:
        if isinstance(came, Exception):
            raise came
        if came.status // 100 == 2:
            return self._read(came)
        if (filtered := filtered_prompt(came, self._adapter.transport.redact)) is not None:
            return filtered
        raise self._adapter.refused(came, self._prompt)

    def _read(self, reply: Reply) -> Generation:
        return whole_answer(reply, self._adapter.transport.redact)


class _Streamed(_Whole):
    """A call whose answer comes as events."""

    def __init__(self, adapter: OpenAIAdapter, prompt: Prompt) -> None:
        super().__init__(adapter, prompt)
        self._stream = EventStream(adapter.transport.redact)
        self.feed = self._stream.feed
        self.settle = self._stream.settle

    def answer(self, came: Reply | Exception) -> Generation:
        broken = isinstance(came, Retryable) and came.kind in ("connection", "timeout")
        if broken and self._stream.complete:  # all of it had come before the connection broke
            return self._stream.generation()
        if isinstance(came, Retryable) and came.kind == "connection" and self._stream.begun:
            raise Retryable("incomplete_stream", f"the stream broke off: {came.message}", status=200)
        return super().answer(came)

    def _read(self, reply: Reply) -> Generation:
        self._stream.end()
        return self._stream.generation()


# --- the request -----------------------------------------------------------------------------------------------------


def address_problems(base_url: str) -> list[str]:
    """What is wrong with a base_url, as texts that don't show it."""
    if not base_url:
        return ["base_url is missing: the address up to and including /v1"]
    fault = address_fault(base_url)
    return [f"base_url: {fault}"] if fault else []


def header_problems(headers: Mapping[str, str]) -> list[str]:
    """What is wrong with configured headers, without their values."""
    return [
        f"{join_place('headers', name)}: {fault}"
        for name, value in headers.items()
        for fault in header_faults(name, value)
    ]


def _chat_url(base_url: str) -> str:
    return base_url.rstrip("/") + "/chat/completions"


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


def _secret_of(model: ModelConfig, variable: str, secret: Secret) -> str:
    return _usable(model, variable, (secret(variable) or "").strip()) if variable else ""


def _usable(model: ModelConfig, variable: str, value: str) -> str:
    if CONTROL.search(value):
        raise UsageError(f"model {model.abbr}: the value of {variable} holds control characters, which no header may")
    return value
