"""Pairs of models over several datasets: a pair's difference is the mean of its differences on the datasets that both
have, each of the same weight. Datasets come one after the other and only their sums are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from evald.stats.means import NO_SPREAD, Interval, around
from evald.stats.paired import DRAWS, QUANTUM, PairSums, couples
from evald.stats.significance import Z, detectable, mcnemar, normal_tail

_TIE = 4 * QUANTUM
"""Draws that are less extreme by no more than this are ties. Rounding moves the difference of two scores by up to a
quantum, so that of equally extreme means one, taken for what was seen, may lie two quanta above another."""


class PairFigures(Struct, frozen=True, kw_only=True):
    """n: docs that both have, over so many datasets; with none every figure is None. The others as in
    `evald.comparisons.PairedRow`.
    """

    n: int
    datasets: int
    mean: float | None = None
    stderr: float | None = None
    interval: Interval | None = None
    p_bootstrap: float | None = None
    p_permutation: float | None = None
    p_mcnemar: float | None = None
    only_first: int | None = None
    only_second: int | None = None
    p: float | None = None
    detectable: float | None = None
    bounds: Interval | None = None


class Overall:
    """models: how many there are over all datasets. Arrays are of shape (pairs,), draws of shape (draws, pairs)."""

    def __init__(self, models: int, draws: int = DRAWS) -> None:
        self._first, self._second = couples(models)
        pairs = len(self._first)
        self._place = np.zeros((models, models), np.int64)
        self._place[self._first, self._second] = np.arange(pairs)
        self._n = np.zeros(pairs, np.int64)
        self._datasets = np.zeros(pairs, np.int64)
        self._mean = np.zeros(pairs)
        self._seen = np.zeros(pairs)  # the same of rounded scores
        self._exchanged = np.zeros(pairs)
        self._variance = np.zeros(pairs)
        self._freedom = np.zeros(pairs)  # the sum of variance^2 / degrees of freedom
        # Of datasets whose differences are all equal: the variance that their intervals stand for, and the squares of
        # how far these reach down and up.
        self._implied = np.zeros(pairs)
        self._flat = np.zeros((2, pairs))
        self._differing = np.zeros(pairs, np.int64)
        self._simple = np.ones(pairs, bool)  # right or wrong, and no clusters
        self._binary = np.ones(pairs, bool)
        self._wins = np.zeros(pairs, np.int64)
        self._losses = np.zeros(pairs, np.int64)
        self._bounds = np.zeros((2, pairs))
        self._boot = np.zeros((draws, pairs))
        self._flips = np.zeros((draws, pairs))

    def add(self, models: Sequence[int], sums: PairSums, bounds: Sequence[Interval | None]) -> None:
        """One dataset. models: the positions of the models that have it, ascending, as they stand in `sums`. bounds: of
        their means, if what is missing were wrong, and if it were right.
        """
        ones, twos = couples(len(models))
        positions = np.asarray(models, np.int64)
        has = sums.n > 0
        at = self._place[positions[ones], positions[twos]][has]
        self._n[at] += sums.n[has]
        self._datasets[at] += 1
        mean, variance, units = sums.mean[has], sums.variance[has], sums.units[has]
        self._mean[at] += mean
        self._seen[at] += sums.seen[has]
        self._exchanged[at] += sums.exchanged[has]
        self._variance[at] += variance
        self._freedom[at] += np.square(variance) / np.maximum(units - 1, 1)
        flat = variance <= NO_SPREAD**2
        different = np.where(flat, Z * Z / (units + Z * Z), 0.0)
        self._implied[at] += np.square(different / Z)  # the interval is 2 * different wide
        self._flat[:, at] += np.square(different * np.stack([mean + 1.0, 1.0 - mean]))
        self._differing[at] += sums.differing[has]
        self._binary[at] &= sums.binary[has]
        self._simple[at] &= sums.binary[has] & (not sums.clustered)
        self._wins[at] += sums.only_first[has]
        self._losses[at] += sums.only_second[has]
        low = np.array([bound.low if bound is not None else np.nan for bound in bounds])
        high = np.array([bound.high if bound is not None else np.nan for bound in bounds])
        self._bounds[:, at] += np.stack([low[ones] - high[twos], high[ones] - low[twos]])[:, has]
        if len(at) == len(self._n):  # every pair, in the same order: the usual case, and far quicker
            self._boot += sums.boot
            self._flips += sums.flips
        else:
            self._boot[:, at] += sums.boot[:, has]
            self._flips[:, at] += sums.flips[:, has]

    def results(self) -> Iterator[tuple[int, int, PairFigures]]:
        """(first, second, what the datasets say of the two), for every two models."""
        weight = np.maximum(self._datasets, 1)
        mean = self._mean / weight
        tie = np.abs(self._seen / weight) - _TIE
        boot = (np.abs(self._boot / weight) >= tie).sum(axis=0)
        flipped = (np.abs(self._flips / weight) >= tie).sum(axis=0)
        for at, (first, second) in enumerate(zip(self._first.tolist(), self._second.tolist(), strict=True)):
            yield first, second, self._figures(at, float(mean[at]), int(boot[at]), int(flipped[at]))

    def _figures(self, at: int, mean: float, boot: int, flipped: int) -> PairFigures:
        datasets, n = int(self._datasets[at]), int(self._n[at])
        if not datasets:
            return PairFigures(n=0, datasets=0)
        variance = float(self._variance[at])
        known = math.isfinite(variance)
        squares = float(self._freedom[at])
        freedom = variance * variance / squares if squares else float(max(n - 1, 1))
        span = self._interval(at, mean, math.sqrt(variance) / datasets, freedom, datasets) if known else None
        if datasets > 1:
            variance += float(self._implied[at])
        stderr = math.sqrt(variance) / datasets if known else None
        draws = len(self._boot)
        # All sign patterns but those alike in every unit may be less extreme, no more.
        least = min(1.0, math.ldexp(1.0, 1 - min(int(self._differing[at]), 1000)))
        permutation = max((flipped + 1) / (draws + 1), least)
        wins, losses = int(self._wins[at]), int(self._losses[at])
        exact = mcnemar(wins, losses) if self._simple[at] else None
        low, high = (float(bound) / datasets for bound in self._bounds[:, at])
        wide = (span.high - span.low) / 2 / Z if span is not None else None
        return PairFigures(
            n=n,
            datasets=datasets,
            mean=mean,
            stderr=stderr,
            interval=span,
            p_bootstrap=max((boot + 1) / (draws + 1), least) if known else None,
            p_permutation=permutation,
            p_mcnemar=exact,
            only_first=wins if self._binary[at] else None,
            only_second=losses if self._binary[at] else None,
            p=exact
            if exact is not None and datasets == 1
            else _decides(permutation, flipped, float(self._seen[at]), float(self._exchanged[at]), least),
            detectable=detectable(stderr if stderr > NO_SPREAD else wide) if stderr is not None and wide else None,
            bounds=Interval(low, high) if math.isfinite(low) and math.isfinite(high) else None,
        )

    def _interval(self, at: int, mean: float, stderr: float, freedom: float, datasets: int) -> Interval:
        """stderr: without the datasets whose differences are all equal. See `means.weighted_mean`."""
        down, up = (math.sqrt(float(off)) / datasets for off in self._flat[:, at])
        return around(mean, stderr, freedom, down, up, floor=-1.0)


def _decides(permutation: float, flipped: int, seen: float, exchanged: float, least: float) -> float:
    """The p that decides. Where no draw was as extreme, they say only that p is small: then the normal distribution
    with the variance of all exchanges says how small, but never less than `least`, the share of sign patterns that are
    as extreme as all alike. (Student's t would say far less than there is where differences are few and alike.)
    """
    if flipped:
        return permutation
    return max(min(permutation, normal_tail(seen / math.sqrt(exchanged))), least)
