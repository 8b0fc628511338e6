"""What a chat completion says: the body under status 200, or one chunk of a stream, as far as it is read.

Nothing is invented: what the endpoint didn't tell stays None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from inferd.adapters.endpoint_errors import loose, no_answer, told_by
from inferd.adapters.failures import PROMPT_FILTER
from inferd.adapters.redact import Redactor
from inferd.adapters.transport import Reply
from shared.records import Generation, Usage


class Part(Struct):
    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class Turn(Struct):
    content: str | list[Part | str] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[Raw] | None = None
    function_call: Any = None  # the older form of one


class Token(Struct):
    logprob: float | None = None


class Logprobs(Struct):
    """content: a chat's; token_logprobs: the older form, of `/completions`."""

    content: list[Token] | None = None
    token_logprobs: list[float | None] | None = None

    def tokens(self) -> list[Token] | None:
        if self.content is None and self.token_logprobs is not None:
            return [Token(logprob) for logprob in self.token_logprobs]
        return self.content


class Choice(Struct):
    index: int | None = 0
    text: str | None = None  # of /completions
    message: Turn | None = None
    delta: Turn | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    error: Any = None

    def turn(self) -> Turn | None:
        """What a whole answer says."""
        return Turn(content=self.text) if self.message is None and self.text is not None else self.message


class Details(Struct):
    reasoning_tokens: int | float | None = None
    cached_tokens: int | float | None = None


class UsageTold(Struct):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    completion_tokens_details: Details | None = None
    prompt_tokens_details: Details | None = None


class Envelope(Struct):
    """What stands around the choices of any completion."""

    usage: UsageTold | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    object: Any = None
    error: Any = None


class Answer(Envelope):
    """A whole completion or one chunk of a stream."""

    choices: list[Choice] | None = None


def whole_answer(reply: Reply, redact: Redactor) -> Generation:
    answer = decode(reply.body)
    if answer is None or answer.error or answer.object == "error" or not answer.choices:
        raise no_answer(reply.body, redact)
    choice = answer.choices[0]
    turn = choice.turn()
    if turn is None or choice.finish_reason == "error":
        raise no_answer(reply.body, redact, choice.error)
    said = Said()
    said.add(turn)
    return said.generation(answer, choice.finish_reason, choice.logprobs.tokens() if choice.logprobs else None, None)


def filtered_prompt(reply: Reply, redact: Redactor) -> Generation | None:
    """The answer to a prompt that the endpoint's filter stopped, which comes as a 400; None if it is something else."""
    if reply.status != 400:
        return None
    told = told_by(loose(reply.body))
    if told is None or told.names.isdisjoint(PROMPT_FILTER):
        return None
    return Generation(text="", finish_reason="content_filter", refusal=redact.quote(told.message))


class Said:
    """The texts of a turn, gathered from a whole message or from the deltas of a stream."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.tool_calls = False

    def add(self, turn: Turn) -> None:
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
        if turn.tool_calls or turn.function_call:
            self.tool_calls = True

    def generation(
        self, answer: Answer, finish_reason: str | None, tokens: list[Token] | None, first: float | None
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
            usage=usage_of(answer.usage) if answer.usage else None,
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


def _certainty(tokens: list[Token]) -> tuple[float | None, float | None, int | None]:
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


def usage_of(usage: UsageTold) -> Usage | None:
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


T = TypeVar("T")


def lenient(kind: type[T]) -> Callable[[bytes], T | None]:
    """A function from a body to what it holds, or None if it is none of that kind. What msgspec refuses and some send
    (-Infinity, half a pair) is tried again.
    """
    fast = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> T | None:
        try:
            return fast(data)
        except (msgspec.DecodeError, RecursionError):
            pass
        try:
            return msgspec.convert(loose(data), kind, strict=False)
        except (msgspec.ValidationError, RecursionError):
            return None

    return decode


decode = lenient(Answer)
