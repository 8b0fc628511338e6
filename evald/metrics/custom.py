"""A user's own metric: a function that is given a sample and the task's `params`, and gives a score in [0, 1].

    def starts_well(sample: Sample, words: list[str]) -> float: ...

What it raises costs that sample its score, and is told with the task; the pair goes on. It isn't asked about an answer
in which post-processing found nothing: that scores 0, as everywhere.
"""

from __future__ import annotations

import inspect
from typing import Any

from evald.metrics.scorer import Sample, Scorer
from shared import plugins
from shared.scoring import GROUP
from shared.vocabulary import CustomParameters


class MetricError(Exception):
    """A user's metric that can't be used, with why."""


def make(name: str, parameters: CustomParameters) -> Scorer:
    """Imports the function. Raises MetricError."""
    try:
        function: Any = plugins.load(name, GROUP)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a user's module may raise anything when it is imported
        raise MetricError(f"the metric {name} can't be loaded: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise MetricError(f"the metric {name} is no function")
    params = dict(parameters.params)
    try:
        inspect.signature(function).bind(None, **params)
    except TypeError as error:
        raise MetricError(f"the metric {name} doesn't take a sample and these params: {error}") from None
    except ValueError:
        pass  # a function without a signature, such as one written in C: calling it will tell

    def score(sample: Sample) -> float:
        if sample.answer is None:
            return 0.0
        try:
            given = function(sample, **params)
        except SystemExit as error:
            raise RuntimeError(f"the metric {name} tried to exit ({error.code})") from None
        if not isinstance(given, float | int):  # numpy's float64 is a float; a bool an int
            raise TypeError(f"the metric {name} gave {type(given).__name__}, not a number")
        return float(given)

    return Scorer(score, parameters.threshold)
