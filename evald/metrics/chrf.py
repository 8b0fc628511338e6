"""chrf: the F-score of character n-grams (Popovic 2015), with word_order 2 chrF++ (Popovic 2017), by sacrebleu.

A task's score is that of the segment against the best of its targets; the dataset's is corpus chrF. White space counts
for nothing unless told, so scripts without spaces need no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sacrebleu.metrics.chrf import CHRF

from evald.metrics import sacre
from evald.metrics.scorer import Scorer, text_scorer
from shared.vocabulary import ChrfParameters

VERSION = f"1+sacrebleu{sacre.VERSION}"

_TOLD = ("char_order", "word_order", "beta", "lowercase", "whitespace", "eps_smoothing")


def make(parameters: ChrfParameters) -> Scorer:
    told = {name: value for name, value in msgspec.structs.asdict(parameters).items() if name in _TOLD}
    counter = sacre.Counter(lambda _: "", lambda _, __: CHRF(**told))

    def score(answer: str, targets: Sequence[str]) -> float:
        """In [0, 1]. An empty answer, or no target: 0.0."""
        return sacre.unit(counter.score(answer, targets)) if targets else 0.0

    params = told | {"sacrebleu": sacre.VERSION}
    return text_scorer(score, 0.5, params, lambda: sacre.SacreCorpus(counter, _tell))


def _tell(metric: CHRF, sums: list[float]) -> dict[str, Any]:
    """value in [0, 1]."""
    return {"value": sacre.unit(metric._compute_score_from_stats(sums).score)}  # type: ignore[arg-type]  # as in bleu
