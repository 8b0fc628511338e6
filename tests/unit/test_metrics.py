"""The metrics of texts against literal scores, and what holds for all of them. Names in brackets are cases of
../shared/cases. Published scores: test_metrics_published.py.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_ter import TercomTokenizer

from evald import text as texts
from evald.metrics import METRICS, of_spec, rouge, task_fault
from evald.metrics.lcs import positions
from evald.metrics.rouge import common_lines
from evald.metrics.ter import MAX_WORDS
from shared.records import TaskSpec
from shared.scoring import SpecError, measures_of
from shared.vocabulary import METRICS as VOCABULARY

# Those that compare any text with any target. regex_match takes patterns for targets, math_equal runs elsewhere.
NAMES = [
    *("exact_match", "accuracy", "f1", "contains", "numeric", "bleu", "chrf", "ter"),
    *("rouge_1", "rouge_2", "rouge_l", "rouge_lsum"),
]
GRADED = {"f1", "bleu", "chrf", "ter", "rouge_1", "rouge_2", "rouge_l", "rouge_lsum"}
CORPORA = ["bleu", "chrf", "ter"]


def score(spec: str | dict[str, Any], answer: str, *targets: str) -> float:
    return of_spec(spec).of(answer, targets)


def corpus(pairs: Sequence[tuple[str, Sequence[str]]], spec: str | dict[str, Any] = "bleu") -> dict[str, Any]:
    total = of_spec(spec).corpus()
    assert total is not None
    for answer, targets in pairs:
        total.add(answer, targets)  # type: ignore[union-attr]  # none of these looks at whole samples
    return total.result()


def test_both_sides_name_the_same_metrics() -> None:
    """The vocabulary that task files are checked against is the one that is scored with."""
    assert set(METRICS) == set(VOCABULARY)
    assert all(metric.name == name and metric.version for name, metric in METRICS.items())


@pytest.mark.parametrize("name", [*NAMES, "regex_match", "math_equal"])
def test_what_goes_into_results_is_json(name: str) -> None:
    """Thresholds are the contract's; parameters can be written as they are; only these have a value of the whole
    dataset."""
    scorer = of_spec(name)
    assert scorer.threshold == (0.5 if name in GRADED else 1.0)
    assert json.loads(json.dumps(dict(scorer.params))) == scorer.params
    assert (scorer.corpus() is not None) == (name in CORPORA)


@pytest.mark.parametrize("name", NAMES)
def test_empty_answers_and_no_targets(name: str) -> None:
    """An empty answer is worth nothing, save that it is exactly an empty target."""
    assert score(name, "", "cat") == 0.0
    assert score(name, "cat", "") == 0.0
    assert score(name, " \n", "") == (1.0 if name == "exact_match" else 0.0)
    assert score(name, "cat") == 0.0


@pytest.mark.parametrize("name", NAMES)
@given(answer=st.text(), targets=st.lists(st.text(), max_size=3))
def test_every_score_is_in_range(name: str, answer: str, targets: list[str]) -> None:
    """Any text has a score in [0, 1], never NaN."""
    assert 0.0 <= of_spec(name).of(answer, targets) <= 1.0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bleu"])
@given(answer=st.text(), targets=st.lists(st.text(), min_size=1, max_size=3))
def test_the_best_target_counts(name: str, answer: str, targets: list[str]) -> None:
    """Several targets score as the best one alone. (BLEU takes them together, as the references of one segment.)"""
    assert of_spec(name).of(answer, targets) == max(of_spec(name).of(answer, [target]) for target in targets)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("numeric", "rouge_2")])
@given(text=st.text(st.characters(categories=["L", "Nd"]), min_size=1))
def test_an_equal_answer_is_right(name: str, text: str) -> None:
    """In every script, a text scores exactly 1 against itself."""
    assert score(name, text, "something else", text) == 1.0


@given(text=st.text(st.characters(categories=["L", "Nd"]), min_size=1))
def test_an_equal_answer_of_two_words_is_right(text: str) -> None:
    """rouge_2 needs two words."""
    assert score("rouge_2", f"{text} {text}", f"{text} {text}") == 1.0


HOSTILE = {
    "parentheses": "(" * 100_000,
    "digits": "9" * 1_000_000,
    "words": "a b " * 100_000,
    "lines": "a b\n" * 100_000,
    "other lines": "\n".join(f"a {number}" for number in range(50_000)),
    "han": "中" * 200_000,
    "dots": "1.1." * 50_000,
    "power": "9**9**9**9",
    "half a pair": "\x00\ud800",
}


@pytest.mark.parametrize("name", [*NAMES, "regex_match"])
def test_hostile_answers_take_no_time(name: str) -> None:
    """[scorer-raises-on-answer] A megabyte of anything scores within seconds of CPU, and is wrong."""
    for kind, answer in HOSTILE.items():
        start = time.process_time()
        assert score(name, answer, "(a)+ b 中 0$", "かな") < 0.5, kind
        assert time.process_time() - start < 5, kind


# --- exact_match, accuracy ------------------------------------------------------------------------------------------


def test_exact_match_is_by_character() -> None:
    """Only the white space around counts as nothing."""
    assert score("exact_match", " Paris\n", "London", "Paris") == 1.0
    assert score("exact_match", "paris", "Paris") == 0.0
    assert score("exact_match", "１", "1") == 0.0


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        (" Positive. ", "positive", 1.0),
        ("**NOT  entailed**", "not entailed", 1.0),
        ("“Ｂ”。", "b", 1.0),
        ("STRASSE", "straße", 1.0),
        ("(A)", "A", 1.0),
        ("-1", "1", 0.0),
        ("C++", "C", 0.0),
        ("C#", "C", 0.0),
        ("<=", "=", 0.0),
        ("?", "?", 1.0),
        ("?", "!", 0.0),
        ("very positive", "positive", 0.0),
    ],
)
def test_accuracy_compares_labels(answer: str, target: str, expected: float) -> None:
    """Case, width, quotes and outer punctuation don't make another label; signs do."""
    assert score("accuracy", answer, target) == expected


