"""Scores one pair in one pass over its predictions, in memory that doesn't grow with them. Runs in a worker process.

Never makes a number from missing data: unless every prediction's place is exactly the plan's and the files' digests are
those that the status named, nothing is written (`Incomplete`).
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from evald.calibration import CalibrationBuffer
from evald.doc import NO_ANSWER, Doc, why
from evald.metrics import METRICS, CorpusScore, Judged, Sample, SampleCorpus, Scorer
from evald.post_process import POST_PROCESS
from evald.predictions import Predictions
from evald.reducers import possible, reduced
from evald.results import CategoryResult, MetricResult, PairResult, ScoreError, Served
from evald.sandbox import choice
from evald.stats import Interval, Moments, bounds
from evald.stats.corpus import CorpusBootstrap, Segmented, spread
from evald.stats.draws import Floats
from shared.atomic import replace, replace_lines
from shared.errors import WorkDirError
from shared.layout import WorkDir
from shared.plan import read_planned_tasks, tasks_digest
from shared.records import (
    ANSWERS,
    EvalRun,
    PlanDataset,
    PlanPair,
    encode_record,
)

SCORER = "4"
"""Version of the rules in this module; changes when the same predictions would give another result."""

CHUNK = 256  # docs that are scored together
KEPT_ERRORS = 100
KEPT_NAMES = 16  # of served models, and of fingerprints: an endpoint may send a new one with each answer
MAX_NAME = 100  # characters
RESAMPLE_DIGITS = 7


class ScoreJob(Struct, frozen=True):
    """What a worker needs to score a pair. digests: of each shard's predictions, as the shards' statuses name them.
    sandbox: what runs programs; those that confine them give the same verdicts, so only whether it does is content.
    """

    root: str
    pair: PlanPair
    dataset: PlanDataset
    digests: tuple[str, ...]
    bins: int
    sandbox: choice.Choice = "auto"

    def content(self) -> str:
        """Digest of all that decides the result: the predictions, the tasks, and every rule's version and
        parameters.
        """
        rules = [(name, metric.version) for name, metric in sorted(METRICS.items())]
        steps = [(name, step.version) for name, step in sorted(POST_PROCESS.items())]
        # Of evald's own Python are the programs that code_exec runs, and what Unicode says of a character.
        machine = (platform.python_version(), self.sandbox == "unsafe-subprocess")
        parts = (self.digests, self.dataset.digest, self.pair.digest, SCORER, rules, steps, self.bins, machine)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def score_pair(job: ScoreJob) -> None:
    """Write the pair's scores and result. Raises Incomplete, WorkDirError or OSError; then nothing is written."""
    choice.use(job.sandbox)
    work = WorkDir(job.root)
    pair, dataset = job.pair, job.dataset
    if tasks_digest(work.tasks(dataset.abbr)) != dataset.digest:
        raise WorkDirError(f"{work.tasks(dataset.abbr)}: not the file that was planned: submit the suite again")
    totals = _Totals(dataset.abbr, CalibrationBuffer(job.bins))

    def lines() -> Iterator[bytes]:
        with closing(Predictions(work, pair, job.digests)) as predictions:
            docs = (
                Doc(doc_id, task, predictions.take(doc_id, dataset.repeats))
                for doc_id, task in enumerate(read_planned_tasks(work, dataset.abbr))
            )
            while chunk := list(islice(docs, CHUNK)):
                for run in _score_chunk(pair.model, chunk, totals):
                    yield encode_record(run) + b"\n"
            predictions.finish()

    replace_lines(work.scores(pair.model, pair.dataset), lines())
    replace(work.result(pair.model, pair.dataset), encode_record(totals.result(job)) + b"\n")


