"""The metrics: what an answer is worth. One small file each; this is the table of them.

Those of texts are pure, and total: any answer, however hostile, gets a score in [0, 1] in time linear in its length
(ROUGE-L: in the product of both lengths, over 64). An empty answer scores 0, except with exact_match against an empty
target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from evald.metrics import accuracy, bleu, exact_match, f1, rouge_l
from shared.records import TaskSpec
from shared.scoring import Measure, Spec, measures_of
from shared.vocabulary import MetricParameters


class Sample(NamedTuple):
    """One answer to one task. answer, targets: post-processed; answer is None where nothing was extracted. text: the
    answer as the model gave it.
    """

    answer: str | None
    targets: Sequence[str]
    text: str
    task: TaskSpec


NO_TASK = TaskSpec(task_id="", targets=())


class CorpusScore(Protocol):
    """Of a metric that has a value for a dataset as a whole which isn't the mean of its tasks' scores."""

    def add(self, answer: str, targets: Sequence[str]) -> None: ...

    def result(self) -> dict[str, Any]:
        """Ready for JSON, with at least `value`: in [0, 1], or None when nothing was added."""


def no_corpus() -> None:
    return None


@dataclass(frozen=True, eq=False)
class Scorer:
    """A metric with its parameters. score: in [0, 1]; raises what can't be scored. threshold: a sample counts as
    correct from this score on. params: recorded with what it made. corpus: makes the accumulator of a dataset, None
    where the mean of the scores is all there is. many: scores several at once, where that is quicker (programs that run
    beside each other); in order, each a score or the exception that kept it from one.
    """

    score: Callable[[Sample], float]
    threshold: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    corpus: Callable[[], CorpusScore | None] = no_corpus
    many: Callable[[Sequence[Sample]], Sequence[float | Exception]] | None = None

    def of(self, answer: str, targets: Sequence[str]) -> float:
        """The score of a text, for metrics that need no more than that."""
        return self.score(Sample(answer, targets, answer, NO_TASK))

    def score_all(self, samples: Sequence[Sample]) -> Iterator[float | Exception]:
        if self.many is not None:
            yield from self.many(samples)
            return
        for sample in samples:
            try:
                yield self.score(sample)
            except Exception as error:  # noqa: BLE001  # a defect costs this sample its score, and says so; not the pair
                yield error


@dataclass(frozen=True)
class Metric:
    """A metric by name. version says which rule makes the number: when it changes, results are computed anew."""

    name: str
    version: str
    make: Callable[[Any], Scorer]


def of_text(
    name: str,
    version: str,
    threshold: float,
    score: Callable[[str, Sequence[str]], float],
    params: Mapping[str, Any] | None = None,
    corpus: Callable[[], CorpusScore | None] = no_corpus,
) -> Metric:
    """A metric without parameters of its own that compares the answer with the targets; the best of them counts. What
    extracted nothing scores 0.
    """

    def score_sample(sample: Sample) -> float:
        return score(sample.answer, sample.targets) if sample.answer is not None else 0.0

    scorer = Scorer(score_sample, threshold, dict(params or {}), corpus)
    return Metric(name, version, lambda _: scorer)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        of_text("exact_match", exact_match.VERSION, 1.0, exact_match.score),
        of_text("accuracy", accuracy.VERSION, 1.0, accuracy.score, accuracy.PARAMS),
        of_text("f1", f1.VERSION, 0.5, f1.score, f1.PARAMS),
        of_text("bleu", bleu.VERSION, 0.5, bleu.score, bleu.PARAMS, bleu.CorpusBleu),
        of_text("rouge_l", rouge_l.VERSION, 0.5, rouge_l.score, rouge_l.PARAMS),
    )
}


class Judged(NamedTuple):
    """A metric of a task, ready to score."""

    label: str
    version: str
    parameters: MetricParameters
    scorer: Scorer


def of_spec(spec: Spec) -> Scorer:
    """The scorer of a spec's headline metric."""
    return judges_of(spec)[0].scorer


def judges_of(spec: Spec) -> tuple[Judged, ...]:
    """The metrics of a task, the headline first. Raises shared.scoring.SpecError."""
    return _judges(msgspec.json.encode(spec))


@lru_cache(maxsize=256)
def _judges(spec: bytes) -> tuple[Judged, ...]:
    return tuple(map(_judged, measures_of(msgspec.json.decode(spec, type=Spec))))


def _judged(measure: Measure) -> Judged:
    metric = METRICS[measure.name]
    return Judged(measure.label, metric.version, measure.parameters, metric.make(measure.parameters))
