"""Scores one pair in one pass over its predictions, in memory that doesn't grow with them. Runs in a worker process.

Never makes a number from missing data: unless every prediction's place is exactly the plan's and the files' digests are
those that the status named, nothing is written (`Incomplete`).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from evald.calibration import CalibrationBuffer
from evald.metrics import METRICS, CorpusScore
from evald.post_process import POST_PROCESS, target_fault
from evald.results import CategoryResult, MetricResult, PairResult, ScoreError, Served
from evald.stats import Moments, bounds, interval, wilson
from shared.atomic import replace, replace_lines
from shared.errors import TandemError, WorkDirError
from shared.journal import split_lines
from shared.layout import WorkDir
from shared.plan import read_planned_tasks, tasks_digest
from shared.records import (
    ANSWERS,
    SCHEMA,
    EvalRun,
    PlanDataset,
    PlanPair,
    Prediction,
    TaskSpec,
    check_schema,
    encode_record,
)

SCORER = "2"
"""Version of the rules in this module; changes when the same predictions would give another result."""

KEPT_ERRORS = 100
KEPT_NAMES = 16  # of served models, and of fingerprints: an endpoint may send a new one with each answer
MAX_NAME = 100  # characters
MAX_REASON = 500  # characters


class Incomplete(TandemError):
    """The predictions as seen now aren't what the status says: look again later."""


class ScoreJob(Struct, frozen=True):
    """What a worker needs to score a pair. digests: of each shard's predictions, as the shards' statuses name them."""

    root: str
    pair: PlanPair
    dataset: PlanDataset
    digests: tuple[str, ...]
    bins: int

    def content(self) -> str:
        """Digest of all that decides the result: the predictions, the tasks, and every rule's version and
        parameters.
        """
        rules = [(name, metric.version, metric.params, metric.threshold) for name, metric in sorted(METRICS.items())]
        steps = [(name, step.version) for name, step in sorted(POST_PROCESS.items())]
        parts = (self.digests, self.dataset.digest, self.pair.digest, SCORER, rules, steps, self.bins)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def score_pair(job: ScoreJob) -> None:
    """Write the pair's scores and result. Raises Incomplete, WorkDirError or OSError; then nothing is written."""
    work = WorkDir(job.root)
    pair, dataset = job.pair, job.dataset
    if tasks_digest(work.tasks(dataset.abbr)) != dataset.digest:
        raise WorkDirError(f"{work.tasks(dataset.abbr)}: not the file that was planned: submit the suite again")
    totals = _Totals(CalibrationBuffer(job.bins))

    def lines() -> Iterator[bytes]:
        with closing(_Predictions(work, pair, job.digests)) as predictions:
            for doc_id, task in enumerate(read_planned_tasks(work, dataset.abbr)):
                for run in _score_doc(pair.model, doc_id, task, predictions.take(doc_id, dataset.repeats), totals):
                    yield encode_record(run) + b"\n"
            predictions.finish()

    replace_lines(work.scores(pair.model, pair.dataset), lines())
    replace(work.result(pair.model, pair.dataset), encode_record(totals.result(job)) + b"\n")


