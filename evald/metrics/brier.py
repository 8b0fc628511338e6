"""brier: how far the probabilities of the choices are from the right one (Brier 1950). With p_i = softmax of the
choices' log-likelihoods and o_i = 1 for the right choice, else 0, a task's is the sum over i of (p_i - o_i)^2, in
[0, 2], lower is better; the dataset's is the mean, as `brier_score` of lm-evaluation-harness 0.4.13.

A task's score is 1 - brier / 2, so that more is better as everywhere. From 0.75 on no choice is likelier than the right
one: were one, the sum would be above 0.5.
"""

from __future__ import annotations

import math

import numpy as np

from evald.metrics.likelihoods import largest, log_likelihoods, shares
from evald.metrics.ratio import RatioCorpus
from evald.metrics.scorer import Sample, Scorer
from shared.vocabulary import MetricParameters

VERSION = "1"


def make(_: MetricParameters) -> Scorer:
    def corpus() -> RatioCorpus:
        return RatioCorpus(lambda sample: (brier(sample), 1), np.asarray, ("brier", "docs"))

    return Scorer(lambda sample: 1.0 - brier(sample) / 2, 0.75, {"score": "1 - brier / 2"}, corpus, chosen=_chosen)


def brier(sample: Sample) -> float:
    """Raises ValueError where there isn't exactly one right choice, or no choice has a chance."""
    task = sample.task
    if len(task.gold) != 1:
        raise ValueError(f"brier needs exactly one right choice, and the task has {len(task.gold)}")
    found = shares(log_likelihoods(sample.said[: len(task.choices)]))
    if found is None:
        raise ValueError("no choice has a probability above 0")
    return min(math.fsum((share - (place in task.gold)) ** 2 for place, share in enumerate(found)), 2.0)


def _chosen(sample: Sample) -> int:
    return largest(log_likelihoods(sample.said[: len(sample.task.choices)]))
