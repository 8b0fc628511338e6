"""One attempt, on a worker thread: ask the adapter, tell what came of it, encode its journal line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from inferd.adapters import ModelAdapter
from inferd.outcome import outcome_of
from shared.clock import Clock, utc
from shared.config import Price
from shared.errors import ERROR_CLASSES, AttemptError, Permanent
from shared.records import Attempt, Generation, Outcome, Usage, encode_record
from shared.requests import Request

_decode = msgspec.json.Decoder(Attempt).decode
MAX_MESSAGE = 500  # characters of an error's text that are kept


@dataclass(frozen=True)
class Redact:
    """Take the secrets out of a text. message: of an error's. answer: of an answer's, where only what can't be a word
    of one may be touched, or a key such as `none` would change what is scored.
    """

    message: Callable[[str], str] = str
    answer: Callable[[str], str] = str


@dataclass(frozen=True)
class Ended:
    """An attempt that ended. Exactly one of an answer's outcome and an error. line: for the journal, without
    newline. message: the error's text as it may be kept: without secrets, writable as UTF-8, cut.
    """

    line: bytes
    outcome: Outcome
    error: AttemptError | None
    message: str
    latency: float
    cost: float
    usage: Usage | None
    served_model: str | None


def ask(
    adapter: ModelAdapter,
    request: Request,
    attempt: int,
    price: Price,
    clock: Clock,
    redact: Redact,
) -> Ended:
    """Never raises: whatever the adapter does ends up as an outcome or a classed error."""
    started = clock.monotonic()
    generation: Generation | None = None
    error: AttemptError | None = None
    try:
        given: object = adapter.generate(request.prompt, request.task)
        if isinstance(given, Generation):
            generation = given
        else:
            error = Permanent("adapter", f"generate returned {type(given).__name__}, not a Generation")
    except AttemptError as raised:
        error = (
            raised
            if raised.kind in ERROR_CLASSES
            else Permanent("adapter", f"no error class {raised.kind!r}: {raised}")
        )
    except (Exception, SystemExit) as raised:  # noqa: BLE001  # a worker's edge: an adapter's defect ends one request
        error = Permanent("adapter", f"{type(raised).__name__}: {raised}")
    latency = clock.monotonic() - started
    if generation is not None:
        generation = _redacted(generation, redact.answer)
        try:
            return ended(adapter, request, attempt, clock, latency, generation=generation, price=price)
        except Exception as raised:  # noqa: BLE001  # a Generation with a text that is no text, say: nothing checked it yet
            error = Permanent("adapter", f"its Generation can't be kept: {type(raised).__name__}: {raised}")
    return ended(adapter, request, attempt, clock, latency, error=error, redact=redact.message)


def ended(
    adapter: ModelAdapter,
    request: Request,
    attempt: int,
    clock: Clock,
    latency: float,
    *,
    generation: Generation | None = None,
    price: Price | None = None,
    error: AttemptError | None = None,
    redact: Callable[[str], str] = str,
) -> Ended:
    """The attempt as the journal will hold it. Raises when a field of the generation isn't of its type."""
    message = _mended(redact(str(error.message)))[:MAX_MESSAGE] if error is not None else None
    usage = generation.usage if generation is not None else None
    cost = cost_of(usage, price) if price is not None else 0.0
    outcome: Outcome = outcome_of(generation) if generation is not None else "error"
    record = Attempt(
        key=request.key,
        doc_id=request.doc_id,
        idx=request.idx,
        repeat=request.repeat,
        attempt=attempt,
        outcome=outcome,
        error=error.kind if error is not None else None,
        message=message,
        status=error.status if error is not None else None,
        latency=round(latency, 6),
        ended_at=utc(clock.time()),
        endpoint=getattr(adapter, "endpoint", ""),
        cost=cost,
        generation=generation,
    )
    try:
        line = encode_record(record)
    except UnicodeEncodeError:
        # Half a surrogate pair, from a server that cut an answer in the middle of one: it can't be written as UTF-8.
        record = msgspec.convert(_mended_all(msgspec.to_builtins(record)), Attempt)
        line = encode_record(record)
    if generation is not None:
        _decode(line)  # what can't be read back would be no answer when it is merged
    served_model = record.generation.served_model if record.generation is not None else None
    return Ended(line, outcome, error, message or "", latency, cost, usage, served_model)


def cost_of(usage: Usage | None, price: Price) -> float:
    """USD for one call, by the suite's prices a million tokens; 0 when the endpoint told no usage."""
    if usage is None:
        return 0.0
    return (usage.prompt_tokens * price.input + usage.completion_tokens * price.output) / 1e6


def _redacted(generation: Generation, redact: Callable[[str], str]) -> Generation:
    """The answer without the keys that it was asked with: an endpoint may echo what it was sent."""
    texts = {name: getattr(generation, name) for name in ("text", "reasoning", "refusal")}
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