class _Predictions:
    """A pair's predictions over all its shards, each checked against its place in the plan and each file against its
    digest.
    """

    def __init__(self, work: WorkDir, pair: PlanPair, digests: tuple[str, ...]) -> None:
        self._where = f"{pair.model} x {pair.dataset}"
        self._rows = self._read(
            [
                (work.predictions(pair.model, shard.stem), digest)
                for shard, digest in zip(pair.shards, digests, strict=True)
            ]
        )

    def take(self, doc_id: int, repeats: int) -> list[Prediction]:
        """The doc's predictions, one a repeat."""
        rows = []
        for repeat in range(repeats):
            row = next(self._rows, None)
            if row is None or (row.doc_id, row.idx, row.repeat) != (doc_id, 0, repeat):
                found = "the end" if row is None else f"({row.doc_id}, {row.idx}, {row.repeat})"
                raise Incomplete(f"{self._where}: predictions hold {found} where the plan has ({doc_id}, 0, {repeat})")
            rows.append(row)
        return rows

    def finish(self) -> None:
        if next(self._rows, None) is not None:
            raise Incomplete(f"{self._where}: more predictions than the plan has requests")

    def close(self) -> None:
        self._rows.close()

    def _read(self, files: list[tuple[Path, str]]) -> Generator[Prediction, None, None]:
        decoder = msgspec.json.Decoder(Prediction)
        for path, digest in files:
            seen = hashlib.sha256()
            try:
                file = path.open("rb")
            except FileNotFoundError:
                raise Incomplete(f"{path}: not there yet") from None
            with file:
                for _, line in split_lines(file):
                    seen.update(line)
                    seen.update(b"\n")
                    try:
                        row = decoder.decode(line)
                        if row.schema != SCHEMA:
                            check_schema(line, str(path))
                        yield row
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        raise Incomplete(f"{path}: holds a line that is no prediction: {error}") from None
            if seen.hexdigest() != digest:
                raise Incomplete(f"{path}: its content isn't what the status names")


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
    moments: Moments = field(default_factory=Moments)
    correct: int = 0
    corpus: CorpusScore | None = None


@dataclass
class _Totals:
    """The running sums of a pair; what they hold doesn't grow with its docs."""

    calibration: CalibrationBuffer
    headline: Moments = field(default_factory=Moments)
    headline_names: set[str] = field(default_factory=set)
    all_binary: bool = True
    metrics: dict[str, _MetricTotals] = field(default_factory=dict)
    categories: dict[str, Moments] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    served_models: _Names = field(default_factory=_Names)
    system_fingerprints: _Names = field(default_factory=_Names)
    n_docs: int = 0
    n_missing: int = 0
    n_errors: int = 0
    errors: list[ScoreError] = field(default_factory=list)
    unextracted: int = 0
    attempts: int = 0

    def metric(self, name: str) -> _MetricTotals:
        if name not in self.metrics:
            self.metrics[name] = _MetricTotals(corpus=METRICS[name].corpus())
        return self.metrics[name]

    def result(self, job: ScoreJob) -> PairResult:
        headline = self.headline.estimate()
        proportion = self.all_binary and job.dataset.repeats == 1
        assert self.n_docs == self.headline.n + self.n_missing + self.n_errors
        return PairResult(
            model=job.pair.model,
            dataset=job.pair.dataset,
            metric=next(iter(self.headline_names)) if len(self.headline_names) == 1 else "mixed",
            n_docs=self.n_docs,
            n_scored=self.headline.n,
            n_missing=self.n_missing,
            n_score_errors=self.n_errors,
            mean=headline.mean,
            stderr=headline.stderr,
            interval=wilson(round(self.headline.total), headline.n) if proportion else interval(headline),
            bounds=bounds(self.headline.total, self.headline.n, self.n_docs),
            coverage=self.headline.n / self.n_docs if self.n_docs else 0.0,
            instances=job.pair.instances,
            requests=job.pair.requests,
            answered=sum(count for outcome, count in self.outcomes.items() if outcome in ANSWERS),
            attempts=self.attempts,
            outcomes=dict(sorted(self.outcomes.items())),
            served_models=self.served_models.result(),
            system_fingerprints=self.system_fingerprints.result(),
            unextracted=self.unextracted,
            repeats=job.dataset.repeats,
            metrics=tuple(self._metric_result(name, job) for name in sorted(self.metrics)),
            categories=tuple(
                CategoryResult(category, moments.n, moments.estimate().mean)
                for category, moments in sorted(self.categories.items())
            ),
            score_errors=tuple(self.errors),
            calibration=self.calibration.to_record(),
            content=job.content(),
            predictions_digest=job.digests,
            dataset_digest=job.dataset.digest,
            plan_digest=job.pair.digest,
            scorer=SCORER,
        )

    def _metric_result(self, name: str, job: ScoreJob) -> MetricResult:
        metric, totals = METRICS[name], self.metrics[name]
        estimate = totals.moments.estimate()
        proportion = metric.threshold == 1.0 and job.dataset.repeats == 1
        return MetricResult(
            name=name,
            version=metric.version,
            params=dict(metric.params),
            n=estimate.n,
            mean=estimate.mean,
            stderr=estimate.stderr,
            interval=wilson(totals.correct, estimate.n) if proportion else interval(estimate),
            correct=totals.correct,
            threshold=metric.threshold,
            corpus=totals.corpus.result() if totals.corpus is not None else None,
        )


