"""acc: the most likely choice is a right one; without choices, the target is just what the model would have said.

As `acc` in lm-evaluation-harness: the largest log-likelihood, whatever the choices' lengths; of equal ones the first.
"""

from __future__ import annotations

import math

from evald.metrics.scorer import Sample, Scorer
from shared.vocabulary import MetricParameters

VERSION = "1"


def make(_: MetricParameters) -> Scorer:
    return Scorer(_score, 1.0)


def _score(sample: Sample) -> float:
    """1.0 or 0.0."""
    if not sample.task.choices:
        return float(sample.said[0].is_greedy is True)
    values = [-math.inf if one.loglikelihood is None else one.loglikelihood for one in sample.said]
    best = max(range(len(sample.task.choices)), key=values.__getitem__)
    return float(best in sample.task.gold)
