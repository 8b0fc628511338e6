"""Likelihoods by OpenAI's older completions, as vLLM serves them: the prompt comes back with each token's
log-probability (`echo` and `logprobs`), and the continuation's are summed.

Invariant: what came back is what was sent, token for token, or there is no number. A server that ignores `echo` gives
one log-probability of something else: that is refused, for good (`unsupported`), and never scored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec
from msgspec import Struct

from inferd.adapters.completion import Envelope, lenient, usage_of
from inferd.adapters.endpoint_errors import no_answer
from inferd.adapters.likelihood import Sum, Window, asked
from inferd.adapters.openai import OpenAIAdapter
from inferd.adapters.redact import Redactor
from inferd.adapters.transport import Call, Feed, Reply, Settle
from shared.config import ModelConfig
from shared.errors import Permanent
from shared.records import Generation, Prompt, TaskSpec

_NO_ECHO = (
    'the endpoint doesn\'t give the prompt back with its log-probabilities (loglikelihood = "echo"): '
    "ask a server that does, as vLLM's, or llama.cpp's with loglikelihood = \"logit_bias\""
)
_UNREADABLE = re.compile("\ufffd|bytes:")
"""In the texts of tokens that are parts of a character."""
_STREAM = ("stream", "stream_options")
_SPECIAL = 8
"""Tokens without a text of their own that a server may put before a text."""
_PARTS = 3
"""A character has up to four bytes, each of which may be a token: so many of them stand before the last."""


class Logprobs(Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None
    text_offset: list[int] | None = None


class Choice(Struct):
    text: str = ""
    index: int | None = 0
    logprobs: Logprobs | None = None


class Answer(Envelope):
    choices: list[Choice] | None = None


decode = lenient(Answer)


class EchoAdapter:
    """An endpoint's chat, and likelihoods by prompts that are sent as text. Carried, as the chat is."""

    def __init__(self, chat: OpenAIAdapter, model: ModelConfig) -> None:
        self.model_id = chat.model_id
        self.endpoint = chat.endpoint
        self.transport = chat.transport
        self.url = chat.completions_url
        self.model = model
        self.chat = chat

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        return self.chat.generate(prompt, task)

    def loglikelihood(self, prompt: Prompt, task: TaskSpec) -> Generation:
        call = self.call(prompt, task)
        return call.answer(self.transport.exchange(call))

    loglikelihood_rolling = loglikelihood

    def call(self, prompt: Prompt, task: TaskSpec) -> Call:
        if prompt.request_type in ("loglikelihood", "loglikelihood_rolling"):
            return _Echoed(self, prompt)
        return self.chat.call(prompt, task)


class _Echoed:
    """One call: the prompt and its continuation, and back."""

    feed: Feed | None = None
    settle: Settle | None = None

    def __init__(self, adapter: EchoAdapter, prompt: Prompt) -> None:
        self.url = adapter.url
        self._adapter = adapter
        self._prompt = prompt
        context, self._continuation = asked(prompt)
        self._sent = (context or adapter.model.bos) + self._continuation
        self.body = echo_body(adapter.model, self._sent)

    def answer(self, came: Reply | Exception) -> Generation:
        if isinstance(came, Exception):
            raise came
        if came.status // 100 != 2:
            raise self._adapter.chat.refused(came, self._prompt)
        answer, choice, logprobs = read(came.body, self._adapter.transport.redact)
        bos = self._adapter.model.bos
        if bos and logprobs.tokens[:2] == [bos, bos]:
            raise Permanent("unsupported", "the server puts a BOS before the text by itself: leave `bos` out")
        first, end = scored_span(answer, choice, logprobs, self._sent, self._continuation)
        if first == 0 and logprobs.token_logprobs[0] is None:
            text = "nothing stands before the text's first token, so it has no log-probability: name the model's BOS"
            raise Permanent("unsupported", f'{text}, as in bos = "<s>"')
        total = Sum()
        add(total, logprobs, first, end)
        return generation(total, answer)


def likelihood_body(model: ModelConfig, **what: Any) -> bytes:
    """A request for log-probabilities. extra_body comes first: what settles the meaning of the answer wins over it."""
    extra = {name: value for name, value in model.extra_body.items() if name not in _STREAM}
    body = {**extra, "model": model.served_name, "max_tokens": 1, "temperature": 0, "logprobs": 1, **what}
    return msgspec.json.encode(body)


def echo_body(model: ModelConfig, prompt: str | Sequence[int]) -> bytes:
    """As lm-evaluation-harness asks: at least one token has to be made, since servers refuse to make none."""
    return likelihood_body(model, prompt=prompt, echo=True)