# --- f1 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        ("cat cat cat dog", "cat dog", 2 / 3),  # [f1-set-vs-bag]
        ("The cat!", "a cat", 1.0),
        ("don't", "dont", 1.0),
        ("Paris, France", "Paris", 2 / 3),
        ("今天天气", "今天天晴", 0.75),
        ("iPhone 15 跌价了", "iPhone 15 发布了", 0.6),
        ("A", "A", 1.0),  # [empty-gold-substring]: articles alone stay
        ("B", "A", 0.0),
        ("", "A", 0.0),
        ("the", "a", 0.0),
    ],
)
def test_f1_counts_bags(answer: str, target: str, expected: float) -> None:
    """Repeated words count as often as both sides have them."""
    assert score("f1", answer, target) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gold", "answer", "exact", "f1"),
    [
        (
            "3.14",
            "314",
            1.0,
            1.0,
        ),  # [decimal-point-eaten]: the published normaliser does that, so it is never a default
        ("The Cat!", "cat", 1.0, 1.0),
        ("cat dog", "cat cat cat dog", 0.0, 2 / 3),
        ("A", "B", 0.0, 0.0),
        ("the", "a", 0.0, 0.0),  # SQuAD's own script says 1: nothing is left of either
        ("今天", "今 天", 0.0, 0.0),
    ],
)
def test_squad_as_published(gold: str, answer: str, exact: float, f1: float) -> None:
    """With `normaliser = "squad"`, said in the result; a text of nothing but articles keeps them."""
    spec = {"metric": "exact_match", "normaliser": "squad"}
    assert score(spec, answer, gold) == exact
    assert score({**spec, "metric": "f1"}, answer, gold) == pytest.approx(f1)
    assert of_spec(spec).params["normaliser"] == "squad"
    assert str(of_spec("f1").params["normaliser"]).startswith("unicode")


# --- contains, regex_match ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        ("It is in Paris, France.", "paris", 1.0),
        ("concatenate", "cat", 0.0),
        ("cat-like", "cat", 1.0),
        ("a  new\nyork", "New York", 1.0),
        ("NewYork", "New York", 0.0),
        ("about 3.14", "3", 0.0),
        ("about 3, or 4", "3", 1.0),
        ("1,000 people", "1,000", 1.0),
        ("1,000 people", "000", 0.0),
        ("I use C++ daily", "C++", 1.0),
        ("今天天气很好", "天气", 1.0),
        ("कि", "क", 0.0),
        ("", "A", 0.0),
    ],
)
def test_contains_whole_words(answer: str, target: str, expected: float) -> None:
    """Words and numbers aren't cut in two; CJK has no words to cut."""
    assert score("contains", answer, target) == expected


