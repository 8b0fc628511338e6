"""What metrics of likelihoods share: the log-likelihoods as they are read from answers, and what is made of them.

Log-likelihoods are in nats, at most 0, and -inf for what has no chance at all (JSON has no such number: it is null in a
prediction). They are never NaN: `inferd` keeps none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shared.records import Generation


def log_likelihoods(said: Sequence[Generation]) -> list[float]:
    """Of each answer. A sum of rounded numbers can come out a little above 0, which no probability's logarithm is."""
    return [-math.inf if one.loglikelihood is None else min(one.loglikelihood, 0.0) for one in said]


def largest(values: Sequence[float]) -> int:
    """Its position; of equal ones the first, as in lm-evaluation-harness (numpy.argmax)."""
    return max(range(len(values)), key=values.__getitem__)


def shares(values: Sequence[float]) -> list[float] | None:
    """Of each in the probability of all: softmax, exp(x_i) / sum of exp(x_j). None where none has a chance."""
    top = max(values)
    if math.isinf(top):
        return None
    weights = [math.exp(value - top) for value in values]
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]
