"""Adapters as users write them, misbehaving; named in suites as `tests.daemons.adapters:Class`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from shared.records import Generation, Prompt, TaskSpec, Usage


class Late:
    """The first call for the first task answers `A` after `late` seconds, each further one `B` at once. All other tasks
    take `other` seconds.
    """

    def __init__(self, model_id: str, late: float, other: float = 0.0) -> None:
        self.model_id = model_id
        self._late = late
        self._other = other
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        if task.task_id != "t0":
            time.sleep(self._other)
            return Generation(text=task.targets[0], finish_reason="stop")
        with self._lock:
            self._calls[task.task_id] += 1
            first = self._calls[task.task_id] == 1
        if first:
            time.sleep(self._late)
        return Generation(text="A" if first else "B", finish_reason="stop")


class Odd:
    """Does what the task's category says, which no adapter should do."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        text = task.targets[0]
        odd: dict[str, Any] = {
            "none": {"text": None},
            "number": {"text": 5},
            "confidence": {"text": text, "confidence": "high"},
            "usage": {"text": text, "usage": {"prompt_tokens": 1}},
            "tokens": {"text": text, "usage": Usage(prompt_tokens="12")},  # type: ignore[arg-type]  # the point of it
            "surrogate": {"text": "half \ud83d"},
            "name": {"text": text, "served_model": "half \ud83d"},
            "nan": {"text": text, "confidence": float("nan"), "token_nll": float("inf")},
        }
        if task.category == "raises":
            raise ValueError("this adapter has a defect")
        if task.category == "raises-surrogate":
            raise ValueError("half \ud83d")
        if task.category == "exits":
            raise SystemExit(7)
        if task.category == "returns-text":
            return text  # type: ignore[return-value]  # the point of it
        return Generation(**odd.get(task.category, {"text": text}))
