"""A doc on its way to its scores: its answers, what post-processing takes from them, and who is to judge them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from evald.faults import task_fault
from evald.metrics import Sample, judges_of
from evald.post_process import pipeline_of
from shared.records import ANSWERS, Generation, Prediction, TaskSpec

NO_ANSWER = "no answer"
MAX_REASON = 500  # characters


class Answer(NamedTuple):
    """What a repeat came to: the generation of each instance, in the order of their idx. confidence: in [0, 1]; of
    likelihoods, that of the most likely choice among them all.
    """

    said: tuple[Generation, ...]
    confidence: float | None


class Doc:
    """repeats: of each, the predictions of the task's instances. answered: which repeats have an answer to every
    instance. judges: the task's metrics, looked up once, so that those who score its samples are those who read the
    scores. fault: why it can't be scored.

    Raises what `judges_of` raises.
    """

    def __init__(self, doc_id: int, task: TaskSpec, repeats: list[list[Prediction]]) -> None:
        self.doc_id = doc_id
        self.task = task
        self.predictions = [prediction for repeat in repeats for prediction in repeat]
        self.judges = judges_of(task.metric_name)
        found = [_answer(task, repeat) for repeat in repeats]
        self.answers = [answer for answer in found if answer is not None]
        self.answered = [answer is not None for answer in found]
        self.extracted: list[str | None] = []
        self.unextracted_at: list[str] = []  # the step that found nothing, of each answer where one did
        self.samples: list[Sample] = []
        self.fault = "" if self.answers else NO_ANSWER
        if self.answers:
            self._extract()

    def _extract(self) -> None:
        task = self.task
        if task.request_type != "generate_until":
            self._likelihoods()
            return
        try:
            # Told when the suite was submitted; a plan made otherwise may still hold it.
            self.fault = task_fault(task) or ""
            pipeline = pipeline_of(task.post_process)
            targets = [pipeline.target(target) for target in task.targets]
            found = [pipeline.read(answer.said[0].text) for answer in self.answers]
        except Exception as error:  # noqa: BLE001  # a defect in a step costs this doc its score, and says so; not the pair
            self.fault = why(error)
            return
        self.extracted = [one.answer for one in found]
        self.unextracted_at = [one.failed_at for one in found if one.failed_at is not None]
        self.samples = [
            Sample(extracted, targets, answer.said[0].text, task)
            for extracted, answer in zip(self.extracted, self.answers, strict=True)
        ]

    def _likelihoods(self) -> None:
        """There is nothing to extract: of a choice, what is kept is the letter of the most likely one."""
        for answer in self.answers:
            chosen = _letter(most_likely(_of_choices(self.task, answer.said))) if self.task.choices else ""
            self.extracted.append(chosen)
            self.samples.append(Sample(chosen, self.task.targets, "", self.task, answer.said))


def most_likely(values: Sequence[float]) -> int:
    """The position of the largest; of equal ones the first, as in lm-evaluation-harness (numpy.argmax)."""
    return max(range(len(values)), key=values.__getitem__)


def why(error: Exception) -> str:
    """A scorer's error may quote the whole answer."""
    return f"{type(error).__name__}: {error}"[:MAX_REASON]


def _answer(task: TaskSpec, predictions: list[Prediction]) -> Answer | None:
    """None unless there is an answer to every instance: no choice is made among some of them."""
    said = tuple(
        prediction.generation
        for prediction in predictions
        if prediction.outcome in ANSWERS and prediction.generation is not None
    )
    if len(said) < len(predictions):
        return None
    return Answer(said, _confidence(_of_choices(task, said)) if task.choices else said[0].confidence)


def _of_choices(task: TaskSpec, said: tuple[Generation, ...]) -> list[float]:
    """The log-likelihoods of the choices behind the prompt. One of probability 0 is told as null in JSON."""
    return [-math.inf if one.loglikelihood is None else one.loglikelihood for one in said[: len(task.choices)]]


def _confidence(values: Sequence[float]) -> float | None:
    """The share of the most likely choice in the probability of all: softmax over the log-likelihoods."""
    top = max(values)
    return 1.0 / math.fsum(math.exp(value - top) for value in values) if math.isfinite(top) else None


def _letter(position: int) -> str:
    return chr(ord("A") + position) if position < 26 else str(position)
