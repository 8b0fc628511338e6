"""One tree of errors, split by what the caller does next. Each class carries the exit status of a process it ends.

    TandemError
    ├── Retryable            the same request may succeed later: wait, then try again
    ├── Permanent            the same request fails again: record it once, go on with the others
    └── Fatal                this process can't go on
        ├── UsageError       the user's input is wrong (exit 2)
        │   └── SuiteError   ... with every problem of a suite or task file at once
        └── WorkDirError     the work_dir is unusable, damaged, or of another version

`Retryable` and `Permanent` end one attempt. They carry an `ErrorClass`, which is what the journal, the status and the
report count by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

ErrorClass = Literal[
    # retried
    "rate_limited",  # 429, 503 with Retry-After: the endpoint asks us to slow down
    "server_error",  # 408, 409, 425, 5xx: the endpoint failed
    "connection",  # refused, reset, DNS, TLS, closed before or in the middle of the answer
    "timeout",  # the attempt's wall-clock deadline passed
    "bad_response",  # status 200 with a body that is no answer: HTML, cut JSON, no choices
    "incomplete_stream",  # a stream that ended with neither finish_reason nor [DONE]
    # not retried
    "bad_request",  # 400, 422 ...: the endpoint will never accept this request
    "context_length",  # prompt (and answer) don't fit the model's context
    "auth",  # 401, 403
    "not_found",  # 404: wrong address or model name
    "quota",  # a quota is used up: a 429 that no waiting mends
    "adapter",  # the adapter itself raised: a defect in code, not in the model
]

ERROR_CLASSES: tuple[str, ...] = ErrorClass.__args__  # type: ignore[attr-defined]  # Literal's own list, kept in one place


class TandemError(Exception):
    """Base of all errors that Tandem raises on purpose."""

    exit_code: ClassVar[int] = 1


class AttemptError(TandemError):
    """What an attempt ended with instead of a generation. Never raised itself: use Retryable or Permanent.

    kind: what the error is counted under. status: the HTTP status, if there was one. retry_after: seconds that the
    endpoint asked us to wait, if it did; 0 where there is no need to wait. The message must not hold secrets:
    transports redact what they quote.
    """

    def __init__(
        self, kind: ErrorClass, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after = retry_after


class Retryable(AttemptError):
    """The same request may succeed later."""


class Permanent(AttemptError):
    """The same request would fail in the same way again."""


class Fatal(TandemError):
    """This process can't go on."""


class UsageError(Fatal):
    """The user's input is wrong; the message names the place and the remedy."""

    exit_code = 2


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong with an input, and where: `models[1].max_workers` or `data/gsm8k.jsonl:17`."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class SuiteError(UsageError):
    """Every problem that was found in a suite and the files it names, at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class WorkDirError(Fatal):
    """The work_dir can't be used as it is."""
