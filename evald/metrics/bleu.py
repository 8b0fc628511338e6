"""bleu: BLEU-4 (Papineni et al. 2002) by sacrebleu. A task's score is sentence BLEU; the dataset's is corpus BLEU.

Several targets are the references of one segment, as BLEU defines it. The tokenizer follows the targets' script:
`13a`, or `zh` where they hold Han, or `char` where they hold kana (sacrebleu's `zh` leaves kana runs whole).
Smoothing is `exp`, sacrebleu's default; sentence BLEU has the effective order, so that a right answer of one word
scores 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sacrebleu
from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER, BLEUScore
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

from evald import text

VERSION = "1"
PARAMS = {
    "order": MAX_NGRAM_ORDER,
    "smoothing": "exp",
    "tokenizer": "by target: 13a, zh (Han), char (kana)",
    "sacrebleu": sacrebleu.__version__,
}

_ORDERS = range(MAX_NGRAM_ORDER)
_CACHED = (Tokenizer13a, TokenizerChar, TokenizerRegexp, TokenizerZh)
_FORGET_AFTER = 256


def score(answer: str, targets: Sequence[str]) -> float:
    """Sentence BLEU in [0, 1]. An empty answer, or no target: 0.0."""
    return _unit(_segment(answer, tuple(targets)).score) if targets else 0.0


class CorpusBleu:
    """BLEU of a whole dataset from sums over its segments: counts and lengths are kept, texts aren't."""

    def __init__(self) -> None:
        self._segments = 0
        self._correct = [0] * MAX_NGRAM_ORDER
        self._total = [0] * MAX_NGRAM_ORDER
        self._answers_length = 0
        self._targets_length = 0
        self._tokenizers: set[str] = set()
        self._references: set[int] = set()

    def add(self, answer: str, targets: Sequence[str]) -> None:
        """One task. An answer that is missing must not be added; one that is empty must. Raises ValueError without
        targets."""
        if not targets:
            raise ValueError("BLEU needs at least one target")
        segment = _segment(answer, tuple(targets))
        for order in _ORDERS:
            self._correct[order] += segment.counts[order]
            self._total[order] += segment.totals[order]
        self._answers_length += segment.sys_len
        self._targets_length += segment.ref_len
        self._tokenizers.add(_tokenizer(targets))
        self._references.add(len(targets))
        self._segments += 1
        if self._segments % _FORGET_AFTER == 0:
            _forget()

    def result(self) -> dict[str, Any]:
        """value in [0, 1] (None of nothing), precisions in [0, 1], lengths in tokens, and sacrebleu's signature.

        Several tokenizers, where some targets hold Han or kana and others don't, are named together: `tok:13a+zh`.
        """
        if not self._segments:
            return {"value": None, "segments": 0}
        corpus = BLEU.compute_bleu(  # on copies: it keeps the lists it is given
            list(self._correct), list(self._total), self._answers_length, self._targets_length, smooth_method="exp"
        )
        return {
            "value": _unit(corpus.score),
            "segments": self._segments,
            "precisions": [_unit(precision) for precision in corpus.precisions],
            "brevity_penalty": corpus.bp,
            "sys_len": self._answers_length,
            "ref_len": self._targets_length,
            "signature": self._signature(),
        }

    def _signature(self) -> str:
        metric = BLEU()
        metric.num_refs = next(iter(self._references)) if len(self._references) == 1 else -1  # -1: they vary
        signature = metric.get_signature()
        signature.update("tok", "+".join(sorted(self._tokenizers)))
        return str(signature)


@lru_cache(maxsize=4)  # a task is scored and added to its corpus one after the other: its n-grams are counted once
def _segment(answer: str, targets: tuple[str, ...]) -> BLEUScore:
    score: BLEUScore = _metric(_tokenizer(targets)).corpus_score([answer], [[target] for target in targets])
    return score


@lru_cache
def _metric(tokenizer: str) -> BLEU:
    # force: no warnings about texts that look tokenized
    return BLEU(tokenize=tokenizer, smooth_method="exp", effective_order=True, force=True)


def _tokenizer(targets: Sequence[str]) -> str:
    if any(map(text.has_kana, targets)):
        return "char"
    return "zh" if any(map(text.has_cjk, targets)) else "13a"


def _unit(percent: float) -> float:
    """Of [0, 100] to [0, 1]; sacrebleu gives 100.00000000000004 for equal texts."""
    return min(1.0, percent / 100)


def _forget() -> None:
    """Empty sacrebleu's caches of tokenized lines: they'd keep 65,536 texts of any length for each tokenizer."""
    for kind in _CACHED:
        kind.__call__.cache_clear()
