"""The loads that are put on inferd. Each is a row of the table; what it must reach stands in `goals`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scripts.benchmarks.ideal import waves

RUNS = 5  # of inferd and of the bare loop, by default


@dataclass(frozen=True)
class Slow:
    """percent of the bodies are answered after `ms`."""

    percent: float
    ms: int


@dataclass(frozen=True)
class Load:
    """datasets x tasks requests with `workers` in flight; an answer takes `ms`. distinct: each dataset has generation
    settings of its own. runs: at most so many, for what takes long. bare: the bare loop runs too. stragglers: whether
    the status names them is looked at.
    """

    name: str
    workers: int
    ms: int
    datasets: int
    tasks: int
    slow: Slow | None = None
    distinct: bool = False
    runs: int = RUNS
    bare: bool = True
    stragglers: bool = False

    @property
    def requests(self) -> int:
        return self.datasets * self.tasks

    @property
    def ideal(self) -> float | None:
        """Seconds; None when it depends on the order in which the requests come."""
        return None if self.slow else waves(self.requests, self.workers, self.ms / 1000)

    @property
    def path(self) -> tuple[str, ...]:
        """The parts of the server's path that make it answer so."""
        slow = (f"t{self.slow.percent:g}-{self.slow.ms}",) if self.slow else ()
        return (f"d{self.ms}", *slow)

    @property
    def words(self) -> str:
        size = f"{self.datasets} x {self.tasks:,}" if self.datasets > 1 else f"{self.tasks:,}"
        slow = f", {self.slow.percent:g} % {self.slow.ms / 1000:g} s" if self.slow else ""
        return f"{size}, C={self.workers}, {self.ms} ms{slow}"

    def abbr(self, dataset: int) -> str:
        return f"d{dataset}"

    def settings(self, dataset: int) -> dict[str, Any]:
        return {"max_tokens": 64 + dataset} if self.distinct else {}

    def prompts(self, dataset: int) -> Iterator[str]:
        """Short ones, all distinct. A task's id stands in its prompt (see task_id)."""
        return (f"{self.task_id(dataset, task)}: what is {task} plus {dataset}?" for task in range(self.tasks))

    def task_id(self, dataset: int, task: int) -> str:
        return f"item-{dataset}-{task}"


LOADS = (
    Load("c256-200ms", 256, 200, 1, 10_240),
    Load("c256-50ms", 256, 50, 8, 1_000),
    Load("c256-0ms", 256, 0, 1, 8_192),
    Load("c1024-200ms", 1024, 200, 1, 20_480),
    Load("c4096-2s", 4096, 2000, 1, 16_384, runs=3),
    Load("distinct-settings", 128, 50, 20, 100, slow=Slow(1, 2000), distinct=True),
    Load("datasets-500", 64, 200, 500, 2, runs=3, bare=False),
    Load("tail", 128, 100, 20, 250, slow=Slow(1, 3000), distinct=True, runs=2, bare=False, stragglers=True),
)
SMALL = Load("rows-10k", 64, 0, 1, 10_000, runs=3, bare=False)
LARGE = Load("rows-1m", 64, 0, 1, 1_000_000, runs=1, bare=False)
MISSING = 1_000  # answers that are taken from the large one's journal before it is resumed
RESUME = "resume-1m"
