"""Requests asked without a daemon, by either of the two means that a model's `transport` names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inferd.adapters import CarriedAdapter, ModelAdapter, build_adapter, is_carried
from inferd.ask import Asker, Ended, Redact
from inferd.engine import Engine
from shared.clock import SystemClock
from shared.config import InferConfig, ModelConfig, Price
from shared.records import Message, Prompt, TaskSpec
from shared.requests import Request

How = Literal["threads", "engine"]
HOWS: tuple[How, ...] = ("threads", "engine")


@dataclass(frozen=True, eq=False)
class Job:
    request: Request
    attempt: int = 1


def job(number: int, text: str = "hello") -> Job:
    turn = Message(role="user", content=text)
    task = TaskSpec(task_id=f"t{number}", prompt=text, targets=("x",))
    return Job(Request(f"{number:064x}", number, 0, 0, task, Prompt(messages=(turn,))))


class Reports:
    """What an engine reported, in order; from any thread."""

    def __init__(self) -> None:
        self.ended: list[tuple[Job, Ended]] = []
        self._news = threading.Condition()

    def __call__(self, ended: list[tuple[Job, Ended]]) -> None:
        with self._news:
            self.ended += ended
            self._news.notify_all()

    def wait(self, count: int, timeout: float = 60.0) -> list[tuple[Job, Ended]]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.ended) >= count, timeout), f"{len(self.ended)} of {count} ended"
            return list(self.ended)


def engine(adapter: ModelAdapter, reports: Callable[[list[tuple[Job, Ended]]], None], size: int = 64) -> Engine[Job]:
    assert is_carried(adapter)
    carried: CarriedAdapter = adapter
    clock = SystemClock()
    return Engine("engine", size, carried, Asker(adapter, Price(), clock, Redact()), clock, reports)


def endpoint(base_url: str, *, secrets: dict[str, str] | None = None, **more: Any) -> ModelAdapter:
    model = ModelConfig(**({"abbr": "m", "base_url": base_url, "attempt_timeout": 20.0} | more))
    return build_adapter(model, infer=InferConfig(), secret=(secrets or {}).get)


def ask(how: How, adapter: ModelAdapter, texts: Sequence[str] = ("hello",)) -> list[Ended]:
    """One attempt for each text, in turn on a thread of its own or all at once on an engine."""
    return ask_all(how, adapter, [job(number, text) for number, text in enumerate(texts)])


def ask_all(how: How, adapter: ModelAdapter, jobs: Sequence[Job]) -> list[Ended]:
    """The same for jobs, each of a doc_id of its own."""
    ended: dict[int, Ended] = {}
    if how == "threads":
        asker = Asker(adapter, Price(), SystemClock(), Redact())

        def work() -> None:
            for one in jobs:
                ended[one.request.doc_id] = asker.ask(one.request, 1)

        thread = threading.Thread(target=work)  # its connection goes with it
        thread.start()
        thread.join()
    else:
        reports = Reports()
        carrier = engine(adapter, reports)
        for one in jobs:
            carrier.submit(one)
        carrier.end()
        assert carrier.wait(60.0) == 0
        ended = {one.request.doc_id: what for one, what in reports.ended}
        assert len(reports.ended) == len(jobs)
    return [ended[one.request.doc_id] for one in jobs]
