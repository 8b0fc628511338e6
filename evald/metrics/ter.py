"""ter: the translation edit rate (Snover et al. 2006) by sacrebleu: edits, shifts of blocks among them, a word of the
target. Lower is better, and it has no upper end.

A task's score is 1 - min(TER, 1), so that more is better as everywhere; the dataset's value is corpus TER itself, with
several targets as sacrebleu has it.
Where a target holds Han or kana, text is split into characters (Tercom's Asian support), unless told otherwise.

The search for shifts takes up to a thousand edit distances. Of texts of more than MAX_WORDS words it is left out, and
the plain edit distance counts: an upper bound of the rate. How many segments that were is told beside the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.ter import TER

from evald import text
from evald.metrics import sacre
from evald.metrics.scorer import Scorer, text_scorer
from shared.vocabulary import TerParameters

VERSION = f"1.{text.VERSION}+sacrebleu{sacre.VERSION}"
MAX_WORDS = 200

_ASIAN, _WESTERN = "asian", "western"


def make(parameters: TerParameters) -> Scorer:
    def variant(targets: Sequence[str]) -> str:
        asian = parameters.asian_support
        if asian is None:
            asian = any(map(text.has_cjk, targets))
        return _ASIAN if asian else _WESTERN

    def build(variant: str, _: bool) -> _BoundedTer:
        return _BoundedTer(
            normalized=parameters.normalized or variant == _ASIAN,
            no_punct=parameters.no_punct,
            asian_support=variant == _ASIAN,
            case_sensitive=parameters.case_sensitive,
        )

    counter = sacre.Counter(variant, build)

    def score(answer: str, targets: Sequence[str]) -> float:
        """In [0, 1], the best over the targets: over several at once the rate is that of the fewest edits to a mean
        length, which is low where a target is short. An empty answer, or no target: 0.0.
        """
        if not answer.strip():
            return 0.0
        return max((1.0 - min(1.0, counter.score(answer, [target]) / 100) for target in targets), default=0.0)

    params = {
        "score": "1 - min(TER, 1)",
        "normalized": parameters.normalized,
        "no_punct": parameters.no_punct,
        "case_sensitive": parameters.case_sensitive,
        "asian_support": "by target" if parameters.asian_support is None else parameters.asian_support,
        "max_words": MAX_WORDS,
        "sacrebleu": sacre.VERSION,
    }
    return text_scorer(score, 0.5, params, lambda: sacre.SacreCorpus(counter, _tell))


class _BoundedTer(TER):
    """Statistics: edits, words of the target (over several: the fewest edits, the mean length), segments without
    shifts.
    """

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[float]:
        given = hypothesis.split()
        targets: list[list[str]] = ref_kwargs["ref_words"]
        if len(given) <= MAX_WORDS and all(len(target) <= MAX_WORDS for target in targets):
            return [*super()._compute_segment_statistics(hypothesis, ref_kwargs), 0]
        edits = min(_distance(given, target) for target in targets)
        return [edits, sum(map(len, targets)) / len(targets), 1]


def _distance(given: list[str], wanted: list[str]) -> int:
    ids: dict[str, int] = {}  # numbers, since rapidfuzz would hash the words
    return Levenshtein.distance(*([ids.setdefault(word, len(ids)) for word in words] for words in (given, wanted)))


def _tell(metric: TER, sums: list[float]) -> dict[str, Any]:
    """value: corpus TER, 0.0 and more; ref_len in words."""
    corpus = metric._compute_score_from_stats(sums[:2])
    return {
        "value": corpus.score / 100,
        "lower_is_better": True,
        "edits": corpus.num_edits,
        "ref_len": corpus.ref_length,
        "segments_without_shifts": int(sums[2]),
    }
