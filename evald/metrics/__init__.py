"""The metrics: what an answer is worth. One small file each; this is the table of them.

Those of texts are pure, and total: any answer, however hostile, gets a score in [0, 1] in time linear in its length
(ROUGE-L: in the product of both lengths, over 64). An empty answer scores 0, except with exact_match against an empty
target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from evald.metrics import (
    acc,
    accuracy,
    bleu,
    brier,
    chrf,
    code_exec,
    contains,
    custom,
    exact_match,
    f1,
    ifeval,
    math_equal,
    numeric,
    perplexity,
    regex_match,
    rouge,
    ter,
)
from evald.metrics.custom import MetricError
from evald.metrics.scorer import (
    NO_TASK,
    Corpus,
    CorpusScore,
    DocCorpus,
    Explained,
    Metric,
    Sample,
    SampleCorpus,
    Scorer,
    no_corpus,
    of_text,
)
from shared.chat import placed_targets
from shared.records import TaskSpec
from shared.scoring import UNNAMED, Measure, Spec, measures_of
from shared.vocabulary import CustomParameters, MetricParameters

__all__ = [
    "METRICS",
    "NO_TASK",
    "Corpus",
    "CorpusScore",
    "DocCorpus",
    "Explained",
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
        acc.of_choices("acc", acc.plain),
        acc.of_choices("acc_norm", acc.by_characters),
        acc.of_choices("acc_bytes", acc.by_bytes),
        acc.of_choices("acc_mutual_info", acc.mutual_information),
        Metric("brier", brier.VERSION, brier.make),
        perplexity.of_unit("perplexity", "docs", perplexity.one, perplexity.perplexity),
        perplexity.of_unit("word_perplexity", "words", perplexity.words, perplexity.perplexity),
        perplexity.of_unit("byte_perplexity", "bytes", perplexity.utf8, perplexity.perplexity),
        perplexity.of_unit("bits_per_byte", "bytes", perplexity.utf8, perplexity.bits),
    )
}


class Judged(NamedTuple):
    """A metric of a task, ready to score. filter: the name of the pipeline that it is computed under."""

    label: str
    version: str
    parameters: MetricParameters
    scorer: Scorer
    filter: str = UNNAMED


def of_spec(spec: Spec) -> Scorer:
    """The scorer of a spec's headline metric."""
    return judges_of(spec)[0].scorer


def judges_of(spec: Spec, filters: Iterable[str] | None = None) -> tuple[Judged, ...]:
    """The metrics of a task, the headline first; filters: as in `measures_of`. Imports a user's own.

    Raises shared.scoring.SpecError, MetricError.
    """
    return _judges(msgspec.json.encode(spec), None if filters is None else tuple(filters))


def task_fault(task: TaskSpec) -> str | None:
    """Why a metric of the task can't be used, in words: it can't be loaded, or a target isn't one for it."""
    try:
        judges = judges_of(task.metric_name)
    except MetricError as error:
        return str(error)
    for judged in judges:
        for _, target in placed_targets(task) if judged.scorer.target_fault is not None else ():
            if judged.scorer.target_fault is not None and (fault := judged.scorer.target_fault(target)) is not None:
                return fault
    return None


@lru_cache(maxsize=256)
def _judges(spec: bytes, filters: tuple[str, ...] | None) -> tuple[Judged, ...]:
    return tuple(map(_judged, measures_of(msgspec.json.decode(spec, type=Spec), filters)))


def _judged(measure: Measure) -> Judged:
    name, parameters = measure.name, measure.parameters
    if name in METRICS:
        metric = METRICS[name]
        return Judged(measure.label, metric.version, parameters, metric.make(parameters), measure.filter)
    assert isinstance(parameters, CustomParameters)
    return Judged(measure.label, parameters.version, parameters, custom.make(name, parameters), measure.filter)
