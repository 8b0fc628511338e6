"""Calibration: how well a model's confidences fit how often it is right. Only sums over bins are kept, so memory is
bounded.

The bins are of equal width over [0, 1]: [0, 1/B), [1/B, 2/B), ... and [(B-1)/B, 1], the last one closed. A confidence
is compared with the edges k/B as floats, the same numbers that the table shows, and never multiplied: 0.29 belongs to
[0.29, 0.3) although 0.29 * 100 is 28.999999999999996.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Self

from msgspec import Struct


class CalibrationSums(Struct, frozen=True, kw_only=True):
    """A buffer as it is kept in a pair's results; what it holds is enough to merge pairs later.

    {"n": [0, 2], "confidence": [0.0, 1.5], "correct": [0, 1], "squared_error": 0.6, "n_missing": 3}

    n, confidence, correct: a bin's count, its sum of confidences, its count of correct ones. squared_error: the sum of
    (confidence - correct)^2. n_missing: confidences that were None, not finite, or outside [0, 1].
    """

    n: tuple[int, ...]
    confidence: tuple[float, ...]
    correct: tuple[int, ...]
    squared_error: float
    n_missing: int


class ReliabilityRow(Struct, frozen=True):
    """A bin: its edges, how many confidences fell in, their mean, and the share that was correct (None of none)."""

    lo: float
    hi: float
    n: int
    mean_confidence: float | None
    accuracy: float | None


class Calibration(Struct, frozen=True, kw_only=True):
    """What a buffer says. n counts the confidences that were used; with n = 0 every figure is None.

    ece = sum over bins of n_b/N |accuracy_b - mean confidence_b|; mce: the largest such gap of a bin that holds any
    (Naeini et al. 2015). brier = mean of (confidence - correct)^2 (Brier 1950).
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


class CalibrationBuffer:
    """Sums over the bins, fed one answer at a time."""

    def __init__(self, bins: int = 10) -> None:
        if bins < 1:
            raise ValueError(f"calibration needs at least one bin, not {bins}")
        self._edges = [k / bins for k in range(bins + 1)]
        self._n = [0] * bins
        self._confidence = [0.0] * bins
        self._correct = [0] * bins
        self._squared_error = 0.0
        self._n_missing = 0

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

    def to_record(self) -> CalibrationSums:
        return CalibrationSums(
            n=tuple(self._n),
            confidence=tuple(self._confidence),
            correct=tuple(self._correct),
            squared_error=self._squared_error,
            n_missing=self._n_missing,
        )

    @classmethod
    def from_record(cls, sums: CalibrationSums) -> Self:
        """The buffer that wrote the record, bit for bit. Raises ValueError for sums that no buffer can hold."""
        if not len(sums.n) == len(sums.confidence) == len(sums.correct):
            raise ValueError("calibration sums: n, confidence and correct differ in length")
        if not all(0 <= c <= n and 0 <= p <= n for n, p, c in zip(sums.n, sums.confidence, sums.correct, strict=True)):
            raise ValueError("calibration sums: a bin holds more than its count")
        buffer = cls(len(sums.n))
        buffer._n = list(sums.n)
        buffer._confidence = list(sums.confidence)
        buffer._correct = list(sums.correct)
        buffer._squared_error = sums.squared_error
        buffer._n_missing = sums.n_missing
        return buffer

    def result(self) -> Calibration:
        total = sum(self._n)
        table = tuple(self._row(index) for index in range(self.bins))
        # A bin weighs n_b/N, so n_b/N |correct_b/n_b - sum of confidences_b/n_b| is the plain difference over N.
        differences = [abs(c - p) for c, p in zip(self._correct, self._confidence, strict=True)]
        gaps = [difference / n for difference, n in zip(differences, self._n, strict=True) if n]
        return Calibration(
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

    def _row(self, index: int) -> ReliabilityRow:
        n = self._n[index]
        return ReliabilityRow(
            lo=self._edges[index],
            hi=self._edges[index + 1],
            n=n,
            mean_confidence=self._confidence[index] / n if n else None,
            accuracy=self._correct[index] / n if n else None,
        )
