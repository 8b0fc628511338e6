"""Files of TaskSpec lines, and the checks that every task passes wherever it comes from.

Lines are decoded straight into a Struct; only a line that fails is looked at again, to say all that is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from shared.config import BoundedSettings, DatasetConfig
from shared.errors import Problem
from shared.records import SCHEMA, Example, Message, TaskSpec
from shared.tables import convert_table, unknown_word
from shared.tasks.rows import json_fault, not_an_object, read_lines
from shared.vocabulary import METRICS, NUMERIC, POST_PROCESS

_DIGIT = re.compile(r"\d")


class TaskLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A TaskSpec as users write it: what a line doesn't say stays UNSET, so that the dataset's own word can take its
    place.
    """

    schema: int = SCHEMA
    task_id: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    targets: tuple[str, ...]
    metric_name: str | tuple[str, ...] | UnsetType = UNSET
    post_process: str | UnsetType = UNSET
    category: str | UnsetType = UNSET
    few_shot: tuple[Example, ...] | UnsetType = UNSET
    generation: BoundedSettings | UnsetType = UNSET


def native_tasks(dataset: DatasetConfig, path: Path) -> Iterator[tuple[int, TaskSpec | list[Problem]]]:
    """The tasks of a file of TaskSpec lines, each with the number of its line, or what is wrong with the line."""
    decode = msgspec.json.Decoder(TaskLine).decode
    metric, post_process = default_metric(dataset), default_post_process(dataset)
    for number, data in read_lines(path):
        try:
            line = decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            yield number, _explain(data, f"{path}:{number}", error)
            continue
        task = TaskSpec(
            schema=line.schema,
            task_id=line.task_id,
            prompt=line.prompt,
            messages=line.messages,
            targets=line.targets,
            metric_name=metric if line.metric_name is UNSET else line.metric_name,
            post_process=post_process if line.post_process is UNSET else line.post_process,
            category=dataset.category if line.category is UNSET else line.category,
            few_shot=dataset.few_shot if line.few_shot is UNSET else line.few_shot,
            generation=dataset.generation if line.generation is UNSET else line.generation.over(dataset.generation),
        )
        faults = task_faults(task)
        yield number, [Problem(f"{path}:{number}", fault) for fault in faults] if faults else task


def default_metric(dataset: DatasetConfig) -> str | tuple[str, ...]:
    return "exact_match" if dataset.metric is UNSET else dataset.metric


def default_post_process(dataset: DatasetConfig) -> str:
    return "none" if dataset.post_process is UNSET else dataset.post_process


def task_faults(task: TaskSpec) -> list[str]:
    """What is wrong with a task beyond the types of its fields."""
    faults = []
    if task.schema != SCHEMA:
        faults.append(f"schema: this program reads schema {SCHEMA}, got {task.schema}")
    if not task.task_id:
        faults.append("task_id: is empty")
    if (task.prompt is None) == (task.messages is None):
        given = "neither" if task.prompt is None else "both"
        faults.append(f"expected exactly one of prompt and messages, got {given}")
    elif task.prompt is not None:
        if not task.prompt.strip():
            faults.append("prompt: is empty")
    elif not any(message.content.strip() for message in task.messages or ()):
        faults.append("messages: hold no text")
    if not task.targets:
        faults.append("targets: expected at least one, got none")
    for index, target in enumerate(task.targets):
        if not target.strip():
            faults.append(f"targets[{index}]: is empty")
        elif task.post_process in NUMERIC and not _DIGIT.search(target):
            faults.append(f"targets[{index}]: post_process {task.post_process} needs a number, got {target[:60]!r}")
    faults += metric_faults(task.metric_name, "metric_name")
    if task.post_process not in POST_PROCESS:
        faults.append(f"post_process: {unknown_word(task.post_process, POST_PROCESS)}")
    return faults


@lru_cache(maxsize=64)
def metric_faults(metric: str | tuple[str, ...], key: str) -> tuple[str, ...]:
    """What is wrong with the metric, or metrics, that stand under `key`."""
    if isinstance(metric, str):
        return () if metric in METRICS else (f"{key}: {unknown_word(metric, METRICS)}",)
    if not metric:
        return (f"{key}: expected at least one, got none",)
    faults = [f"{key}[{i}]: {unknown_word(name, METRICS)}" for i, name in enumerate(metric) if name not in METRICS]
    faults += [f"{key}[{i}]: {name} is named twice" for i, name in enumerate(metric) if name in metric[:i]]
    return tuple(faults)


def _explain(data: bytes, place: str, error: Exception) -> list[Problem]:
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as worse:
        return [Problem(place, json_fault(data, worse))]
    if not isinstance(value, dict):
        return [Problem(place, not_an_object(value))]
    _, problems = convert_table(value, TaskLine, "")
    # The place in the row goes into the text: the place of the problem is the file's line.
    return [Problem(place, str(p) if p.place else p.text) for p in problems] or [Problem(place, str(error))]
