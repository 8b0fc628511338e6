"""The value of a dataset that is a function of one ratio of sums over its docs: perplexities, the mean Brier score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evald.metrics.scorer import Sample
from evald.stats.draws import Floats


class RatioCorpus:
    """row: of a sample, (what is summed up, in how many units); the units are the same for each repeat of a doc. value:
    of ratios, lower is better. names: of the two sums. last: what the doc added last added to them.

    A doc adds the mean over its repeats, so that it weighs the same however many were answered. One with -inf makes the
    value infinite, which has no error and is null in JSON; `impossible` counts those, and they are not in the sums.
    """

    def __init__(
        self, row: Callable[[Sample], tuple[float, float]], value: Callable[[Floats], Floats], names: tuple[str, str]
    ) -> None:
        self._row = row
        self._value = value
        self._names = names
        self.last: tuple[float, float] = (0.0, 0.0)
        self._sums = (0.0, 0.0)
        self._impossible = 0

    def add_doc(self, samples: Sequence[Sample]) -> None:
        """samples: one a repeat that was answered, at least one."""
        rows = [self._row(sample) for sample in samples]
        total, units = math.fsum(total for total, _ in rows) / len(rows), rows[0][1]
        if math.isinf(total):
            self._impossible += 1
            total = 0.0
        self.last = (total, units)
        self._sums = (self._sums[0] + total, self._sums[1] + units)

    def values(self, sums: Floats) -> Floats:
        """Of resamples. Those without the docs that make the value infinite would tell of another one: all are NaN."""
        if self._finite() is None:
            return np.full(sums.shape[:-1], np.nan)
        return self._value(sums[..., 0] / sums[..., 1])

    def result(self) -> dict[str, Any]:
        """value: None where it is infinite, or beyond what a float holds."""
        return {
            "value": self._finite(),
            "lower_is_better": True,
            "percent": False,
            **dict(zip(self._names, self._sums, strict=True)),
            "impossible": self._impossible,
        }

    def _finite(self) -> float | None:
        if self._impossible or not self._sums[1]:
            return None
        value = float(self._value(np.asarray(self._sums[0] / self._sums[1])))
        return value if math.isfinite(value) else None
