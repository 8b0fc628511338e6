"""Files of TaskSpec lines, and the checks that every task passes wherever it comes from.

Lines are decoded straight into a Struct; only a line that fails is looked at again, to say all that is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from shared.chat import chat_faults, placed_targets
from shared.config import BoundedSettings, DatasetConfig
from shared.errors import Problem
from shared.records import SCHEMA, ChatMode, Example, FewShotFormat, Message, Named, TaskSpec, TaskType
from shared.scoring import (
    Spec,
    filter_faults,
    measures_of,
    pipelines_of,
    place_of,
    spec_faults,
    steps_of,
    type_faults,
    use_faults,
)
from shared.tables import convert_table
from shared.tasks.limits import ALL, Wanted
from shared.tasks.rows import json_fault, not_an_object, read_lines
from shared.vocabulary import METADATA, NUMERIC, ONE_RIGHT, UNTARGETED, USUAL_METRIC

_DIGIT = re.compile(r"\d")


class TaskLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A TaskSpec as users write it: what a line doesn't say stays UNSET, so that the dataset's own word can take its
    place.
    """

    schema: int = SCHEMA
    task_id: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    targets: tuple[str, ...] = ()
    metric_name: Named | tuple[Named, ...] | UnsetType = UNSET
    post_process: Named | tuple[Named, ...] | UnsetType = UNSET
    filters: dict[str, Named | tuple[Named, ...]] | UnsetType = UNSET
    category: str | UnsetType = UNSET
    few_shot: tuple[Example, ...] | UnsetType = UNSET
    cluster: str = ""
    metadata: dict[str, Any] = {}
    generation: BoundedSettings | UnsetType = UNSET
    request_type: TaskType | UnsetType = UNSET
    choices: tuple[str, ...] = ()
    gold: tuple[int, ...] = ()
    target_delimiter: str | UnsetType = UNSET
    chat_mode: ChatMode | UnsetType = UNSET
    turn_targets: tuple[tuple[str, ...], ...] = ()
    system: str | UnsetType = UNSET
    few_shot_format: FewShotFormat | UnsetType = UNSET


def native_tasks(
    dataset: DatasetConfig, path: Path, wanted: Wanted = ALL
) -> Iterator[tuple[int, TaskSpec | list[Problem]]]:
    """The tasks of the wanted lines of a file of TaskSpec, each with its line's number, or what is wrong with it."""
    decode = msgspec.json.Decoder(TaskLine).decode
    post_process = default_post_process(dataset)
    for _, (number, data) in wanted.of(read_lines(path)):
        try:
            line = decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            yield number, _explain(data, f"{path}:{number}", error)
            continue
        kind = dataset.request_type if line.request_type is UNSET else line.request_type
        task = TaskSpec(
            schema=line.schema,
            task_id=line.task_id,
            prompt=line.prompt,
            messages=line.messages,
            targets=line.targets,
            metric_name=default_metric(dataset, kind) if line.metric_name is UNSET else line.metric_name,
            post_process=post_process if line.post_process is UNSET else line.post_process,
            filters=default_filters(dataset, kind) if line.filters is UNSET else line.filters,
            category=dataset.category if line.category is UNSET else line.category,
            few_shot=dataset.few_shot if line.few_shot is UNSET else line.few_shot,
            cluster=line.cluster,
            metadata=line.metadata,
            generation=dataset.generation if line.generation is UNSET else line.generation.over(dataset.generation),
            request_type=kind,
            choices=line.choices,
            gold=line.gold,
            target_delimiter=dataset.target_delimiter if line.target_delimiter is UNSET else line.target_delimiter,
            chat_mode=dataset.chat_mode if line.chat_mode is UNSET else line.chat_mode,
            turn_targets=line.turn_targets,
            system=dataset.system if line.system is UNSET else line.system,
            few_shot_format=dataset.few_shot_format if line.few_shot_format is UNSET else line.few_shot_format,
        )
        faults = task_faults(task)
        yield number, [Problem(f"{path}:{number}", fault) for fault in faults] if faults else task