def test_contains_as_told() -> None:
    """Parts of words, case, all of the targets."""
    assert score({"metric": "contains", "whole_words": False}, "concatenate", "cat") == 1.0
    assert score({"metric": "contains", "ignore_case": False}, "in paris", "Paris") == 0.0
    assert score({"metric": "contains", "targets": "all"}, "red and blue", "red", "blue") == 1.0
    assert score({"metric": "contains", "targets": "all"}, "red", "red", "blue") == 0.0
    assert score("contains", "red") == 0.0


def test_nothing_is_never_contained() -> None:
    """[empty-gold-substring] "A" normalises to nothing for SQuAD; nothing is in everything. It stays "a" here, and a
    target in which really nothing is left is refused."""
    spec = {"metric": "contains", "normaliser": "squad"}
    assert [score(spec, answer, "A") for answer in ("B", "A", "")] == [0.0, 1.0, 0.0]
    assert score("contains", "anything", " ") == 0.0
    told = task_fault(TaskSpec(task_id="t", prompt="?", targets=("\x00",), metric_name="contains"))
    assert told is not None
    assert "can be looked for" in told


@given(answer=st.text(max_size=30), target=st.text(min_size=1, max_size=5))
def test_contains_is_substring_where_words_may_be_cut(answer: str, target: str) -> None:
    """Against plain Python, white space and case aside."""
    spec = {"metric": "contains", "whole_words": False, "ignore_case": False}
    left, right = (" ".join(text.split()) for text in (answer, target))
    assert score(spec, answer, target) == float(bool(right) and right in left)


@given(st.text(max_size=60))
def test_pieces_lose_nothing(text: str) -> None:
    """Put together again they are the text without its white space."""
    if "\x01" not in text and "\x02" not in text:
        joined = "".join(texts.pieces(text)).replace("\x01", ".").replace("\x02", ",")
        assert joined == "".join(text.split())


@pytest.mark.parametrize(
    ("parameters", "answer", "target", "expected"),
    [
        ({}, "The answer is 42.", r"\b42\b", 1.0),
        ({}, "The answer is 423.", r"\b42\b", 0.0),
        ({"full": True}, "42.", r"\d+", 0.0),
        ({"full": True}, "42", r"\d+", 1.0),
        ({"ignore_case": True}, "YES", "yes|no", 1.0),
        ({}, "YES", "(?i)yes|no", 1.0),
        ({}, "a\n中", "(?s)a.中", 1.0),
        ({}, "a" * 5000 + "b", "(a+)+$", 0.0),
    ],
)
def test_regex_match(parameters: dict[str, Any], answer: str, target: str, expected: float) -> None:
    assert score({"metric": "regex_match", **parameters}, answer, "never", target) == expected


@pytest.mark.parametrize("target", ["(a", r"(a)\1", "(?<=a)b", "a" * 1001, "x{5000}"])
def test_a_target_that_is_no_pattern_is_refused(target: str) -> None:
    """Before anything is asked; and should it be scored all the same, it is an error and no zero."""
    told = task_fault(TaskSpec(task_id="t", prompt="?", targets=(target,), metric_name="regex_match"))
    assert told is not None
    assert told.startswith("regex_match: the target")
    with pytest.raises(ValueError, match="pattern"):
        score("regex_match", "a", target)


