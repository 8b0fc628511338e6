"""Adapters that know likelihoods; named in suites as `tests.daemons.likely:Class`."""

from __future__ import annotations

import threading
from collections import Counter

from msgspec import UNSET

from shared.errors import Permanent, Retryable
from shared.records import Generation, Prompt, TaskSpec


class Known:
    """Holds of a task's choices what `told` says, (log-likelihood, is greedy) each, whichever task it is. The first
    call for a continuation of `busy` fails with status 503.
    """

    def __init__(self, model_id: str, told: list[tuple[float, bool]], busy: tuple[str, ...] = ()) -> None:
        self.model_id = model_id
        self._told = told
        self._busy = Counter(busy)
        self._lock = threading.Lock()

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        raise Permanent("bad_request", "it knows likelihoods alone")

    def loglikelihood(self, prompt: Prompt, task: TaskSpec) -> Generation:
        assert prompt.continuation is not UNSET
        with self._lock:
            busy = self._busy[prompt.continuation] > 0
            self._busy[prompt.continuation] -= 1
        if busy:
            raise Retryable("server_error", "busy", status=503)
        value, greedy = self._told[task.choices.index(prompt.continuation.strip())]
        return Generation(text="", loglikelihood=value, is_greedy=greedy, token_count=1)


class Gate:
    """Answers a task of the category `gate` once it has answered `count` other requests, of whatever kind; if they
    don't come within a minute, with an error for good.
    """

    def __init__(self, model_id: str, count: int) -> None:
        self.model_id = model_id
        self._left = count
        self._news = threading.Condition()

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        if task.category == "gate":
            with self._news:
                if not self._news.wait_for(lambda: self._left <= 0, 60.0):
                    raise Permanent("bad_request", f"{self._left} others were not asked")
            return Generation(text=task.targets[0], finish_reason="stop")
        self._passed()
        return Generation(text=task.targets[0], finish_reason="stop")

    def loglikelihood(self, prompt: Prompt, task: TaskSpec) -> Generation:
        self._passed()
        return Generation(text="", loglikelihood=-1.0, is_greedy=False)

    def _passed(self) -> None:
        with self._news:
            self._left -= 1
            self._news.notify_all()
