"""How the scores of a task's repeats become one score. Pure.

Repeats are samples of one doc: they make its score surer, never the number of docs larger.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from shared.vocabulary import MetricParameters


def reduced(
    parameters: MetricParameters, scores: Sequence[float], answers: Sequence[str | None], right: float
) -> float:
    """The task's score in [0, 1]. scores, answers: of each repeat that was answered, in their order; an answer is None
    where nothing was extracted. right: from which score on a repeat counts as right.

    Raises ValueError where there are fewer repeats than the reducer needs: what isn't there is not invented.
    """
    k = parameters.k or len(scores)
    if k > len(scores):
        raise ValueError(f"{parameters.reduce} over {k} repeats, and {len(scores)} were answered")
    correct = sum(score >= right for score in scores)
    match parameters.reduce:
        case "mean":
            return math.fsum(scores[:k]) / k
        case "best":
            return max(scores[:k])
        case "majority":
            return scores[_majority(answers[:k])]
        case "pass_at_k":
            return pass_at_k(len(scores), correct, k)
        case "pass_hat_k":
            return pass_hat_k(len(scores), correct, k)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The probability that at least one of k samples, drawn without replacement from n of which `correct` are right, is
    right: 1 - C(n - c, k) / C(n, k). The unbiased estimator of Chen et al., "Evaluating Large Language Models Trained
    on Code" (2021).
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_hat_k(n: int, correct: int, k: int) -> float:
    """The probability that all of k such samples are right: C(c, k) / C(n, k), as in Yao et al., "tau-bench" (2024)."""
    return math.comb(correct, k) / math.comb(n, k)


def _majority(answers: Sequence[str | None]) -> int:
    """The position of the first repeat with the most frequent answer; of equally frequent ones the first to come wins.
    What extracted nothing has no vote, unless nothing else was extracted.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0
    most = max(votes.values())
    return next(number for number, answer in enumerate(answers) if answer is not None and votes[answer] == most)
