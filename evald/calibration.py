"""Calibration: how well a model's confidences fit how often it is right. Only sums are kept, so memory is bounded: over
bins of equal width, and over points.

The bins of equal width are [0, 1/B), [1/B, 2/B), ... and [(B-1)/B, 1], the last one closed. A confidence is compared
with the edges k/B as floats, the same numbers that the table shows, and never multiplied: 0.29 belongs to [0.29, 0.3)
although 0.29 * 100 is 28.999999999999996.

Points are the confidences themselves while there are no more than `MAX_POINTS` different ones; then what needs their
order (bins of equal mass, AUROC, selective accuracy) is exact. Beyond that they are cells, 128 for each halving of the
distance to the nearer end of [0, 1], and what is within one cell counts as equal; how much that can shift the AUROC
stands beside it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

MAX_POINTS = 1024
COVERAGES = (0.5, 0.8, 0.9)
_CELLS = 128  # a halving
_SMALLEST = 2.0**-24  # nearer to an end than this is one cell


class CalibrationSums(Struct, frozen=True, kw_only=True):
    """A buffer as it is kept in a pair's results; what it holds is enough to merge pairs later.

    {"n": [0, 2], "confidence": [0.0, 1.5], "correct": [0, 1], "squared_error": 0.6, "n_missing": 3,
    "points": [[0.7, 1, 0, 0.7], [0.8, 1, 1, 0.8]], "coarse": false}

    n, confidence, correct: a bin's count, its sum of confidences, its count of correct ones. squared_error: the sum of
    (confidence - correct)^2. n_missing: confidences that were None, not finite, or outside [0, 1]. points: (where, n,
    correct, sum of confidences), ascending; where: the confidence, or with `coarse` the lower edge of its cell.
    """

    n: tuple[int, ...]
    confidence: tuple[float, ...]
    correct: tuple[int, ...]
    squared_error: float
    n_missing: int
    points: tuple[tuple[float, int, int, float], ...] = ()
    coarse: bool = False


class ReliabilityRow(Struct, frozen=True):
    """A bin: its edges, how many confidences fell in, their mean, and the share that was correct (None of none)."""

    lo: float
    hi: float
    n: int
    mean_confidence: float | None
    accuracy: float | None


class Selective(Struct, frozen=True):
    """The accuracy over the answers of the highest confidence, `coverage` of all; those beyond `confidence` are left
    out, those just at it count with the share that is needed.
    """

    coverage: float
    n: int
    confidence: float
    accuracy: float


class Calibration(Struct, frozen=True, kw_only=True):
    """What a buffer says. n counts the confidences that were used; with n = 0 every figure is None.

    ece = sum over bins of n_b/N |accuracy_b - mean confidence_b|; mce: the largest such gap of a bin that holds any
    (Naeini et al. 2015). ece_mass: the same over as many bins of equal mass (Nguyen and O'Connor 2015); equal
    confidences stay in one bin. brier = mean of (confidence - correct)^2 (Brier 1950) = reliability - resolution +
    uncertainty + within_bins (Murphy 1973; the last is what bins hide: Stephenson et al. 2008). auroc: the chance that
    a right answer has a higher confidence than a wrong one, equal ones by half (Hanley and McNeil 1982); None where all
    are right, or all wrong. It is off by at most auroc_error. selective: accuracy at given coverages (Geifman and
    El-Yaniv 2017).
    """

    n: int
    n_missing: int
    bins: int
    populated_bins: int
    ece: float | None
    mce: float | None
    brier: float | None
    mean_confidence: float | None
    accuracy: float | None
    table: tuple[ReliabilityRow, ...]
    ece_mass: float | None = None
    reliability: float | None = None
    resolution: float | None = None
    uncertainty: float | None = None
    within_bins: float | None = None
    auroc: float | None = None
    auroc_error: float = 0.0
    selective: tuple[Selective, ...] = ()
    mass_table: tuple[ReliabilityRow, ...] = ()


class _Point:
    __slots__ = ("confidence", "correct", "n")

    def __init__(self, n: int = 0, correct: int = 0, confidence: float = 0.0) -> None:
        self.n = n
        self.correct = correct
        self.confidence = confidence

    def add(self, n: int, correct: int, confidence: float) -> None:
        self.n += n
        self.correct += correct
        self.confidence += confidence


class CalibrationBuffer:
    """Sums over bins and points, fed one answer at a time."""

    def __init__(self, bins: int = 10) -> None:
        if bins < 1:
            raise ValueError(f"calibration needs at least one bin, not {bins}")
        self._edges = [k / bins for k in range(bins + 1)]
        self._n = [0] * bins
        self._confidence = [0.0] * bins
        self._correct = [0] * bins
        self._squared_error = 0.0
        self._n_missing = 0
        self._points: dict[float, _Point] = {}
        self._coarse = False

    @property
    def bins(self) -> int:
        return len(self._n)

    def add(self, confidence: float | None, correct: bool) -> None:
        """Count one answer. A confidence that is None, not finite or outside [0, 1] is left out, and counted as
        missing."""
        if confidence is None or not 0.0 <= confidence <= 1.0:  # NaN fails any comparison
            self._n_missing += 1
            return
        index = min(bisect_right(self._edges, confidence), self.bins) - 1
        self._n[index] += 1
        self._confidence[index] += confidence
        self._correct[index] += correct
        self._squared_error += (confidence - correct) ** 2
        self._add_point(confidence, 1, int(correct), confidence)

    def merge(self, other: CalibrationBuffer) -> None:
        """Add the other's sums to these. Raises ValueError when the bins differ.

        The result is as if all answers had been added here (to the last bits of the floats, which know an order).
        """
        if other.bins != self.bins:
            raise ValueError(f"can't merge {other.bins} bins into {self.bins}")
        for index in range(self.bins):
            self._n[index] += other._n[index]
            self._confidence[index] += other._confidence[index]
            self._correct[index] += other._correct[index]
        self._squared_error += other._squared_error
        self._n_missing += other._n_missing
        if other._coarse:
            self._coarsen()
        for where, point in other._points.items():
            self._add_point(where, point.n, point.correct, point.confidence)

    def to_record(self) -> CalibrationSums:
        return CalibrationSums(
            n=tuple(self._n),
            confidence=tuple(self._confidence),
            correct=tuple(self._correct),
            squared_error=self._squared_error,
            n_missing=self._n_missing,
            points=tuple((where, point.n, point.correct, point.confidence) for where, point in self._ascending()),
            coarse=self._coarse,
        )

    @classmethod
    def from_record(cls, sums: CalibrationSums) -> Self:
        """The buffer that wrote the record, bit for bit. Raises ValueError for sums that no buffer can hold."""
        if not len(sums.n) == len(sums.confidence) == len(sums.correct):
            raise ValueError("calibration sums: n, confidence and correct differ in length")
        if not all(0 <= c <= n and 0 <= p <= n for n, p, c in zip(sums.n, sums.confidence, sums.correct, strict=True)):
            raise ValueError("calibration sums: a bin holds more than its count")
        if not all(0 <= where <= 1 and 0 <= correct <= n for where, n, correct, _ in sums.points):
            raise ValueError("calibration sums: a point is none")
        if (points := sum(n for _, n, _, _ in sums.points)) != sum(sums.n):
            raise ValueError(f"calibration sums: {points} at points, {sum(sums.n)} in bins")
        buffer = cls(len(sums.n))
        buffer._n = list(sums.n)
        buffer._confidence = list(sums.confidence)
        buffer._correct = list(sums.correct)
        buffer._squared_error = sums.squared_error
        buffer._n_missing = sums.n_missing
        buffer._points = {where: _Point(n, correct, confidence) for where, n, correct, confidence in sums.points}
        buffer._coarse = sums.coarse
        return buffer

    def result(self) -> Calibration:
        total = sum(self._n)
        table = tuple(self._row(index) for index in range(self.bins))
        # A bin weighs n_b/N, so n_b/N |correct_b/n_b - sum of confidences_b/n_b| is the plain difference over N.
        differences = [abs(c - p) for c, p in zip(self._correct, self._confidence, strict=True)]
        gaps = [difference / n for difference, n in zip(differences, self._n, strict=True) if n]
        plain = Calibration(
            n=total,
            n_missing=self._n_missing,
            bins=self.bins,
            populated_bins=len(gaps),
            ece=math.fsum(differences) / total if total else None,
            mce=max(gaps, default=None),
            brier=self._squared_error / total if total else None,
            mean_confidence=math.fsum(self._confidence) / total if total else None,
            accuracy=sum(self._correct) / total if total else None,
            table=table,
        )
        return self._ordered(plain) if total else plain

    def _ordered(self, plain: Calibration) -> Calibration:
        """With what needs the parts, or the order of the confidences."""
        points = list(self._ascending())
        mass = tuple(_of_equal_mass(points, self.bins))
        parts = [(row.n, row.mean_confidence or 0.0, row.accuracy or 0.0) for row in plain.table if row.n]
        whole, n = plain.accuracy or 0.0, plain.n
        reliability = math.fsum(count * (confidence - accuracy) ** 2 for count, confidence, accuracy in parts) / n
        resolution = math.fsum(count * (accuracy - whole) ** 2 for count, _, accuracy in parts) / n
        uncertainty = whole * (1 - whole)
        auroc, error = _auroc([point for _, point in points])
        return replace(
            plain,
            ece_mass=math.fsum(row.n * abs((row.accuracy or 0.0) - (row.mean_confidence or 0.0)) for row in mass) / n,
            reliability=reliability,
            resolution=resolution,
            uncertainty=uncertainty,
            within_bins=(plain.brier or 0.0) - (reliability - resolution + uncertainty),
            auroc=auroc,
            auroc_error=error if self._coarse else 0.0,
            selective=tuple(_selective(points, coverage, n) for coverage in COVERAGES),
            mass_table=mass,
        )

    def _row(self, index: int) -> ReliabilityRow:
        n = self._n[index]
        return ReliabilityRow(
            lo=self._edges[index],
            hi=self._edges[index + 1],
            n=n,
            mean_confidence=self._confidence[index] / n if n else None,
            accuracy=self._correct[index] / n if n else None,
        )

    def _ascending(self) -> Iterator[tuple[float, _Point]]:
        return iter(sorted(self._points.items()))

    def _add_point(self, where: float, n: int, correct: int, confidence: float) -> None:
        where = _cell(where) if self._coarse else where + 0.0  # -0.0 is 0.0
        point = self._points.get(where)
        if point is None:
            point = self._points[where] = _Point()
        point.add(n, correct, confidence)
        if not self._coarse and len(self._points) > MAX_POINTS:
            self._coarsen()

    def _coarsen(self) -> None:
        if self._coarse:
            return
        self._coarse = True
        fine, self._points = self._points, {}
        for where, point in fine.items():
            self._add_point(where, point.n, point.correct, point.confidence)


def _cell(confidence: float) -> float:
    """The lower edge of the cell that the confidence is in; an edge is its own. All edges are exact as floats."""
    if confidence < 0.5:
        if confidence < _SMALLEST:
            return 0.0
        share, power = math.frexp(confidence)  # share in [0.5, 1)
        return math.ldexp(math.floor(share * 2 * _CELLS) / (2 * _CELLS), power)
    far = 1.0 - confidence
    if far <= _SMALLEST:
        return 1.0 - _SMALLEST
    share, power = math.frexp(far)
    return 1.0 - math.ldexp(math.ceil(share * 2 * _CELLS) / (2 * _CELLS), power)


def _of_equal_mass(points: list[tuple[float, _Point]], bins: int) -> Iterator[ReliabilityRow]:
    """Bins that each end as soon as they and those before hold their share of all answers."""
    total = sum(point.n for _, point in points)
    whole, before, lo = _Point(), 0, points[0][0]
    for index, (where, point) in enumerate(points):
        whole.add(point.n, point.correct, point.confidence)
        held = before + whole.n
        if held * bins >= total * (before * bins // total + 1):
            yield ReliabilityRow(lo, where, whole.n, whole.confidence / whole.n, whole.correct / whole.n)
            whole, before = _Point(), held
            lo = points[index + 1][0] if index + 1 < len(points) else where


def _auroc(points: list[_Point]) -> tuple[float | None, float]:
    """(the area, by how much it could be off if what stands at one point weren't equal)."""
    right = sum(point.correct for point in points)
    wrong = sum(point.n for point in points) - right
    if not right or not wrong:
        return None, 0.0
    twice_won, tied, below = 0, 0, 0
    for point in points:
        missed = point.n - point.correct
        twice_won += point.correct * (2 * below + missed)
        tied += point.correct * missed
        below += missed
    return twice_won / (2 * right * wrong), tied / (2 * right * wrong)


def _selective(points: list[tuple[float, _Point]], coverage: float, total: int) -> Selective:
    wanted = max(1, math.ceil(coverage * total - 1e-9))
    left, correct, lowest = wanted, 0.0, 1.0
    for where, point in reversed(points):
        if not left:
            break
        taken = min(left, point.n)
        correct += point.correct * taken / point.n
        left -= taken
        lowest = where
    return Selective(coverage, wanted, lowest, correct / wanted)
