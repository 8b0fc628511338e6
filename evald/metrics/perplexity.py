"""The perplexities: how unlikely the model holds texts that are given. Of log-likelihoods ll in nats:

    perplexity       exp(-sum of ll / docs), of the targets of loglikelihood tasks
    word_perplexity  exp(-sum of ll / sum of words), of whole texts (loglikelihood_rolling), as are the following
    byte_perplexity  exp(-sum of ll / sum of bytes)
    bits_per_byte    -sum of ll / sum of bytes / ln 2

as lm-evaluation-harness 0.4.13 defines them (`api.metrics`: perplexity, weighted_perplexity, bits_per_byte), with its
counts: words are what white space parts, `len(re.split(r"\\s+", text))`, so that white space at an end makes one more;
bytes are UTF-8's. Normalised by words and bytes they don't depend on the model's tokenizer (Gao et al., "The Pile",
2020, section 3.1). Lower is better, and there is no upper end: these are values of a dataset.

A task's score is the mean probability of its units: exp(ll), exp(ll / words), exp(ll / bytes). That lies in [0, 1],
more is better, and it is 1 / perplexity of the task by itself, or 2^-bits_per_byte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from evald.metrics.likelihoods import log_likelihoods
from evald.metrics.ratio import RatioCorpus
from evald.metrics.scorer import Metric, Sample, Scorer
from evald.stats.draws import Floats
from shared.requests import plain_text

VERSION = "1"
_SPACE = re.compile(r"\s+")


def of_unit(name: str, unit: str, count: Callable[[str], int], value: Callable[[Floats], Floats]) -> Metric:
    """count: a text's units. value: of log-likelihoods a unit."""

    def row(sample: Sample) -> tuple[float, float]:
        return log_likelihoods(sample.said)[0], count(plain_text(sample.task))

    def score(sample: Sample) -> float:
        total, units = row(sample)
        return math.exp(total / units)

    def corpus() -> RatioCorpus:
        return RatioCorpus(row, value, ("loglikelihood", unit))

    scorer = Scorer(score, 0.5, {"score": f"exp(loglikelihood / {unit})"}, corpus)
    return Metric(name, VERSION, lambda _: scorer)


def one(_: str) -> int:
    return 1


def words(text: str) -> int:
    return len(_SPACE.split(text))


def utf8(text: str) -> int:
    return len(text.encode())


def perplexity(mean: Floats) -> Floats:
    """inf where it is beyond what a float holds."""
    with np.errstate(over="ignore"):
        return np.exp(-mean)


def bits(mean: Floats) -> Floats:
    return -mean / math.log(2)