# --- numeric --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        ("10", "1.0", 0.0),  # [decimal-point-eaten]
        ("3.14", "314", 0.0),
        ("1.0", "1", 1.0),
        ("$1,234.00", "1234", 1.0),
        ("−5", "-5", 1.0),
        ("１２", "12", 1.0),
        ("3/4", "0.75", 1.0),
        ("1/0", "1", 0.0),
        ("The answer is 3/4", "4", 0.0),  # a fraction is one number
        ("The answer is 3/4.", "0.75", 1.0),
        ("x = -3 / 4", "-0.75", 1.0),
        ("so $\\frac{3}{4}$", "0.75", 1.0),
        ("so $\\frac{3}{4}$", "4", 0.0),
        ("$-2\\dfrac12$", "-5/2", 1.0),
        ("1.5/2", "3/4", 1.0),
        ("$5/6 months", "5/6", 1.0),
        ("1/3", "0.3333", 0.0),
        ("It takes 1 1/2 hours.", "1.5", 1.0),  # a mixed number
        ("$-2 3/4$", "-2.75", 1.0),
        ("12 1/2%", "12.5%", 1.0),
        ("2½ cups", "5/2", 1.0),
        ("½", "0.5", 1.0),
        ("-1½", "-1.5", 1.0),
        ("2⅜", "2.375", 1.0),
        ("1-1/2", "0.5", 1.0),  # none of these is one
        ("3 4/3", "4/3", 1.0),
        ("1.5 1/2", "0.5", 1.0),
        ("1/3 1/2", "0.5", 1.0),
        ("1. 1/2", "0.5", 1.0),
        ("1, 1/2", "0.5", 1.0),
        ("1\n1/2", "0.5", 1.0),
        ("x2 1/2", "0.5", 1.0),
        ("1 0/2", "0", 1.0),
        ("1 1/0", "1", 0.0),
        ("5 1/2/2024", "2024", 1.0),
        ("(0,5)", "0.5", 0.0),  # a pair, as in mathematics
        ("(0,5)", "5", 1.0),
        ("half of it (12,5 %)", "12.5%", 1.0),
        ("(0,5 kg)", "0.5", 1.0),
        ("(1,2 and more)", "2", 1.0),
        ("1/0", "0", 0.0),
        ("\\pi/4", "4", 0.0),
        ("\\frac{\\pi}{4}", "4", 0.0),
        ("\\frac{1}{\\pi}", "1", 0.0),
        ("on 3/4/2024", "2024", 1.0),
        ("$5/hour", "5", 1.0),
        ("It costs €5,00", "0", 0.0),
        ("It costs €5,00", "5", 1.0),
        ("0,5", "5", 0.0),
        ("0,5", "1/2", 1.0),
        ("first 3, then 4", "4", 1.0),
        ("none", "4", 0.0),
        ("9" * 1000, "4", 0.0),
    ],
)
def test_numeric_is_exact(answer: str, target: str, expected: float) -> None:
    assert score("numeric", answer, target) == expected


def test_numeric_tolerances() -> None:
    """Exact at their edges, as fractions; the larger of both counts."""
    near = {"metric": "numeric", "tolerance": 0.1}
    assert [score(near, answer, "0.3") for answer in ("0.4", "0.2", "0.41", "0.19")] == [1.0, 1.0, 0.0, 0.0]
    share = {"metric": "numeric", "relative": 0.01}
    assert [score(share, answer, "-200") for answer in ("-202", "-198", "-202.1", "200")] == [1.0, 1.0, 0.0, 0.0]
    assert score({"metric": "numeric", "relative": 0.01, "tolerance": 5}, "-205", "-200") == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "The answer is 50% of CO2.",
        "50% (see eq3)",
        "50% of 10^9",
        "50 \\% [H2]",
        "\\frac{100}{2}\\% of x_2",
        "**50** percent, B12",
    ],
)
def test_the_percent_sign_is_that_of_the_number(answer: str) -> None:
    """Whatever digits that are no numbers follow."""
    assert [score("numeric", answer, target) for target in ("50%", "50", "0.5")] == [1.0, 0.0, 0.0]
    assert [score("numeric", "10% of them are 50", target) for target in ("50%", "50")] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("target", "keep", "strip", "value"),
    [("20%", 1.0, 1.0, 1.0), ("20", 0.0, 1.0, 0.0), ("0.2", 0.0, 0.0, 1.0), ("100", 0.0, 0.0, 0.0)],
)
def test_numeric_percent(target: str, keep: float, strip: float, value: float) -> None:
    """[percent-sign] What 20% equals is said by the task; it is never the 100 in front."""
    answer = "Of 100 students, the answer is 20%"
    found = [score({"metric": "numeric", "percent": how}, answer, target) for how in ("keep", "strip", "value")]
    assert found == [keep, strip, value]
    assert score({"metric": "numeric", "percent": "keep"}, "**20 percent**", "20 ％") == 1.0


def test_a_target_without_a_number_is_refused() -> None:
    told = task_fault(TaskSpec(task_id="t", prompt="?", targets=("four",), metric_name="numeric"))
    assert told == "numeric: no number in the target 'four'"


