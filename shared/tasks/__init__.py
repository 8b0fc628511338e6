"""Where tasks come from: a dataset's file becomes a stream of TaskSpec, checked in full before anything is asked.

`rows` reads files, `native` takes TaskSpec lines, `mapping` makes tasks of plain rows. Memory grows by about 150 bytes
a task (to find ids that occur twice), not with the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from shared.config import DatasetConfig
from shared.errors import Problem, SuiteError
from shared.records import TaskSpec
from shared.scoring import Measure, Spec, measures_of
from shared.tables import show
from shared.tasks.mapping import is_mapped, mapped_tasks
from shared.tasks.native import native_tasks
from shared.tasks.rows import read_lines, read_rows

__all__ = ["MAX_PROBLEMS", "no_fault", "read_lines", "read_rows", "read_tasks"]

MAX_PROBLEMS = 20
"""Problems of one file that are told; of the rest only the number is."""


def no_fault(_: TaskSpec) -> str | None:
    return None


def read_tasks(
    dataset: DatasetConfig, path: Path, fault: Callable[[TaskSpec], str | None] = no_fault
) -> Iterator[TaskSpec]:
    """The dataset's tasks in the order of its file; a task's position is its doc_id.

    What a task says itself (metric, post_process, category, few_shot, each generation setting) wins over what the
    dataset says. fault: what else may be wrong with a task, in words, by someone who knows more than its form.

    Raises SuiteError, at the latest after the last task, with the first 20 problems of the file and the number of the
    others: rows that can't be read or give no task, ids that occur twice, a metric's label that means two things, no
    task at all. No task comes after a problem. The dataset must have passed the suite's check.
    """
    source = mapped_tasks(dataset, path) if is_mapped(dataset) else native_tasks(dataset, path)
    numbered = is_mapped(dataset) and (dataset.fields is None or dataset.fields.task_id is None)
    lines: dict[int, int] = {}  # by hash(task_id): two of a million ids share one once in some 30 million runs
    labels = _Labels()
    problems = _Problems(path)
    count = 0
    try:
        for number, task in islice(source, dataset.limit):
            count += 1
            if isinstance(task, list):
                problems.add(*task)
                continue
            if (text := fault(task)) is not None:
                problems.add(Problem(f"{path}:{number}", f"task {show(task.task_id)}: {text}"))
                continue
            if (text := labels.fault(task.metric_name, number)) is not None:
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
        problems.add(Problem(str(path), "holds no tasks"))
    problems.raise_any()


class _Labels:
    """What the tasks of a file call their metrics: scores under one label are averaged, so it has to mean one thing."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Measure, int]] = {}
        self._last: Spec | None = None  # tasks mostly share one

    def fault(self, spec: Spec, number: int) -> str | None:
        if spec == self._last:
            return None
        for measure in measures_of(spec):
            # The same whether the label is told or the one that it has anyway.
            plain = measure._replace(parameters=msgspec.structs.replace(measure.parameters, label=None))
            known, line = self._known.setdefault(measure.label, (plain, number))
            if known != plain:
                said = f"is another metric, or has other parameters, on line {line}: give one of them a `label`"
                return f"metric_name: {show(measure.label)} {said}"
        self._last = spec
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
