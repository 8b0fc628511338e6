"""Errors and comparisons of values that are no mean of scores: corpus BLEU, chrF, TER. What a segment adds to such a
value is a row of statistics (counts, lengths); the value is a function of their sums.

`CorpusBootstrap` keeps a value's resamples while segments pass by, in memory that doesn't grow with them. Since a
segment has the same weights for every model (`draws`), the resamples of two models are paired: their difference is
resampled by taking one from the other. Where the segments' statistics are all at hand, `paired_p_values` adds
approximate randomization.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from msgspec import Struct

from evald.stats.draws import Floats, Words, poisson_weights, signs, unit_keys
from evald.stats.means import NO_SPREAD, Interval

CORPUS_DRAWS = 1000
_CHUNK = 256
_STEP = 256

Statistics = Sequence[float]


@runtime_checkable
class Segmented(Protocol):
    """A corpus score whose value is a function of sums over segments. last: what the segment added last added."""

    last: Statistics

    def values(self, sums: Floats) -> Floats:
        """The values of sums of shape (n, k): shape (n,)."""


Value = Callable[[Floats], Floats]
"""Sums of statistics, shape (..., k), to values, shape (...)."""


class CorpusBootstrap:
    """Resamples of one value over a dataset. name: of the dataset; the same for models that are to be compared."""

    def __init__(self, name: str, corpus: Segmented, draws: int = CORPUS_DRAWS) -> None:
        self._name = name
        self._corpus = corpus
        self._draws = draws
        self._sums: Floats | None = None
        self._units: list[int] = []
        self._rows: list[Statistics] = []

    def add(self, doc_id: int, cluster: str) -> None:
        """The segment that the corpus score was given last. Those of a cluster, and the repeats of a doc, are drawn as
        a whole.
        """
        self._units.append(_cluster_number(cluster) if cluster else doc_id)
        self._rows.append(self._corpus.last)
        if len(self._rows) == _CHUNK:
            self._flush()

    def values(self) -> Floats:
        """Shape (draws,), in the order of the draws; NaN where one drew nothing. Empty where nothing was added."""
        self._flush()
        if self._sums is None:
            return np.zeros(0)
        values = np.full(self._draws, np.nan)
        drawn = self._sums[:, -1] > 0
        values[drawn] = self._corpus.values(self._sums[drawn, :-1])
        return values

    def _flush(self) -> None:
        if not self._rows:
            return
        rows = np.asarray([(*row, 1.0) for row in self._rows], np.float64)
        keys = unit_keys(self._name, np.asarray(self._units, np.int64))
        added = poisson_weights(keys, self._draws) @ rows
        self._sums = added if self._sums is None else self._sums + added
        self._units.clear()
        self._rows.clear()


def _cluster_number(name: str) -> int:
    """Beyond any doc_id, and the same wherever the name is met."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") >> 1 | 1 << 62


class Resampled(Struct, frozen=True):
    """stderr: the standard deviation of the resamples. interval: their 2.5 and 97.5 % points; None where they are all
    equal, which says nothing of what other segments would have shown.
    """

    stderr: float
    interval: Interval | None


def spread(values: Floats) -> Resampled | None:
    """What resamples say of a value, but for those that drew nothing (NaN); None of fewer than two."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    low, high = np.quantile(values, (0.025, 0.975))
    stderr = float(values.std(ddof=1))
    if stderr <= NO_SPREAD:
        return Resampled(0.0, None)
    return Resampled(stderr, Interval(float(low), float(high)))


class Compared(Struct, frozen=True):
    """The first model's value less the second's. p_bootstrap: two-sided, of the resamples about their own mean; at
    least 2^(1 - units), which is what a test by exchange of so many units could show. stderr and p_bootstrap are None
    where the resamples are all equal, but that p is 1 where the values are too.
    """

    difference: float
    stderr: float | None
    interval: Interval | None
    p_bootstrap: float | None


def compared(first: float, second: float, one: Floats, two: Floats, units: int) -> Compared | None:
    """Two models' values and their resamples, draw by draw over the same segments; None where `spread` is None. units:
    the docs, or clusters of docs, that were drawn.
    """
    if len(one) != len(two):
        return None
    off = one - two
    off = off[np.isfinite(off)]
    told = spread(off)
    if told is None:
        return None
    difference = first - second
    if units < 2 or told.interval is None:
        return Compared(difference, None, None, 1.0 if abs(difference) <= NO_SPREAD else None)
    extreme = np.abs(off - off.mean()) >= abs(difference) - NO_SPREAD
    p = max((int(extreme.sum()) + 1) / (len(off) + 1), math.ldexp(1.0, 1 - min(units, 1000)))
    return Compared(difference, told.stderr, told.interval, p)


class CorpusPValues(Struct, frozen=True):
    """p_bootstrap: as Koehn (2004) and Riezler and Maxwell (2005) have it, and Moses' and sacrebleu's tools:
    resampled |difference| less its mean, as often as it exceeds the one seen. Where models differ clearly that is a
    one-sided p, half of what a two-sided test gives. p_randomization: two-sided, by exchanging the two models' segments
    at random (Riezler and Maxwell 2005; Clark et al. 2011).
    """

    difference: float
    p_bootstrap: float
    p_randomization: float


def paired_p_values(
    name: str,
    first: Floats,
    others: Sequence[Floats],
    value: Value,
    bootstrap: int = 2000,
    randomizations: int = 10_000,
) -> list[CorpusPValues]:
    """One model against each of the others. first and each of others: statistics of shape (segments, k), in the same
    order of segments.
    """
    keys = unit_keys(name, np.arange(len(first), dtype=np.int64))
    whole = np.stack([first, *others])  # (models, segments, k)
    seen = value(whole.sum(axis=1))
    drawn = _resampled(keys, whole, value, bootstrap)
    # Exchanged where the sign is -1: then first's sum loses (first - other) of those segments, other's gains it.
    half = (whole[:1] - whole[1:]) / 2
    middle = (whole[:1].sum(axis=1) + whole[1:].sum(axis=1)) / 2
    exceeded = [0] * len(others)
    for start in range(0, randomizations, _STEP):
        turned = signs(keys, min(_STEP, randomizations - start), start)
        for index in range(len(others)):
            moved = turned @ half[index]
            off = value(middle[index] + moved) - value(middle[index] - moved)
            exceeded[index] += int((np.abs(off) >= abs(seen[0] - seen[1 + index]) - 1e-12).sum())
    found = []
    for index in range(len(others)):
        difference = float(seen[0] - seen[1 + index])
        off = np.abs(drawn[0] - drawn[1 + index])
        over = int((off - off.mean() > abs(difference)).sum())
        found.append(
            CorpusPValues(difference, (over + 1) / (bootstrap + 1), (exceeded[index] + 1) / (randomizations + 1))
        )
    return found


def _resampled(keys: Words, whole: Floats, value: Value, draws: int) -> Floats:
    """Shape (models, draws)."""
    models, segments, k = whole.shape
    flat = np.ascontiguousarray(whole.transpose(1, 0, 2)).reshape(segments, models * k)
    parts = []
    for start in range(0, draws, _STEP):
        weights = poisson_weights(keys, min(_STEP, draws - start), start)
        parts.append(value((weights @ flat).reshape(-1, models, k)))
    return np.concatenate(parts).T
