"""The plan: everything that will be asked, fixed before the first request.

Planning streams each dataset once into `tasks/<dataset>.jsonl` and records counts and digests. It is idempotent:
planning the same suite over the same files again changes nothing, and pairs whose digest stays keep what they have.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from shared import atomic, requests
from shared.clock import Clock, utc
from shared.combinations import pairs_of
from shared.config import DatasetConfig, ModelConfig, Suite
from shared.errors import Problem, SuiteError, WorkDirError
from shared.journal import MAX_DOCS, MAX_REPEATS, split_lines
from shared.layout import WorkDir
from shared.records import (
    SCHEMA,
    Plan,
    PlanDataset,
    PlanDraw,
    PlanGroup,
    PlanPair,
    RequestType,
    TaskSpec,
    check_schema,
    encode_record,
)
from shared.regroup import regroup
from shared.sharding import cut, cut_faults, is_cut
from shared.status import MAX_PLAN_BYTES, read_record, write_record
from shared.suite import asked_for, dataset_path
from shared.tasks import Source, no_fault, read_tasks


class _Id(msgspec.Struct):
    task_id: str
    schema: int = SCHEMA


_TASK = msgspec.json.Decoder(TaskSpec)
_ID = msgspec.json.Decoder(_Id)
L = TypeVar("L", TaskSpec, _Id)


def suite_digest(text: bytes, suite: Suite) -> str:
    """Of what the suite's text asks for, and of its models' versions, which more than the text may have told."""
    versions = "\0".join(model.version for model in suite.models)
    return hashlib.sha256(b"\0".join((asked_for(text), versions.encode()))).hexdigest()


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
    planned: dict[str, _Planned] = {}
    problems: list[Problem] = []
    meeting = pairs_of(suite)
    models = {model.abbr: model for model in suite.models}
    for dataset in suite.datasets:
        path = dataset_path(suite, dataset)
        source, counter = Source(dataset, path), _Counter(keep=is_cut(dataset))
        try:
            tasks = read_tasks(dataset, path, fault, repeats=dataset.repeats, source=source)
            _, digest = atomic.replace_lines(work.staged_tasks(dataset.abbr), counter.lines(tasks), tick=tick)
        except SuiteError as error:
            problems += error.problems
            continue
        asked = (models[model] for model, abbr in meeting if abbr == dataset.abbr)
        problems += unable(asked, dataset, counter.request_types, cannot)
        record = PlanDataset(
            abbr=dataset.abbr,
            docs=counter.docs,
            repeats=dataset.repeats,
            seed_per_repeat=dataset.seed_per_repeat,
            digest=digest,
            source=str(path),
            limit=dataset.limit,
            rows=_rows(source) if dataset.limit is not None else None,
            few_shot_draw=_draw(dataset, source, path),
        )
        planned[dataset.abbr] = _Planned(dataset, record, counter)
    problems += _too_many(planned.values())
    problems += cut_faults([(one.config, one.record) for one in planned.values()])
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
        datasets=tuple(one.record for one in planned.values()),
        pairs=tuple(_pair(models[model], planned[dataset]) for model, dataset in meeting),
        groups=tuple(
            PlanGroup(name=group.name, datasets=group.datasets, weights=group.weights) for group in suite.groups
        ),
    )
    old = read_plan_if_sound(work)
    if old is not None and msgspec.structs.replace(plan, created_at=old.created_at) == old:
        return old
    regroup(work, old, plan)
    write_record(work.plan, plan)
    return plan


def unable(
    models: Iterable[ModelConfig],
    dataset: DatasetConfig,
    request_types: Iterable[RequestType],
    cannot: Callable[[ModelConfig, RequestType], str | None],
) -> Iterator[Problem]:
    """Which of the dataset's models can't be asked as its tasks need. cannot: see `make_plan`."""
    for model in models:
        for request_type in sorted(request_types):
            if (why := cannot(model, request_type)) is not None:
                yield Problem(f"{model.abbr} x {dataset.abbr}", why)


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


def read_planned_tasks(work: WorkDir, dataset: str, first: int = 0, end: int | None = None) -> Iterator[TaskSpec]:
    """The tasks of a dataset as planned, in doc_id order: first <= doc_id < end."""
    return _read_lines(work.tasks(dataset), _TASK, first, end)


def read_planned_ids(work: WorkDir, dataset: str, first: int = 0, end: int | None = None) -> Iterator[str]:
    """Their task_ids alone, which costs a tenth."""
    return (line.task_id for line in _read_lines(work.tasks(dataset), _ID, first, end))


def _read_lines(path: Path, decoder: msgspec.json.Decoder[L], first: int, end: int | None) -> Iterator[L]:
    with atomic.open_regular(path) as file:
        for number, (_, line) in islice(enumerate(split_lines(file), 1), first, end):
            try:
                task = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise WorkDirError(f"{path}:{number}: damaged ({error}): submit the suite again") from None
            if task.schema != SCHEMA:
                check_schema(line, f"{path}:{number}")
            yield task


def tasks_digest(path: Path) -> str:
    with atomic.open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Counter:
    """Counts what passes through on its way into the tasks file. per_doc: the instances of each, where it is to keep
    them, at 4 bytes a doc.
    """

    def __init__(self, *, keep: bool) -> None:
        self.docs = 0
        self.instances = 0
        self.per_doc = array("I")
        self._keep = keep
        self.request_types: set[RequestType] = set()

    def lines(self, tasks: Iterable[TaskSpec]) -> Iterator[bytes]:
        for task in tasks:
            self.docs += 1
            asked = requests.instances_of(task)
            self.instances += len(asked)
            if self._keep:
                self.per_doc.append(len(asked))
            self.request_types.update(instance.request_type for instance in asked)
            yield encode_record(task) + b"\n"


class _Planned(NamedTuple):
    config: DatasetConfig
    record: PlanDataset
    counter: _Counter


def _pair(model: ModelConfig, planned: _Planned) -> PlanPair:
    config, dataset, counter = planned
    total = counter.instances * dataset.repeats
    shards = cut(config, dataset.docs, total, counter.per_doc)
    parts = [requests.pair_settings(model, config), dataset.digest.encode()]
    if len(shards) > 1:
        parts.append(",".join(str(shard.first) for shard in shards).encode())
    return PlanPair(
        model=model.abbr,
        dataset=dataset.abbr,
        docs=dataset.docs,
        instances=counter.instances,
        requests=total,
        digest=hashlib.sha256(b"\0".join(parts)).hexdigest(),
        shards=shards,
    )


def _rows(source: Source) -> int | None:
    """Of a file whose first part is asked alone, what follows may be bad: then it isn't known."""
    try:
        return source.rows
    except SuiteError:
        return None


def _draw(dataset: DatasetConfig, source: Source, path: Path) -> PlanDraw | None:
    draw = dataset.few_shot_draw
    if draw is None or source.pool is None:
        return None
    return PlanDraw(num=draw.num, seed=draw.seed, source=draw.source or str(path), pool=len(source.pool))


def _too_many(planned: Iterable[_Planned]) -> list[Problem]:
    return [
        Problem(one.record.abbr, f"at most {MAX_DOCS} docs and {MAX_REPEATS} repeats fit one dataset")
        for one in planned
        if one.record.docs >= MAX_DOCS or one.record.repeats >= MAX_REPEATS
    ]
