"""A doc on its way to its scores: its answers, what post-processing takes from them, and who is to judge them."""

from __future__ import annotations

from evald.faults import task_fault
from evald.metrics import Sample, judges_of
from evald.post_process import pipeline_of
from shared.records import ANSWERS, Prediction, TaskSpec

NO_ANSWER = "no answer"
MAX_REASON = 500  # characters


class Doc:
    """predictions: one a repeat. answered: which of them have an answer. judges: the task's metrics, looked up once, so
    that those who score its samples are those who read the scores. fault: why it can't be scored.

    Raises what `judges_of` raises.
    """

    def __init__(self, doc_id: int, task: TaskSpec, predictions: list[Prediction]) -> None:
        self.doc_id = doc_id
        self.task = task
        self.predictions = predictions
        self.judges = judges_of(task.metric_name)
        found = [p.generation if p.outcome in ANSWERS else None for p in predictions]
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
        try:
            # Told when the suite was submitted; a plan made otherwise may still hold it.
            self.fault = task_fault(task) or ""
            pipeline = pipeline_of(task.post_process)
            targets = [pipeline.target(target) for target in task.targets]
            found = [pipeline.read(answer.text) for answer in self.answers]
        except Exception as error:  # noqa: BLE001  # a defect in a step costs this doc its score, and says so; not the pair
            self.fault = why(error)
            return
        self.extracted = [one.answer for one in found]
        self.unextracted_at = [one.failed_at for one in found if one.failed_at is not None]
        self.samples = [
            Sample(extracted, targets, answer.text, task)
            for extracted, answer in zip(self.extracted, self.answers, strict=True)
        ]


def why(error: Exception) -> str:
    """A scorer's error may quote the whole answer."""
    return f"{type(error).__name__}: {error}"[:MAX_REASON]
