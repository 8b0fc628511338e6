"""The plan: everything that will be asked, fixed before the first request.

Planning streams each dataset once into `tasks/<dataset>.jsonl` and records counts and digests. It is idempotent:
planning the same suite over the same files again changes nothing, and pairs whose digest stays keep what they have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from shared import atomic, requests
from shared.clock import Clock, utc
from shared.config import DatasetConfig, ModelConfig, Suite
from shared.errors import Problem, SuiteError, WorkDirError
from shared.journal import MAX_DOCS, MAX_REPEATS, split_lines
from shared.layout import WorkDir
from shared.names import collisions
from shared.records import (
    SCHEMA,
    Plan,
    PlanDataset,
    PlanGroup,
    PlanPair,
    PlanShard,
    RequestType,
    TaskSpec,
    check_schema,
    encode_record,
)
from shared.status import MAX_PLAN_BYTES, read_record, write_record
from shared.suite import dataset_path
from shared.tasks import no_fault, read_tasks


class _Id(msgspec.Struct):
    task_id: str
    schema: int = SCHEMA


_TASK = msgspec.json.Decoder(TaskSpec)
_ID = msgspec.json.Decoder(_Id)
L = TypeVar("L", TaskSpec, _Id)


def suite_digest(text: bytes, suite: Suite) -> str:
    """Of the suite's text, and of its models' versions, which may have been told by more than the text."""
    versions = "\0".join(model.version for model in suite.models)
    return hashlib.sha256(b"\0".join((text, versions.encode()))).hexdigest()


def make_plan(
    work: WorkDir,
    suite: Suite,
    text: bytes,
    clock: Clock,
    *,
    fault: Callable[[TaskSpec], str | None] = no_fault,
    cannot: Callable[[ModelConfig, RequestType], str | None] = lambda model, request_type: None,
    tick: Callable[[], None] = lambda: None,
) -> Plan:
    """Write the tasks files and plan.json for `suite` (whose frozen text is `text`), under the caller's plan claim.

    fault: see `read_tasks`. cannot: why a model can't be asked so, in words, None where it can.

    Raises SuiteError with every problem of every dataset file at once; then plan and tasks files are as they were.
    Killed between the tasks files and plan.json, it leaves an old plan whose digests don't match: readers refuse it,
    planning again mends it.
    """
    planned: list[PlanDataset] = []
    instances: dict[str, int] = {}
    problems: list[Problem] = []
    for dataset in suite.datasets:
        counter = _Counter()
        try:
            tasks = read_tasks(dataset, dataset_path(suite, dataset), fault)
            _, digest = atomic.replace_lines(work.staged_tasks(dataset.abbr), counter.lines(tasks), tick=tick)
        except SuiteError as error:
            problems += error.problems
            continue
        instances[dataset.abbr] = counter.instances
        for model in suite.models:
            for request_type in sorted(counter.request_types):
                if (why := cannot(model, request_type)) is not None:
                    problems.append(Problem(f"{model.abbr} x {dataset.abbr}", why))
        planned.append(
            PlanDataset(
                abbr=dataset.abbr,
                docs=counter.docs,
                repeats=dataset.repeats,
                seed_per_repeat=dataset.seed_per_repeat,
                digest=digest,
                source=str(dataset_path(suite, dataset)),
            )
        )
    problems += _too_many(planned)
    if problems:
        for dataset in suite.datasets:
            atomic.remove(work.staged_tasks(dataset.abbr))
        raise SuiteError(problems)
    for model in suite.models:
        # There before anyone watches it: a watch on a folder that is made meanwhile misses what comes first.
        atomic.make_folder(work.infer_status_of(model.abbr))
    for dataset in suite.datasets:
        atomic.promote(work.staged_tasks(dataset.abbr), work.tasks(dataset.abbr))
    plan = Plan(
        suite_digest=suite_digest(text, suite),
        created_at=utc(clock.time()),
        datasets=tuple(planned),
        pairs=tuple(
            _pair(model, config, dataset, instances[dataset.abbr])
            for model in suite.models
            for config, dataset in zip(suite.datasets, planned, strict=True)
        ),
        groups=tuple(
            PlanGroup(name=group.name, datasets=group.datasets, weights=group.weights) for group in suite.groups
        ),
    )
    old = read_plan_if_sound(work)
    if old is not None and msgspec.structs.replace(plan, created_at=old.created_at) == old:
        return old
    write_record(work.plan, plan)
    return plan


def read_plan(work: WorkDir) -> Plan | None:
    """None when there is none. Raises WorkDirError, with the remedy, when it is damaged."""
    try:
        return read_record(work.plan, Plan, MAX_PLAN_BYTES)
    except WorkDirError as error:
        raise WorkDirError(f"{error}: `evalctl submit SUITE -w {work}` makes it anew") from None


def read_plan_if_sound(work: WorkDir) -> Plan | None:
    try:
        return read_plan(work)
    except WorkDirError:
        return None  # damaged or of another version: what is written now replaces it


def read_planned_tasks(work: WorkDir, dataset: str) -> Iterator[TaskSpec]:
    """The tasks of a dataset as planned, in doc_id order."""
    return _read_lines(work.tasks(dataset), _TASK)


def read_planned_ids(work: WorkDir, dataset: str) -> Iterator[str]:
    """Their task_ids alone, which costs a tenth."""
    return (line.task_id for line in _read_lines(work.tasks(dataset), _ID))


def _read_lines(path: Path, decoder: msgspec.json.Decoder[L]) -> Iterator[L]:
    with path.open("rb") as file:
        for number, (_, line) in enumerate(split_lines(file), 1):
            try:
                task = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise WorkDirError(f"{path}:{number}: damaged ({error}): submit the suite again") from None
            if task.schema != SCHEMA:
                check_schema(line, f"{path}:{number}")
            yield task


def tasks_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Counter:
    """Counts what passes through on its way into the tasks file."""

    def __init__(self) -> None:
        self.docs = 0
        self.instances = 0
        self.request_types: set[RequestType] = set()

    def lines(self, tasks: Iterable[TaskSpec]) -> Iterator[bytes]:
        for task in tasks:
            self.docs += 1
            asked = requests.instances_of(task)
            self.instances += len(asked)
            self.request_types.update(instance.request_type for instance in asked)
            yield encode_record(task) + b"\n"


def _pair(model: ModelConfig, config: DatasetConfig, dataset: PlanDataset, instances: int) -> PlanPair:
    total = instances * dataset.repeats
    digest = hashlib.sha256(b"\0".join((requests.pair_settings(model, config), dataset.digest.encode()))).hexdigest()
    shard = PlanShard(stem=dataset.abbr, first=0, docs=dataset.docs, requests=total)
    return PlanPair(
        model=model.abbr,
        dataset=dataset.abbr,
        docs=dataset.docs,
        instances=instances,
        requests=total,
        digest=digest,
        shards=(shard,),
    )


def _too_many(datasets: list[PlanDataset]) -> list[Problem]:
    problems = []
    for dataset in datasets:
        if dataset.docs >= MAX_DOCS or dataset.repeats >= MAX_REPEATS:
            problems.append(Problem(dataset.abbr, f"at most {MAX_DOCS} docs and {MAX_REPEATS} repeats fit one dataset"))
    problems += [
        Problem(" and ".join(group), "these names collide as file names")
        for group in collisions(d.abbr for d in datasets)
    ]
    return problems
