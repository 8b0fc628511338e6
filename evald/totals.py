"""The running sums of a pair while it is scored, and the result that they come to. What they hold doesn't grow with its
docs.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from evald.calibration import CalibrationBuffer
from evald.doc import NO_ANSWER, Doc
from evald.metrics import Corpus, DocCorpus, Explained, Judged, SampleCorpus
from evald.reducers import possible
from evald.results import CategoryResult, MetricResult, PairResult, ScoreError, Served
from evald.stats import Interval, Moments, bounds
from evald.stats.corpus import CorpusBootstrap, Segmented, spread
from evald.stats.draws import Floats
from shared.records import ANSWERS, PlanDataset, PlanPair
from shared.scoring import UNNAMED

KEPT_ERRORS = 100
KEPT_CATEGORIES = 4096
KEPT_NAMES = 16  # of served models, and of fingerprints: an endpoint may send a new one with each answer
MAX_NAME = 100  # characters
RESAMPLE_DIGITS = 7


class Of(msgspec.Struct, frozen=True):
    """What is scored, and by which rules. scorer: as in PairResult."""

    pair: PlanPair
    dataset: PlanDataset
    digests: tuple[str, ...]
    scorer: str


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
class Share:
    """Some of a pair's docs (all, those that name a metric, those of a category): their scores, and what is missing."""

    scores: Moments = field(default_factory=Moments)
    n_docs: int = 0
    n_partial: int = 0
    answers: int = 0  # of the docs that have a score
    below: float = 0.0  # how much lower, and higher, their scores could add up to with all repeats
    above: float = 0.0

    def add(self, doc: Doc, judged: Judged, score: float | None, each: list[float]) -> None:
        self.n_docs += 1
        if score is None:
            return
        self.scores.add(score, doc.task.cluster)
        self.answers += len(doc.answers)
        if all(doc.answered):
            return
        self.n_partial += 1
        low, high = 0.0, 1.0  # where a filter selects, what is missing could be what it takes
        if not doc.under(judged.filter).selects:
            known = iter(each)
            repeats = [next(known) if answered else None for answered in doc.answered]
            low, high = possible(judged.parameters, repeats, judged.scorer.threshold)
        self.below += score - low
        self.above += high - score

    def coverage(self, repeats: int) -> float:
        return self.answers / (self.n_docs * repeats) if self.n_docs else 0.0

    def bounds(self) -> Interval | None:
        found = bounds(self.scores.total, self.scores.n, self.n_docs)
        if found is None or not self.n_partial:
            return found
        low, high = found.low - self.below / self.n_docs, found.high + self.above / self.n_docs
        return Interval(max(0.0, low), min(1.0, high))


@dataclass
class MetricTotals:
    judged: Judged  # of the first doc; tasks of one dataset mean the same by a label
    corpus: Corpus | None
    bootstrap: CorpusBootstrap | None
    docs: Share = field(default_factory=Share)
    correct: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    n_errors: int = 0
    reason: str = ""


