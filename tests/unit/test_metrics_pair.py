"""Metrics as a pair is scored by them: repeats, corpus values, and what can't be scored. Names in brackets are cases of
../shared/cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald import math_process, totals
from evald.reducers import pass_at_k, reduced
from evald.report.markdown import markdown
from evald.results import CategoryResult, MetricResult, PairResult
from evald.stats import Interval
from evald.workers import Workers
from shared.records import Generation, Prediction
from shared.vocabulary import MetricParameters, Reducer
from tests.harness import task
from tests.unit.test_leaderboard import board
from tests.unit.test_score import answer, no_answer, planned, runs, scored, write

HOW: tuple[Reducer, Reducer] = ("mean", "pass_at_k")
THOUGHT = "<think>Could be Lyon. No, it is Paris.</think>Paris"


def metric(found: PairResult, name: str) -> MetricResult:
    return next(metric for metric in found.metrics if metric.name == name)


def repeated(doc_id: int, *texts: str | None) -> list[Prediction]:
    """The doc's repeats; None for one without an answer."""
    rows = []
    for repeat, text in enumerate(texts):
        more = {"outcome": "error", "error": "timeout", "generation": None} if text is None else {}
        rows.append(answer(doc_id, text or "", repeat=repeat, **more))
    return rows


def test_all_metrics_see_the_same_answer(tmp_path: Path) -> None:
    """[avg-n-raw-text] The mean over repeats, the majority's score and pass@1 of cleaned answers: all 1."""
    spec = ["exact_match", {"metric": "exact_match", "reduce": "majority"}]
    spec += [{"metric": "exact_match", "reduce": "pass_at_k", "k": 1}]  # type: ignore[list-item]
    one = task(0, targets=["Paris"], metric_name=spec, post_process=["strip_reasoning", "strip"])
    work = planned(tmp_path, [one], repeats=4)
    scored(work, write(work, repeated(0, *[THOUGHT] * 4)))
    assert {run["metric_name"]: run["score"] for run in runs(work)} == {
        "exact_match": 1.0,
        "exact_match majority": 1.0,
        "exact_match pass@1": 1.0,
    }


def pass_at(k: int) -> dict[str, Any]:
    return {"metric": "exact_match", "reduce": "pass_at_k", "k": k}


def test_pass_at_k_is_not_made_up(tmp_path: Path) -> None:
    """[passk-n-lt-k] Of one sample a task there is a pass@1 and no pass@10: it stands there without a number, and says
    of how many docs, and why; report.md too.
    """
    spec = [pass_at(1), pass_at(10)]
    work = planned(tmp_path, [task(n, metric_name=spec) for n in range(164)])
    found = scored(work, write(work, [answer(n, str(n) if n < 50 else "no") for n in range(164)]))
    assert metric(found, "exact_match pass@1").mean == pytest.approx(0.304878, abs=1e-6)
    assert [one.name for one in found.metrics] == ["exact_match pass@1", "exact_match pass@10"]
    ten = metric(found, "exact_match pass@10")
    assert (ten.n, ten.n_errors, ten.mean, ten.stderr, ten.interval, ten.correct) == (0, 164, None, None, None, 0)
    assert ten.reason == "ValueError: pass_at_k over 10 repeats, and 1 were answered"
    assert (metric(found, "exact_match pass@1").n_errors, metric(found, "exact_match pass@1").reason) == (0, "")
    page = markdown(board(["m"], {"d": 164}, {("m", "d"): found}))
    row = "| m | d | exact_match pass@​10 | 0/164 | – | – | 0.0 to 100.0 | – | – | 164: ValueError: {} |"
    assert row.replace("​", "&#8203;").format(ten.reason.partition(": ")[2]) in page
    refused = [run for run in runs(work) if run["metric_name"] == "exact_match pass@10"]
    assert all(run["score"] is None and "over 10 repeats, and 1 were answered" in run["error"] for run in refused)


def test_pass_at_k_says_over_how_many_tasks(tmp_path: Path) -> None:
    """[passk-not-monotone] A task that lost samples has no pass@10: the mean says that it is of one task of two."""
    spec = [pass_at(5), pass_at(10)]
    work = planned(tmp_path, [task(n, metric_name=spec) for n in range(2)], repeats=10)
    rows = repeated(0, *["0"] * 2, *["no"] * 8) + repeated(1, *["1"] * 6, *[None] * 4)
    found = scored(work, write(work, rows))
    five, ten = metric(found, "exact_match pass@5"), metric(found, "exact_match pass@10")
    assert (five.n, five.mean) == (2, pytest.approx(0.8888888889))
    assert (ten.n, ten.mean, ten.n_errors) == (1, 1.0, 1)


def test_a_metric_without_any_answer_stands_there(tmp_path: Path) -> None:
    """A doc without an answer is missing and no error of the metric; a corpus value of nothing is null."""
    work = planned(tmp_path, [task(0, metric_name=["exact_match", "bleu"])])
    found = scored(work, write(work, [no_answer(0)]))
    assert [(one.name, one.n, one.n_errors, one.mean, one.corpus) for one in found.metrics] == [
        ("bleu", 0, 0, None, None), ("exact_match", 0, 0, None, None)
    ]  # fmt: skip


