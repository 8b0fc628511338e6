"""A doc on its way to its scores: its answers, what each filter leaves of them, and who is to judge them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from evald.faults import task_fault
from evald.metrics import Judged, Sample, judges_of
from evald.metrics.likelihoods import log_likelihoods, shares
from evald.post_process import pipeline_of
from shared.chat import targets_of_turns
from shared.records import ANSWERS, Generation, Prediction, TaskSpec
from shared.scoring import UNNAMED, Spec, pipelines_of

NO_ANSWER = "no answer"
MAX_REASON = 500  # characters
_LOG = logging.getLogger("tandem.scores")  # heard where scoring is done in the user's own process


T = TypeVar("T")
Said = tuple[Generation, ...]
"""What a repeat came to: the generation of each instance, in the order of their idx."""


class Left(NamedTuple):
    """What a filter left of a doc's answers. samples: one a response, of a chat one a scored turn of each response;
    turns: so many to a response. said: the answer that each response came from. unextracted_at: the step that found
    nothing, of each answer where one did. selects: whether it may keep fewer responses than there are answers. fault:
    why it left nothing.
    """

    samples: list[Sample]
    said: list[Said]
    unextracted_at: list[str]
    selects: bool = False
    fault: str = ""
    turns: int = 1

    def by_response(self, values: Sequence[T]) -> list[tuple[T, ...]]:
        """What there is one of a sample, put together by response."""
        return [tuple(values[at : at + self.turns]) for at in range(0, len(values), self.turns)]


class Doc:
    """repeats: of each, the predictions of the task's instances. answers: of the repeats that have an answer to every
    instance; answered: which these are. judges: the task's metrics, looked up once, so that those who score its samples
    are those who read the scores. fault: why it can't be scored.

    Raises what `judges_of` raises.
    """

    def __init__(self, doc_id: int, task: TaskSpec, repeats: list[list[Prediction]]) -> None:
        self.doc_id = doc_id
        self.task = task
        self.predictions = [prediction for repeat in repeats for prediction in repeat]
        self.judges = judges_of(task.metric_name, task.filters)
        found = [_said(repeat) for repeat in repeats]
        self.answers = [answer for answer in found if answer is not None]
        self.answered = [answer is not None for answer in found]
        self.left: dict[str, Left] = {}  # by filter
        # Of generated answers: the idx of each that is scored, and what counts as right there.
        self._scored = [(idx, right) for idx, right in enumerate(targets_of_turns(task)) if right is not None]
        self.fault = "" if self.answers else NO_ANSWER
        if self.answers:
            self._filter()

    def under(self, name: str) -> Left:
        """What the filter of that name left."""
        return self.left.get(name) or Left([], [], [], fault=self.fault)

    def taken(self, judged: Judged) -> list[str | None]:
        """What the metric took for the answer, of each response: of choices the letter of the one that it takes."""
        samples, chosen = self.under(judged.filter).samples, judged.scorer.chosen
        if chosen is None or not self.task.choices:
            return [sample.answer for sample in samples]
        return [_letter(chosen(sample)) for sample in samples]

    def votes(self, judged: Judged) -> list[str | None]:
        """What a majority is found among, of each response: of a chat its turns' answers together."""
        left, taken = self.under(judged.filter), self.taken(judged)
        if left.turns == 1:
            return taken
        return [repr(turns) if any(one is not None for one in turns) else None for turns in left.by_response(taken)]

    def confidences(self, judged: Judged) -> list[float | None]:
        """In [0, 1], of each response; None where it isn't known. Of choices: the share of the one that the metric
        takes in the probability of them all.
        """
        left, chosen = self.under(judged.filter), judged.scorer.chosen
        if chosen is None or not self.task.choices:
            if left.turns > 1:  # nobody said how sure it is of a whole chat
                return [None] * len(left.said)
            return [said[self._scored[0][0]].confidence for said in left.said]
        found = []
        for sample in left.samples:
            among = shares(log_likelihoods(sample.said[: len(self.task.choices)]))
            found.append(among[chosen(sample)] if among is not None else None)
        return found

    def _filter(self) -> None:
        task = self.task
        if task.request_type != "generate_until":  # there is nothing to extract
            samples = [Sample("", task.targets, "", task, said) for said in self.answers]
            self.left[UNNAMED] = Left(samples, self.answers, [])
            return
        try:
            # Told when the suite was submitted; a plan made otherwise may still hold it.
            self.fault = task_fault(task) or ""
        except Exception as error:  # noqa: BLE001  # a defect in a step costs this doc its score, and says so; not the pair
            self.fault = why(error)
        if not self.fault:
            self.left = {name: self._left_by(spec) for name, spec in pipelines_of(task).items()}

    def _left_by(self, spec: Spec) -> Left:
        pipeline = pipeline_of(spec)
        turn_by_turn = self.task.chat_mode != "last"
        samples: list[list[Sample]] = []
        said: list[Said] = []
        unextracted_at: list[str] = []
        try:
            for idx, targets in self._scored:
                ends = [pipeline.target(target) for target in targets]
                responses, failed_at = pipeline.filter([said[idx].text for said in self.answers])
                said = [self.answers[response.at] for response in responses]
                task = replace(self.task, targets=targets) if turn_by_turn else self.task
                samples.append(
                    [
                        Sample(response.answer, ends, one[idx].text, task, one[: idx + 1] if turn_by_turn else ())
                        for response, one in zip(responses, said, strict=True)
                    ]
                )
                unextracted_at += failed_at
            flat = [sample for response in zip(*samples, strict=True) for sample in response]
        except Exception as error:  # noqa: BLE001  # as above, but of this filter alone
            return Left([], [], [], fault=why(error))
        return Left(flat, said, unextracted_at, pipeline.selects, turns=len(self._scored))


def why(error: Exception) -> str:
    """A scorer's error may quote the whole answer."""
    _LOG.debug("a doc could not be scored", exc_info=error)
    return f"{type(error).__name__}: {error}"[:MAX_REASON]


def _said(predictions: list[Prediction]) -> Said | None:
    """None unless there is an answer to every instance: no choice is made among some of them."""
    said = tuple(
        prediction.generation
        for prediction in predictions
        if prediction.outcome in ANSWERS and prediction.generation is not None
    )
    return said if len(said) == len(predictions) else None


def _letter(position: int) -> str:
    return chr(ord("A") + position) if position < 26 else str(position)