@dataclass
class Totals:
    """The running sums of a pair; what they hold doesn't grow with its docs."""

    dataset: str
    calibration: CalibrationBuffer
    headline: Share = field(default_factory=Share)
    headline_names: set[str] = field(default_factory=set)
    metrics: dict[str, MetricTotals] = field(default_factory=dict)
    categories: dict[str, Share] = field(default_factory=dict)
    uncategorised: int = 0  # docs of further categories than are kept
    outcomes: Counter[str] = field(default_factory=Counter)
    served_models: _Names = field(default_factory=_Names)
    system_fingerprints: _Names = field(default_factory=_Names)
    n_missing: int = 0
    n_errors: int = 0
    errors: list[ScoreError] = field(default_factory=list)
    unextracted: int = 0  # under the headline's filter
    unextracted_at: Counter[str] = field(default_factory=Counter)
    attempts: int = 0

    def add_doc(self, doc: Doc) -> None:
        self.outcomes.update(prediction.outcome for prediction in doc.predictions)
        self.attempts += sum(prediction.attempts for prediction in doc.predictions)
        self.n_missing += not doc.answers
        for name, left in doc.left.items():
            place = "" if name == UNNAMED else f"{name}: "
            self.unextracted_at.update(f"{place}{step}" for step in left.unextracted_at)
        self.unextracted += len(doc.under(doc.judges[0].filter).unextracted_at)
        for said in doc.answers:
            for one in said:
                self.served_models.add(one.served_model)
                self.system_fingerprints.add(one.system_fingerprint)

    def add_score(self, doc: Doc, judged: Judged, score: float | None, each: list[float], fault: str) -> None:
        """Under one of the doc's metrics. each: the score of each of its answers, where it has a score."""
        own = self._metric(judged)
        own.docs.add(doc, judged, score, each)
        if score is None:
            if fault != NO_ANSWER:
                own.n_errors += 1
                own.reason = own.reason or fault
            return
        own.correct += score >= own.judged.scorer.threshold
        own.failures.update(one.kind for one in each if isinstance(one, Explained))
        if own.corpus is None:
            return
        samples = doc.under(judged.filter).samples
        if isinstance(own.corpus, DocCorpus):
            own.corpus.add_doc(samples)
            if own.bootstrap is not None:
                own.bootstrap.add(doc.doc_id, doc.task.cluster)
        else:
            for sample in samples:
                if isinstance(own.corpus, SampleCorpus):
                    own.corpus.add_sample(sample)
                else:
                    own.corpus.add(sample.answer or "", sample.targets)
                if own.bootstrap is not None:
                    own.bootstrap.add(doc.doc_id, doc.task.cluster)

    def add_headline(self, doc: Doc, judged: Judged, score: float | None, each: list[float], fault: str) -> None:
        """Under the metric that counts."""
        self.headline_names.add(judged.label)
        self.headline.add(doc, judged, score, each)
        category = doc.task.category
        if category in self.categories or len(self.categories) < KEPT_CATEGORIES:
            self.categories.setdefault(category, Share()).add(doc, judged, score, each)
        else:
            self.uncategorised += 1
        if score is None:
            if fault != NO_ANSWER:
                self.n_errors += 1
                if len(self.errors) < KEPT_ERRORS:
                    self.errors.append(ScoreError(doc.task.task_id, fault))
            return
        for one, confidence in zip(each, doc.confidences(judged), strict=True):
            self.calibration.add(confidence, one >= judged.scorer.threshold)

    def _metric(self, judged: Judged) -> MetricTotals:
        own = self.metrics.get(judged.label)
        if own is None:
            corpus = judged.scorer.corpus()
            bootstrap = CorpusBootstrap(self.dataset, corpus) if isinstance(corpus, Segmented) else None
            own = self.metrics[judged.label] = MetricTotals(judged, corpus, bootstrap)
        return own

    def result(self, of: Of) -> PairResult:
        scores, repeats = self.headline.scores, of.dataset.repeats
        headline = scores.estimate()
        assert self.headline.n_docs == scores.n + self.n_missing + self.n_errors
        return PairResult(
            model=of.pair.model,
            dataset=of.pair.dataset,
            metric=next(iter(self.headline_names)) if len(self.headline_names) == 1 else "mixed",
            n_docs=self.headline.n_docs,
            n_scored=scores.n,
            n_missing=self.n_missing,
            n_partial=self.headline.n_partial,
            n_score_errors=self.n_errors,
            mean=headline.mean,
            stderr=headline.stderr,
            interval=scores.interval(),
            clusters=headline.clusters,
            bounds=self.headline.bounds(),
            coverage=self.headline.coverage(repeats),
            instances=of.pair.instances,
            requests=of.pair.requests,
            answered=sum(count for outcome, count in self.outcomes.items() if outcome in ANSWERS),
            attempts=self.attempts,
            outcomes=dict(sorted(self.outcomes.items())),
            served_models=self.served_models.result(),
            system_fingerprints=self.system_fingerprints.result(),
            unextracted=self.unextracted,
            unextracted_at=dict(sorted(self.unextracted_at.items())),
            repeats=repeats,
            metrics=tuple(self._metric_result(label, repeats) for label in sorted(self.metrics)),
            categories=tuple(
                _category_result(category, docs, repeats) for category, docs in sorted(self.categories.items())
            ),
            uncategorised=self.uncategorised,
            score_errors=tuple(self.errors),
            calibration=self.calibration.to_record(),
            limit=of.dataset.limit,
            rows=of.dataset.rows,
            content="",  # which also follows what the metrics found (`PairResult.pythons`)
            predictions_digest=of.digests,
            dataset_digest=of.dataset.digest,
            plan_digest=of.pair.digest,
            scorer=of.scorer,
        )

    def _metric_result(self, label: str, repeats: int) -> MetricResult:
        totals = self.metrics[label]
        estimate = totals.docs.scores.estimate()
        values = totals.bootstrap.values() if totals.bootstrap is not None else np.zeros(0)
        resampled = spread(values)
        return MetricResult(
            name=label,
            version=totals.judged.version,
            params=_params(totals.judged),
            n=estimate.n,
            mean=estimate.mean,
            stderr=estimate.stderr,
            interval=totals.docs.scores.interval(),
            n_docs=totals.docs.n_docs,
            n_partial=totals.docs.n_partial,
            coverage=totals.docs.coverage(repeats),
            bounds=totals.docs.bounds(),
            correct=totals.correct,
            threshold=totals.judged.scorer.threshold,
            failures=dict(sorted(totals.failures.items())),
            n_errors=totals.n_errors,
            reason=totals.reason,
            corpus=totals.corpus.result() if totals.corpus is not None and estimate.n else None,
            corpus_stderr=resampled.stderr if resampled is not None else None,
            corpus_interval=resampled.interval if resampled is not None else None,
            resamples=_kept(values) if resampled is not None else (),
        )


def _kept(values: Floats) -> tuple[float | None, ...]:
    return tuple(round(value, RESAMPLE_DIGITS) if math.isfinite(value) else None for value in values.tolist())


def _category_result(category: str, docs: Share, repeats: int) -> CategoryResult:
    estimate = docs.scores.estimate()
    return CategoryResult(
        category=category,
        n=estimate.n,
        mean=estimate.mean,
        stderr=estimate.stderr,
        interval=docs.scores.interval(),
        n_docs=docs.n_docs,
        n_partial=docs.n_partial,
        coverage=docs.coverage(repeats),
        bounds=docs.bounds(),
    )


def _params(judged: Judged) -> dict[str, Any]:
    """What the scorer says of itself, and what the task told it."""
    told = msgspec.to_builtins(judged.parameters)
    told.pop("label", None)
    told.pop("filters", None)
    return {**judged.scorer.params, **told}
