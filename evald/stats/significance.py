"""p-values and quantiles in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Z = 1.959963984540054
"""The 97.5 % point of the normal distribution."""
Z_POWER = 0.8416212335729143
"""Its 80 % point."""
ALPHA = 0.05
_SMALLEST = 2.0**-1022
"""The smallest normal float."""


def t_quantile(freedom: float) -> float:
    """The 97.5 % point of Student's t with so many degrees of freedom; within 0.2 %.

    Exact for 1 and 2; else the expansion about the normal point (Abramowitz and Stegun, 26.7.5).
    """
    if freedom < 2:
        return 12.706204736432095
    if freedom < 3:
        return 4.302652729911275
    z, v = Z, freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, 1))


def normal_tail(z: float) -> float:
    """Two-sided p of |z|."""
    return max(_SMALLEST, math.erfc(abs(z) / math.sqrt(2)))


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p that two models are as often right, given the docs that just one of them has right (McNemar
    1947; the exact form is the sign test): 2 P(X <= min), X binomial(only_first + only_second, 1/2), at most 1. Never
    0: what is too small for a float is the smallest normal one.
    """
    n, k = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    last = math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
    # P(X = k - 1) / P(X = k) = k / (n - k + 1), and so on down to 0.
    down = np.cumprod(np.arange(k, 0, -1) / np.arange(n - k + 1, n + 1)) if k else np.zeros(0)
    return max(_SMALLEST, min(1.0, 2 * last * (1.0 + float(down.sum()))))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Each p adjusted so that all that stay below alpha do so with an error rate of alpha over all of them together
    (Holm 1979). None stays None and isn't counted.
    """
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = highest
    return adjusted


def detectable(stderr: float) -> float:
    """The smallest true difference that a test at alpha 0.05 finds with a power of 0.8, given the difference's standard
    error: (z_0.975 + z_0.8) stderr (Bloom 1995; Miller 2024, section 5).
    """
    return (Z + Z_POWER) * stderr
