"""What an endpoint's refusal means: from a status and whatever its body says to a classed error.

The table stands in `inferd.adapters.failures`; this is how it is read off the many forms that endpoints use.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from inferd.adapters.failures import NAMED_STATUS, refusal_class
from inferd.adapters.redact import Redactor
from shared.clock import SystemClock
from shared.errors import AttemptError, ErrorClass, Permanent, Retryable, decision


class Told(NamedTuple):
    """What an endpoint said about its error."""

    message: str
    code: str
    type: str
    param: str
    names: frozenset[str]


def classed(status: int, told: Told, asks_to_wait: bool) -> tuple[type[Retryable | Permanent], ErrorClass]:
    kind = refusal_class(status, told.names, told.message, asks_to_wait=asks_to_wait)
    return decision(kind), kind


def no_answer(body: bytes, redact: Redactor, within: Any = None) -> AttemptError:
    """The error for a body under status 200 that holds no answer. within: the error object, if it lies deeper."""
    told = told_by({"error": within} if within else loose(body))
    if told is None:
        shown = redact.quote(body)
        return Retryable("bad_response", f"no answer in it: {shown}" if shown else "an empty body", status=200)
    text = f"status 200 with an error in it: {text_of(told, redact)}"
    named = int(told.code) if re.fullmatch(r"[45]\d\d", told.code) else 0
    named = named or next((NAMED_STATUS[name] for name in (told.code, told.type) if name in NAMED_STATUS), 0)
    if not named:
        return Retryable("bad_response", text, status=200)
    error, kind = classed(named, told, asks_to_wait=False)
    return error(kind, text, status=200)


def told_by(payload: Any) -> Told | None:
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
    return Told(message, code, kind, _word(source.get("param")), frozenset({code, kind, state} - {""}))


def _detail(detail: Any) -> str:
    """FastAPI's form, without the input that it quotes: the request is no news, and may hold secrets."""
    if isinstance(detail, list) and detail and all(isinstance(item, dict) and "msg" in item for item in detail):
        return "; ".join(f"{'.'.join(map(str, item.get('loc') or ()))}: {item['msg']}" for item in detail)
    return detail if isinstance(detail, str) else _encode_any(detail)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _encode_any(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def text_of(told: Told, redact: Redactor) -> str:
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
        if 0 < seconds < math.inf:
            return seconds
    try:
        until = parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (KeyError, ValueError, OverflowError):
        return None
    try:
        now = parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, OverflowError):
        now = SystemClock().time()
    return until - now if until > now else None


def loose(data: bytes) -> Any:
    """Any JSON, NaN and infinities included; None if it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
