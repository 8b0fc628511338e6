"""Where tasks come from: a dataset's file becomes a stream of TaskSpec, checked in full before anything is asked.

`rows` reads files, `limits` says which of their rows, `native` takes TaskSpec lines, `mapping` makes tasks of plain
rows, `few_shot` draws examples for them. Memory grows by about 150 bytes a task (to find ids that occur twice), not
with the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from shared.config import DatasetConfig
from shared.errors import Problem, SuiteError
from shared.records import TaskSpec
from shared.scoring import Measure, Spec, measures_of, repeats_fault
from shared.tables import show
from shared.tasks.few_shot import Pool, pool_of
from shared.tasks.limits import total_rows, wanted
from shared.tasks.mapping import is_mapped, mapped_rows
from shared.tasks.native import native_tasks
from shared.tasks.rows import read_lines, read_rows

__all__ = ["MAX_PROBLEMS", "Source", "no_fault", "read_lines", "read_rows", "read_tasks"]

MAX_PROBLEMS = 20
"""Problems of one file that are told; of the rest only the number is."""


def no_fault(_: TaskSpec) -> str | None:
    return None


class Source:
    """A dataset's file: its tasks, and what is known of it beside them."""

    def __init__(self, dataset: DatasetConfig, path: Path) -> None:
        self._dataset = dataset
        self._path = path

    @cached_property
    def rows(self) -> int:
        """How many there are, whatever the limit. Raises SuiteError when the file can't be read to its end."""
        return total_rows(self._dataset, self._path)

    @cached_property
    def pool(self) -> Pool | None:
        """What few-shot examples are drawn from, where they are drawn. Raises SuiteError when it can't be read."""
        draw = self._dataset.few_shot_draw
        return pool_of(self._dataset, draw, self._path) if draw is not None else None

    def tasks(self) -> Iterator[tuple[int, TaskSpec | list[Problem]]]:
        """Each with the number of its line, or what is wrong with the line."""
        rows = wanted(self._dataset.limit, lambda: self.rows)
        found: Iterator[tuple[int, TaskSpec | list[Problem]]]
        if is_mapped(self._dataset):
            found = ((number, task) for number, _, task in mapped_rows(self._dataset, self._path, rows))
        else:
            found = native_tasks(self._dataset, self._path, rows)
        for number, task in found:
            yield number, self._with_examples(number, task) if isinstance(task, TaskSpec) else task

    def _with_examples(self, number: int, task: TaskSpec) -> TaskSpec | list[Problem]:
        if self.pool is None or task.few_shot:  # its own win
            return task
        drawn = self.pool.draw(task)
        if isinstance(drawn, str):
            return [Problem(f"{self._path}:{number}", f"task {show(task.task_id)}: few_shot_draw: {drawn}")]
        return msgspec.structs.replace(task, few_shot=drawn)


def read_tasks(
    dataset: DatasetConfig,
    path: Path,
    fault: Callable[[TaskSpec], str | None] = no_fault,
    *,
    repeats: int | None = None,
    source: Source | None = None,
) -> Iterator[TaskSpec]:
    """The dataset's tasks in the order of its file; a task's position among them is its doc_id.

    What a task says itself (metric, post_process, category, few_shot, each generation setting) wins over what the
    dataset says. fault: what else may be wrong with a task, in words, by someone who knows more than its form. repeats:
    samples of each task; None where that isn't known yet. source: of this dataset and path, where the caller has one.

    Raises SuiteError, at the latest after the last task, with the first 20 problems of the file and the number of the
    others: rows that can't be read or give no task, ids that occur twice, a metric's label that means two things, no
    task at all. No task comes after a problem. The dataset must have passed the suite's check.
    """
    source = source or Source(dataset, path)
    numbered = is_mapped(dataset) and (dataset.fields is None or dataset.fields.task_id is None)
    lines: dict[int, int] = {}  # by hash(task_id): two of a million ids share one once in some 30 million runs
    labels = _Labels()
    problems = _Problems(path)
    count = 0
    try:
        for number, task in source.tasks():
            count += 1
            if isinstance(task, list):
                problems.add(*task)
                continue
            if (text := fault(task) or _too_few(task, repeats)) is not None:
                problems.add(Problem(f"{path}:{number}", f"task {show(task.task_id)}: {text}"))
                continue
            if (text := labels.fault(task, number)) is not None:
                problems.add(Problem(f"{path}:{number}", text))
                continue
            if not numbered:
                key = hash(task.task_id)
                if key in lines:
                    twice = f"task_id {show(task.task_id)} is already on line {lines[key]}"
                    problems.add(Problem(f"{path}:{number}", twice))
                    continue
                lines[key] = number
            if not problems.count:
                yield task
    except SuiteError as error:
        problems.add(*error.problems)
    if count == 0 and not problems.count:
        none = "holds no tasks" if dataset.limit is None else f"limit {dataset.limit} leaves no tasks of it"
        problems.add(Problem(str(path), none))
    problems.raise_any()


def _too_few(task: TaskSpec, repeats: int | None) -> str | None:
    return None if repeats is None else repeats_fault(task, repeats)


class _Labels:
    """What the tasks of a file call their metrics: scores under one label are averaged, so it has to mean one thing."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Measure, int]] = {}
        self._last: tuple[Spec, list[str]] | None = None  # tasks mostly share one

    def fault(self, task: TaskSpec, number: int) -> str | None:
        if (task.metric_name, list(task.filters)) == self._last:
            return None
        for measure in measures_of(task.metric_name, task.filters):
            # The same whether the label is told or the one that it has anyway, and whatever else it is computed under.
            plain = measure._replace(parameters=msgspec.structs.replace(measure.parameters, label=None, filters=None))
            known, line = self._known.setdefault(measure.label, (plain, number))
            if known != plain:
                said = f"is another metric, or has other parameters, on line {line}: give one of them a `label`"
                return f"metric_name: {show(measure.label)} {said}"
        self._last = task.metric_name, list(task.filters)
        return None


class _Problems:
    """The first problems of a file, and the number of all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._first: list[Problem] = []

    def add(self, *problems: Problem) -> None:
        self.count += len(problems)
        self._first += problems[: MAX_PROBLEMS - len(self._first)]

    def raise_any(self) -> None:
        more = self.count - len(self._first)
        if more:
            self._first.append(Problem(str(self.path), f"and {more} more"))
        if self._first:
            raise SuiteError(self._first)
