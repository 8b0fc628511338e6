"""What bleu, chrf and ter have in common: sacrebleu counts statistics of a segment (an answer and its targets, which
are the references), and makes a value of them. Those of a dataset are the sums over its segments, so that no text is
kept.

sacrebleu's own ways in are used (`_extract_corpus_statistics`, `_compute_score_from_stats`: those of its significance
tests), since its public ones give no statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sacrebleu
from numpy.typing import NDArray
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar
from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
from sacrebleu.tokenizers.tokenizer_ter import TercomTokenizer
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

VERSION = sacrebleu.__version__

_FORGET_AFTER = 256
_CACHED: list[Any] = [
    Tokenizer13a,
    TercomTokenizer,
    TokenizerChar,
    TokenizerRegexp,
    TokenizerV14International,
    TokenizerZh,
]

Statistics = tuple[float, ...]


class Counter:
    """Counts segments. variant: which of sacrebleu's settings the targets want. make: the metric of a variant, for one
    segment, or for a dataset where that differs.
    """

    def __init__(self, variant: Callable[[Sequence[str]], str], make: Callable[[str, bool], Any]) -> None:
        self.variant = variant
        self._make = make
        self._made: dict[tuple[str, bool], Any] = {}
        self._last: tuple[str, tuple[str, ...], Statistics] | None = None
        self._count = 0

    def metric(self, variant: str, *, corpus: bool) -> Any:
        if (variant, corpus) not in self._made:
            self._made[variant, corpus] = self._make(variant, corpus)
        return self._made[variant, corpus]

    def statistics(self, answer: str, targets: Sequence[str]) -> Statistics:
        """Of one segment. Raises ValueError without targets."""
        if not targets:
            raise ValueError("it needs at least one target")
        # A task is scored and added to its corpus one after the other: it is counted once.
        if self._last is not None and self._last[:2] == (answer, tuple(targets)):
            return self._last[2]
        metric = self.metric(self.variant(targets), corpus=False)
        (counted,) = metric._extract_corpus_statistics([answer], [[target] for target in targets])
        self._last = (answer, tuple(targets), tuple(counted))
        self._count += 1
        if self._count % _FORGET_AFTER == 0:
            self._forget()
        return self._last[2]

    def score(self, answer: str, targets: Sequence[str]) -> float:
        """sacrebleu's score of one segment: of [0, 100], TER's also beyond."""
        counted = self.statistics(answer, targets)
        metric = self.metric(self.variant(targets), corpus=False)
        return float(metric._compute_score_from_stats(list(counted)).score)

    def _forget(self) -> None:
        """Empty sacrebleu's caches of tokenized lines: they'd keep 65,536 texts of any length for each tokenizer."""
        own = [type(metric.tokenizer) for metric in self._made.values() if hasattr(metric, "tokenizer")]
        for kind in [*_CACHED, *own]:
            if (clear := getattr(kind.__call__, "cache_clear", None)) is not None:
                clear()


class SacreCorpus:
    """The value of a whole dataset from sums over its segments. last: what the segment added last added to them."""

    def __init__(self, counter: Counter, tell: Callable[[Any, list[float]], dict[str, Any]]) -> None:
        self._counter = counter
        self._tell = tell
        self.last: Statistics = ()
        self._segments = 0
        self._sums: list[float] = []
        self._variants: set[str] = set()
        self._references: set[int] = set()

    def add(self, answer: str, targets: Sequence[str]) -> None:
        """One task. An answer that is missing must not be added; one that is empty must. Raises ValueError without
        targets.
        """
        counted = self.last = self._counter.statistics(answer, targets)
        self._sums = [a + b for a, b in zip(self._sums, counted, strict=True)] if self._sums else list(counted)
        self._variants.add(self._counter.variant(targets))
        self._references.add(len(targets))
        self._segments += 1

    def statistics(self, answer: str, targets: Sequence[str]) -> Statistics:
        """What a segment adds to the sums."""
        return self._counter.statistics(answer, targets)

    def values(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of sums of shape (..., k), such as those of resamples: shape (...)."""
        metric = self._counter.metric(next(iter(sorted(self._variants)), ""), corpus=True)
        rows = sums.reshape(-1, sums.shape[-1])
        made = [self._tell(metric, [float(one) for one in row])["value"] for row in rows]
        return np.asarray(made, np.float64).reshape(sums.shape[:-1])

    def result(self) -> dict[str, Any]:
        """value, what else there is to tell, and sacrebleu's signature; settings that vary between segments are named
        together in it (`tok:13a+zh`). Of nothing: value None.
        """
        if not self._segments:
            return {"value": None, "segments": 0}
        metrics = [self._counter.metric(variant, corpus=True) for variant in sorted(self._variants)]
        told = self._tell(metrics[0], list(self._sums))  # a copy: sacrebleu may write into it
        return {**told, "segments": self._segments, "signature": self._signature(metrics)}

    def _signature(self, metrics: list[Any]) -> str:
        for metric in metrics:
            metric.num_refs = next(iter(self._references)) if len(self._references) == 1 else -1  # -1: they vary
        first, *others = [metric.get_signature() for metric in metrics]
        for key, value in list(first.info.items()):
            values = {_shown(value), *(_shown(other.info.get(key)) for other in others)}
            if len(values) > 1:
                first.update(key, "+".join(sorted(values)))
        return str(first)


def _shown(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def unit(percent: float) -> float:
    """Of [0, 100] to [0, 1]; sacrebleu gives 100.00000000000004 for equal texts."""
    return min(1.0, percent / 100)
