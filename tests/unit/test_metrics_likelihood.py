"""Metrics of likelihoods: by hand, against their definitions, and as a pair is scored by them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.comparisons import compare
from evald.metrics import Sample, of_spec
from evald.report.markdown import markdown
from evald.results import MetricResult, PairResult
from evald.stats import Interval
from shared.records import Generation, Prediction, TaskSpec
from shared.requests import instances_of
from shared.tasks.native import task_faults
from tests.unit.test_leaderboard import plan_of, report_of, result_of
from tests.unit.test_score import answer, planned, runs, scored, write

EXAMPLE = [-1.2, -0.4, -2.1, -3.0]
"""The log-likelihoods of doc 7's four choices, as docs/tasks.md has them."""
CHOICES = ["a kettle", "Öl", "snow", "the whole of the long winter"]
NEVER = -math.inf


def choices(gold: Sequence[int] = (1,), texts: Sequence[str] = CHOICES, metric: Any = "acc") -> TaskSpec:
    return TaskSpec(
        task_id="t", prompt="What?", targets=(), metric_name=metric, request_type="multiple_choice",
        choices=tuple(texts), gold=tuple(gold),
    )  # fmt: skip


def said(*values: float, greedy: bool | None = True) -> tuple[Generation, ...]:
    return tuple(Generation(text="", loglikelihood=value, is_greedy=greedy) for value in values)


def score(metric: str, task: TaskSpec, *values: float, greedy: bool | None = True) -> float:
    return of_spec(metric).score(Sample("", task.targets, "", task, said(*values, greedy=greedy)))


def rolling(text: str) -> TaskSpec:
    return TaskSpec(task_id="t", prompt=text, targets=(), request_type="loglikelihood_rolling")


def target(text: str = "Paris") -> TaskSpec:
    return TaskSpec(task_id="t", prompt="It is", targets=(text,), request_type="loglikelihood")


def line(number: int, kind: str, metric: Any, **more: Any) -> dict[str, Any]:
    return {"task_id": f"t{number}", "prompt": f"Which {number}?", "request_type": kind, "metric_name": metric, **more}


def told(doc_id: int, *repeats: Sequence[float | None] | None) -> list[Prediction]:
    """A doc's predictions in their order on disk. None in a repeat: that instance has no answer; -inf is written as
    null.
    """
    rows = []
    for idx in range(max(len(values) for values in repeats if values is not None)):
        for repeat, values in enumerate(repeats):
            value = values[idx] if values is not None else None
            lost = {"outcome": "error", "error": "timeout", "generation": None}
            more = {"generation": said(value)[0]} if value is not None else lost
            rows.append(answer(doc_id, "", idx=idx, repeat=repeat, **more))
    return rows


def metric(found: PairResult, name: str) -> MetricResult:
    return next(one for one in found.metrics if one.name == name)


def value(found: PairResult, name: str) -> Any:
    corpus = metric(found, name).corpus
    assert corpus is not None
    return corpus["value"]


# --- choices ----------------------------------------------------------------------------------------------------------


def test_the_most_likely_choice_whatever_its_length() -> None:
    assert [score("acc", choices([gold]), *EXAMPLE) for gold in range(4)] == [0.0, 1.0, 0.0, 0.0]


def test_length_is_that_of_the_choice_without_its_delimiter() -> None:
    """Characters: -1.2/8, -0.4/2, -2.1/4, -3.0/28; bytes: Ö has two, so -0.4/3. The longest choice is the likeliest by
    either; without it the first, -0.15 a character, against -0.2 and -0.133 a byte.
    """
    assert score("acc_norm", choices([3]), *EXAMPLE) == score("acc_bytes", choices([3]), *EXAMPLE) == 1.0
    short = CHOICES[:3]
    assert score("acc_norm", choices([0], short), *EXAMPLE[:3]) == 1.0
    assert score("acc_bytes", choices([1], short), *EXAMPLE[:3]) == 1.0


def test_mutual_information_is_what_the_prompt_adds() -> None:
    """-1.2 + 3, -0.4 + 0.5, -2.1 + 2.2, -3.0 + 4.1: the first."""
    task = choices([0], metric="acc_mutual_info")
    assert len(instances_of(task)) == 8
    assert [one.conditional for one in instances_of(task)] == [True] * 4 + [False] * 4
    assert score("acc_mutual_info", task, *EXAMPLE, -3.0, -0.5, -2.2, -4.1) == 1.0
    # The other metrics of the same task look at the first four alone.
    assert score("acc", choices([1]), *EXAMPLE, -3.0, -0.5, -2.2, -4.1) == 1.0


def test_of_equal_choices_the_first_wins() -> None:
    for name in ("acc", "acc_norm", "acc_bytes"):
        assert score(name, choices([0], ["one", "two", "six"]), -1.0, -1.0, -1.0) == 1.0


