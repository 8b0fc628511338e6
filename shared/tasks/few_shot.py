"""Few-shot examples drawn for each task.

Invariant: what a task is shown follows from its task_id, the seed and the examples that there are, and from nothing
else: not from which other tasks are asked, in which order, in how many shards, nor from the order of the examples. A
task is never shown itself, nor another that asks the same. Drawn once, when the plan is made, and frozen with it.

Memory is bounded: of a larger source the POOL examples are kept whose SHA-256 with the seed is smallest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from heapq import heappush, heappushpop
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from shared.config import DatasetConfig, FewShotDraw
from shared.errors import Problem, SuiteError
from shared.records import Example, TaskSpec
from shared.tasks.mapping import Row, RowError, compile_template, is_mapped, mapped_rows
from shared.tasks.native import native_tasks
from shared.tasks.rows import format_of

POOL = 1024
MAX_PROBLEMS = 20  # of one source


class Shot(NamedTuple):
    """An example, and what the task that it was made of asks."""

    asks: str
    example: Example


class Pool:
    """The examples of a source. Raises SuiteError with what is wrong with its rows."""

    def __init__(self, draw: FewShotDraw, shots: Iterator[Shot | list[Problem]]) -> None:
        self._draw = draw
        kept: dict[int, Shot] = {}
        largest: list[int] = []  # a heap of negated keys
        problems: list[Problem] = []
        for shot in shots:
            if isinstance(shot, list):
                problems += shot
                if len(problems) >= MAX_PROBLEMS:
                    break
                continue
            key = _number(draw.seed, shot.asks, shot.example.prompt, shot.example.target)
            if key in kept or (len(kept) == POOL and key > -largest[0]):
                continue
            kept[key] = shot
            if len(kept) <= POOL:
                heappush(largest, -key)
            else:
                del kept[-heappushpop(largest, -key)]
        if problems:
            raise SuiteError(problems[:MAX_PROBLEMS])
        self._shots = [kept[key] for key in sorted(kept)]

    def __len__(self) -> int:
        return len(self._shots)

    def draw(self, task: TaskSpec) -> tuple[Example, ...] | str:
        """The task's examples, or why it has none."""
        if task.request_type == "loglikelihood_rolling":
            return "the likelihood of a whole text has no examples before it"
        own = asks(task)
        order = (self._shots[place] for place in _permutation(len(self), self._draw.seed, task.task_id))
        drawn = tuple(islice((shot.example for shot in order if shot.asks != own), self._draw.num))
        if len(drawn) < self._draw.num:
            return f"expected {self._draw.num} examples that ask something else, the source has {len(drawn)}"
        return drawn


def pool_of(dataset: DatasetConfig, draw: FewShotDraw, path: Path) -> Pool:
    """path: the dataset's own file, which is the source where none is named."""
    source = Path(draw.source) if draw.source is not None else path
    kind = dataset.format if draw.source is None else format_of(replace(dataset, path=draw.source, format=None))
    plain = replace(dataset, path=str(source), format=kind or dataset.format, few_shot_draw=None, limit=None)
    return Pool(draw, _mapped(plain, draw, source) if is_mapped(dataset) else _native(plain, source))


def asks(task: TaskSpec) -> str:
    """The task's prompt as one text: tasks of which it is the same ask the same."""
    return task.prompt if task.prompt is not None else "\n".join(turn.content for turn in task.messages or ())


def _native(dataset: DatasetConfig, path: Path) -> Iterator[Shot | list[Problem]]:
    for number, task in native_tasks(dataset, path):
        if isinstance(task, list):
            yield task
            continue
        try:
            yield Shot(asks(task), Example(_prompt(task), _target(task)))
        except RowError as error:
            yield [Problem(f"{path}:{number}", f"few_shot_draw: {error}")]


def _mapped(dataset: DatasetConfig, draw: FewShotDraw, path: Path) -> Iterator[Shot | list[Problem]]:
    prompt = compile_template(draw.prompt) if draw.prompt is not None else None
    target = compile_template(draw.target) if draw.target is not None else None
    row: Row
    for number, row, task in mapped_rows(dataset, path):
        if isinstance(task, list):
            yield task
            continue
        try:
            shown = prompt(row) if prompt is not None else _prompt(task)
            yield Shot(asks(task), Example(shown, target(row) if target is not None else _target(task)))
        except RowError as error:
            yield [Problem(f"{path}:{number}", f"few_shot_draw: {error}")]


def _prompt(task: TaskSpec) -> str:
    """Raises RowError when the task asks more than once."""
    if task.prompt is not None:
        return task.prompt
    turns = [turn.content for turn in task.messages or () if turn.role != "system"]
    if len(turns) != 1:
        raise RowError(f"task {task.task_id} has {len(turns)} turns, an example is one prompt and one answer")
    return turns[0]


def _target(task: TaskSpec) -> str:
    """What the task holds to be right, of several the first. Raises RowError when it has none."""
    if task.request_type == "multiple_choice":
        return task.choices[task.gold[0]]
    if not task.targets:
        raise RowError(f"task {task.task_id} has no target to show")
    return task.targets[0]


def _permutation(size: int, *key: object) -> Iterator[int]:
    """The numbers below `size` in an order that follows from the key. Fisher and Yates's shuffle, as far as it is
    asked for; the remainder of 256 bits by a small size is as good as uniform.
    """
    moved: dict[int, int] = {}
    for place in range(size):
        chosen = place + _number(*key, place) % (size - place)
        yield moved.get(chosen, chosen)
        moved[chosen] = moved.pop(place, place)


def _number(*parts: object) -> int:
    """SHA-256 of the parts. Their lengths go in, so that no two lists of them are the same text."""
    texts = [str(part).encode() for part in parts]
    return int.from_bytes(hashlib.sha256(b"".join(b"%d:%b" % (len(text), text) for text in texts)).digest())
