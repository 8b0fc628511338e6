"""The metrics against literal and published scores. Names in brackets are cases of /work/shared/cases."""

from __future__ import annotations

import bz2
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from evald.metrics import METRICS, of_spec
from shared.vocabulary import METRICS as VOCABULARY
from shared.vocabulary import MetricParameters

NAMES = sorted(name for name, parameters in VOCABULARY.items() if parameters is MetricParameters)


def score(name: str, answer: str, *targets: str) -> float:
    return of_spec(name).of(answer, targets)


def corpus(pairs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, object]:
    total = of_spec("bleu").corpus()
    assert total is not None
    for answer, targets in pairs:
        total.add(answer, targets)
    return total.result()


def test_both_sides_name_the_same_metrics() -> None:
    """The vocabulary that task files are checked against is the one that is scored with."""
    assert set(METRICS) == set(VOCABULARY)
    assert all(metric.name == name and metric.version for name, metric in METRICS.items())


def test_what_goes_into_results_is_json() -> None:
    """Thresholds are the contract's; parameters can be written as they are; only BLEU has a value of the whole
    dataset."""
    assert {name: of_spec(name).threshold for name in NAMES} == {
        "exact_match": 1.0,
        "accuracy": 1.0,
        "f1": 0.5,
        "bleu": 0.5,
        "rouge_l": 0.5,
    }
    assert all(json.loads(json.dumps(dict(of_spec(name).params))) == of_spec(name).params for name in NAMES)
    assert [name for name in NAMES if of_spec(name).corpus() is not None] == ["bleu"]


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


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(st.characters(categories=["L", "Nd"]), min_size=1))
def test_an_equal_answer_is_right(name: str, text: str) -> None:
    """In every script, a text scores exactly 1 against itself."""
    assert score(name, text, "something else", text) == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_hostile_answers_take_no_time(name: str) -> None:
    """[scorer-raises-on-answer] A megabyte of anything scores within seconds."""
    for text in ("(" * 100_000, "9" * 1_000_000, "a b " * 100_000, "中" * 200_000, "9**9**9**9", "\x00\ud800"):
        start = time.process_time()
        assert score(name, text, "(a) b 中", "かな") < 0.5
        assert time.process_time() - start < 5, text[:5]


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


def test_f1_agrees_with_squad(evaldata: Path) -> None:
    """XQuAD's English answers reach the published mean to the two places that are asserted there; the rest of the
    difference is the typographic punctuation of 4 answers, which SQuAD's script leaves in."""
    folder = evaldata / "xquad_explainaboard"
    items = json.loads((folder / "dataset-xquad-en.json").read_text(encoding="utf-8"))
    answers = json.loads((folder / "output-xquad-en.json").read_text(encoding="utf-8"))
    published = json.loads((folder / "EXPECTED.json").read_text(encoding="utf-8"))["en"]
    scores = [
        of_spec("f1").of(answer["predicted_answers"]["text"], item["answers"]["text"])
        for item, answer in zip(items, answers, strict=True)
    ]
    assert len(scores) == published["n"]
    assert math.fsum(scores) / len(scores) == pytest.approx(published["F1"], abs=0.0005)


# --- rouge_l --------------------------------------------------------------------------------------------------------


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
    """The longest common subsequence over the whole text, in any script."""
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


def test_corpus_bleu_agrees_with_mteval(evaldata: Path) -> None:
    """Systems of WMT17 get the scores of the official script, to the two places that it prints."""
    folder = evaldata / "sacrebleu_wmt17"
    published = json.loads((folder / "EXPECTED.json").read_text(encoding="utf-8"))["MTEVAL"]
    with bz2.open(folder / "wmt17_en_de_systems.jsonl.bz2", "rt", encoding="utf-8") as lines:
        *systems, reference = map(json.loads, lines)
    for system in systems[:2]:
        pairs = [(line, [target]) for line, target in zip(system["lines"], reference["lines"], strict=True)]
        value = corpus(pairs)["value"]
        assert isinstance(value, float)
        assert round(100 * value, 2) == published[system["name"]]