def test_several_right_choices() -> None:
    assert score("acc", choices([3, 1]), *EXAMPLE) == 1.0
    assert score("acc", choices([3, 2]), *EXAMPLE) == 0.0


def test_a_choice_without_any_chance_is_not_chosen() -> None:
    """-inf is null in JSON. Behind the prompt it settles the matter; without one it is no NaN."""
    task = choices([1], ["one", "two"])
    nothing = Generation(text="", loglikelihood=None)
    assert of_spec("acc").score(Sample("", (), "", task, (nothing, *said(-900.0)))) == 1.0
    for name in ("acc", "acc_norm", "acc_bytes"):
        assert score(name, task, NEVER, -900.0) == 1.0
    assert score("acc_mutual_info", task, NEVER, -5.0, NEVER, -1.0) == 1.0
    assert score("acc_mutual_info", task, -0.1, -5.0, -0.2, NEVER) == 1.0


def test_whether_a_target_is_what_the_model_would_say() -> None:
    assert score("acc", target(), -0.1, greedy=True) == 1.0
    assert score("acc", target(), -0.1, greedy=False) == 0.0
    with pytest.raises(ValueError, match="doesn't tell"):
        score("acc", target(), -0.1, greedy=None)


def test_brier_by_hand() -> None:
    """Probabilities 0.5, 0.25, 0.25 and the second right: 0.25 + 0.5625 + 0.0625 = 0.875."""
    values = [math.log(0.5), math.log(0.25), math.log(0.25)]
    assert score("brier", choices([1], ["a", "b", "c"]), *values) == pytest.approx(1 - 0.875 / 2, rel=1e-15)
    # Only the choices' share in each other counts: all of them unlikely is the same.
    shifted = [value - 50 for value in values]
    assert score("brier", choices([1], ["a", "b", "c"]), *shifted) == pytest.approx(1 - 0.875 / 2, rel=1e-12)
    assert score("brier", choices([0], ["a", "b"]), 0.0, NEVER) == 1.0
    assert score("brier", choices([1], ["a", "b"]), 0.0, NEVER) == 0.0


def test_brier_of_nothing_is_an_error_and_no_number() -> None:
    with pytest.raises(ValueError, match="above 0"):
        score("brier", choices([0], ["a", "b"]), NEVER, NEVER)
    fault = task_faults(choices([0, 1], metric=["acc", "brier"]))
    assert fault == ["gold: brier is defined for one right choice, got 2"]


likelihoods = st.lists(st.floats(-700, 0) | st.just(NEVER), min_size=2, max_size=6)


@given(likelihoods, st.data())
def test_scores_of_choices_lie_in_the_unit_interval(values: list[float], data: st.DataObject) -> None:
    """Whatever came: never NaN. Above 0.75, brier's right choice is the one that acc takes."""
    texts = data.draw(st.lists(st.text(min_size=1), min_size=len(values), max_size=len(values)))
    task = choices([data.draw(st.integers(0, len(values) - 1))], texts)
    alone = data.draw(st.lists(st.floats(-700, 0) | st.just(NEVER), min_size=len(values), max_size=len(values)))
    for name in ("acc", "acc_norm", "acc_bytes", "acc_mutual_info"):
        assert score(name, task, *values, *alone) in (0.0, 1.0)
    if max(values) > NEVER:
        found = score("brier", task, *values)
        assert 0.0 <= found <= 1.0
        assert found <= 0.75 + 1e-12 or score("acc", task, *values) == 1.0


# --- perplexities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "octets"),
    [("one two  three", 3, 14), ("one\n\ttwo\n", 3, 9), (" one", 2, 4), ("Ölkännchen", 1, 12), ("数学", 1, 6)],
)
def test_units_of_a_text(text: str, words: int, octets: int) -> None:
    """Words as lm-evaluation-harness counts them: white space at an end makes one more."""
    assert score("word_perplexity", rolling(text), -6.0) == math.exp(-6.0 / words)
    assert score("byte_perplexity", rolling(text), -6.0) == math.exp(-6.0 / octets)
    assert score("bits_per_byte", rolling(text), -6.0) == math.exp(-6.0 / octets)
    assert score("perplexity", target(text), -6.0) == math.exp(-6.0)


def test_what_rounding_puts_above_nothing_is_certain() -> None:
    assert score("word_perplexity", rolling("one"), 1e-7) == 1.0


