"""regex_match: a target, which is a pattern of RE2's syntax, matches the answer.

The patterns are the task's targets as they stand there: post-processing is for the answer. RE2 takes time linear in
the answer (shared.patterns).
"""

from __future__ import annotations

from evald.metrics.scorer import Sample, Scorer
from shared.patterns import compiled, pattern_fault
from shared.vocabulary import RegexMatchParameters

VERSION = "1"


def make(parameters: RegexMatchParameters) -> Scorer:
    def score(sample: Sample) -> float:
        """1.0 or 0.0. Raises ValueError for a target that is no pattern."""
        answer = sample.answer
        if answer is None:
            return 0.0
        patterns = [compiled(target, ignore_case=parameters.ignore_case) for target in _patterns(sample)]
        return float(any(pattern.matches(answer, full=parameters.full) for pattern in patterns))

    return Scorer(score, 1.0, {"engine": "RE2"}, target_fault=target_fault)


def target_fault(target: str) -> str | None:
    fault = pattern_fault(target)
    return f"regex_match: the target {target[:60]!r} {fault}" if fault is not None else None


def _patterns(sample: Sample) -> tuple[str, ...]:
    return sample.task.targets or tuple(sample.targets)
