"""rouge_1, rouge_2, rouge_l, rouge_lsum: what an answer and a target have in common, as F-measures (Lin, "ROUGE: A
Package for Automatic Evaluation of Summaries", 2004).

What is counted, and how what could be counted twice isn't, is as in Google's rouge_score 0.1.2 without stemming; only
that its tokens are of every script, not of [a-z0-9] alone. ROUGE-L takes the text as a whole; ROUGE-Lsum takes it line
by line, and unites what each line of the answer has in common with a line of the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rapidfuzz.distance import LCSseq

from evald import text
from evald.metrics.lcs import positions
from evald.metrics.scorer import Scorer, text_scorer
from shared.vocabulary import RougeCountParameters, RougeParameters

VERSION = f"2.{text.VERSION}"
MAX_STEPS = 2_000_000

Tokens = Sequence[str]
Tokenizer = Callable[[str], list[str]]


class Overlap(NamedTuple):
    """How much is common to the answer and a target, of how much given in the answer and wanted by the target."""

    common: int
    given: int
    wanted: int

    @property
    def precision(self) -> float:
        return self.common / self.given if self.common else 0.0

    @property
    def recall(self) -> float:
        return self.common / self.wanted if self.common else 0.0


def make_n(n: int, parameters: RougeCountParameters) -> Scorer:
    split = _tokenizer(parameters)

    def overlaps(answer: str, targets: Sequence[str]) -> list[Overlap]:
        given = ngrams(split(answer), n, once=parameters.once)
        return [common_ngrams(given, ngrams(split(target), n, once=parameters.once)) for target in targets]

    return _scorer(overlaps, parameters, {"n": n})


def make_l(parameters: RougeParameters) -> Scorer:
    split = _tokenizer(parameters)

    def overlaps(answer: str, targets: Sequence[str]) -> list[Overlap]:
        given = split(answer)
        return [common_subsequence(given, split(target)) for target in targets]

    return _scorer(overlaps, parameters, {"summary_level": False})


def make_lsum(parameters: RougeParameters) -> Scorer:
    split = _tokenizer(parameters)

    def lines(string: str) -> list[list[str]]:
        return [tokens for line in string.split("\n") if (tokens := split(line))]

    def overlaps(answer: str, targets: Sequence[str]) -> list[Overlap]:
        given = lines(answer)
        return [common_lines(given, lines(target)) for target in targets]

    return _scorer(overlaps, parameters, {"summary_level": True})


def f_measure(precision: float, recall: float, beta: float) -> float:
    """(1 + beta^2) P R / (R + beta^2 P); 0.0 where both are."""
    weight = beta * beta
    below = recall + weight * precision
    return (1 + weight) * precision * recall / below if below else 0.0


def ngrams(tokens: Tokens, n: int, *, once: bool = False) -> Counter[tuple[str, ...]]:
    found = zip(*(tokens[start:] for start in range(n)), strict=False)
    return Counter(set(found) if once else found)


def common_ngrams(given: Counter[tuple[str, ...]], wanted: Counter[tuple[str, ...]]) -> Overlap:
    return Overlap((given & wanted).total(), given.total(), wanted.total())


def common_subsequence(given: Tokens, wanted: Tokens) -> Overlap:
    """Time: the product of both lengths over 64, and their sum."""
    if not given or not wanted:
        return Overlap(0, len(given), len(wanted))
    # As numbers, since rapidfuzz would hash the words: with other seeds in other processes, and blind to collisions.
    ids: dict[str, int] = {}
    for token in wanted:
        ids.setdefault(token, len(ids))
    unknown = len(ids)  # in no target, so in no common subsequence
    common = LCSseq.similarity([ids.get(token, unknown) for token in given], [ids[token] for token in wanted])
    return Overlap(common, len(given), len(wanted))


def common_lines(given: Sequence[Tokens], wanted: Sequence[Tokens]) -> Overlap:
    """The summary-level LCS of section 3.2: of each wanted line the union of what it has in common with each given one.
    A token counts as often as both sides hold it at most.

    Time: a step for each pair of lines, and for each token of the given line that is in the wanted one. After MAX_STEPS
    the rest adds nothing: the answer is a thousand times longer than any summary then.
    """
    left_given = Counter(token for line in given for token in line)
    left_wanted = Counter(token for line in wanted for token in line)
    total = Overlap(0, left_given.total(), left_wanted.total())
    places = [_places(line) for line in dict.fromkeys(map(tuple, given))]
    budget = MAX_STEPS
    common = 0
    for line in wanted:
        united, steps = _united(line, places, budget)
        budget -= steps
        for at in united:
            token = line[at]
            if left_given[token] > 0 and left_wanted[token] > 0:
                common += 1
                left_given[token] -= 1
                left_wanted[token] -= 1
    return total._replace(common=common)


class _Line(NamedTuple):
    """A line of an answer: where its tokens stand."""

    places: dict[str, list[int]]
    length: int


def _places(line: Tokens) -> _Line:
    places: dict[str, list[int]] = {}
    for at, token in enumerate(line):
        places.setdefault(token, []).append(at)
    return _Line(places, len(line))


def _united(line: Tokens, given: Sequence[_Line], budget: int) -> tuple[list[int], int]:
    """(The positions in the line that an LCS with any given line takes, the steps that it took to find them)."""
    ids = {token: number for number, token in enumerate(dict.fromkeys(line))}
    wanted = [ids[token] for token in line]
    found: set[int] = set()
    seen: set[tuple[int, ...]] = set()  # lines that are alike where it matters have the same LCS
    steps = 0
    for one in given:
        steps += 1
        if steps >= budget or len(found) == len(line):
            break
        other = _mapped(ids, one)[: budget - steps]
        if other and other not in seen:
            seen.add(other)
            steps += len(other)
            found.update(positions(wanted, other))
    return sorted(found), steps


def _mapped(ids: dict[str, int], given: _Line) -> tuple[int, ...]:
    """The given line's tokens as numbers, with one number for any run of tokens that aren't in the wanted line: how
    many they are makes no difference. Empty where all are such.
    """
    shared = ids.keys() & given.places.keys()
    placed = sorted((at, ids[token]) for token in shared for at in given.places[token])
    unknown = len(ids)
    mapped: list[int] = []
    last = -1
    for at, number in placed:
        if at > last + 1:
            mapped.append(unknown)
        mapped.append(number)
        last = at
    if placed and last + 1 < given.length:
        mapped.append(unknown)
    return tuple(mapped)


def _tokenizer(parameters: RougeParameters) -> Tokenizer:
    return text.tokens if parameters.tokenizer == "words" else str.split


def _scorer(
    overlaps: Callable[[str, Sequence[str]], list[Overlap]], parameters: RougeParameters, params: dict[str, object]
) -> Scorer:
    def measure(precision: float, recall: float) -> float:
        if parameters.beta != "ratio":
            return f_measure(precision, recall, parameters.beta)
        return f_measure(precision, recall, precision / recall) if recall else 0.0

    def score(answer: str, targets: Sequence[str]) -> float:
        """In [0, 1]. No tokens on either side: 0.0."""
        found = overlaps(answer, targets)
        if not found:
            return 0.0
        if parameters.targets == "parts":
            return min(1.0, measure(max(one.precision for one in found), max(one.recall for one in found)))
        return min(1.0, max(measure(one.precision, one.recall) for one in found))

    tokens = {"tokens": text.VERSION} if parameters.tokenizer == "words" else {}
    return text_scorer(score, 0.5, {"stemming": False, "beta": parameters.beta, **tokens, **params})
