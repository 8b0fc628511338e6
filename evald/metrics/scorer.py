"""What a metric is: a rule with a name and a version that is given its parameters and scores samples."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from shared.records import Generation, TaskSpec


class Sample(NamedTuple):
    """One answer to one task. answer, targets: post-processed; answer is None where nothing was extracted. text: the
    answer as the model gave it. said: where likelihoods were asked for, the generation of each instance, in the order
    of `shared.requests.instances_of`; then answer and text are "". Of a turn of a chat: the answers up to this one; the
    task's targets are the turn's.
    """

    answer: str | None
    targets: Sequence[str]
    text: str
    task: TaskSpec
    said: tuple[Generation, ...] = ()


NO_TASK = TaskSpec(task_id="", targets=())


class Explained(float):
    """A score that says why it isn't more. kind: one of a few words, to be counted. said: fit to be shown."""

    kind: str
    said: str

    def __new__(cls, score: float, kind: str, said: str = "") -> Explained:
        self = super().__new__(cls, score)
        self.kind, self.said = kind, said
        return self

    @property
    def why(self) -> str:
        return f"{self.kind}: {self.said}" if self.said else self.kind


class CorpusScore(Protocol):
    """Of a metric that has a value for a dataset as a whole which isn't the mean of its tasks' scores."""

    def add(self, answer: str, targets: Sequence[str]) -> None: ...

    def result(self) -> dict[str, Any]:
        """Ready for JSON, with at least `value`; None when nothing was added."""


@runtime_checkable
class SampleCorpus(Protocol):
    """The same of a metric that looks at more than the answer and the targets."""

    def add_sample(self, sample: Sample) -> None: ...

    def result(self) -> dict[str, Any]: ...


@runtime_checkable
class DocCorpus(Protocol):
    """The same of a metric whose value weighs docs alike, however many of their repeats were answered."""

    def add_doc(self, samples: Sequence[Sample]) -> None: ...

    def result(self) -> dict[str, Any]: ...


Corpus = CorpusScore | SampleCorpus | DocCorpus


def no_corpus() -> None:
    return None


@dataclass(frozen=True, eq=False)
class Scorer:
    """A metric with its parameters. score: in [0, 1]; raises what can't be scored. threshold: a sample counts as
    correct from this score on. params: recorded with what it made. corpus: makes the accumulator of a dataset, None
    where the mean of the scores is all there is. many: scores several at once, where that is quicker (programs that run
    beside each other); in order, each a score or the exception that kept it from one. target_fault: what is wrong with
    a target as the task gives it, in words, whatever the answer. chosen: where choices are compared by their
    likelihoods, the position of the one that the metric takes for the answer.
    """

    score: Callable[[Sample], float]
    threshold: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    corpus: Callable[[], Corpus | None] = no_corpus
    many: Callable[[Sequence[Sample]], Sequence[float | Exception]] | None = None
    target_fault: Callable[[str], str | None] | None = None
    chosen: Callable[[Sample], int] | None = None

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
            except BdbQuit:
                raise  # somebody left the debugger that they had called from their metric
            except Exception as error:  # noqa: BLE001  # a defect costs this sample its score, and says so; not the pair
                yield error


@dataclass(frozen=True)
class Metric:
    """A metric by name. version says which rule makes the number: when it changes, results are computed anew."""

    name: str
    version: str
    make: Callable[[Any], Scorer]


TextScore = Callable[[str, Sequence[str]], float]


def text_scorer(
    score: TextScore,
    threshold: float,
    params: Mapping[str, Any] | None = None,
    corpus: Callable[[], CorpusScore | None] = no_corpus,
    target_fault: Callable[[str], str | None] | None = None,
) -> Scorer:
    """Of a function that compares the answer with the targets. What extracted nothing scores 0."""

    def score_sample(sample: Sample) -> float:
        return score(sample.answer, sample.targets) if sample.answer is not None else 0.0

    return Scorer(score_sample, threshold, dict(params or {}), corpus, target_fault=target_fault)


def of_text(
    name: str, version: str, threshold: float, score: TextScore, params: Mapping[str, Any] | None = None
) -> Metric:
    """A metric without parameters of its own."""
    scorer = text_scorer(score, threshold, params)
    return Metric(name, version, lambda _: scorer)