def test_missing_repeats_are_reckoned_with(tmp_path: Path) -> None:
    """Six docs of four repeats of which only the first was answered: the score says no more than that of a quarter."""
    spec = ["exact_match", {"metric": "exact_match", "reduce": "majority"}]
    work = planned(tmp_path, [task(n, metric_name=spec) for n in range(6)], repeats=4)
    found = scored(work, write(work, [row for n in range(6) for row in repeated(n, str(n), None, None, None)]))
    assert (found.mean, found.n_docs, found.n_scored, found.n_missing, found.n_partial) == (1.0, 6, 6, 0, 6)
    assert (found.bounds, found.coverage) == (Interval(0.25, 1.0), 0.25)
    report = board(["m"], {"d": 6}, {("m", "d"): found})
    assert (report.leaderboard[0].complete, report.leaderboard[0].coverage, report.summary.coverage) == (
        False, 0.25, 0.25
    )  # fmt: skip
    page = markdown(report)
    assert "6/6\\*" in page
    assert "m x d: 6 of 6 docs lack some of their repeats; with them it lies in 25.0 to 100.0" in page


@pytest.mark.parametrize(
    ("how", "first", "second", "within", "coverage"),
    [
        ({}, 1 / 2, 1 / 3, (1 / 4, 1 / 2), 7 / 8),
        ({"reduce": "best"}, 1.0, 1.0, (1.0, 1.0), 7 / 8),
        ({"reduce": "majority"}, 1.0, 0.0, (0.0, 1.0), 7 / 8),
        ({"reduce": "pass_at_k", "k": 2}, 5 / 6, 2 / 3, (1 / 2, 5 / 6), 7 / 8),
        ({"reduce": "pass_hat_k", "k": 2}, 1 / 6, 0.0, (0.0, 1 / 6), 7 / 8),
        ({"reduce": "pass_at_k", "k": 4}, 1.0, None, (0.0, 1.0), 4 / 8),
    ],
)
def test_bounds_of_each_reducer(
    tmp_path: Path,
    how: dict[str, Any],
    first: float,
    second: float | None,
    within: tuple[float, float],
    coverage: float,
) -> None:
    """A whole doc, two of its four repeats right; and one that lacks a repeat, one of the other three right: within
    what that doc's score can lie, so can half of the pair's. Without a score all is open.
    """
    one = {"metric_name": [{"metric": "exact_match", **how}]}
    work = planned(tmp_path, [task(n, **one) for n in range(2)], repeats=4)
    found = scored(work, write(work, repeated(0, "0", "0", "no", "no") + repeated(1, "x", "1", "y", None)))
    assert [run["score"] for run in runs(work)] == [pytest.approx(first), second and pytest.approx(second)]
    assert found.bounds is not None
    assert (found.bounds.low, found.bounds.high) == pytest.approx(tuple((first + end) / 2 for end in within))
    assert found.coverage == coverage
    assert found.n_partial == (second is not None)


def test_each_metric_and_category_says_what_it_lacks(tmp_path: Path) -> None:
    """Docs that name it, coverage and bounds, as the pair's: of two metrics that not all docs name, and of categories
    of which one has no answer at all. That one stands there too.
    """
    both: list[Any] = ["exact_match", {"metric": "exact_match", "reduce": "majority"}]
    tasks = [task(n, category="whole" if n < 2 else "part", metric_name=both) for n in range(4)]
    tasks += [task(n, category="lost", metric_name=["exact_match"]) for n in (4, 5)]
    work = planned(tmp_path, tasks, repeats=2)
    rows = repeated(0, "0", "0") + repeated(1, "no", "no") + repeated(2, "2", None) + repeated(3, None, None)
    found = scored(work, write(work, rows + repeated(4, None, None) + repeated(5, None, None)))

    def told(one: PairResult | MetricResult | CategoryResult) -> tuple[object, ...]:
        n = one.n_scored if isinstance(one, PairResult) else one.n
        assert one.bounds is not None
        return n, one.n_docs, one.n_partial, one.mean, one.coverage, (one.bounds.low, one.bounds.high)

    headline = (3, 6, 1, pytest.approx(2 / 3), 5 / 12, (pytest.approx(1.5 / 6), pytest.approx(5 / 6)))
    assert told(found) == told(metric(found, "exact_match")) == headline
    assert told(metric(found, "exact_match majority")) == (3, 4, 1, pytest.approx(2 / 3), 5 / 8, (0.25, 0.75))
    assert {one.category: told(one) for one in found.categories} == {
        "whole": (2, 2, 0, 0.5, 1.0, (0.5, 0.5)),
        "part": (1, 2, 1, 1.0, 1 / 4, (0.25, 1.0)),
        "lost": (0, 2, 0, None, 0.0, (0.0, 1.0)),
    }
    assert found.metric == "exact_match"
    nothing = scored(work, write(work, [row for n in range(6) for row in repeated(n, None, None)]))
    assert (nothing.metric, nothing.mean, nothing.bounds) == ("exact_match", None, Interval(0.0, 1.0))