def default_metric(dataset: DatasetConfig, kind: TaskType | None = None) -> Spec:
    """kind: of the task; by default the dataset's own."""
    return USUAL_METRIC[kind or dataset.request_type] if dataset.metric is UNSET else dataset.metric


def default_post_process(dataset: DatasetConfig) -> Spec:
    return "none" if dataset.post_process is UNSET else dataset.post_process


def default_filters(dataset: DatasetConfig, kind: TaskType | None = None) -> dict[str, Spec]:
    """kind: of the task; by default the dataset's own. Likelihoods are filtered by nothing."""
    return dataset.filters if (kind or dataset.request_type) == "generate_until" else {}


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
    faults += _type_faults(task)
    faults += chat_faults(task)
    faults += spec_faults(lambda spec: measures_of(spec, task.filters), task.metric_name, "metric_name")
    faults += spec_faults(steps_of, task.post_process, "post_process")
    faults += filter_faults(task.filters)
    if not faults and task.request_type == "generate_until":
        faults += use_faults(task.metric_name, task.post_process, task.filters)
    if not faults:
        faults += _need_faults(task)
    return faults


def _type_faults(task: TaskSpec) -> Iterator[str]:
    """What its way of asking needs and the task doesn't have."""
    if task.request_type == "multiple_choice":
        if len(task.choices) < 2:
            yield f"choices: expected at least two, got {len(task.choices)}"
        for index, choice in enumerate(task.choices):
            if not choice.strip():
                yield f"choices[{index}]: is empty"
        if not task.gold:
            yield "gold: expected the position of the right choice (from 0), got none"
        for index, place in enumerate(task.gold):
            if not 0 <= place < len(task.choices):
                yield f"gold[{index}]: expected a position in choices, 0 to {len(task.choices) - 1}, got {place}"
    else:
        for name in ("choices", "gold"):
            if getattr(task, name):
                yield f"{name}: is for request_type multiple_choice, this one is {task.request_type}"
    if task.filters and task.request_type != "generate_until":
        yield f"filters: are for request_type generate_until, this one is {task.request_type}"
    if task.request_type == "loglikelihood" and len(task.targets) != 1:
        yield f"targets: expected the one text whose likelihood is asked for, got {len(task.targets)}"
    if task.request_type in ("multiple_choice", "loglikelihood_rolling") and task.targets:
        yield f"targets: request_type {task.request_type} has none"
    if task.request_type == "loglikelihood_rolling" and task.few_shot:
        yield "few_shot: the likelihood of a whole text has no examples before it"


def _need_faults(task: TaskSpec) -> Iterator[str]:
    """What its metrics and steps need and the task doesn't have."""
    measures = measures_of(task.metric_name, task.filters)
    yield from type_faults(task.request_type, measures)
    for measure in measures:
        if measure.name in ONE_RIGHT and task.gold and len(task.gold) != 1:
            yield f"gold: {measure.name} is defined for one right choice, got {len(task.gold)}"
    if task.request_type != "generate_until":
        return
    targets = list(placed_targets(task))
    if not targets and (needy := [measure.name for measure in measures if measure.name not in UNTARGETED]):
        yield f"targets: expected at least one for {needy[0]}, got none"
    steps = [(name, step.name) for name, spec in pipelines_of(task).items() for step in steps_of(spec)]
    numeric = next((f"{place_of(name)} {step}" for name, step in steps if step in NUMERIC), None)
    for place, target in targets:
        if not target.strip():
            yield f"{place}: is empty"
        elif numeric is not None and not _DIGIT.search(target):
            yield f"{place}: {numeric} needs a number, got {target[:60]!r}"
    for measure in measures:
        if (kind := METADATA.get(measure.name)) is not None:
            own = {key: value for key, value in task.metadata.items() if key in kind.__struct_fields__}
            _, problems = convert_table(own, kind, "metadata")  # what is left is another metric's, or nobody's
            yield from (f"{problem.place}: {problem.text} (for {measure.name})" for problem in problems)


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
