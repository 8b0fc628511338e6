"""What scores say of a model, and how sure that is. Pure; never NaN or infinite: what can't be told is None.

Intervals are of 95 %. Means have the normal one (1.96 standard errors): Student's t would need its quantiles, and
differs by less than 3 % from 30 items on; proportions have Wilson's, which is right at small n too. Where all n
scores are equal, the sample's standard error is 0 and says nothing: there the interval allows for the largest share
of different items that would still leave none in a sample of n, by Wilson's bound on 0 of n. So 0 of 25 is less sure
than 0 of 5000, graded scores or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

Z = 1.959963984540054
"""The 97.5 % point of the normal distribution."""


class Interval(Struct, frozen=True):
    low: float
    high: float


class Estimate(Struct, frozen=True):
    """n: how many items it rests on. mean: None of none. stderr: standard error of that mean, None where it can't be
    told."""

    n: int
    mean: float | None
    stderr: float | None


class Difference(Struct, frozen=True):
    """The first model's score minus the second's, over the n items that both have. interval: within [-1, 1]."""

    n: int
    mean: float | None
    stderr: float | None
    interval: Interval | None


class Moments:
    """Mean and spread of a stream of scores, by Welford's update; mergeable (Chan et al. 1983)."""

    def __init__(self) -> None:
        self.n = 0
        self.total = 0.0  # apart from the running mean: sums of 0 and 1 stay exact
        self._mean = 0.0
        self._squares = 0.0  # sum of (score - mean)^2

    def add(self, score: float) -> None:
        """Raises ValueError when the score isn't finite: that is a defect of the metric, not a number to average."""
        if not math.isfinite(score):
            raise ValueError(f"a score must be finite, not {score}")
        self.n += 1
        self.total += score
        delta = score - self._mean
        self._mean += delta / self.n
        self._squares += delta * (score - self._mean)

    def merge(self, other: Moments) -> None:
        if not other.n:
            return
        delta = other._mean - self._mean
        n = self.n + other.n
        self._squares += other._squares + delta * delta * self.n * other.n / n
        self._mean += delta * other.n / n
        self.total += other.total
        self.n = n

    def estimate(self) -> Estimate:
        """stderr = sd / sqrt(n) with sd over n - 1; for scores of 0 and 1 that is sqrt(p (1 - p) / (n - 1))."""
        mean = _finite(self.total / self.n) if self.n else None
        stderr = _finite(math.sqrt(self._squares / (self.n - 1) / self.n)) if self.n > 1 else None
        return Estimate(self.n, mean, stderr)


def mean_se(scores: Iterable[float]) -> Estimate:
    """Mean and standard error of the scores, which are read once. Raises ValueError when one isn't finite."""
    moments = Moments()
    for score in scores:
        moments.add(score)
    return moments.estimate()


def wilson(successes: int, n: int) -> Interval | None:
    """Wilson's score interval for a proportion (Wilson 1927); None for n = 0."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no proportion")
    if not n:
        return None
    p = successes / n
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    # At the ends the formula gives exactly 0 and 1, its floats don't.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(low, high)


def interval(estimate: Estimate) -> Interval | None:
    """The interval of a mean of graded scores in [0, 1]; None when it can't be told (n < 2)."""
    return _interval(estimate, floor=0.0)


def bounds(total: float, n_scored: int, n_total: int) -> Interval | None:
    """The mean over all n_total items if those that are missing were all wrong, and if they were all right.

    total: the sum of the n_scored scores, each in [0, 1]. None when there are no items.
    """
    if not 0 <= n_scored <= n_total:
        raise ValueError(f"{n_scored} scored of {n_total}")
    if not n_total:
        return None
    return Interval(max(0.0, total / n_total), min(1.0, (total + n_total - n_scored) / n_total))


def macro_mean(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over datasets, each of the same weight; stderr = sqrt(sum of their stderr^2) / k.

    None as soon as one dataset has no mean: a mean over fewer datasets is another number. n: of all datasets together.
    """
    n = sum(estimate.n for estimate in estimates)
    return Estimate(n, _mean([e.mean for e in estimates]), _mean_stderr([e.stderr for e in estimates]))


def micro_mean(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over all datasets' items as if they were one dataset's, with the standard error of those pooled items.

    The pooled spread is put together from each dataset's n, mean and stderr; nothing but rounding is lost.
    None as soon as one dataset has no mean.
    """
    pooled = Moments()
    for estimate in estimates:
        if estimate.mean is None or (estimate.n > 1 and estimate.stderr is None):
            return Estimate(sum(e.n for e in estimates), None, None)
        pooled.merge(_moments(estimate.n, estimate.mean, estimate.stderr or 0.0))
    return pooled.estimate()


def paired_difference(first: Mapping[str, float], second: Mapping[str, float]) -> Difference:
    """How much better `first` did than `second`, item by item over the task_ids that both have. Scores are in [0, 1].

    Pairing takes the items' own difficulty out of the comparison, so its interval is narrower than two separate ones.
    """
    estimate = mean_se(first[item] - second[item] for item in first if item in second)
    return Difference(estimate.n, estimate.mean, estimate.stderr, _interval(estimate, floor=-1.0))


def macro_difference(differences: Sequence[Difference]) -> Difference:
    """The mean of the datasets' differences, each of the same weight; None as soon as one dataset has none.

    Where no dataset shows any spread, the interval is the mean of theirs.
    """
    n = sum(difference.n for difference in differences)
    mean = _mean([difference.mean for difference in differences])
    stderr = _mean_stderr([difference.stderr for difference in differences])
    if mean is None or stderr is None:
        return Difference(n, mean, stderr, None)
    if stderr > _NO_SPREAD:
        return Difference(n, mean, stderr, _interval(Estimate(n, mean, stderr), floor=-1.0))
    low = _mean([d.interval.low if d.interval else None for d in differences])
    high = _mean([d.interval.high if d.interval else None for d in differences])
    return Difference(n, mean, stderr, None if low is None or high is None else Interval(low, high))


def _interval(estimate: Estimate, floor: float) -> Interval | None:
    """Of a mean whose items lie in [floor, 1]."""
    n, mean, stderr = estimate.n, estimate.mean, estimate.stderr
    if mean is None or stderr is None:
        return None
    if stderr > _NO_SPREAD:
        return Interval(max(floor, mean - Z * stderr), min(1.0, mean + Z * stderr))
    different = Z * Z / (n + Z * Z)  # Wilson's upper bound on 0 of n
    return Interval(mean - (mean - floor) * different, mean + (1.0 - mean) * different)


_NO_SPREAD = 1e-12
"""Equal scores such as 0.1 leave a rounding error of about 1e-17 in the standard error; no two scores leave so
little."""


def _moments(n: int, mean: float, stderr: float) -> Moments:
    moments = Moments()
    moments.n, moments.total, moments._mean = n, mean * n, mean
    moments._squares = stderr * stderr * n * (n - 1)
    return moments


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _finite(math.fsum(known) / len(known)) if known and len(known) == len(values) else None


def _mean_stderr(errors: Sequence[float | None]) -> float | None:
    """Of the mean of independent means."""
    known = [error for error in errors if error is not None]
    return _finite(math.hypot(*known) / len(known)) if known and len(known) == len(errors) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
