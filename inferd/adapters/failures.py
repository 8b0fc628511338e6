"""What can happen to a call, and the error class it becomes: one table, which the code evaluates and docs/errors.md
shows.

Invariant: rows of one source are tried in order, the first match wins, and the last row about statuses takes what is
left: every refusal has exactly one class. Whether a class is asked again and whose fault it is stands with the class
(`shared.errors.MEANINGS`), nowhere else. Pure.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from shared.errors import ErrorClass

Source = Literal["connection", "answer", "status", "adapter"]
"""Where it shows: before or below HTTP; in a body under 2xx; as any other status; in the adapter's own code."""

ANY = range(1000)
QUOTA = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
        "insufficient_credits",
        "insufficient_user_quota",
        "exceeded_current_quota_error",
        "arrearage",
    }
)
CONTEXT = frozenset({"context_length_exceeded", "exceed_context_size_error"})
PROMPT_FILTER = frozenset({"content_filter"})
"""Codes of a 400 that is an answer and no error: a filter stopped the prompt itself (Azure's form)."""
_CONTEXT_WORDS = re.compile(
    r"context (?:length|window|size)|maximum model length|max_(?:completion_)?tokens must be at least 1, got -\d"
    r"|(?:prompt|input) is too long|tokens.{0,3} \+ .{0,3}max_new_tokens.{0,3} must be",
    re.IGNORECASE,
)
_CREDIT_WORDS = re.compile(r"credit balance is too low", re.IGNORECASE)


class Refusal(NamedTuple):
    """Which refusals a row is about; all that is given must hold.

    statuses: with one of these. names: the error object's code, type or status, in lower case, is one of them. words:
    its message holds them, about: what they tell. asks_to_wait: it has a Retry-After.
    """

    statuses: range | tuple[int, ...] = ANY
    names: frozenset[str] = frozenset()
    words: re.Pattern[str] | None = None
    about: str = ""
    asks_to_wait: bool = False

    def holds(self, status: int, names: frozenset[str], message: str, asks_to_wait: bool) -> bool:
        return (
            status in self.statuses
            and (not self.names or not self.names.isdisjoint(names))
            and (self.words is None or self.words.search(message) is not None)
            and (asks_to_wait or not self.asks_to_wait)
        )

    def __str__(self) -> str:
        notes = []
        if self.names:
            notes.append("code or type " + ", ".join(f"`{name}`" for name in sorted(self.names)))
        if self.words is not None:
            notes.append(f"a message about {self.about}")
        if self.asks_to_wait:
            notes.append("`Retry-After`")
        return _statuses(self.statuses) + (f" with {' and '.join(notes)}" if notes else "")


class Row(NamedTuple):
    """One thing that can happen. what: in words. when: for statuses, what the code goes by."""

    source: Source
    what: str
    kind: ErrorClass
    when: Refusal | None = None


def _refused(kind: ErrorClass, when: Refusal) -> Row:
    return Row("status", str(when), kind, when)


def _statuses(statuses: range | tuple[int, ...]) -> str:
    if isinstance(statuses, tuple):
        return ", ".join(map(str, statuses))
    if statuses == ANY:
        return "any status"
    first, last = statuses[0], statuses[-1]
    return f"{first // 100}xx" if last - first < 100 else f"{first} and above"


TABLE: tuple[Row, ...] = (
    Row("connection", "the connection is refused", "connection"),
    Row("connection", "the host's name isn't known (DNS)", "connection"),
    Row("connection", "TLS fails: no handshake, an unknown or wrong certificate", "connection"),
    Row("connection", "no connection within `connect_timeout`", "connection"),
    Row("connection", "reset before an answer", "connection"),
    Row("connection", "closed before an answer", "connection"),
    Row("connection", "closed in the middle of an answer", "connection"),
    Row("connection", "no whole answer within `attempt_timeout`", "timeout"),
    Row("connection", "slower than `low_speed_limit` for `low_speed_time`", "timeout"),
    Row("connection", "what answers isn't HTTP", "bad_response"),
    Row("connection", "an answer that can't be unpacked", "bad_response"),
    Row("connection", "an answer longer than 64 MiB, unpacked", "bad_response"),
    Row("answer", "no JSON (HTML, cut off, nothing at all), or JSON of another form", "bad_response"),
    Row("answer", "no choices", "bad_response"),
    Row("answer", "an error object that names no status", "bad_response"),
    Row("answer", "finish_reason `error`, and no error object that names a status", "bad_response"),
    Row("answer", "an event of a stream that isn't JSON", "bad_response"),
    Row("answer", "a stream that ends or breaks off with neither finish_reason nor `[DONE]`", "incomplete_stream"),
    Row("answer", "a log-probability that is no finite number of 0 or less", "bad_response"),
    Row("answer", "of a likelihood: what was sent didn't come back, token for token", "unsupported"),
    Row("answer", "of a likelihood: another token came than was forced, or with the bias", "unsupported"),
    _refused("quota", Refusal((402,))),
    _refused("quota", Refusal(names=QUOTA)),
    _refused("quota", Refusal((400, 403, 429), words=_CREDIT_WORDS, about="a credit balance that is too low")),
    _refused("context_length", Refusal(names=CONTEXT)),
    _refused("context_length", Refusal((400, 413, 422), words=_CONTEXT_WORDS, about="the context's length")),
    _refused("rate_limited", Refusal((429, 529))),
    _refused("rate_limited", Refusal((503,), asks_to_wait=True)),
    _refused("server_error", Refusal((408, 409, 425))),
    _refused("server_error", Refusal(range(500, 1000))),
    _refused("auth", Refusal((401, 403, 407))),
    _refused("not_found", Refusal((404,))),
    Row("status", "3xx: redirects aren't followed", "not_found", Refusal(range(300, 400))),
    Row("status", "any other status", "bad_request", Refusal()),
    Row("adapter", "its call hasn't ended 5 s after the deadline (a later answer is dropped and counted)", "timeout"),
    Row("adapter", "it raises what is neither Retryable nor Permanent, or an unknown class", "adapter"),
    Row("adapter", "it returns what is no Generation, or one that can't be kept", "adapter"),
)

REFUSALS = tuple((row.when, row.kind) for row in TABLE if row.when is not None)

NAMED_STATUS: dict[str, int] = {
    **dict.fromkeys(("rate_limit_exceeded", "rate_limit_error", "too_many_requests", "resource_exhausted"), 429),
    **dict.fromkeys(("overloaded_error", "overloaded"), 529),
    **dict.fromkeys(("server_error", "internal_error", "internal_server_error", "internalservererror"), 500),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "permission_error"), 401),
    **dict.fromkeys(("not_found_error", "notfounderror", "model_not_found"), 404),
    **dict.fromkeys(("invalid_request_error", "badrequesterror", *sorted(CONTEXT)), 400),
    **dict.fromkeys(sorted(QUOTA), 429),
}
"""Which status an error object under 2xx would have had, by its code or type in lower case. A code that is a number
from 400 to 599 is one itself.
"""


def refusal_class(status: int, names: frozenset[str], message: str, *, asks_to_wait: bool) -> ErrorClass:
    """The class of an endpoint's refusal, by the table. names: its error's code, type and status, in lower case."""
    return next(kind for when, kind in REFUSALS if when.holds(status, names, message, asks_to_wait))