def test_perplexities_of_a_dataset(tmp_path: Path) -> None:
    """Two texts, 3 words in 13 bytes and 2 in 8, with log-likelihoods -6 and -4: weighted by their units."""
    names = ["word_perplexity", "byte_perplexity", "bits_per_byte"]
    texts = ["one two three", "four six"]
    lines = [line(n, "loglikelihood_rolling", names) | {"prompt": text} for n, text in enumerate(texts)]
    found = scored(work := planned(tmp_path, lines), write(work, told(0, [-6.0]) + told(1, [-4.0])))
    assert value(found, "word_perplexity") == pytest.approx(math.exp(10 / 5), rel=1e-15)
    assert value(found, "byte_perplexity") == pytest.approx(math.exp(10 / 21), rel=1e-15)
    assert value(found, "bits_per_byte") == pytest.approx(10 / 21 / math.log(2), rel=1e-15)
    first = metric(found, "word_perplexity")
    assert first.corpus is not None
    assert (first.corpus["loglikelihood"], first.corpus["words"]) == (-10.0, 5)
    assert first.corpus["lower_is_better"]
    assert found.mean == pytest.approx(math.exp(-2.0)), "both texts have -2 a word"
    assert first.corpus_interval is None, "every draw of two such texts has the same value"
    assert metric(found, "byte_perplexity").corpus_interval is not None
    low, high = metric(found, "byte_perplexity").corpus_interval, value(found, "byte_perplexity")
    assert low.low <= high <= low.high


def test_perplexity_is_over_docs(tmp_path: Path) -> None:
    """exp of the mean of 1 and 3, however long the targets are."""
    lines = [line(n, "loglikelihood", "perplexity", targets=[text]) for n, text in enumerate(["a", "a b c"])]
    found = scored(work := planned(tmp_path, lines), write(work, told(0, [-1.0]) + told(1, [-3.0])))
    assert value(found, "perplexity") == pytest.approx(math.exp(2.0), rel=1e-15)
    assert found.mean == pytest.approx((math.exp(-1) + math.exp(-3)) / 2)


def test_an_impossible_text_has_no_perplexity(tmp_path: Path) -> None:
    """-inf, null in the predictions: the value is infinite, which is told and has no error; nothing is NaN."""
    lines = [line(n, "loglikelihood", "perplexity", targets=["a"]) for n in range(3)]
    rows = told(0, [-1.0]) + told(1, [NEVER]) + told(2, [-2.0])
    job = write(work := planned(tmp_path, lines), rows)
    assert (
        json.loads(work.predictions("m", "d").read_bytes().split(b"\n")[1])["generation"].get("loglikelihood") is None
    )
    found = scored(work, job)
    one = metric(found, "perplexity")
    assert one.corpus is not None
    assert (one.corpus["value"], one.corpus["impossible"], one.corpus["docs"]) == (None, 1, 3)
    assert (one.corpus_stderr, one.corpus_interval, one.resamples) == (None, None, ())
    assert [run["score"] for run in runs(work)] == [math.exp(-1.0), 0.0, math.exp(-2.0)]
    assert b"NaN" not in work.result("m", "d").read_bytes()


def test_a_value_beyond_floats_is_told_as_none(tmp_path: Path) -> None:
    lines = [line(n, "loglikelihood", "perplexity", targets=["a"]) for n in range(2)]
    found = scored(work := planned(tmp_path, lines), write(work, told(0, [-2000.0]) + told(1, [-1.0])))
    one = metric(found, "perplexity")
    assert one.corpus is not None
    assert (one.corpus["value"], one.corpus["loglikelihood"], one.corpus_stderr) == (None, -2001.0, None)


# --- repeats ----------------------------------------------------------------------------------------------------------


def example(**more: Any) -> dict[str, Any]:
    return line(0, "multiple_choice", "acc", choices=CHOICES, gold=[1]) | more


def test_a_choice_by_hand(tmp_path: Path) -> None:
    """Answers (-1.2, true), (-0.4, true), (-2.1, true), (-3.0, true): B, with its share in the probability of all four
    for its confidence.
    """
    found = scored(work := planned(tmp_path, [example()]), write(work, told(0, EXAMPLE)))
    (run,) = runs(work)
    assert (run["score"], run["extracted"], run["answers"]) == (1.0, ["B"], 1)
    assert run["confidence"] == pytest.approx(math.exp(-0.4) / math.fsum(map(math.exp, EXAMPLE)), rel=1e-15)
    assert (found.n_docs, found.n_scored, found.requests, found.answered, found.metrics[0].n) == (1, 1, 4, 4, 1)


def test_repeats_are_one_doc(tmp_path: Path) -> None:
    """Eight requests: B, then A, is half of a doc, and one doc in the denominator."""
    rows = told(0, EXAMPLE, [-0.1, -0.4, -2.1, -3.0])
    found = scored(work := planned(tmp_path, [example()], repeats=2), write(work, rows))
    (run,) = runs(work)
    assert (run["score"], run["extracted"], run["answers"]) == (0.5, ["B", "A"], 2)
    assert (found.n_docs, found.n_scored, found.mean, found.metrics[0].n) == (1, 1, 0.5, 1)
    assert (found.instances, found.requests, found.answered) == (4, 8, 8)