def _score_doc(
    model: str, doc_id: int, task: TaskSpec, predictions: list[Prediction], totals: _Totals
) -> Iterator[EvalRun]:
    """One EvalRun a metric; adds the doc to the totals."""
    totals.n_docs += 1
    totals.outcomes.update(prediction.outcome for prediction in predictions)
    totals.attempts += sum(prediction.attempts for prediction in predictions)
    answers = [p.generation for p in predictions if p.outcome in ANSWERS and p.generation is not None]
    for answer in answers:
        totals.served_models.add(answer.served_model)
        totals.system_fingerprints.add(answer.system_fingerprint)
    if not answers:
        totals.n_missing += 1
        for name in task.metrics:
            yield EvalRun(
                model_id=model, task_id=task.task_id, doc_id=doc_id, metric_name=name, score=None,
                category=task.category, error="no answer",
            )  # fmt: skip
        return
    step = POST_PROCESS[task.post_process]
    reason = target_fault(task) or ""  # told when the suite was submitted; a plan made otherwise may still hold it
    extracted: list[str | None] = []
    targets: list[str] = []
    try:
        targets = [step.target(target) for target in task.targets]
        extracted = [step.answer(answer.text) for answer in answers]
    except Exception as error:  # noqa: BLE001  # a defect in a step costs this doc its score, and says so; not the pair
        reason = _why(error)
    totals.unextracted += sum(text is None for text in extracted)
    confidences = [answer.confidence for answer in answers]
    known = [confidence for confidence in confidences if confidence is not None]
    for position, name in enumerate(task.metrics):
        scores: list[float] = []
        fault = reason
        if not fault:
            try:
                scores = [0.0 if text is None else _checked(METRICS[name].score(text, targets)) for text in extracted]
            except Exception as error:  # noqa: BLE001  # as above
                fault = _why(error)
        score = math.fsum(scores) / len(scores) if not fault else None
        if score is not None:
            _count_metric(totals, name, score, [text or "" for text in extracted], targets)
        if position == 0:
            _count_headline(totals, task, name, score, scores, confidences, fault)
        yield EvalRun(
            model_id=model,
            task_id=task.task_id,
            doc_id=doc_id,
            metric_name=name,
            score=score,
            category=task.category,
            answers=len(answers),
            confidence=math.fsum(known) / len(known) if known else None,
            extracted=tuple(extracted),
            error=fault,
        )


def _count_metric(totals: _Totals, name: str, score: float, extracted: list[str], targets: list[str]) -> None:
    own = totals.metric(name)
    own.moments.add(score)
    own.correct += score >= METRICS[name].threshold
    if own.corpus is not None:
        for text in extracted:
            own.corpus.add(text, targets)


def _count_headline(
    totals: _Totals,
    task: TaskSpec,
    name: str,
    score: float | None,
    scores: list[float],
    confidences: list[float | None],
    reason: str,
) -> None:
    totals.headline_names.add(name)
    if score is None:
        totals.n_errors += 1
        if len(totals.errors) < KEPT_ERRORS:
            totals.errors.append(ScoreError(task.task_id, reason))
        return
    totals.headline.add(score)
    totals.all_binary = totals.all_binary and score in (0.0, 1.0)
    totals.categories.setdefault(task.category, Moments()).add(score)
    threshold = METRICS[name].threshold
    for one, confidence in zip(scores, confidences, strict=True):
        totals.calibration.add(confidence, one >= threshold)


def _why(error: Exception) -> str:
    """A scorer's error may quote the whole answer."""
    return f"{type(error).__name__}: {error}"[:MAX_REASON]


def _checked(score: float) -> float:
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"a score must lie in [0, 1], not {score}")
    return score