# --- rouge ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        ("The dog ran.\nThe cat sat.", "The cat sat.\nThe dog ran.", 0.5),  # [rougeL-vs-Lsum]
        ("the gunman kill police", "police killed the gunman", 0.5),
        ("पूर्व प्रधानमन्त्री शिंजो", "पूर्व प्रधानमन्त्री शिंजो", 1.0),  # [rouge-non-ascii-zero]
        ("今天天气很好", "今天天气很好", 1.0),
        ("iPhone 15 跌价了", "iPhone 15 发布了", 0.6),  # [rouge-mixed-false-perfect]
        ("a b c d", "a x c", 4 / 7),
    ],
)
def test_rouge_l(answer: str, target: str, expected: float) -> None:
    """The longest common subsequence over the whole text, in any script. [rouge-non-ascii-zero] asks for a warning
    where a tokenizer of ASCII is set: there is none to set, on ASCII text the words are the same."""
    assert score("rouge_l", answer, target) == pytest.approx(expected)


def _lcs(one: str, two: str) -> int:
    """The textbook's table."""
    row = [0] * (len(two) + 1)
    for a in one:
        left = row[:]
        for index, b in enumerate(two):
            row[index + 1] = left[index] + 1 if a == b else max(row[index], left[index + 1])
    return row[-1]


@given(st.text("abc", min_size=1, max_size=80), st.text("abcd", min_size=1, max_size=80))
def test_rouge_l_is_the_longest_common_subsequence(answer: str, target: str) -> None:
    """The fast library counts what the plain definition counts."""
    expected = 2 * _lcs(answer, target) / (len(answer) + len(target))
    assert score("rouge_l", " ".join(answer), " ".join(target)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "answer", "target", "expected"),
    [
        ("rouge_lsum", "The dog ran.\nThe cat sat.", "The cat sat.\nThe dog ran.", 1.0),  # [rougeL-vs-Lsum]
        ("rouge_lsum", "police killed the gunman", "the gunman kill police", 0.5),
        ("rouge_lsum", "", "a", 0.0),
        ("rouge_1", "the cat the cat", "the cat sat", 4 / 7),
        ("rouge_2", "the cat sat down", "the cat sat", 0.8),
        ("rouge_2", "one", "one", 0.0),  # it has no pair of words
        ("rouge_1", "今天天气", "今天", 2 / 3),
        # w1 w2 w3 w4 w5 against w1 w2 w6 w7 w8 and w1 w3 w8 w9 w5: the example of Lin (2004), section 3.2: 4 of 5
        ("rouge_lsum", "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", 2 * (4 / 5) * (4 / 10) / (4 / 5 + 4 / 10)),
    ],
)
def test_rouge_by_hand(name: str, answer: str, target: str, expected: float) -> None:
    assert score(name, answer, target) == pytest.approx(expected)


@given(st.text("abc \n", max_size=40), st.text("abcd \n", min_size=1, max_size=40))
def test_without_line_breaks_both_rouge_l_are_one(answer: str, target: str) -> None:
    one, two = (text.replace("\n", " ") for text in (answer, target))
    assert score("rouge_l", one, two) == pytest.approx(score("rouge_lsum", one, two))


def _table(wanted: Sequence[int], given_: Sequence[int]) -> list[int]:
    """The textbook's table, read from its end."""
    rows = [[0] * (len(given_) + 1)]
    for element in wanted:
        row = [0]
        for at, other in enumerate(given_):
            row.append(rows[-1][at] + 1 if element == other else max(rows[-1][at + 1], row[-1]))
        rows.append(row)
    found, i, j = [], len(wanted), len(given_)
    while i and j:
        if wanted[i - 1] == given_[j - 1]:
            found.append(i - 1)
            i, j = i - 1, j - 1
        elif rows[i][j - 1] > rows[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return found


@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 5), max_size=60))
def test_positions_are_those_of_the_table(wanted: list[int], given_: list[int]) -> None:
    """Which of several longest common subsequences is taken decides ROUGE-Lsum."""
    assert positions(wanted, given_) == _table(wanted, given_)


def test_positions_across_blocks() -> None:
    """Rows are kept in blocks; a long answer has several."""
    rng = random.Random(3)
    wanted, given_ = [rng.randrange(9) for _ in range(60)], [rng.randrange(9) for _ in range(1536)]
    for length in (511, 512, 513, 1024, 1536):
        assert positions(wanted, given_[:length]) == _table(wanted, given_[:length])


