"""`evalctl score`: predictions that were made elsewhere, put into a work_dir as inferd would leave them, and scored
there by evald itself. So nothing about their numbers differs from those of a run.

Such a work_dir is told by its suite, in which every model's type is `none`: several files may come into one, one after
the other, and are compared there. A run's own work_dir is never written to. Nothing is written before the whole file is
known to fit its dataset.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from evalctl import toml
from evalctl.elsewhere import FileFormat, Row, raise_problems, read_answers
from evalctl.run import Daemon
from evalctl.submit import PATIENCE, check
from evald.faults import task_fault
from inferd.outcome import outcome_of
from shared import claims, requests
from shared.atomic import make_folder, replace, replace_lines
from shared.clock import SystemClock, utc
from shared.config import DatasetConfig, ModelConfig, Suite
from shared.errors import Problem, UsageError
from shared.heartbeat import HeartbeatWriter
from shared.layout import WorkDir
from shared.names import safe_name
from shared.plan import make_plan, read_plan_if_sound, read_planned_tasks
from shared.records import InferStatus, Plan, PlanPair, Prediction, TaskSpec, encode_record
from shared.status import write_record
from shared.suite import dataset_path, parse_suite
from shared.tables import close_match, show, unknown_word
from shared.tasks import read_tasks

NO_ADAPTER = "none"  # the type of a model that nobody here asks
MANY = 10_000  # ids among which no similar one is looked for
DOUBTFUL = 0.5  # share of rows whose own gold isn't the dataset's, from which on that is told

Answers = dict[tuple[int, int], Row]  # by (doc_id, repeat)


@dataclass(frozen=True)
class Given:
    """What a file of answers came to. repeats: samples a task; missing: requests without an answer."""

    form: FileFormat
    answers: Answers
    docs: int
    repeats: int
    doubts: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        return self.docs * self.repeats - sum(row.generation is not None for row in self.answers.values())

    def words(self, path: Path) -> str:
        """One line for people."""
        samples = f" x {self.repeats} samples" if self.repeats > 1 else ""
        told = f"{path}: {self.form}: {len(self.answers)} answers for {self.docs} tasks{samples}"
        return f"{told}; {self.missing} are missing" if self.missing else told


def score_file(
    path: Path,
    suite_path: Path,
    abbr: str,
    work: WorkDir,
    console: Console,
    *,
    model: str | None = None,
    form: FileFormat | None = None,
    repeats: int | None = None,
    paths: Mapping[str, Path] | None = None,
) -> int:
    """Put the answers in `path` into the work_dir as a pair of `model` and have evald score what is there; the exit
    status. model: by default named after the file. repeats: samples of each task, where neither the suite nor the file
    tells.

    Raises SuiteError with every problem of the suite or of the file, UsageError where the work_dir is another's.
    """
    suite, text = check(suite_path, paths, check_env=False)
    dataset = _dataset(suite, abbr)
    found, rows = read_answers(path, form)
    given = _place(path, found, rows, list(_heads(suite, dataset)), dataset, repeats or dataset.repeats)
    console.print(given.words(path), markup=False, highlight=False)
    for doubt in given.doubts:
        console.print(f"{path}: {doubt}", markup=False, highlight=False, style="yellow")
    name = model or path.name.split(".")[0]
    _check_name(name)
    _write(work, _Entry(name, abbr, _table(suite, dataset, text, given.repeats), _sections(text)), suite, given)
    code = _evald(work, console)
    return 3 if code == 0 and given.missing else code


# --- the file against its dataset -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Head:
    """What is known of a task before it is planned."""

    task_id: str
    targets: tuple[str, ...]


def _dataset(suite: Suite, abbr: str) -> DatasetConfig:
    known = {dataset.abbr: dataset for dataset in suite.datasets}
    if abbr not in known:
        raise UsageError(f"--dataset: {unknown_word(abbr, known)}")
    return known[abbr]


def _heads(suite: Suite, dataset: DatasetConfig) -> Iterator[_Head]:
    for task in read_tasks(dataset, dataset_path(suite, dataset), task_fault):
        if task.request_type != "generate_until":
            kind = f"is a {task.request_type} task: a file of texts tells no likelihoods"
            raise UsageError(f"{dataset.abbr}: task {show(task.task_id)} {kind}")
        if (needed := len(requests.instances_of(task))) > 1:
            many = f"needs {needed} answers: a file holds one a task"
            raise UsageError(f"{dataset.abbr}: task {show(task.task_id)} {many}")
        yield _Head(task.task_id, task.targets)


def _place(
    path: Path, form: FileFormat, rows: Sequence[Row], tasks: Sequence[_Head], dataset: DatasetConfig, repeats: int
) -> Given:
    """Each row at its (doc_id, repeat). Raises SuiteError with every row that has no place, or shares one."""
    ids = {task.task_id: doc_id for doc_id, task in enumerate(tasks)}
    problems: list[Problem] = []
    found: list[tuple[int, Row]] = []
    for row in rows:
        try:
            found.append((_doc_id(row, ids, dataset), row))
        except ValueError as error:
            problems.append(Problem(row.place, str(error)))
    raise_problems(path, problems)
    repeats = _repeats([doc_id for doc_id, _ in found], found, repeats)
    answers: Answers = {}
    taken: Counter[int] = Counter()
    first: dict[int, str] = {}
    for doc_id, row in found:
        first.setdefault(doc_id, row.place)
        repeat = row.repeat if row.repeat is not None else taken[doc_id]
        taken[doc_id] += 1
        task = show(tasks[doc_id].task_id)
        if repeat >= repeats:
            text = f"one answer more for task {task}, whose first is at {first[doc_id]}: take one out"
            problems.append(Problem(row.place, f"{text}, or say how many samples there are: --repeats {repeat + 1}"))
        elif (doc_id, repeat) in answers:
            other = answers[doc_id, repeat].place
            problems.append(Problem(row.place, f"repeat {repeat} of task {task} is already at {other}: take one out"))
        else:
            answers[doc_id, repeat] = row
    raise_problems(path, problems)
    return Given(form, answers, len(tasks), repeats, tuple(_doubts(found, tasks)))


def _doc_id(row: Row, ids: Mapping[str, int], dataset: DatasetConfig) -> int:
    """Raises ValueError when the dataset has no such task."""
    abbr = dataset.abbr
    limited = f" (the suite's limit = {dataset.limit})" if dataset.limit is not None else ""
    if row.task_id is None:
        assert row.doc_id is not None
        if row.doc_id >= len(ids):
            raise ValueError(f"doc_id {row.doc_id}: {abbr} has {len(ids)} tasks{limited}, 0 to {len(ids) - 1}")
        return row.doc_id
    doc_id = ids.get(row.task_id)
    if doc_id is None:
        meant = close_match(row.task_id, ids) if len(ids) <= MANY else None
        hint = f"; did you mean {meant}?" if meant else f"; its first is {show(next(iter(ids)))}"
        raise ValueError(f"{abbr} has no task {show(row.task_id)}{limited}{hint}")
    if row.doc_id is not None and row.doc_id != doc_id:
        raise ValueError(f"task {show(row.task_id)} is doc_id {doc_id} in {abbr}, and not {row.doc_id}")
    return doc_id


def _repeats(doc_ids: Sequence[int], found: Sequence[tuple[int, Row]], told: int) -> int:
    """As told by the suite or by --repeats; where neither says more than one, as many as every task in the file has, if
    they all have as many, or as the rows say themselves.
    """
    if told > 1:
        return told
    if any(row.repeat is not None for _, row in found):
        return max(told, *(row.repeat + 1 for _, row in found if row.repeat is not None))
    counts = set(Counter(doc_ids).values())
    return counts.pop() if len(counts) == 1 else told


def _doubts(found: Sequence[tuple[int, Row]], tasks: Sequence[_Head]) -> Iterator[str]:
    """Whether what the file holds to be right is what the dataset does: if not, its order is probably another."""
    golds = [(row.gold.strip(), tasks[doc_id].targets) for doc_id, row in found if row.gold and tasks[doc_id].targets]
    other = sum(not any(_agree(gold, target.strip()) for target in targets) for gold, targets in golds)
    if golds and other / len(golds) > DOUBTFUL:
        yield (
            f"what the file has as right isn't the dataset's target in {other} of {len(golds)} rows: "
            "are these the same tasks in the same order?"
        )


def _agree(gold: str, target: str) -> bool:
    """A gold may be a whole solution that ends with the target, or the other way round."""
    return gold == target or gold.endswith(target) or target.endswith(gold)


def _check_name(name: str) -> None:
    try:
        safe_name(name)
    except ValueError as error:
        raise UsageError(f"--model: {error}") from None


# --- the work_dir -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """A pair on its way into a work_dir. table: its dataset's, as it stands in the suite of that work_dir. sections:
    [infer] and [eval] of the suite that was given.
    """

    model: str
    abbr: str
    table: dict[str, Any]
    sections: dict[str, Any]


def _table(suite: Suite, dataset: DatasetConfig, text: str, repeats: int) -> dict[str, Any]:
    """The dataset's table of the suite's text, with the path where it is found and the repeats that there are; in one
    piece, since nobody is at work on it.
    """
    tables = [table for table in tomllib.loads(text)["datasets"] if table["abbr"] == dataset.abbr]
    whole = {name: value for name, value in tables[0].items() if name not in ("num_shards", "max_shard_size")}
    if dataset.few_shot_draw is not None and dataset.few_shot_draw.source is not None:
        whole["few_shot_draw"] = {**whole["few_shot_draw"], "source": dataset.few_shot_draw.source}
    return {**whole, "path": str(dataset_path(suite, dataset)), "repeats": repeats}


def _sections(text: str) -> dict[str, Any]:
    given = tomllib.loads(text)
    return {name: given[name] for name in ("infer", "eval") if name in given}


def _write(work: WorkDir, entry: _Entry, suite: Suite, given: Given) -> None:
    make_folder(work.root)
    claim = claims.take(work.plan_claim, timeout=PATIENCE)
    if claim is None:
        raise UsageError(f"{work}: {claims.owner(work.plan_claim)} is planning here: try again when it has ended")
    with claim:
        if claims.held(work.evald_claim):
            raise UsageError(f"{work}: evald is at work here ({claims.owner(work.evald_claim)}): wait for its end")
        old = read_plan_if_sound(work)
        kept = {(pair.model, pair.dataset) for pair in old.pairs} if old is not None else set[tuple[str, str]]()
        text = _suite_text(work, entry, suite, [model for model, abbr in sorted(kept) if abbr == entry.abbr])
        merged = parse_suite(text, str(work.suite), work.root)
        plan = make_plan(work, merged, text.encode(), SystemClock(), fault=task_fault)
        # Not each model has been given each dataset: what isn't here isn't missing either.
        kept.add((entry.model, entry.abbr))
        pairs = tuple(pair for pair in plan.pairs if (pair.model, pair.dataset) in kept)
        plan = msgspec.structs.replace(plan, pairs=pairs)
        write_record(work.plan, plan)
        replace(work.suite, text.encode())
        pair = next(pair for pair in pairs if (pair.model, pair.dataset) == (entry.model, entry.abbr))
        config = next(model for model in merged.models if model.abbr == entry.model)
        _write_predictions(work, plan, pair, config, given)
        beat = HeartbeatWriter(work.infer_heartbeat(), SystemClock(), merged.infer.heartbeat_interval)
        beat.start()
        beat.finish("finished", "the predictions were made elsewhere")


def _suite_text(work: WorkDir, entry: _Entry, suite: Suite, scored: Sequence[str]) -> str:
    """The suite of the work_dir with this pair in it. scored: the models that have this dataset there.

    Raises UsageError when the work_dir is a run's, or has another dataset of that name.
    """
    models: list[dict[str, Any]] = []
    datasets: list[dict[str, Any]] = []
    if work.suite.exists():
        there = tomllib.loads(work.suite.read_text("utf-8"))
        models, datasets = there.get("models", []), there.get("datasets", [])
        if any(model.get("type") != NO_ADAPTER for model in models):
            raise UsageError(f"{work}: a run's work_dir: name another one, or none, to score files in")
        others = [model for model in scored if model != entry.model]
        if others and any(table["abbr"] == entry.abbr and table != entry.table for table in datasets):
            raise UsageError(
                f"{work}: {entry.abbr} is another dataset here, or has other repeats (scored for {', '.join(others)}): "
                "name another work_dir"
            )
    if entry.model not in [model["abbr"] for model in models]:
        models = [*models, {"abbr": entry.model, "type": NO_ADAPTER}]
    datasets = [*(table for table in datasets if table["abbr"] != entry.abbr), entry.table]
    base = {"base_dir": suite.base_dir, "models": models, "datasets": datasets}
    return "# Written by `evalctl score`.\n" + toml.document(base | entry.sections)


def _write_predictions(work: WorkDir, plan: Plan, pair: PlanPair, model: ModelConfig, given: Given) -> None:
    dataset = next(dataset for dataset in plan.datasets if dataset.abbr == pair.dataset)
    outcomes: Counter[str] = Counter()

    def lines() -> Iterator[bytes]:
        identity = requests.identity(model)
        for doc_id, task in enumerate(read_planned_tasks(work, pair.dataset)):
            for request in requests.requests_of(task, doc_id, model, identity, dataset.repeats):
                assert isinstance(request, requests.Request)  # a task with later turns was refused
                prediction = _prediction(task, request, given.answers.get((doc_id, request.repeat)))
                if prediction.generation is not None:
                    outcomes[prediction.outcome] += 1
                yield encode_record(prediction) + b"\n"

    (shard,) = pair.shards
    _, digest = replace_lines(work.predictions(pair.model, shard.stem), lines())
    now = utc(SystemClock().time())
    status = InferStatus(
        model=pair.model,
        dataset=pair.dataset,
        stem=shard.stem,
        state="done",
        plan_digest=pair.digest,
        total=shard.requests,
        completed=sum(outcomes.values()),
        outcomes=dict(sorted(outcomes.items())),
        digest=digest,
        started_at=now,
        finished_at=now,
        updated_at=now,
    )
    write_record(work.infer_status(pair.model, shard.stem), status)


def _prediction(task: TaskSpec, request: requests.Request, row: Row | None) -> Prediction:
    generation = row.generation if row is not None else None
    return Prediction(
        task_id=task.task_id,
        key=request.key,
        doc_id=request.doc_id,
        repeat=request.repeat,
        outcome=outcome_of(generation) if generation is not None else "not_run",
        attempts=1 if generation is not None else 0,
        generation=generation,
    )


# --- evald ------------------------------------------------------------------------------------------------------------


def _evald(work: WorkDir, console: Console) -> int:
    """Score what is there; the exit status."""
    daemon = Daemon("evald", work)
    try:
        code = daemon.process.wait()
    finally:
        if daemon.process.poll() is None:  # Ctrl-C: it ends its workers
            daemon.stop()
            daemon.process.wait()
    if code not in (0, 3):
        console.print(f"evald ended with {code}:", markup=False, style="red")
        for line in daemon.last_words():
            console.print(f"  {line}", markup=False, highlight=False)
    return code if code in (0, 2, 3) else 1
