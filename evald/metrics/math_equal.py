"""math_equal: the answer is the same mathematics as a target: 1/2, 0.5 and \\frac{1}{2}; x + 1 and 1 + x.

Decided by math-verify (an extra), which computes with what the model wrote: so it does in a process of its own, with
limits, that is killed when they are reached (evald.math_process). An answer that takes more than its time, or breaks
the library, is wrong.
"""

from __future__ import annotations

from importlib import metadata

from evald import math_process
from evald.metrics.scorer import Sample, Scorer
from shared.patterns import whole
from shared.vocabulary import MathParameters

try:
    LIBRARY = metadata.version("math-verify")
except metadata.PackageNotFoundError:
    LIBRARY = ""
VERSION = "2+math-verify" + (LIBRARY or "-none")

MAX_ANSWER = 10_000
"""Characters of an answer that are looked at: the last ones. What follows from longer texts is for a step such as
`boxed`."""


def make(parameters: MathParameters) -> Scorer:
    def score(sample: Sample) -> float:
        """1.0 or 0.0. Raises math_process.MathError where a target can't be read, or the process fails."""
        if sample.answer is None or not sample.answer.strip():
            return 0.0
        question = math_process.Question(
            answer=whole(sample.answer[-MAX_ANSWER:]),
            targets=tuple(map(whole, sample.targets)),
            decimals=parameters.decimals,
            strict=parameters.strict,
            seconds=parameters.seconds,
        )
        return float(math_process.equal(question))

    return Scorer(score, 1.0, {"math-verify": LIBRARY})
