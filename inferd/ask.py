"""One attempt: ask the adapter, tell what came of it, encode its journal line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from inferd.adapters import ModelAdapter
from inferd.adapters.likelihood import ROUNDING
from inferd.outcome import outcome_of
from shared.clock import Clock, utc
from shared.config import Price
from shared.errors import ERROR_CLASSES, AttemptError, Permanent, decision
from shared.records import Attempt, Generation, Outcome, Usage, encode_record
from shared.requests import Request

_decode = msgspec.json.Decoder(Attempt).decode
_SAID = ("text", "reasoning", "refusal", "finish_reason", "served_model", "system_fingerprint")
MAX_MESSAGE = 500  # characters of an error's text that are kept


@dataclass(frozen=True)
class Redact:
    """Take the secrets out of a text. message: of an error's. answer: of an answer's, where only what can't be a word
    of one may be touched, or a key such as `none` would change what is scored; None where there is no such secret.
    """

    message: Callable[[str], str] = str
    answer: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that ended. Exactly one of an answer's outcome and an error. line: for the journal, without
    newline. message: the error's text as it may be kept: without secrets, writable as UTF-8, cut. latency: seconds.
    said: the answer as it is in the line, where later turns of a chat wait for it.
    """

    line: bytes
    outcome: Outcome
    error: AttemptError | None
    message: str
    latency: float
    cost: float
    usage: Usage | None
    served_model: str | None
    system_fingerprint: str | None
    said: Generation | None = None


class Asker:
    """Makes the attempts at one model. Thread-safe.

    `ask` waits for the answer. Who carries the call by other means takes `adapter.call` and hands what came to `ended`.
    on_defect: told what an adapter raises that is no AttemptError, before it ends as an error; what it raises itself
    goes up to whoever asks.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        price: Price,
        clock: Clock,
        redact: Redact,
        on_defect: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self.adapter = adapter
        self._price = price
        self._clock = clock
        self._redact = redact
        self._on_defect = on_defect
        self._endpoint: str = getattr(adapter, "endpoint", "")

    def ask(self, request: Request, attempt: int) -> Ended:
        started = self._clock.monotonic()
        prompt = request.prompt
        method = "generate" if prompt.request_type in (UNSET, "generate_until") else prompt.request_type
        return self.ended(request, attempt, started, lambda: getattr(self.adapter, method)(prompt, request.task))

    def ended(self, request: Request, attempt: int, started: float, answer: Callable[[], object]) -> Ended:
        """What `answer()` comes to. Never raises that: whatever an adapter does ends as an outcome or a classed error.

        started: when the call was sent, by the clock's monotonic time.
        """
        generation: Generation | None = None
        error: AttemptError | None = None
        try:
            given = answer()
            if isinstance(given, Generation):
                generation = _complete(given, request)
            else:
                error = Permanent("adapter", f"generate returned {type(given).__name__}, not a Generation")
        except AttemptError as raised:
            error = _sound(raised)
        except BaseException as raised:  # noqa: BLE001  # a worker's edge: a defect ends one request
            self._on_defect(raised)
            error = Permanent("adapter", described(raised))
        latency = self._clock.monotonic() - started
        if generation is not None:
            try:
                return self._answered(request, attempt, latency, generation)
            except Exception as raised:  # noqa: BLE001  # a text that is no text, say: nothing checked it yet
                error = Permanent("adapter", f"its Generation can't be kept: {described(raised)}")
        assert error is not None
        return self.failed(request, attempt, latency, error)

    def failed(self, request: Request, attempt: int, latency: float, error: AttemptError) -> Ended:
        message = _mended(self._redact.message(str(error.message)))[:MAX_MESSAGE]
        line = encode_record(
            Attempt(
                key=request.key,
                doc_id=request.doc_id,
                idx=request.idx,
                repeat=request.repeat,
                attempt=attempt,
                outcome="error",
                error=error.kind,
                message=message,
                status=error.status,
                latency=round(latency, 6),
                ended_at=utc(self._clock.time()),
                endpoint=self._endpoint,
            )
        )
        return Ended(line, "error", error, message, latency, 0.0, None, None, None)

    def _answered(self, request: Request, attempt: int, latency: float, generation: Generation) -> Ended:
        """Raises when a field of the generation isn't of its type."""
        if self._redact.answer is not None:
            generation = _redacted(generation, self._redact.answer)
        usage = generation.usage
        cost = cost_of(usage, self._price)
        outcome = outcome_of(generation)
        record = Attempt(
            key=request.key,
            doc_id=request.doc_id,
            idx=request.idx,
            repeat=request.repeat,
            attempt=attempt,
            outcome=outcome,
            latency=round(latency, 6),
            ended_at=utc(self._clock.time()),
            endpoint=self._endpoint,
            cost=cost,
            generation=generation,
        )
        try:
            line = encode_record(record)
        except UnicodeEncodeError:
            # Half a surrogate pair, from a server that cut an answer in the middle of it: no UTF-8 can hold that.
            record = msgspec.convert(_mended_all(msgspec.to_builtins(record)), Attempt)
            line = encode_record(record)
        kept = _decode(line).generation  # what can't be read back would be no answer when it is merged
        assert kept is not None
        said = kept if request.later else None
        return Ended(line, outcome, None, "", latency, cost, usage, kept.served_model, kept.system_fingerprint, said)


