"""One attempt, on a worker thread: ask the adapter, tell what came of it, encode its journal line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from inferd.adapters import ModelAdapter
from inferd.outcome import outcome_of
from shared.clock import Clock, utc
from shared.config import Price
from shared.errors import AttemptError, Permanent
from shared.records import Attempt, Generation, Outcome, Usage, encode_record
from shared.requests import Request

MAX_MESSAGE = 500  # characters of an error's text that are kept


@dataclass(frozen=True)
class Ended:
    """An attempt that ended. Exactly one of an answer's outcome and an error. line: for the journal, without
    newline.
    """

    line: bytes
    outcome: Outcome
    error: AttemptError | None
    latency: float
    cost: float
    usage: Usage | None
    served_model: str | None


def ask(
    adapter: ModelAdapter, request: Request, attempt: int, price: Price, clock: Clock, redact: Callable[[str], str]
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
        error = raised
    except Exception as raised:  # noqa: BLE001  # the edge of a worker: an adapter's defect ends one request, not the run
        error = Permanent("adapter", f"{type(raised).__name__}: {raised}")
    latency = clock.monotonic() - started
    return ended(
        adapter, request, attempt, clock, latency, generation=generation, price=price, error=error, redact=redact
    )


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
    """The attempt as the journal will hold it."""
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
        message=redact(error.message)[:MAX_MESSAGE] if error is not None else None,
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
        line = encode_record(msgspec.convert(_mended(msgspec.to_builtins(record)), Attempt))
    return Ended(
        line, outcome, error, latency, cost, usage, generation.served_model if generation is not None else None
    )


def cost_of(usage: Usage | None, price: Price) -> float:
    """USD for one call, by the suite's prices a million tokens; 0 when the endpoint told no usage."""
    if usage is None:
        return 0.0
    return (usage.prompt_tokens * price.input + usage.completion_tokens * price.output) / 1e6


def _mended(value: object) -> object:
    """The same value, with U+FFFD for every lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {key: _mended(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    return value
