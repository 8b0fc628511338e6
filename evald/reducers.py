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
            return float(max(scores[:k]))
        case "majority":
            return float(scores[majority(answers[:k])])
        case "pass_at_k":
            return pass_at_k(len(scores), correct, k)
        case "pass_hat_k":
            return pass_hat_k(len(scores), correct, k)


def possible(parameters: MetricParameters, scores: Sequence[float | None], right: float) -> tuple[float, float]:
    """The lowest and the highest score that the task could have: scores is None for a repeat without an answer, which
    could have been anything in [0, 1]. Every reducer but the majority rises with each of the scores, so its ends are
    where all of those are 0 and where all are 1; a majority could turn to any answer.

    Raises ValueError where there are fewer repeats than the reducer needs.
    """
    if parameters.reduce == "majority":
        return 0.0, 1.0
    low, high = (
        reduced(parameters, [end if score is None else score for score in scores], (), right) for end in (0.0, 1.0)
    )
    return low, high


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The probability that at least one of k samples, drawn without replacement from n of which `correct` are right, is
    right: 1 - C(n - c, k) / C(n, k). The unbiased estimator of Chen et al., "Evaluating Large Language Models Trained
    on Code" (2021).
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_hat_k(n: int, correct: int, k: int) -> float:
    """The probability that all of k such samples are right: C(c, k) / C(n, k), as in Yao et al., "tau-bench" (2024)."""
    return math.comb(correct, k) / math.comb(n, k)


def majority(answers: Sequence[str | None]) -> int:
    """The position of the first repeat with the most frequent answer; of equally frequent ones the first to come wins.
    White space around an answer makes no other answer of it. What extracted nothing has no vote, unless nothing else
    was extracted.
    """
    cast = [answer.strip() if answer is not None else None for answer in answers]
    votes = Counter(answer for answer in cast if answer is not None)
    if not votes:
        return 0
    most = max(votes.values())
    return next(number for number, answer in enumerate(cast) if answer is not None and votes[answer] == most)
