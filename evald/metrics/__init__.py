"""The metrics: what an answer is worth. One small file each; this is the table of them.

Those of texts are pure, and total: any answer, however hostile, gets a score in [0, 1] in time linear in its length
(ROUGE-L: in the product of both lengths, over 64). An empty answer scores 0, except with exact_match against an empty
target.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from evald.metrics import (
    acc,
    accuracy,
    bleu,
    chrf,
    code_exec,
    contains,
    custom,
    exact_match,
    f1,
    ifeval,
    math_equal,
    numeric,
    regex_match,
    rouge,
    ter,
)
from evald.metrics.custom import MetricError
from evald.metrics.scorer import NO_TASK, CorpusScore, Metric, Sample, SampleCorpus, Scorer, no_corpus, of_text
from shared.records import TaskSpec
from shared.scoring import Measure, Spec, measures_of
from shared.vocabulary import CustomParameters, MetricParameters

__all__ = [
    "METRICS",
    "NO_TASK",
    "CorpusScore",
    "Judged",
    "Metric",
    "MetricError",
    "Sample",
    "SampleCorpus",
    "Scorer",
    "judges_of",
    "no_corpus",
    "of_spec",
    "of_text",
    "task_fault",
]


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("exact_match", exact_match.VERSION, exact_match.make),
        of_text("accuracy", accuracy.VERSION, 1.0, accuracy.score, accuracy.PARAMS),
        Metric("f1", f1.VERSION, f1.make),
        Metric("contains", contains.VERSION, contains.make),
        Metric("regex_match", regex_match.VERSION, regex_match.make),
        Metric("numeric", numeric.VERSION, numeric.make),
        Metric("math_equal", math_equal.VERSION, math_equal.make),
        Metric("bleu", bleu.VERSION, bleu.make),
        Metric("chrf", chrf.VERSION, chrf.make),
        Metric("ter", ter.VERSION, ter.make),
        Metric("rouge_1", rouge.VERSION, partial(rouge.make_n, 1)),
        Metric("rouge_2", rouge.VERSION, partial(rouge.make_n, 2)),
        Metric("rouge_l", rouge.VERSION, rouge.make_l),
        Metric("rouge_lsum", rouge.VERSION, rouge.make_lsum),
        Metric("ifeval", ifeval.VERSION, ifeval.make),
        Metric("code_exec", code_exec.VERSION, code_exec.make),
        Metric("acc", acc.VERSION, acc.make),
    )
}


class Judged(NamedTuple):
    """A metric of a task, ready to score."""

    label: str
    version: str
    parameters: MetricParameters
    scorer: Scorer


def of_spec(spec: Spec) -> Scorer:
    """The scorer of a spec's headline metric."""
    return judges_of(spec)[0].scorer


def judges_of(spec: Spec) -> tuple[Judged, ...]:
    """The metrics of a task, the headline first. Imports a user's own. Raises shared.scoring.SpecError, MetricError."""
    return _judges(msgspec.json.encode(spec))


def task_fault(task: TaskSpec) -> str | None:
    """Why a metric of the task can't be used, in words: it can't be loaded, or a target isn't one for it."""
    try:
        judges = judges_of(task.metric_name)
    except MetricError as error:
        return str(error)
    for judged in judges:
        for target in task.targets if judged.scorer.target_fault is not None else ():
            if judged.scorer.target_fault is not None and (fault := judged.scorer.target_fault(target)) is not None:
                return fault
    return None


@lru_cache(maxsize=256)
def _judges(spec: bytes) -> tuple[Judged, ...]:
    return tuple(map(_judged, measures_of(msgspec.json.decode(spec, type=Spec))))


def _judged(measure: Measure) -> Judged:
    name, parameters = measure.name, measure.parameters
    if name in METRICS:
        metric = METRICS[name]
        return Judged(measure.label, metric.version, parameters, metric.make(parameters))
    assert isinstance(parameters, CustomParameters)
    return Judged(measure.label, parameters.version, parameters, custom.make(name, parameters))
