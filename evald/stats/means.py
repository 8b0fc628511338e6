"""Mean, standard error and 95 % interval of scores in [0, 1], of one dataset or over several.

Docs of one cluster (several questions about one text) aren't independent: the standard error is then the clustered one,
over what each cluster adds to the mean. Repeats of a doc have become one score before they come here.

A proportion has Wilson's interval, which is right at small n too; under clustering with the effective n that the
standard error stands for. Other means have mean +- t standard errors. Where all scores are equal, the standard error is
0 and says nothing: there the interval allows for the largest share of different items that would still leave none in a
sample of that size, by Wilson's bound on 0 of n. So 0 of 25 is less sure than 0 of 5000, graded scores or not.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence

from msgspec import Struct

from evald.stats.significance import Z, t_quantile

MAX_CLUSTERS = 1 << 16
"""Of which each has its own sums; a further one joins one of them by its name's checksum. Coarser clusters are as
valid, and so many of them leave the standard error an error of its own of half a percent."""


class Interval(Struct, frozen=True):
    low: float
    high: float


class Clusters(Struct, frozen=True):
    """What the standard error of a mean over several datasets needs of each of them.

    {"count":40,"size_squares":260.0,"lean":0.4}

    count: clusters, a doc without one being its own. size_squares: the sum of n_c^2 over them, n_c docs each. lean: the
    sum of n_c (S_c - n_c mean), S_c being the sum of a cluster's scores.
    """

    count: int
    size_squares: float
    lean: float


class Flat(Struct, frozen=True):
    """stderr: of the other datasets alone. down, up: how far the interval reaches on account of these alone."""

    stderr: float
    down: float
    up: float


class Estimate(Struct, frozen=True):
    """n: how many docs it rests on. mean: None of none. stderr: standard error of that mean, None where it can't be
    told. clusters: None where each doc is its own. freedom: degrees of freedom of the stderr, where they aren't one
    less than its units. flat: of a mean over datasets, what those of them add to its interval whose scores are all
    equal.
    """

    n: int
    mean: float | None
    stderr: float | None
    clusters: Clusters | None = None
    freedom: float | None = None
    flat: Flat | None = None

    @property
    def units(self) -> int:
        """How many independent items it rests on."""
        return self.n if self.clusters is None else self.clusters.count


class Moments:
    """Mean and spread of a stream of scores, by Welford's update; mergeable (Chan et al. 1983), with sums over clusters
    beside them.
    """

    def __init__(self) -> None:
        self.n = 0
        self.total = 0.0  # apart from the running mean: sums of 0 and 1 stay exact
        self.binary = True  # every score 0 or 1 so far
        self._mean = 0.0
        self._squares = 0.0  # sum of (score - mean)^2
        self._clusters: dict[str, _Cluster] = {}
        self._full: list[_Cluster] = []  # the clusters by position, once there are as many as there may be

    def add(self, score: float, cluster: str = "") -> None:
        """cluster: "" for a doc that is its own.

        Raises ValueError when the score isn't finite: that is a defect of the metric, not a number to average.
        """
        if not math.isfinite(score):
            raise ValueError(f"a score must be finite, not {score}")
        self.n += 1
        self.total += score
        self.binary = self.binary and (score == 0.0 or score == 1.0)
        delta = score - self._mean
        self._mean += delta / self.n
        self._squares += delta * (score - self._mean)
        if cluster:
            self._cluster(cluster).add(score)

    def merge(self, other: Moments) -> None:
        """Add the other's scores to these; a cluster of the same name is the same cluster."""
        if not other.n:
            return
        delta = other._mean - self._mean
        n = self.n + other.n
        self._squares += other._squares + delta * delta * self.n * other.n / n
        self._mean += delta * other.n / n
        self.total += other.total
        self.binary = self.binary and other.binary
        self.n = n
        for name, cluster in other._clusters.items():
            self._cluster(name).merge(cluster)

    def estimate(self) -> Estimate:
        """stderr: sd / sqrt(n) with sd over n - 1; for scores of 0 and 1 that is sqrt(p (1 - p) / (n - 1)). With G
        clusters: sqrt(G / (G - 1) sum_c (S_c - n_c mean)^2) / n.
        """
        if not self.n:
            return Estimate(0, None, None)
        mean = self.total / self.n
        if not self._clusters:
            stderr = math.sqrt(self._squares / (self.n - 1) / self.n) if self.n > 1 else None
            return Estimate(self.n, mean, stderr)
        own = self._own(mean)
        sums = [(cluster.n, cluster.total - cluster.n * mean) for cluster in self._clusters.values()]
        count = own.n + len(sums)
        squares = own.squares + math.fsum(off * off for _, off in sums)
        lean = own.total + math.fsum(n * off for n, off in sums)
        stderr = math.sqrt(count / (count - 1) * squares) / self.n if count > 1 else None
        return Estimate(self.n, mean, stderr, Clusters(count, float(own.n + sum(n * n for n, _ in sums)), lean))

    def interval(self) -> Interval | None:
        """Wilson's where every score is 0 or 1, else mean +- t standard errors."""
        return proportion_interval(self.estimate()) if self.binary else interval(self.estimate())

    def _cluster(self, name: str) -> _Cluster:
        found = self._clusters.get(name)
        if found is not None:
            return found
        if len(self._clusters) < MAX_CLUSTERS:
            found = self._clusters[name] = _Cluster()
            return found
        if not self._full:
            self._full = list(self._clusters.values())
        return self._full[zlib.crc32(name.encode("utf-8", "surrogatepass")) % MAX_CLUSTERS]

    def _own(self, mean: float) -> _Own:
        """The docs without a cluster, about `mean`: all about it, less those of clusters."""
        n = self.n - sum(cluster.n for cluster in self._clusters.values())
        if n == 0:
            return _Own(0, 0.0, 0.0)
        total = self.total - math.fsum(cluster.total for cluster in self._clusters.values())
        within = math.fsum(c.squares + c.n * (c.mean - mean) ** 2 for c in self._clusters.values())
        return _Own(n, total - n * mean, max(0.0, self._squares - within))


