"""bleu: BLEU (Papineni et al. 2002) by sacrebleu. A task's score is sentence BLEU; the dataset's is corpus BLEU.

Several targets are the references of one segment, as BLEU defines it. The tokenizer `auto` follows the targets'
script: `13a`, or `zh` where they hold Han, or `char` where they hold kana (sacrebleu's `zh` leaves kana runs whole).
Sentence BLEU has the effective order, so that a right answer of one word scores 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sacrebleu.metrics.bleu import BLEU

from evald import text
from evald.metrics import sacre
from evald.metrics.scorer import Scorer, text_scorer
from shared.vocabulary import BleuParameters

VERSION = f"2.{text.VERSION}+sacrebleu{sacre.VERSION}"


def make(parameters: BleuParameters) -> Scorer:
    def build(tokenizer: str, corpus: bool) -> BLEU:
        return BLEU(
            lowercase=parameters.lowercase,
            force=True,  # no warnings about texts that look tokenized
            tokenize=tokenizer,
            smooth_method=parameters.smoothing,
            smooth_value=parameters.smooth_value,
            max_ngram_order=parameters.order,
            effective_order=not corpus,
        )

    def variant(targets: Sequence[str]) -> str:
        return by_script(targets) if parameters.tokenizer == "auto" else parameters.tokenizer

    counter = sacre.Counter(variant, build)

    def score(answer: str, targets: Sequence[str]) -> float:
        """Sentence BLEU in [0, 1]. An empty answer, or no target: 0.0."""
        return sacre.unit(counter.score(answer, targets)) if targets else 0.0

    told = msgspec.structs.asdict(parameters)
    params = {name: told[name] for name in ("order", "smoothing", "lowercase", "tokenizer")}
    return text_scorer(score, 0.5, params | {"sacrebleu": sacre.VERSION}, lambda: sacre.SacreCorpus(counter, _tell))


def by_script(targets: Sequence[str]) -> str:
    if any(map(text.has_kana, targets)):
        return "char"
    return "zh" if any(map(text.has_cjk, targets)) else "13a"


def _tell(metric: BLEU, sums: list[float]) -> dict[str, Any]:
    """value and precisions in [0, 1], lengths in tokens."""
    corpus = metric._compute_score_from_stats(sums)  # type: ignore[arg-type]  # whole numbers, as floats
    return {
        "value": sacre.unit(corpus.score),
        "precisions": [sacre.unit(precision) for precision in corpus.precisions],
        "brevity_penalty": corpus.bp,
        "sys_len": corpus.sys_len,
        "ref_len": corpus.ref_len,
    }
