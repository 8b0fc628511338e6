"""Two models over the docs that both have. Pairing takes the docs' own difficulty out of the comparison.

A `Comparison` takes the scores of a dataset's models chunk by chunk, all models beside each other, and keeps sums over
units (a cluster of docs, or a doc) alone: past `MAX_UNITS` of them units share sums, as if at random, which leaves
every test valid. The resamples are the same for all models (`draws`), so one pass over them serves all pairs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from evald.stats.draws import Floats, Ints, poisson_weights, pooled, signs, unit_keys

DRAWS = 2000
MAX_UNITS = 4096
_STEP = 256  # draws at once; a multiple of 64
QUANTUM = 2.0**-26
"""Scores are rounded to it for resampling: sums over units are then whole multiples of it, exact in any order, so that
counts of draws are the same on every machine."""


class PairSums(Struct, frozen=True):
    """Of every pair of models over one dataset; arrays of shape (pairs,) but for the draws.

    n: docs that both have. mean: of first minus second; 0 of none. variance: of that mean, NaN where it can't be told
    (n < 2). units: independent items of the difference; differing: those of them that aren't 0. only_first,
    only_second: docs that one alone has right; only where both models' scores are all 0 or 1 (`binary`). boot: shape
    (draws, pairs), the bootstrap means less the mean. flips: the means under random exchange of the two models'
    names. seen: the mean of the rounded scores, which `boot` and `flips` are compared with; within `QUANTUM` of `mean`.
    exchanged: the variance of `flips` over all exchanges there are.
    """

    n: Ints
    mean: Floats
    variance: Floats
    units: Ints
    differing: Ints
    binary: NDArray[np.bool_]
    clustered: bool
    only_first: Ints
    only_second: Ints
    boot: Floats
    flips: Floats
    seen: Floats
    exchanged: Floats

    def among(self, chosen: Sequence[int], models: int) -> PairSums:
        """Of the pairs of the chosen models alone. models: how many there are."""
        if len(chosen) == models:
            return self
        first, second = couples(models)
        kept = np.isin(first, chosen) & np.isin(second, chosen)
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return replace(self, **{name: one[..., kept] for name, one in fields if isinstance(one, np.ndarray)})


def couples(models: int) -> tuple[Ints, Ints]:
    """The positions of first and second of each pair: (0, 1), (0, 2), ... (1, 2), ..."""
    first, second = np.triu_indices(models, 1)
    return first, second


class Comparison:
    """The sums of one dataset. name: of the dataset; the draws depend on it. models: how many."""

    def __init__(self, name: str, models: int) -> None:
        self._name = name
        self._first, self._second = couples(models)
        pairs = len(self._first)
        self._n = np.zeros(pairs, np.int64)
        self._total = np.zeros(pairs)
        self._squares = np.zeros(pairs)
        self._wins = np.zeros(pairs, np.int64)
        self._losses = np.zeros(pairs, np.int64)
        self._graded = np.zeros(models, bool)
        self._units: dict[str, int] = {}  # of clusters, by name
        self._seen = 0  # units so far
        self._sums = np.zeros((0, pairs))
        self._sizes = np.zeros((0, pairs))
        self._whole = True  # every model has a score for every doc so far
        self._of_models = np.zeros((0, models))

    def add(self, clusters: Sequence[str], scores: Floats) -> None:
        """clusters: of each doc, "" where it is its own. scores: shape (docs, models); NaN where there is none."""
        numbers = pooled(self._numbers(clusters), MAX_UNITS)
        self._graded |= np.any(~np.isnan(scores) & (scores != 0.0) & (scores != 1.0), axis=0)
        self._whole = self._whole and not np.isnan(scores).any()
        off = scores[:, self._first] - scores[:, self._second]
        both = ~np.isnan(off)
        off = np.where(both, off, 0.0)
        self._n += both.sum(axis=0)
        self._total += off.sum(axis=0)
        self._squares += np.square(off).sum(axis=0)
        self._wins += (off > 0).sum(axis=0)
        self._losses += (off < 0).sum(axis=0)
        rounded = np.rint(np.nan_to_num(scores) / QUANTUM) * QUANTUM
        self._sums, self._sizes, self._of_models = _summed(
            numbers,
            (self._sums, np.where(both, rounded[:, self._first] - rounded[:, self._second], 0.0)),
            (self._sizes, both.astype(np.float64)),
            (self._of_models, rounded),
        )

    def result(self, draws: int = DRAWS) -> PairSums:
        n = np.maximum(self._n, 1)
        mean = np.where(self._n > 0, self._total / n, 0.0)
        units = (self._sizes > 0).sum(axis=0) if self._units else self._n.copy()
        boot, flips = self._draws(draws, n)
        return PairSums(
            n=self._n,
            mean=mean,
            variance=self._variance(n, units),
            units=units,
            # Rounded scores whose differences cancel may leave a quantum a doc.
            differing=(np.abs(self._sums) > QUANTUM * self._sizes).sum(axis=0),
            binary=~(self._graded[self._first] | self._graded[self._second]),
            clustered=bool(self._units),
            only_first=self._wins,
            only_second=self._losses,
            boot=boot,
            flips=flips,
            seen=self._sums.sum(axis=0) / n,
            exchanged=np.square(self._sums).sum(axis=0) / np.square(n),
        )

    def _numbers(self, clusters: Sequence[str]) -> Ints:
        numbers = np.empty(len(clusters), np.int64)
        for position, cluster in enumerate(clusters):
            number = self._units.get(cluster) if cluster else None
            if number is None and cluster and len(self._units) == MAX_UNITS:
                number = zlib.crc32(cluster.encode("utf-8", "surrogatepass")) % MAX_UNITS
            if number is None:
                number = self._seen
                self._seen += 1
                if cluster:
                    self._units[cluster] = number
            numbers[position] = number
        return numbers

    def _variance(self, n: Ints, units: Ints) -> Floats:
        """What rounding leaves of equal differences is no variance."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if self._units:
                off = self._sums - self._sizes * (self._sums.sum(axis=0) / n)
                variance = units / (units - 1) * np.square(off).sum(axis=0) / np.square(n)
                none = (np.abs(off) <= 2 * QUANTUM * self._sizes).all(axis=0)
            else:
                squares = self._squares - np.square(self._total) / n
                variance = squares / (n - 1) / n
                none = squares <= 1e-12 * np.maximum(self._squares, 1e-300)
            variance = np.where(none, 0.0, variance)
        return np.where(units > 1, np.maximum(variance, 0.0), np.nan)

    def _draws(self, draws: int, n: Ints) -> tuple[Floats, Floats]:
        """Where all models have all docs, each model is drawn once instead of each pair."""
        keys = unit_keys(self._name, np.arange(len(self._sums), dtype=np.int64))
        sums, sizes = (self._of_models, self._sizes[:, :1]) if self._whole else (self._sums, self._sizes)
        mean = self._sums.sum(axis=0) / n
        boot, flips = np.zeros((draws, len(n))), np.zeros((draws, len(n)))
        for start in range(0, draws, _STEP):
            rows = slice(start, min(start + _STEP, draws))
            weights = poisson_weights(keys, rows.stop - start, start)
            drawn = weights @ sizes
            boot[rows] = np.where(drawn > 0, self._pairwise(weights @ sums) / np.maximum(drawn, 1.0) - mean, 0.0)
            flips[rows] = self._pairwise(signs(keys, rows.stop - start, start) @ sums) / n
        return boot, flips

    def _pairwise(self, drawn: Floats) -> Floats:
        return drawn[:, self._first] - drawn[:, self._second] if self._whole else drawn


def _summed(numbers: Ints, *pairs: tuple[Floats, Floats]) -> tuple[Floats, ...]:
    """Each (sums by unit, rows) with the rows added to the sums of their units, of which there may be new ones."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    results = []
    for sums, rows in pairs:
        needed = int(numbers.max(initial=-1)) + 1
        if needed > len(sums):
            room = min(max(needed, 2 * len(sums)), MAX_UNITS)
            sums = np.pad(sums, ((0, room - len(sums)), (0, 0)))
        if len(found):
            sums[found] += np.add.reduceat(rows[order], starts, axis=0)
        results.append(sums)
    return tuple(results)