def _complete(generation: Generation, request: Request) -> Generation:
    """Raises Permanent when a likelihood was asked for and none came, or one that is no likelihood: nothing may be made
    of that. -inf is one.
    """
    if request.prompt.request_type in (UNSET, "generate_until"):
        return generation
    told = generation.loglikelihood
    if told is None or math.isnan(told):
        raise Permanent("adapter", f"{request.prompt.request_type} returned a Generation without a loglikelihood")
    if told > ROUNDING:
        text = f"returned a loglikelihood of {told:g}: expected the logarithm of a probability, 0 or less"
        raise Permanent("adapter", f"{request.prompt.request_type} {text}")
    return generation


def described(error: BaseException) -> str:
    """An error that may be anybody's, as a text, whatever its own `__str__` does."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # as told
        return type(error).__name__


def _sound(raised: AttemptError) -> AttemptError:
    """The error with nothing in it that isn't what it should be: an adapter may have handed a header on as it came, or
    a class of its own may have left our fields out.
    """
    try:
        kind, message, status, wait = raised.kind, raised.message, raised.status, raised.retry_after
    except AttributeError:
        return Permanent("adapter", described(raised))
    if kind not in ERROR_CLASSES:
        return Permanent("adapter", f"no error class {kind!r}: {described(raised)}")
    usable = isinstance(wait, int | float) and math.isfinite(wait)
    return decision(kind)(
        kind,
        message if isinstance(message, str) else described(raised),
        status=status if isinstance(status, int) else None,
        retry_after=float(wait) if usable and wait is not None else None,
    )


def cost_of(usage: Usage | None, price: Price) -> float:
    """USD for one call, by the suite's prices a million tokens; 0 when the endpoint told no usage."""
    if usage is None:
        return 0.0
    return (usage.prompt_tokens * price.input + usage.completion_tokens * price.output) / 1e6


def _redacted(generation: Generation, redact: Callable[[str], str]) -> Generation:
    """The answer without the keys that it was asked with: an endpoint may echo what it was sent."""
    texts = {name: getattr(generation, name) for name in _SAID}
    clean = {name: redact(text) if isinstance(text, str) else text for name, text in texts.items()}
    return generation if clean == texts else msgspec.structs.replace(generation, **clean)


def _mended(text: str) -> str:
    """The same text, with U+FFFD for every lone surrogate."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _mended_all(value: object) -> object:
    if isinstance(value, str):
        return _mended(value)
    if isinstance(value, dict):
        return {key: _mended_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended_all(item) for item in value]
    return value
