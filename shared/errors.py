"""One tree of errors, split by what the caller does next. Each class carries the exit status of a process it ends.

    TandemError
    ├── Retryable            the same request may succeed later: wait, then try again
    ├── Permanent            the same request fails again: record it once, go on with the others
    └── Fatal                this process can't go on
        ├── UsageError       the user's input is wrong (exit 2)
        │   └── SuiteError   ... with every problem of a suite or task file at once
        └── WorkDirError     the work_dir is unusable, damaged, or of another version

`Retryable` and `Permanent` end one attempt. They carry an `ErrorClass`, which is what the journal, the status and the
report count by. `MEANINGS` says of each class whether it is retried and whose fault it is; an error can't be made that
contradicts it. What leads to which class stands in `inferd.adapters.failures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

DONE, FATAL, USAGE, INCOMPLETE, OVER_BUDGET = range(5)
"""Exit statuses; EXIT_STATUSES says what each means."""


class ExitMeaning(NamedTuple):
    """What an exit status says, of each of the commands; "" where it never ends so."""

    inferd: str
    evald: str
    evalctl: str


EXIT_STATUSES: dict[int, ExitMeaning] = {
    DONE: ExitMeaning("every pair is done", "every pair is scored", "clean"),
    FATAL: ExitMeaning(
        "a fatal error; the log says which",
        "the same",
        "a failure; a command that was refused or not acknowledged; `why`: nothing moves",
    ),
    USAGE: ExitMeaning(
        "bad usage, a bad suite, a missing key", "bad usage, a bad suite", "the same; an unknown pair or model"
    ),
    INCOMPLETE: ExitMeaning(
        "pairs failed, or were left when it was stopped",
        "pairs were skipped or can't be scored",
        "some pairs are missing",
    ),
    OVER_BUDGET: ExitMeaning("the budget is used up", "", ""),
}

ErrorClass = Literal[
    "rate_limited",
    "server_error",
    "connection",
    "timeout",
    "bad_response",
    "incomplete_stream",
    "bad_request",
    "context_length",
    "auth",
    "not_found",
    "quota",
    "unsupported",
    "adapter",
]

ERROR_CLASSES: tuple[str, ...] = ErrorClass.__args__  # type: ignore[attr-defined]  # Literal's own list, kept in one place

Fault = Literal["endpoint", "network", "request", "suite", "account", "adapter"]
"""Whose fault an error is: the endpoint's; the way to it; what was asked (prompt or settings); what the suite says of
the endpoint; the account behind the key; the adapter's code. Never the model's: no error is a wrong answer.
"""


class Meaning(NamedTuple):
    """What an error class stands for. retried: the same request may succeed later. what: in words."""

    retried: bool
    fault: Fault
    what: str


MEANINGS: dict[str, Meaning] = {
    "rate_limited": Meaning(True, "endpoint", "the endpoint asks us to slow down"),
    "server_error": Meaning(True, "endpoint", "the endpoint failed"),
    "connection": Meaning(True, "network", "no connection, or it broke before the answer was whole"),
    "timeout": Meaning(True, "endpoint", "the attempt's wall-clock deadline passed"),
    "bad_response": Meaning(True, "endpoint", "a successful status with a body that is no answer"),
    "incomplete_stream": Meaning(True, "endpoint", "a stream that ended before its answer did"),
    "bad_request": Meaning(False, "request", "the endpoint will never accept this request"),
    "context_length": Meaning(False, "request", "prompt and answer don't fit the model's context"),
    "auth": Meaning(False, "account", "the key is missing, wrong, or not allowed to"),
    "not_found": Meaning(False, "suite", "a wrong address or model name"),
    "quota": Meaning(False, "account", "a quota is used up: no waiting mends it"),
    "unsupported": Meaning(False, "suite", "the endpoint can't do what was asked of it, such as echo a prompt"),
    "adapter": Meaning(False, "adapter", "the adapter itself raised: a defect in code"),
}
"""Every class of `ErrorClass`."""


class TandemError(Exception):
    """Base of all errors that Tandem raises on purpose."""

    exit_code: ClassVar[int] = FATAL


class AttemptError(TandemError):
    """What an attempt ended with instead of a generation. Never raised itself: use Retryable or Permanent.

    kind: what the error is counted under. status: the HTTP status, if there was one. retry_after: seconds that the
    endpoint asked us to wait, if it did; 0 where there is no need to wait. The message must not hold secrets:
    transports redact what they quote. Raises ValueError for a class whose meaning is the other decision.
    """

    retried: ClassVar[bool]

    def __init__(
        self, kind: ErrorClass, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        meaning = MEANINGS.get(kind)
        if meaning is not None and meaning.retried != self.retried:
            raise ValueError(f"{kind} is {'retried: a Retryable' if meaning.retried else 'not retried: a Permanent'}")
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after = retry_after


class Retryable(AttemptError):
    """The same request may succeed later."""

    retried = True


class Permanent(AttemptError):
    """The same request would fail in the same way again."""

    retried = False


def decision(kind: ErrorClass) -> type[Retryable | Permanent]:
    """What an attempt ends with that failed so."""
    return Retryable if MEANINGS[kind].retried else Permanent


class Fatal(TandemError):
    """This process can't go on."""


class UsageError(Fatal):
    """The user's input is wrong; the message names the place and the remedy."""

    exit_code = USAGE


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