class _Names:
    """Counts answers by name, and forgets all but the first names."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._others = 0
        self._untold = 0

    def add(self, name: str | None) -> None:
        if not name:
            self._untold += 1
        elif (cut := name[:MAX_NAME]) in self._counts or len(self._counts) < KEPT_NAMES:
            self._counts[cut] = self._counts.get(cut, 0) + 1
        else:
            self._others += 1

    def result(self) -> Served:
        names = dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))
        return Served(names=names, others=self._others, untold=self._untold)


@dataclass
class _MetricTotals:
    judged: Judged  # of the first doc; tasks of one dataset mean the same by a label
    corpus: CorpusScore | SampleCorpus | None
    bootstrap: CorpusBootstrap | None
    moments: Moments = field(default_factory=Moments)
    correct: int = 0
    n_errors: int = 0
    reason: str = ""


@dataclass
class _Totals:
    """The running sums of a pair; what they hold doesn't grow with its docs."""

    dataset: str
    calibration: CalibrationBuffer
    headline: Moments = field(default_factory=Moments)
    headline_names: set[str] = field(default_factory=set)
    metrics: dict[str, _MetricTotals] = field(default_factory=dict)
    categories: dict[str, Moments] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    served_models: _Names = field(default_factory=_Names)
    system_fingerprints: _Names = field(default_factory=_Names)
    n_docs: int = 0
    n_missing: int = 0
    n_partial: int = 0
    n_errors: int = 0
    answers: int = 0  # of the docs that have a score
    below: float = 0.0  # how much lower, and higher, their scores could add up to with all repeats
    above: float = 0.0
    errors: list[ScoreError] = field(default_factory=list)
    unextracted_at: Counter[str] = field(default_factory=Counter)
    attempts: int = 0

    def metric(self, judged: Judged) -> _MetricTotals:
        own = self.metrics.get(judged.label)
        if own is None:
            corpus = judged.scorer.corpus()
            bootstrap = CorpusBootstrap(self.dataset, corpus) if isinstance(corpus, Segmented) else None
            own = self.metrics[judged.label] = _MetricTotals(judged, corpus, bootstrap)
        return own

    def result(self, job: ScoreJob) -> PairResult:
        headline = self.headline.estimate()
        assert self.n_docs == self.headline.n + self.n_missing + self.n_errors
        return PairResult(
            model=job.pair.model,
            dataset=job.pair.dataset,
            metric=next(iter(self.headline_names)) if len(self.headline_names) == 1 else "mixed",
            n_docs=self.n_docs,
            n_scored=self.headline.n,
            n_missing=self.n_missing,
            n_partial=self.n_partial,
            n_score_errors=self.n_errors,
            mean=headline.mean,
            stderr=headline.stderr,
            interval=self.headline.interval(),
            clusters=headline.clusters,
            bounds=self._bounds(),
            coverage=self.answers / (self.n_docs * job.dataset.repeats) if self.n_docs else 0.0,
            instances=job.pair.instances,
            requests=job.pair.requests,
            answered=sum(count for outcome, count in self.outcomes.items() if outcome in ANSWERS),
            attempts=self.attempts,
            outcomes=dict(sorted(self.outcomes.items())),
            served_models=self.served_models.result(),
            system_fingerprints=self.system_fingerprints.result(),
            unextracted=self.unextracted_at.total(),
            unextracted_at=dict(sorted(self.unextracted_at.items())),
            repeats=job.dataset.repeats,
            metrics=tuple(self._metric_result(label, job) for label in sorted(self.metrics)),
            categories=tuple(
                _category_result(category, moments) for category, moments in sorted(self.categories.items())
            ),
            score_errors=tuple(self.errors),
            calibration=self.calibration.to_record(),
            content=job.content(),
            predictions_digest=job.digests,
            dataset_digest=job.dataset.digest,
            plan_digest=job.pair.digest,
            scorer=SCORER,
        )

    def _bounds(self) -> Interval | None:
        found = bounds(self.headline.total, self.headline.n, self.n_docs)
        if found is None or not self.n_partial:
            return found
        low, high = found.low - self.below / self.n_docs, found.high + self.above / self.n_docs
        return Interval(max(0.0, low), min(1.0, high))

    def _metric_result(self, label: str, job: ScoreJob) -> MetricResult:
        totals = self.metrics[label]
        estimate = totals.moments.estimate()
        values = totals.bootstrap.values() if totals.bootstrap is not None else np.zeros(0)
        resampled = spread(values)
        return MetricResult(
            name=label,
            version=totals.judged.version,
            params=_params(totals.judged),
            n=estimate.n,
            mean=estimate.mean,
            stderr=estimate.stderr,
            interval=totals.moments.interval(),
            correct=totals.correct,
            threshold=totals.judged.scorer.threshold,
            n_errors=totals.n_errors,
            reason=totals.reason,
            corpus=totals.corpus.result() if totals.corpus is not None and estimate.n else None,
            corpus_stderr=resampled.stderr if resampled is not None else None,
            corpus_interval=resampled.interval if resampled is not None else None,
            resamples=_kept(values) if resampled is not None else (),
        )


def _kept(values: Floats) -> tuple[float | None, ...]:
    return tuple(round(value, RESAMPLE_DIGITS) if math.isfinite(value) else None for value in values.tolist())


def _category_result(category: str, moments: Moments) -> CategoryResult:
    estimate = moments.estimate()
    return CategoryResult(category, estimate.n, estimate.mean, estimate.stderr, moments.interval())