def test_rouge_lsum_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past its steps an answer adds nothing: what is common is a lower bound, never more than both sides hold."""
    given_ = [[f"{number % 7}", f"{number}"] for number in range(200)]
    wanted = [[f"{number % 7}", f"{number}", "x"] for number in range(40)]
    whole = common_lines(given_, wanted).common
    monkeypatch.setattr(rouge, "MAX_STEPS", 1000)
    assert 0 < common_lines(given_, wanted).common < whole <= 80


# --- chrf, ter ------------------------------------------------------------------------------------------------------


def test_chrf_of_one_and_of_many() -> None:
    """Sentences against the best target; the corpus from sums, with a signature."""
    assert score("chrf", "abcdef", "abcdef") == 1.0
    # five of six characters, three of five pairs, one of four triples are common; of none of the longer ones
    assert score("chrf", "abcdef", "abcxef") == pytest.approx((5 / 6 + 3 / 5 + 1 / 4) / 6)
    assert score({"metric": "chrf", "lowercase": True}, "ABC", "abc") == 1.0
    found = corpus([("the cat", ["the cat"]), ("a dog", ["the dog", "a hog"])], {"metric": "chrf", "word_order": 2})
    assert 0 < found["value"] < 1
    assert found["signature"].startswith("nrefs:var|case:mixed|eff:yes|nc:6|nw:2|space:no|version:")


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        ("the cat sat", "the cat sat", 1.0),
        ("the cat", "the cat sat", 2 / 3),
        ("a b c d e f", "d e f a b c", 5 / 6),  # one shift
        ("x y z w", "a", 0.0),  # a rate of 4: no score below 0
        ("", "a", 0.0),
        ("今天天气", "今天天晴", 3 / 4),  # by character
        ("THE CAT", "the cat", 1.0),
    ],
)
def test_ter_is_turned_round(answer: str, target: str, expected: float) -> None:
    """1 - min(TER, 1): more is better."""
    assert score("ter", answer, target) == pytest.approx(expected)


def test_corpus_ter_is_the_rate_itself() -> None:
    """Lower is better, and it may exceed 1; segments in other scripts are told in the signature."""
    found = corpus([("x y z w", ["a"]), ("the cat", ["the cat"])], "ter")
    assert (found["value"], found["lower_is_better"], found["edits"]) == (pytest.approx(4 / 3), True, 4)
    mixed = corpus([("a", ["a"]), ("今天天气", ["今天天晴"])], "ter")
    assert "|norm:no+yes|" in mixed["signature"]
    assert "|asian:no+yes|" in mixed["signature"]
    plain = corpus([("今天天气", ["今天天晴"])], {"metric": "ter", "asian_support": False, "case_sensitive": True})
    assert plain["value"] == 1.0
    assert "|case:mixed|" not in plain["signature"].replace("case:mixed|tok", "")


def test_long_texts_have_no_shifts() -> None:
    """Beyond the limit it is the edit distance, and said so."""
    words = [str(number) for number in range(MAX_WORDS + 1)]
    turned = " ".join(words[1:9] + words[:1] + words[9:])
    assert score("ter", turned, " ".join(words)) == pytest.approx(1 - 2 / len(words))
    assert corpus([(turned, [" ".join(words)])], "ter")["segments_without_shifts"] == 1
    shorter = " ".join(words[1:9] + words[:1] + words[9:-1])
    assert score("ter", shorter, " ".join(words[:-1])) == pytest.approx(1 - 1 / MAX_WORDS)


@pytest.mark.parametrize("spec", CORPORA)
@given(
    pairs=st.lists(st.tuples(st.text("abc 中", max_size=12), st.text("abc 中", min_size=1, max_size=12)), min_size=1)
)
def test_corpus_values_are_functions_of_sums(spec: str, pairs: list[tuple[str, str]]) -> None:
    """So they can be resampled: the value of the summed statistics is the value of the corpus."""
    total = of_spec(spec).corpus()
    for answer, target in pairs:
        total.add(answer, [target])  # type: ignore[union-attr]
    rows = np.asarray([total.statistics(answer, [target]) for answer, target in pairs])  # type: ignore[union-attr]
    assert total.values(rows.sum(axis=0)[None])[0] == total.result()["value"]  # type: ignore[union-attr]


# --- bleu -----------------------------------------------------------------------------------------------------------

ANSWERS = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
FIRST = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
SECOND = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (ANSWERS, 0.4506750632106114),  # [bleu-misshaped-refs]
        (["", *ANSWERS[1:]], 0.07029939814262578),  # [bleu-empty-hyps]
        ([ANSWERS[0], "", ANSWERS[2]], 0.39087231053576595),
        (["", "", ""], 0.0),
    ],
)
def test_corpus_bleu_of_one_reference(answers: list[str], expected: float) -> None:
    """As sacrebleu says; an empty answer stays in the corpus, and doesn't turn a target into the answer."""
    result = corpus([(answer, [target]) for answer, target in zip(answers, FIRST, strict=True)])
    assert result["value"] == pytest.approx(expected, abs=1e-12)


