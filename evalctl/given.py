"""Models and tasks that are given as Python values, put into a work_dir as a suite: from there on nothing about them
differs from those of a suite file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from evalctl import toml
from evalctl.submit import put
from evald.faults import dataset_faults
from inferd import adapters
from inferd.adapters import ModelAdapter
from inferd.local_model import with_identities
from shared.atomic import replace_lines
from shared.config import DatasetConfig, EvalConfig, InferConfig, ModelConfig, Suite
from shared.errors import Problem, UsageError
from shared.layout import WorkDir
from shared.records import Plan, RequestType, TaskSpec, encode_record
from shared.suite import parse_suite

Model = ModelAdapter | ModelConfig
"""Whom to ask: an adapter, of one's own or built-in, or the configuration of a model as a suite has it."""
Tasks = str | os.PathLike[str] | DatasetConfig | Iterable[TaskSpec | Mapping[str, Any]]
"""What to ask: tasks, or mappings that hold their fields; or a file of task lines; or a dataset as a suite has it."""

UNNAMED = "tasks"  # what a dataset without a name is called


@dataclass(frozen=True)
class Given:
    """models: as a suite has them; instances: the adapters among them, by abbr. datasets: as a suite has them; tasks:
    of those that are no file, by abbr.
    """

    models: tuple[ModelConfig, ...]
    instances: Mapping[str, ModelAdapter]
    datasets: tuple[DatasetConfig, ...]
    tasks: Mapping[str, Sequence[TaskSpec | Mapping[str, Any]]]

    def plan(self, work: WorkDir, infer: InferConfig, eval: EvalConfig) -> tuple[Suite, Plan]:  # the table's own name
        """Put it all into the work_dir. Raises SuiteError with what is wrong with it, UsageError when an inferd is at
        work there.
        """
        datasets = []
        for dataset in self.datasets:
            if dataset.abbr in self.tasks:
                path = work.given_tasks(dataset.abbr)
                replace_lines(path, map(_line, self.tasks[dataset.abbr]))
                dataset = replace(dataset, path=str(path))
            datasets.append(dataset)
        text = _suite_text(self.models, datasets, infer, eval)
        origin, folder = "the suite made of what was given", Path.cwd()
        suite = parse_suite(
            text, origin, folder, os.environ, model_faults=self._model_faults, dataset_faults=dataset_faults
        )
        suite = with_identities(suite)
        return suite, put(work, suite, text, self._cannot)

    def in_one_shard(self) -> Given:
        datasets = tuple(replace(dataset, num_shards=None, max_shard_size=None) for dataset in self.datasets)
        return Given(self.models, self.instances, datasets, self.tasks)

    def _model_faults(self, model: ModelConfig) -> list[Problem]:
        return [] if model.abbr in self.instances else adapters.model_faults(model)

    def _cannot(self, model: ModelConfig, request_type: RequestType) -> str | None:
        adapter = self.instances.get(model.abbr)
        if adapter is None:
            return adapters.cannot(model, request_type)
        if request_type == "generate_until" or callable(getattr(adapter, request_type, None)):
            return None
        return f"{request_type}: {type(adapter).__name__} has no method `{request_type}(prompt, task)`"


def given(models: Model | Iterable[Model], tasks: Tasks | Mapping[str, Tasks], repeats: int) -> Given:
    """repeats: of datasets that don't say. Raises UsageError for what is neither a model nor tasks."""
    listed = list(models) if isinstance(models, Iterable) else [models]
    configs = tuple(map(_config, listed))
    instances = {model.model_id: model for model in listed if not isinstance(model, ModelConfig)}
    if isinstance(tasks, Mapping):
        if "task_id" in tasks:
            raise UsageError("tasks: this is one task: put it into a list")
        named = [_dataset(name, some, repeats) for name, some in tasks.items()]
    elif isinstance(tasks, str | os.PathLike | DatasetConfig):
        named = [_dataset(None, tasks, repeats)]
    else:
        some = list(tasks)
        if some and all(isinstance(one, DatasetConfig) for one in some):
            named = [_dataset(None, one, repeats) for one in some]  # type: ignore[arg-type]  # as just seen
        else:
            named = [_dataset(None, some, repeats)]
    datasets = tuple(dataset for dataset, _ in named)
    return Given(configs, instances, datasets, {d.abbr: some for d, some in named if some is not None})


def _config(model: object) -> ModelConfig:
    if isinstance(model, ModelConfig):
        return model
    name, kind = getattr(model, "model_id", None), type(model)
    if not isinstance(name, str) or not callable(getattr(model, "generate", None)) or isinstance(model, type):
        raise UsageError(f"{kind.__name__} is no adapter: it needs `model_id` and `generate(prompt, task)`")
    version = getattr(model, "version", "")
    return ModelConfig(abbr=name, type=f"{kind.__module__}:{kind.__qualname__}", version=str(version))


def _dataset(
    name: str | None, tasks: Tasks, repeats: int
) -> tuple[DatasetConfig, list[TaskSpec | Mapping[str, Any]] | None]:
    """The dataset, and its tasks where they are no file."""
    if isinstance(tasks, DatasetConfig):
        return (tasks if name is None else replace(tasks, abbr=name)), None
    if isinstance(tasks, str | os.PathLike):
        path = Path(tasks)
        return DatasetConfig(abbr=name or path.name.partition(".")[0], path=str(path.absolute()), repeats=repeats), None
    listed = list(tasks)
    for number, task in enumerate(listed):
        if not isinstance(task, TaskSpec | Mapping):
            raise UsageError(f"tasks[{number}]: expected a TaskSpec or a mapping, got {type(task).__name__}")
    return DatasetConfig(abbr=name or UNNAMED, path="-", repeats=repeats), listed


def _line(task: TaskSpec | Mapping[str, Any]) -> bytes:
    return encode_record(task) + b"\n"


def _suite_text(
    models: Sequence[ModelConfig], datasets: Sequence[DatasetConfig], infer: InferConfig, eval: EvalConfig
) -> str:
    tables = {
        "base_dir": str(Path.cwd()),
        "models": [_table(model) for model in models],
        "datasets": [_table(dataset) for dataset in datasets],
        "infer": _table(infer),
        "eval": _table(eval),
    }
    try:
        return "# Written by the Python API.\n" + toml.document(tables)
    except TypeError as error:
        raise UsageError(f"what is given can't be written as a suite: {error}") from None


def _table(record: Struct) -> dict[str, Any]:
    """A record as the table of a suite that reads back as the same: without what is as usual."""
    return dict(_entries(record))


def _entries(record: Struct) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        usual = field.default_factory() if callable(field.default_factory) else field.default
        if value is not None and value is not UNSET and value != usual:
            yield field.encode_name, _value(value)


def _value(value: Any) -> Any:
    if isinstance(value, Struct):
        return _table(value)
    if isinstance(value, Mapping):
        return {str(name): _value(item) for name, item in value.items()}
    return [_value(item) for item in value] if isinstance(value, list | tuple) else value