class _Cluster:
    """The sums of one cluster, by Welford's update."""

    __slots__ = ("mean", "n", "squares", "total")

    def __init__(self) -> None:
        self.n = 0
        self.total = 0.0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, score: float) -> None:
        self.n += 1
        self.total += score
        delta = score - self.mean
        self.mean += delta / self.n
        self.squares += delta * (score - self.mean)

    def merge(self, other: _Cluster) -> None:
        n = self.n + other.n
        delta = other.mean - self.mean
        self.squares += other.squares + delta * delta * self.n * other.n / n
        self.mean += delta * other.n / n
        self.total += other.total
        self.n = n


class _Own(Struct, frozen=True):
    """total, squares: of score - mean."""

    n: int
    total: float
    squares: float


def mean_se(scores: Iterable[float], clusters: Iterable[str] | None = None) -> Estimate:
    """Mean and standard error of the scores, which are read once. Raises ValueError when one isn't finite."""
    moments = Moments()
    if clusters is None:
        for score in scores:
            moments.add(score)
    else:
        for score, cluster in zip(scores, clusters, strict=True):
            moments.add(score, cluster)
    return moments.estimate()


# --- intervals --------------------------------------------------------------------------------------------------------


def wilson(successes: float, n: float) -> Interval | None:
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


def proportion_interval(estimate: Estimate) -> Interval | None:
    """Of a mean of scores that are all 0 or 1: Wilson's, under clustering with the effective n of Korn and Graubard
    (1998): n over the design effect, and less where there are few clusters. Where all scores are equal the clusters are
    all that counts.
    """
    n, mean, stderr, clusters = estimate.n, estimate.mean, estimate.stderr, estimate.clusters
    if mean is None:
        return None
    if clusters is None:
        return wilson(round(mean * n), n)
    if stderr is None:
        return wilson(mean, 1)  # one cluster says no more than one doc
    simple = mean * (1 - mean) / max(n - 1, 1)  # the squared standard error without clustering
    effective = n * min(1.0, simple / (stderr * stderr)) if stderr > NO_SPREAD and simple else float(clusters.count)
    effective *= (Z / t_quantile(clusters.count - 1)) ** 2
    effective = max(effective, 1.0)
    return wilson(min(mean * effective, effective), effective)


def interval(estimate: Estimate, floor: float = 0.0) -> Interval | None:
    """Of a mean of graded scores in [floor, 1]; None when it can't be told (fewer than two docs, or clusters)."""
    mean, stderr = estimate.mean, estimate.stderr
    if mean is None or stderr is None:
        return None
    freedom = estimate.units - 1 if estimate.freedom is None else estimate.freedom
    if estimate.flat is not None:
        flat = estimate.flat
        return around(mean, flat.stderr, freedom, flat.down, flat.up, floor)
    if stderr > NO_SPREAD:
        return around(mean, stderr, freedom, 0.0, 0.0, floor)
    different = Z * Z / (estimate.units + Z * Z)  # Wilson's upper bound on 0 of n
    return Interval(mean - (mean - floor) * different, mean + (1.0 - mean) * different)


def around(mean: float, stderr: float, freedom: float, down: float, up: float, floor: float = 0.0) -> Interval:
    """mean +- t standard errors, and distances of other parts of the mean to their own limits, by squares (Zou and
    Donner 2008): within [floor, 1].
    """
    half = t_quantile(freedom) * stderr if stderr > NO_SPREAD else 0.0
    return Interval(max(floor, mean - math.hypot(half, down)), min(1.0, mean + math.hypot(half, up)))