def test_no_choice_is_made_among_some_of_them(tmp_path: Path) -> None:
    """A repeat that lacks the answer to one choice has no answer, were the others' never so clear."""
    rows = told(0, EXAMPLE, [-0.1, -0.4, None, -3.0])
    found = scored(work := planned(tmp_path, [example()], repeats=2), write(work, rows))
    (run,) = runs(work)
    assert (run["score"], run["extracted"], run["answers"]) == (1.0, ["B"], 1)
    assert (found.n_docs, found.n_scored, found.n_partial, found.coverage) == (1, 1, 1, 0.5)
    assert (found.requests, found.answered) == (8, 7)
    rows = told(0, [None, -0.4, -2.1, -3.0], [-0.1, -0.4, None, -3.0])
    found = scored(work, write(work, rows))
    assert (found.n_scored, found.n_missing, found.mean, runs(work)[0]["error"]) == (0, 1, None, "no answer")


def test_what_is_chosen_is_the_metrics_own(tmp_path: Path) -> None:
    """By characters it is D: the letter that stands there, a majority's vote, and the confidence are D's."""
    spec = ["acc_norm", {"metric": "acc_norm", "reduce": "majority"}, "acc"]
    rows = told(0, EXAMPLE, [-0.1, -9.0, -9.0, -9.0], EXAMPLE)
    found = scored(work := planned(tmp_path, [example(metric_name=spec, gold=[3])], repeats=3), write(work, rows))
    by = {run["metric_name"]: run for run in runs(work)}
    assert (by["acc_norm"]["extracted"], by["acc"]["extracted"]) == (["D", "A", "D"], ["B", "A", "B"])
    assert (by["acc_norm"]["score"], by["acc_norm majority"]["score"], by["acc"]["score"]) == (
        pytest.approx(2 / 3), 1.0, 0.0
    )  # fmt: skip
    share = math.exp(-3.0) / math.fsum(map(math.exp, EXAMPLE))
    assert found.calibration.confidence[0] == pytest.approx(2 * share)
    assert sum(found.calibration.n) == 3


def test_a_doc_weighs_the_same_with_fewer_repeats(tmp_path: Path) -> None:
    """Docs of (1, 3) and of (4, lost): exp((2 + 4) / 2), not exp(8 / 3)."""
    lines = [line(n, "loglikelihood", "perplexity", targets=["a"]) for n in range(2)]
    rows = told(0, [-1.0], [-3.0]) + told(1, [-4.0], None)
    found = scored(work := planned(tmp_path, lines, repeats=2), write(work, rows))
    assert value(found, "perplexity") == pytest.approx(math.exp(3.0), rel=1e-15)
    assert metric(found, "perplexity").n == 2


def test_brier_of_a_dataset(tmp_path: Path) -> None:
    """0.5 twice is 0.5; certain of the wrong one is 2."""
    half = [math.log(0.5)] * 2
    lines = [line(n, "multiple_choice", ["acc", "brier"], choices=["a", "b"], gold=[0]) for n in range(2)]
    found = scored(work := planned(tmp_path, lines), write(work, told(0, half) + told(1, [NEVER, -1.0])))
    assert value(found, "brier") == pytest.approx((0.5 + 2.0) / 2, rel=1e-15)
    assert metric(found, "brier").mean == pytest.approx((0.75 + 0.0) / 2, rel=1e-15)
    assert metric(found, "brier").correct == 1


def test_a_perplexity_is_no_percentage() -> None:
    """In tables it stands as it is, and so does the difference of two models'."""

    def result(value: float) -> PairResult:
        resamples = tuple(value + (n % 20 - 9.5) / 20 + (value * 37 * n % 1 - 0.5) / 100 for n in range(200))
        corpus = {"value": value, "lower_is_better": True, "percent": False}
        one = MetricResult(
            name="perplexity", version="1", params={}, n=10, n_docs=10, mean=0.04, stderr=0.01, interval=None,
            correct=0, threshold=0.5, corpus=corpus, corpus_stderr=0.3,
            corpus_interval=Interval(value - 0.6, value + 0.6),
            resamples=resamples,
        )  # fmt: skip
        return result_of(5, 10, metrics=(one,))

    results = {("a", "d"): result(23.456), ("b", "d"): result(21.0)}
    found = compare(["a", "b"], results, [], results)
    page = markdown(report_of(plan_of(["a", "b"], {"d": 10}), results, found=found)).replace("\\", "")
    assert "| a | d | perplexity | 10 | 4.0 ± 1.0 | – | – | 23.456 ± 0.3 | 22.856 to 24.056 |  |" in page
    assert "| d | perplexity | a | b | +2.456 ± " in page
