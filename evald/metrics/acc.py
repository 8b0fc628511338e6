"""acc and its kin: whether the choice that the model holds most likely is a right one. Of a choice c behind a prompt p,
with ln P as the model tells it, the largest counts of

    acc              ln P(c | p)
    acc_norm         ln P(c | p) / characters of c
    acc_bytes        ln P(c | p) / bytes of c in UTF-8
    acc_mutual_info  ln P(c | p) - ln P(c), the second without any prompt

as lm-evaluation-harness 0.4.13 defines them (`ConfigurableTask.process_results`): lengths are of the choice alone,
without the delimiter in front of it, and of equal values the first wins. acc_norm and acc_bytes are GPT-3's
normalisations by length, by character (Brown et al. 2020, section 2.4); acc_mutual_info is that by the unconditional
probability there, pointwise mutual information. A choice that has no chance behind the prompt has none whatever it
would have alone.

Of a task with one target instead of choices, acc says whether each of its tokens was the most likely one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from evald.metrics.likelihoods import largest, log_likelihoods
from evald.metrics.scorer import Metric, Sample, Scorer
from shared.records import TaskSpec

VERSION = "1"

Values = Callable[[TaskSpec, Sequence[float]], list[float]]
"""The task's choices by what they are compared by, from the log-likelihoods of its instances."""


def of_choices(name: str, values: Values) -> Metric:
    def chosen(sample: Sample) -> int:
        return largest(values(sample.task, log_likelihoods(sample.said)))

    def score(sample: Sample) -> float:
        """1.0 or 0.0. Raises ValueError where the endpoint didn't tell of a target's tokens whether they are."""
        if not sample.task.choices:
            if sample.said[0].is_greedy is None:
                raise ValueError("the endpoint doesn't tell whether the target's tokens were the most likely ones")
            return float(sample.said[0].is_greedy)
        return float(chosen(sample) in sample.task.gold)

    scorer = Scorer(score, 1.0, chosen=chosen)
    return Metric(name, VERSION, lambda _: scorer)


def plain(task: TaskSpec, told: Sequence[float]) -> list[float]:
    return list(told[: len(task.choices)])


def by_characters(task: TaskSpec, told: Sequence[float]) -> list[float]:
    return [value / len(choice) for value, choice in zip(plain(task, told), task.choices, strict=True)]


def by_bytes(task: TaskSpec, told: Sequence[float]) -> list[float]:
    return [value / len(choice.encode()) for value, choice in zip(plain(task, told), task.choices, strict=True)]


def mutual_information(task: TaskSpec, told: Sequence[float]) -> list[float]:
    alone = told[len(task.choices) :]
    return [
        value if math.isinf(value) else value - without for value, without in zip(plain(task, told), alone, strict=True)
    ]