def test_categories_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset in which each task is of its own keeps the first; docs of the others are counted."""
    monkeypatch.setattr(totals, "KEPT_CATEGORIES", 2)
    work = planned(tmp_path, [task(n, category="abcba"[n]) for n in range(5)])
    found = scored(work, write(work, [answer(n, str(n)) for n in range(5)]))
    assert [(one.category, one.n_docs) for one in found.categories] == [("a", 2), ("b", 2)]
    assert (found.uncategorised, found.n_scored) == (1, 5)


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_mean_and_pass_at_one_are_one(right: list[bool]) -> None:
    """[avg-n-raw-text] [passk-not-monotone] avg@n is pass@1, and pass@k doesn't fall with k over the same samples."""
    scores = [float(one) for one in right]
    means = [
        reduced(MetricParameters(reduce=how, k=1 if how == "pass_at_k" else None), scores, ["x"] * len(scores), 1.0)
        for how in HOW
    ]
    assert means[0] == pytest.approx(means[1])
    curve = [pass_at_k(len(right), sum(right), k) for k in range(1, len(right) + 1)]
    assert curve == sorted(curve)


def test_corpus_values_stand_in_the_result(tmp_path: Path) -> None:
    """With their signatures; TER as the rate that it is, beside scores that are better when higher."""
    spec = ["bleu", {"metric": "chrf", "word_order": 2, "label": "chrF++"}, "ter", "rouge_lsum"]
    tasks = [task(n, targets=["the cat sat on the mat"], metric_name=spec) for n in range(2)]
    work = planned(tmp_path, tasks)
    found = scored(work, write(work, [answer(0, "the cat sat on the mat"), answer(1, "a cat sat on a mat today")]))
    corpora = {one.name: one.corpus for one in found.metrics}
    assert corpora["rouge_lsum"] is None
    for name in ("bleu", "chrF++", "ter"):
        told = corpora[name]
        assert told is not None
        assert told["segments"] == 2
        assert "|version:" in told["signature"]
    assert corpora["ter"] is not None
    assert corpora["ter"]["value"] == pytest.approx(3 / 12)
    assert metric(found, "ter").mean == pytest.approx((1 + 0.5) / 2)
    assert metric(found, "chrF++").params["word_order"] == 2


def test_a_target_that_can_not_be_scored_is_no_zero(tmp_path: Path) -> None:
    """In a plan made without the check: an error of its task, with the reason."""
    work = planned(tmp_path, [task(0, targets=["four"], metric_name="numeric"), task(1, metric_name="numeric")])
    found = scored(work, write(work, [answer(0, "4"), answer(1, "1")]))
    assert (found.n_scored, found.n_score_errors, found.mean) == (1, 1, 1.0)
    assert found.score_errors[0].reason == "numeric: no number in the target 'four'"


def test_hostile_answers_count_as_wrong(tmp_path: Path) -> None:
    """[scorer-raises-on-answer] Right, wrong and one that makes parsers raise: 1/3, not 1/2."""
    one = {"metric_name": [{"metric": "math_equal", "seconds": 1.0}], "targets": ["(0,1)"]}
    work = planned(tmp_path, [task(n, **one) for n in range(4)])
    texts = ["$(0,1)$", "5", "We analyse ... Answer: the set is open (0, 1", "(" * 100_000]
    found = scored(work, write(work, [answer(n, text) for n, text in enumerate(texts)]))
    math_process._CURRENT.drop()
    assert (found.n_scored, found.n_score_errors, found.mean) == (4, 0, 0.25)


def test_math_runs_in_a_worker(tmp_path: Path) -> None:
    """A worker process of evald may start the process that compares, and it ends with the worker."""
    workers = Workers(1, ["evald.math_process"])
    question = math_process.Question(answer="1/2", targets=("0.5",), decimals=6, strict=True, seconds=5.0)
    try:
        assert workers.submit(math_process.equal, question, timeout=120).result() is True
    finally:
        workers.stop()


def test_an_answer_without_text_is_scored_as_empty(tmp_path: Path) -> None:
    """[bleu-empty-hyps] Content null is an empty answer, which stays in the corpus; a missing one doesn't."""
    tasks = [task(n, targets=["The dog bit the man."], metric_name="bleu", post_process="none") for n in range(3)]
    work = planned(tmp_path, tasks)
    rows = [answer(0, "The dog bit the man."), answer(1, "", outcome="empty", generation=Generation(text=""))]
    found = scored(work, write(work, [*rows, no_answer(2)]))
    told = metric(found, "bleu").corpus
    assert told is not None
    assert (told["segments"], told["sys_len"], told["ref_len"]) == (2, 6, 12)
