"""The random numbers of all resampling, computed from what they are for: (dataset, unit, draw). No state and no seed to
carry about: the same unit has the same weight in draw 17 for every model, in every process, under every version of
numpy. That makes resamples of two models paired though they were scored apart, and results the same to the byte.

A unit is what is drawn as a whole: a doc, or a cluster of docs. Bits come from SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014), run as a function of a counter.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Ints = NDArray[np.int64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(0xBF58476D1CE4E5B9)
_TWO = np.uint64(0x94D049BB133111EB)
_PER_WORD = 4  # weights out of one word, 16 bits each
_BITS = 64


def unit_keys(name: str, numbers: Ints) -> Words:
    """A key for each unit of the dataset `name`. numbers: shape (n,), not negative."""
    seed = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "little")
    return _mix(_mix(numbers.astype(np.uint64)) + np.uint64(seed))


def pooled(numbers: Ints, limit: int) -> Ints:
    """The numbers, each of `limit` and above replaced by one below it as if at random."""
    spread = _mix(numbers.astype(np.uint64)) % np.uint64(limit)
    return np.where(numbers < limit, numbers, spread.astype(np.int64))


def poisson_weights(keys: Words, draws: int, first: int = 0) -> Floats:
    """How often each unit is drawn, in the draws from `first` on: shape (draws, n), Poisson(1), of which the
    bootstrap's multinomial counts are the limit (Hanley and MacGibbon 2006; Chamandy et al. 2012). first: a multiple
    of 4.
    """
    rows = -(-draws // _PER_WORD)
    quarters = _words(keys, rows, first // _PER_WORD).view(np.uint16)
    ordered = quarters.reshape(rows, len(keys), _PER_WORD).transpose(0, 2, 1).reshape(rows * _PER_WORD, len(keys))
    return _POISSON[ordered[:draws]]


def signs(keys: Words, draws: int, first: int = 0) -> Floats:
    """+1 or -1 for each unit, in the draws from `first` on: shape (draws, n). first: a multiple of 64."""
    rows = -(-draws // _BITS)
    bits = np.unpackbits(_words(keys, rows, (1 << 32) + first // _BITS).view(np.uint8), axis=1, bitorder="little")
    ordered = bits.reshape(rows, len(keys), _BITS).transpose(0, 2, 1).reshape(rows * _BITS, len(keys))
    return ordered[:draws].astype(np.float64) * 2 - 1


def _words(keys: Words, rows: int, first: int) -> Words:
    counters = np.arange(first, first + rows, dtype=np.uint64) * _GAMMA
    return _mix(keys[np.newaxis, :] ^ _mix(counters)[:, np.newaxis])


def _mix(words: Words) -> Words:
    words = words + _GAMMA
    words = (words ^ (words >> np.uint64(30))) * _ONE
    words = (words ^ (words >> np.uint64(27))) * _TWO
    return words ^ (words >> np.uint64(31))


def _poisson_table() -> Floats:
    """The weight that a number of 16 bits stands for."""
    table, begin, share = np.empty(1 << 16), 0, 0.0
    for weight in range(12):
        share += math.exp(-1.0) / math.factorial(weight)
        end = min(round(share * len(table)), len(table))
        table[begin:end] = weight
        begin = end
    return table


_POISSON = _poisson_table()