def read(body: bytes, redact: Redactor) -> tuple[Answer, Choice, Logprobs]:
    """An answer with log-probabilities. Raises Retryable or Permanent where it holds none, or not one of each."""
    answer = decode(body)
    if answer is None or answer.error or answer.object == "error" or not answer.choices:
        raise no_answer(body, redact)
    choice = answer.choices[0]
    logprobs = choice.logprobs
    if logprobs is None or not logprobs.tokens:
        raise Permanent("unsupported", f"no log-probabilities came: {_NO_ECHO}")
    count = len(logprobs.tokens)
    for name in ("token_logprobs", "top_logprobs", "text_offset"):
        column = getattr(logprobs, name)
        if len(column or ()) != count and not (column is None and name == "text_offset"):
            raise Permanent("unsupported", f"{count} tokens came with {len(column or ())} {name}: {_NO_ECHO}")
    return answer, choice, logprobs


def scored_span(answer: Answer, choice: Choice, logprobs: Logprobs, sent: str, continuation: str) -> tuple[int, int]:
    """From which token to which the continuation at the end of the text `sent` came back. A token that begins before it
    belongs to it.
    """
    tokens = logprobs.tokens
    end = len(tokens) - made(answer)
    possible = 0 < end <= len(sent.encode()) + _SPECIAL  # a token holds a byte at least
    if not possible or not (choice.text.startswith(sent) or choice.text.removeprefix(tokens[0]).startswith(sent)):
        raise Permanent("unsupported", _NO_ECHO)
    first = _last_ones(tokens[:end], continuation)
    if first is None and len(continuation) - len(continuation.lstrip()) <= 1:
        # Some decoders drop the space that a token begins with. More white space would be tokens of its own.
        first = _last_ones([_squeezed(token) for token in tokens[:end]], _squeezed(continuation))
    if first is not None and first < end:
        if not tokens[first][:1].isascii():
            # Parts of its first character, whose text stands with the last of them.
            parts = takewhile(lambda place: not tokens[place], range(first - 1, max(first - 1 - _PARTS, 0), -1))
            first = min(parts, default=first)
        return first, end
    offsets = logprobs.text_offset
    if offsets is not None and end < len(tokens) and offsets[end] - offsets[0] == len(sent):
        begins = offsets[end] - len(continuation)
        if begins in offsets[:end]:
            first = offsets.index(begins)
            if _in_order(tokens[first:end], continuation):
                return first, end
    text = "the tokens that came don't make up the text that was sent"
    raise Permanent("unsupported", f'{text}: ask by token ids (loglikelihood = "echo_tokens")')


def _last_ones(tokens: Sequence[str], text: str) -> int | None:
    """From which token on they hold the text at their end; None if they end otherwise."""
    first, left = len(tokens), len(text)
    while first > 0 and left > 0:
        first -= 1
        left -= len(tokens[first])
    return first if "".join(tokens[first:]).endswith(text) else None


def _in_order(tokens: Sequence[str], text: str) -> bool:
    """Whether those of the tokens that can be read stand in the text one behind another, white space aside."""
    text, place = _squeezed(text), 0
    for token in map(_squeezed, tokens):
        if _UNREADABLE.search(token) or not token:
            continue
        found = text.find(token, place)
        if found < 0:
            return False
        place = found + len(token)
    return True


def add_window(total: Sum, answer: Answer, logprobs: Logprobs, window: Window, text: str) -> None:
    """What came for a window that was sent as token ids. text: what the ids are of."""
    tokens = logprobs.tokens
    end = len(window.context) + len(window.scored)
    if len(tokens) - end != made(answer):
        raise Permanent("unsupported", f"{end} tokens were sent, and {len(tokens)} came back: {_NO_ECHO}")
    echoed = [_squeezed("".join(tokens[start:end])) for start in (0, 1)]  # a BOS before the text isn't part of it
    if not any(part in _squeezed(text) or _UNREADABLE.search(part) for part in echoed):
        raise Permanent("unsupported", f"other tokens came back than were sent: {_NO_ECHO}")
    add(total, logprobs, len(window.context), end)


def add(total: Sum, logprobs: Logprobs, first: int, end: int) -> None:
    tops = logprobs.top_logprobs or []  # one a token, as `read` saw to
    for place in range(first, end):
        top = [value for value in (tops[place] or {}).values() if value is not None]
        total.add(logprobs.token_logprobs[place], max(top, default=None))


def made(answer: Answer) -> int:
    """How many tokens were generated behind the prompt: as the endpoint says, else the one that was asked for."""
    told = answer.usage.completion_tokens if answer.usage else None
    return int(told) if told is not None and 0 <= told <= 1 else 1


def generation(total: Sum, answer: Answer) -> Generation:
    return Generation(
        text="",
        token_count=total.count,
        loglikelihood=total.total,
        is_greedy=total.is_greedy,
        usage=usage_of(answer.usage) if answer.usage else None,
        served_model=answer.model,
        system_fingerprint=answer.system_fingerprint,
    )


def _squeezed(text: str) -> str:
    """Without white space: decoders disagree about it."""
    return "".join(text.split())