def _params(judged: Judged) -> dict[str, Any]:
    """What the scorer says of itself, and what the task told it."""
    told = msgspec.to_builtins(judged.parameters)
    told.pop("label", None)
    return {**judged.scorer.params, **told}


def _score_chunk(model: str, docs: list[Doc], totals: _Totals) -> Iterator[EvalRun]:
    """One EvalRun a doc and metric, in the order of the docs; adds them to the totals."""
    batches: dict[Scorer, list[Sample]] = {}
    for doc in docs:
        if not doc.fault:
            for judged in doc.judges:
                batches.setdefault(judged.scorer, []).extend(doc.samples)
    scores = {scorer: scorer.score_all(samples) for scorer, samples in batches.items()}
    for doc in docs:
        _count_doc(doc, totals)
        for position, judged in enumerate(doc.judges):
            score, each, fault = None, list[float](), doc.fault
            if not fault:
                score, each, fault = _reduce(judged, doc, list(islice(scores[judged.scorer], len(doc.samples))))
            _count_metric(totals, judged, score, doc, fault)
            if position == 0 and doc.answers:
                _count_headline(totals, doc, judged, score, each, fault)
            yield _run(model, doc, judged.label, score, fault)


def _reduce(judged: Judged, doc: Doc, given: list[float | Exception]) -> tuple[float | None, list[float], str]:
    """(the doc's score, that of each repeat, why there is none)."""
    try:
        each = [_checked(score) for score in given]
        threshold = judged.scorer.threshold
        return _checked(reduced(judged.parameters, each, doc.extracted, threshold)), each, ""
    except Exception as error:  # noqa: BLE001  # as above
        return None, [], why(error)


def _run(model: str, doc: Doc, label: str, score: float | None, fault: str) -> EvalRun:
    known = [answer.confidence for answer in doc.answers if answer.confidence is not None]
    return EvalRun(
        model_id=model,
        task_id=doc.task.task_id,
        doc_id=doc.doc_id,
        metric_name=label,
        score=score,
        category=doc.task.category,
        cluster=doc.task.cluster,
        answers=len(doc.answers),
        confidence=math.fsum(known) / len(known) if known else None,
        extracted=tuple(doc.extracted),
        error=fault,
    )


def _count_doc(doc: Doc, totals: _Totals) -> None:
    totals.n_docs += 1
    totals.outcomes.update(prediction.outcome for prediction in doc.predictions)
    totals.attempts += sum(prediction.attempts for prediction in doc.predictions)
    totals.n_missing += not doc.answers
    if not doc.fault:
        totals.unextracted_at.update(doc.unextracted_at)
    for answer in doc.answers:
        totals.served_models.add(answer.served_model)
        totals.system_fingerprints.add(answer.system_fingerprint)


def _count_metric(totals: _Totals, judged: Judged, score: float | None, doc: Doc, fault: str) -> None:
    own = totals.metric(judged)
    if score is None:
        if fault != NO_ANSWER:
            own.n_errors += 1
            own.reason = own.reason or fault
        return
    own.moments.add(score, doc.task.cluster)
    own.correct += score >= own.judged.scorer.threshold
    if own.corpus is not None:
        for sample in doc.samples:
            if isinstance(own.corpus, SampleCorpus):
                own.corpus.add_sample(sample)
            else:
                own.corpus.add(sample.answer or "", sample.targets)
            if own.bootstrap is not None:
                own.bootstrap.add(doc.doc_id, doc.task.cluster)


def _count_headline(
    totals: _Totals, doc: Doc, judged: Judged, score: float | None, each: list[float], fault: str
) -> None:
    totals.headline_names.add(judged.label)
    if score is None:
        totals.n_errors += 1
        if len(totals.errors) < KEPT_ERRORS:
            totals.errors.append(ScoreError(doc.task.task_id, fault))
        return
    totals.headline.add(score, doc.task.cluster)
    totals.categories.setdefault(doc.task.category, Moments()).add(score, doc.task.cluster)
    threshold = judged.scorer.threshold
    totals.answers += len(doc.answers)
    if len(doc.answers) < len(doc.predictions):
        totals.n_partial += 1
        scores = iter(each)
        low, high = possible(
            judged.parameters, [next(scores) if answered else None for answered in doc.answered], threshold
        )
        totals.below += score - low
        totals.above += high - score
    for one, answer in zip(each, doc.answers, strict=True):
        totals.calibration.add(answer.confidence, one >= threshold)


def _checked(score: float | Exception) -> float:
    if isinstance(score, Exception):
        raise score
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"a score must lie in [0, 1], not {score}")
    return score