def bounds(total: float, n_scored: int, n_total: int) -> Interval | None:
    """The mean over all n_total items if those that are missing were all wrong, and if they were all right.

    total: the sum of the n_scored scores, each in [0, 1]. None when there are no items.
    """
    if not 0 <= n_scored <= n_total:
        raise ValueError(f"{n_scored} scored of {n_total}")
    if not n_total:
        return None
    return Interval(max(0.0, total / n_total), min(1.0, (total + n_total - n_scored) / n_total))


NO_SPREAD = 1e-12
"""Equal scores such as 0.1 leave a rounding error of about 1e-17 in the standard error; no two scores leave so
little."""


# --- over several datasets --------------------------------------------------------------------------------------------


def macro_mean(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over datasets, each of the same weight; stderr = sqrt(sum of their stderr^2) / k.

    None as soon as one dataset has no mean: a mean over fewer datasets is another number. n: of all datasets together.
    """
    return weighted_mean(estimates, [1.0] * len(estimates))


def weighted_mean(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """sum w_d mean_d / sum w_d; stderr = sqrt(sum w_d^2 stderr_d^2) / sum w_d; weights are above 0. None as
    `macro_mean`. Of one dataset it is that dataset's.

    A dataset whose scores are all equal has a stderr of 0 that says nothing: the variance that its interval implies
    stands instead, (width / 2z)^2, and the limits of the mean move by those of the dataset (`around`). The degrees of
    freedom are those of Welch and Satterthwaite (Satterthwaite 1946), over the other datasets.
    """
    if len(estimates) == 1:
        return estimates[0]
    n = sum(estimate.n for estimate in estimates)
    if not estimates or any(estimate.mean is None for estimate in estimates):
        return Estimate(n, None, None)
    pairs = list(zip(weights, estimates, strict=True))
    whole = math.fsum(weights)
    mean = math.fsum(weight * (e.mean or 0.0) for weight, e in pairs) / whole
    if any(estimate.stderr is None for estimate in estimates):
        return Estimate(n, mean, None)
    shares = [(weight / whole, e) for weight, e in pairs if (e.stderr or 0.0) > NO_SPREAD]
    parts = [((share * (e.stderr or 0.0)) ** 2, e.units - 1) for share, e in shares]
    variance = math.fsum(part for part, _ in parts)
    spread = math.fsum(part * part / freedom for part, freedom in parts)
    freedom = variance * variance / spread if spread else None
    away = [(weight / whole, e.mean or 0.0, _unseen(e)) for weight, e in pairs if (e.stderr or 0.0) <= NO_SPREAD]
    if not away:
        return Estimate(n, mean, math.sqrt(variance), None, freedom)
    implied = math.fsum((share * unseen / (2 * Z)) ** 2 for share, _, unseen in away)
    down = math.sqrt(math.fsum((share * unseen * at) ** 2 for share, at, unseen in away))
    up = math.sqrt(math.fsum((share * unseen * (1.0 - at)) ** 2 for share, at, unseen in away))
    flat = Flat(math.sqrt(variance), down, up)
    return Estimate(n, mean, math.sqrt(variance + implied), None, freedom, flat)


def _unseen(estimate: Estimate) -> float:
    """Of a dataset whose scores are all equal: the largest share of different items that would still leave none in a
    sample of so many, by Wilson's bound on 0 of n; fewer under few clusters, as in `proportion_interval`.
    """
    units = float(estimate.units)
    if estimate.clusters is not None:
        units = max(1.0, units * (Z / t_quantile(units - 1)) ** 2)
    return Z * Z / (units + Z * Z)


def micro_mean(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over all datasets' docs as if they were one dataset's, with the standard error of those pooled docs.

    The pooled spread is put together from each dataset's n, mean, stderr and clusters; nothing but rounding is lost.
    None as soon as one dataset has no mean.
    """
    n = sum(estimate.n for estimate in estimates)
    parts = [estimate for estimate in estimates if estimate.n or estimate.mean is None]
    if not parts or any(e.mean is None or (e.units > 1 and e.stderr is None) for e in parts):
        return Estimate(n, None, None)
    mean = math.fsum(e.n * (e.mean or 0.0) for e in parts) / n
    count, squares, sizes, lean = 0, 0.0, 0.0, 0.0
    for e in parts:
        own = e.clusters or Clusters(e.n, float(e.n), 0.0)
        shift = (e.mean or 0.0) - mean
        within = (e.stderr or 0.0) ** 2 * e.n**2 * (own.count - 1) / own.count
        squares += within + 2 * shift * own.lean + shift * shift * own.size_squares
        count += own.count
        sizes += own.size_squares
        lean += own.lean + shift * own.size_squares
    stderr = math.sqrt(max(0.0, squares) * count / (count - 1)) / n if count > 1 else None
    clustered = any(e.clusters is not None for e in parts)
    return Estimate(n, mean, stderr, Clusters(count, sizes, lean) if clustered else None)
