"""Scores one pair in one pass over its predictions, in memory that doesn't grow with them. Runs in a worker process.

Never makes a number from missing data: unless every prediction's place is exactly the plan's and the files' digests are
those that the status named, nothing is written (`Incomplete`).
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace as change

from evald.calibration import CalibrationBuffer
from evald.doc import Doc, why
from evald.metrics import METRICS, Explained, Judged, Sample, Scorer
from evald.post_process import POST_PROCESS
from evald.predictions import Predictions
from evald.reducers import reduced
from evald.samples import sample_log
from evald.sandbox import choice
from evald.totals import Of, Totals
from shared.atomic import replace, replace_lines
from shared.errors import WorkDirError
from shared.layout import WorkDir
from shared.patterns import ENGINE
from shared.plan import read_planned_tasks, tasks_digest
from shared.records import EvalRun, PlanDataset, PlanPair, encode_record
from shared.requests import instances_of

SCORER = "5"
"""Version of the rules in this module; changes when the same predictions would give another result."""

CHUNK = 256  # docs that are scored together


class ScoreJob(Struct, frozen=True):
    """What a worker needs to score a pair. digests: of each shard's predictions, as the shards' statuses name them.
    sandbox: what runs programs; those that confine them give the same verdicts, so only whether it does is content.
    sample_log: whether one is written beside the scores; it changes nothing about them, so it is no content.
    """

    root: str
    pair: PlanPair
    dataset: PlanDataset
    digests: tuple[str, ...]
    bins: int
    sandbox: choice.Choice = "auto"
    sample_log: bool = False

    def content(self, pythons: Mapping[str, str] = {}) -> str:
        """Digest of all that decides the result: the predictions, the tasks, and every rule's version and
        parameters. pythons: the interpreters that its tasks name for programs, with their versions.
        """
        rules = [(name, metric.version) for name, metric in sorted(METRICS.items())]
        steps = [(name, step.version) for name, step in sorted(POST_PROCESS.items())]
        # Of evald's own Python are the programs that code_exec runs, and what Unicode says of a character.
        machine = (platform.python_version(), ENGINE, sorted(pythons.items()), self.sandbox == "unsafe-subprocess")
        told = (self.dataset.limit, self.dataset.rows)
        parts = (self.digests, self.dataset.digest, self.pair.digest, told, SCORER, rules, steps, self.bins, machine)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def score_pair(job: ScoreJob) -> str:
    """Write the pair's scores and result; returns the content. Raises Incomplete, WorkDirError or OSError; then nothing
    is written.
    """
    choice.use(job.sandbox)
    work = WorkDir(job.root)
    pair, dataset = job.pair, job.dataset
    if tasks_digest(work.tasks(dataset.abbr)) != dataset.digest:
        raise WorkDirError(f"{work.tasks(dataset.abbr)}: not the file that was planned: submit the suite again")
    totals = Totals(dataset.abbr, CalibrationBuffer(job.bins))

    def lines() -> Iterator[bytes]:
        with closing(Predictions(work, pair, job.digests)) as predictions:
            docs = (
                Doc(doc_id, task, predictions.take(doc_id, len(instances_of(task)), dataset.repeats))
                for doc_id, task in enumerate(read_planned_tasks(work, dataset.abbr))
            )
            while chunk := list(islice(docs, CHUNK)):
                for doc, runs in _score_chunk(pair.model, chunk, totals):
                    log(doc, runs)
                    yield from (encode_record(run) + b"\n" for run in runs)
            predictions.finish()

    with sample_log(work, pair, dataset, wanted=job.sample_log) as log:
        replace_lines(work.scores(pair.model, pair.dataset), lines())
    result = totals.result(Of(pair, dataset, job.digests, SCORER))
    result = change(result, content=job.content(result.pythons))
    replace(work.result(pair.model, pair.dataset), encode_record(result) + b"\n")
    return result.content


def _score_chunk(model: str, docs: list[Doc], totals: Totals) -> Iterator[tuple[Doc, list[EvalRun]]]:
    """Each doc in its order with one EvalRun a metric; adds them to the totals."""
    batches: dict[Scorer, list[Sample]] = {}
    for doc in docs:
        for judged in doc.judges:
            batches.setdefault(judged.scorer, []).extend(doc.under(judged.filter).samples)
    scores = {scorer: scorer.score_all(samples) for scorer, samples in batches.items()}
    for doc in docs:
        totals.add_doc(doc)
        runs = []
        for position, judged in enumerate(doc.judges):
            left = doc.under(judged.filter)
            score, each, fault = None, list[float](), left.fault
            if not fault:
                score, each, fault = _reduce(judged, doc, list(islice(scores[judged.scorer], len(left.samples))))
            totals.add_score(doc, judged, score, each, fault)
            if position == 0:
                totals.add_headline(doc, judged, score, each, fault)
            runs.append(_run(model, doc, judged, score, each, fault))
        yield doc, runs


def _reduce(judged: Judged, doc: Doc, given: list[float | Exception]) -> tuple[float | None, list[float], str]:
    """(the doc's score, that of each response, why there is none)."""
    try:
        each = [_checked(score) for score in given]
        left = doc.under(judged.filter)
        if left.turns > 1:
            each = [math.fsum(turns) / left.turns for turns in left.by_response(each)]
        threshold = judged.scorer.threshold
        return _checked(reduced(judged.parameters, each, doc.votes(judged), threshold)), each, ""
    except Exception as error:  # noqa: BLE001  # as above
        return None, [], why(error)


def _run(model: str, doc: Doc, judged: Judged, score: float | None, each: list[float], fault: str) -> EvalRun:
    known = [one for one in doc.confidences(judged) if one is not None]
    return EvalRun(
        model_id=model,
        task_id=doc.task.task_id,
        doc_id=doc.doc_id,
        metric_name=judged.label,
        score=score,
        category=doc.task.category,
        cluster=doc.task.cluster,
        answers=len(doc.answers),
        confidence=math.fsum(known) / len(known) if known else None,
        extracted=tuple(doc.taken(judged)),
        failures=_failures(each),
        error=fault,
    )


def _failures(each: list[float]) -> tuple[str, ...]:
    if not any(isinstance(score, Explained) for score in each):
        return ()
    return tuple(score.why if isinstance(score, Explained) else "" for score in each)


def _checked(score: float | Exception) -> float:
    if isinstance(score, Exception):
        raise score
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"a score must lie in [0, 1], not {score}")
    return score
