"""The sample log: `results/<model>/<dataset>.samples.jsonl`, which holds of each doc what was asked, what came back,
what the filters left of it and what that was worth. For people and for other tools; no number of Tandem's own is read
from it.

Written where `[eval] sample_log` says so, in the same pass as the scores, so it never tells of other predictions than
they do. What was sent is worked out from the task and the model's settings as inferd does; headers and keys are no part
of it. Like the results it holds no time of day.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from evald.doc import Doc
from evald.predictions import Incomplete
from shared import requests
from shared.atomic import Replacement, open_regular, remove
from shared.chat import placed_targets
from shared.config import ModelConfig
from shared.errors import UsageError, WorkDirError
from shared.journal import split_lines
from shared.layout import WorkDir
from shared.records import (
    EvalRun,
    PlanDataset,
    PlanPair,
    Prediction,
    Prompt,
    Record,
    TaskSpec,
    check_schema,
    encode_record,
)
from shared.suite import parse_suite, submitted_suite
from shared.tables import show


class SampleLine(Record, frozen=True, kw_only=True):
    """A line of `results/<model>/<dataset>.samples.jsonl`: a doc from its prompt to its scores, in the order of the
    doc_ids. Keys and hashes are named as in lm-evaluation-harness.

    {"schema":1,"doc_id":7,"task_id":"add-1","doc":{"schema":1,"task_id":"add-1","prompt":"7 plus 5?","targets":["12"],
    "filters":{"strict":["last_number","take_first"]}},"target":["12"],
    "arguments":[[{"messages":[{"role":"user","content":"7 plus 5?"}],"generation":{"max_tokens":16},"repeat":0}]],
    "resps":[[{"schema":1,"task_id":"add-1","key":"9f86d0","doc_id":7,"idx":0,"repeat":0,"outcome":"ok","attempts":1,
    "latency":0.21,"generation":{"text":"It is 12."}}]],"filtered_resps":{"strict":["12"]},
    "metrics":{"exact_match,strict":1.0},"errors":{},"doc_hash":"ab12","prompt_hash":"cd34","target_hash":"ef56"}

    doc: the task as planned. target: every answer that counts as right, as the task has it; of choices the texts of the
    right ones. arguments: what was sent (of answers made elsewhere, what would have been), by instance (idx) and
    repeat; null for a turn of a chat that was never asked, because the one before it has no answer. resps: the lines of
    the predictions in the same places, those that failed too. filtered_resps: what each filter left (of a chat asked
    turn by turn, of each scored turn), null where a step found nothing; empty where likelihoods were asked for.
    metrics: each score by its label, null where there is none; errors: why not.
    doc_hash, prompt_hash, target_hash: SHA-256 in hexadecimal of `doc` as it stands in `tasks/<dataset>.jsonl`, of the
    first prompt's text (of its messages as JSON, where it has no text), and of `target` as JSON; JSON without spaces.
    """

    doc_id: int
    task_id: str
    doc: TaskSpec
    target: tuple[str, ...]
    arguments: tuple[tuple[Prompt | None, ...], ...]
    resps: tuple[tuple[Prediction, ...], ...]
    filtered_resps: dict[str, tuple[str | None, ...]]
    metrics: dict[str, float | None]
    errors: dict[str, str]
    doc_hash: str
    prompt_hash: str
    target_hash: str


Log = Callable[[Doc, Iterable[EvalRun]], None]


@contextmanager
def sample_log(work: WorkDir, pair: PlanPair, dataset: PlanDataset, *, wanted: bool) -> Iterator[Log]:
    """What takes each doc with its scores. The file appears when the block ends; after an exception the old one stays.
    Where none is wanted an old one goes then: it may tell of other answers than the scores beside it.

    Raises Incomplete where the suite doesn't name the model, SuiteError where it can't be read.
    """
    path = work.samples(pair.model, pair.dataset)
    if not wanted:
        yield lambda doc, runs: None
        remove(path)
        return
    model = _model(work, pair.model)
    file = Replacement(path)
    try:
        yield lambda doc, runs: file.write((encode_record(_line(doc, runs, model, dataset)) + b"\n",))
    except BaseException:
        file.abandon()
        raise
    file.commit()


def find_sample(work: WorkDir, model: str, dataset: str, task_id: str) -> SampleLine:
    """The line of one task. Raises UsageError where there is none, WorkDirError where the file is damaged."""
    path = work.samples(model, dataset)
    wanted = msgspec.json.encode(task_id)
    try:
        with open_regular(path) as file:
            for number, (_, line) in enumerate(split_lines(file), 1):
                if wanted in line and (found := _read(line, f"{path}:{number}")).task_id == task_id:
                    return found
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no sample log: set `sample_log = true` in the suite's [eval] and start evald again"
        ) from None
    raise UsageError(f"{path}: no task {show(task_id)}")


def _read(line: bytes, place: str) -> SampleLine:
    check_schema(line, place)
    try:
        return msgspec.json.decode(line, type=SampleLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WorkDirError(f"{place}: damaged ({error}): remove the file and start evald again") from None


def _model(work: WorkDir, abbr: str) -> ModelConfig:
    suite = parse_suite(submitted_suite(work.suite), str(work.suite), work.root, check_files=False)
    for model in suite.models:
        if model.abbr == abbr:
            return model
    raise Incomplete(f"{work.suite}: doesn't name {show(abbr)}, which is planned: it is being replaced")


def _line(doc: Doc, runs: Iterable[EvalRun], model: ModelConfig, dataset: PlanDataset) -> SampleLine:
    task, runs = doc.task, list(runs)
    arguments = _arguments(doc, model, dataset)
    target = tuple(task.choices[place] for place in task.gold) or tuple(text for _, text in placed_targets(task))
    prompt = arguments[0][0]
    assert prompt is not None, "the first turn waits for nothing"
    sent = prompt.text.encode() if isinstance(prompt.text, str) else msgspec.json.encode(prompt.messages)
    return SampleLine(
        doc_id=doc.doc_id,
        task_id=task.task_id,
        doc=task,
        target=target,
        arguments=arguments,
        resps=_by_place(doc.predictions),
        filtered_resps={}
        if task.request_type != "generate_until"
        else {name: tuple(sample.answer for sample in left.samples) for name, left in doc.left.items()},
        metrics={run.metric_name: run.score for run in runs},
        errors={run.metric_name: run.error for run in runs if run.error},
        doc_hash=_sha256(encode_record(task)),
        prompt_hash=_sha256(sent),
        target_hash=_sha256(msgspec.json.encode(target)),
    )


def _arguments(doc: Doc, model: ModelConfig, dataset: PlanDataset) -> tuple[tuple[Prompt | None, ...], ...]:
    """What was sent, by idx and repeat."""
    said = {(row.idx, row.repeat): row.generation for row in doc.predictions}
    asked: dict[tuple[int, int], requests.Request | None] = {}
    # Keys stand in the predictions; those that are made on the way here are of no model.
    for request in requests.requests_of(
        doc.task, doc.doc_id, model, b"", dataset.repeats, seed_per_repeat=dataset.seed_per_repeat
    ):
        place = (request.idx, request.repeat)
        if isinstance(request, requests.Later):
            before = (request.idx - 1, request.repeat)
            last, answer = asked[before], said[before]
            asked[place] = requests.follow_up(last, answer, model, b"") if last and answer else None
        else:
            asked[place] = request
    prompts = [request.prompt if request is not None else None for request in asked.values()]
    return tuple(tuple(prompts[start : start + dataset.repeats]) for start in range(0, len(prompts), dataset.repeats))


def _by_place(predictions: list[Prediction]) -> tuple[tuple[Prediction, ...], ...]:
    rows: dict[int, list[Prediction]] = {}
    for prediction in predictions:  # by repeat first
        rows.setdefault(prediction.idx, []).append(prediction)
    return tuple(tuple(row) for row in rows.values())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
