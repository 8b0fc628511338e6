"""The metrics: what an answer is worth against its targets. One small file each; this is the table of them.

All are pure, and total: any answer, however hostile, gets a score in [0, 1] in time linear in its length (ROUGE-L: in
the product of both lengths, over 64). An empty answer scores 0, except with exact_match against an empty target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from evald.metrics import accuracy, bleu, exact_match, f1, rouge_l


class CorpusScore(Protocol):
    """Of a metric that has a value for a dataset as a whole which isn't the mean of its tasks' scores."""

    def add(self, answer: str, targets: Sequence[str]) -> None: ...

    def result(self) -> dict[str, Any]:
        """Ready for JSON, with at least `value`: in [0, 1], or None when nothing was added."""


@dataclass(frozen=True)
class Metric:
    """score: (answer, targets), both post-processed -> in [0, 1], the best over the targets. A task counts as correct
    when score >= threshold. version and params say which rule made the number; both are recorded with it, and when
    one changes it is computed anew. corpus: makes the accumulator of a dataset, None where the mean of the scores is
    all there is.
    """

    name: str
    version: str
    threshold: float
    score: Callable[[str, Sequence[str]], float]
    params: Mapping[str, Any] = field(default_factory=dict)
    corpus: Callable[[], CorpusScore | None] = lambda: None


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("exact_match", exact_match.VERSION, 1.0, exact_match.score),
        Metric("accuracy", accuracy.VERSION, 1.0, accuracy.score, accuracy.PARAMS),
        Metric("f1", f1.VERSION, 0.5, f1.score, f1.PARAMS),
        Metric("bleu", bleu.VERSION, 0.5, bleu.score, bleu.PARAMS, bleu.CorpusBleu),
        Metric("rouge_l", rouge_l.VERSION, 0.5, rouge_l.score, rouge_l.PARAMS),
    )
}