def test_corpus_bleu_of_two_references() -> None:
    """Targets are references of their own segment; the signature says how it was counted."""
    result = corpus([(answer, pair) for answer, pair in zip(ANSWERS, zip(FIRST, SECOND, strict=True), strict=True)])
    assert result["value"] == pytest.approx(0.48530827009929865, abs=1e-12)
    assert str(result["signature"]).startswith("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert (result["segments"], result["sys_len"]) == (3, 17)


def test_corpus_bleu_of_equal_texts_is_one() -> None:
    """[bleu-misshaped-refs] Not 1.0000000000000004; the sums hold when the number of targets varies."""
    result = corpus([(text, [text, "x"][: 1 + index % 2]) for index, text in enumerate(ANSWERS)])
    assert result["value"] == 1.0
    assert str(result["signature"]).startswith("nrefs:var|")


def test_corpus_bleu_of_nothing() -> None:
    """No segments, no value; a segment without targets is refused."""
    assert corpus([]) == {"value": None, "segments": 0}
    with pytest.raises(ValueError, match="at least one target"):
        corpus([("a", [])])


def test_bleu_tokenizes_by_script() -> None:
    """Chinese and Japanese are counted by character, and the signature says so."""
    assert "|tok:zh|" in str(corpus([("今天天气很好", ["今天天气很好"])])["signature"])
    assert "|tok:char|" in str(corpus([("いい天気です", ["いい天気です"])])["signature"])
    assert "|tok:13a+zh|" in str(corpus([("a", ["a"]), ("好", ["好"])])["signature"])
    assert score("bleu", "今天天气不好", "今天天气很好") > 0.4
    assert score("bleu", "カタカナでかく", "カタカナがかく") > 0.4


def test_sentence_bleu_of_one_word() -> None:
    """A right answer shorter than four words scores 1, thanks to the effective order."""
    assert score("bleu", "cat", "cat") == 1.0


def test_corpus_bleu_keeps_no_texts() -> None:
    """However many segments: sacrebleu's caches of lines are emptied as it goes."""
    rng = random.Random(1)
    Tokenizer13a.__call__.cache_clear()
    corpus([(str(rng.random()), ["0.5"]) for _ in range(1000)])
    assert Tokenizer13a.__call__.cache_info().currsize <= 600
    corpus([(str(rng.random()), ["0.5"]) for _ in range(1000)], "ter")
    assert TercomTokenizer.__call__.cache_info().currsize <= 600


def test_bleu_as_told() -> None:
    """Order, tokenizer, smoothing and case reach sacrebleu, and its signature tells them."""
    pair = [("THE cat sat on a mat .", ["the cat sat on the mat ."])]
    found = corpus(pair, {"metric": "bleu", "order": 1, "tokenizer": "none", "lowercase": True, "smoothing": "none"})
    assert found["value"] == pytest.approx(6 / 7)
    assert str(found["signature"]).startswith("nrefs:1|case:lc|eff:no|tok:none|smooth:none|")
    added = corpus([("a x", ["a b"])], {"metric": "bleu", "smoothing": "add-k", "smooth_value": 2})
    assert "|smooth:add-k[2.00]|" in str(added["signature"])
    assert score({"metric": "bleu", "tokenizer": "zh"}, "今天 天气", "今天天气") == 1.0


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"metric": "bleu", "tokenizer": "spm"}, "expected one of"),
        ({"metric": "bleu", "smooth_value": 1}, "smooth_value is for smoothing floor or add-k, not exp"),
        ({"metric": "bleu", "tokenizer": "ko-mecab"}, r"pip install 'sacrebleu\[ko\]'"),
        ({"metric": "numeric", "tolerance": -1}, "expected a number >= 0"),
        ({"metric": "rouge_l", "once": True}, "unknown key"),
        ({"metric": "rouge_l", "beta": "x"}, "beta"),
    ],
)
def test_parameters_are_checked(spec: dict[str, Any], fault: str) -> None:
    """When the task is read, with the place and the remedy."""
    with pytest.raises(SpecError, match=fault):
        measures_of(spec)
