"""What extracts nothing is counted apart from wrong, in results and in every form of the report. Names in brackets are
cases of ../shared/cases.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from msgspec.structs import replace

from evald.report.csv import leaderboard_csv
from evald.report.markdown import markdown
from shared.records import Generation
from tests.harness import task
from tests.unit.test_leaderboard import board, result_of
from tests.unit.test_score import answer, no_answer, planned, runs, scored, write

PIPELINE = ["strip_reasoning", "last_number"]


def test_unextracted_is_counted_by_answers_and_by_steps(tmp_path: Path) -> None:
    """Of six answers to three docs, one request having failed: one trace was cut, two hold no number. They score 0, and
    stand beside the wrong one.
    """
    work = planned(tmp_path, [task(n, post_process=PIPELINE) for n in range(3)], repeats=2)
    rows = [
        answer(0, "<think>0</think> 0"), answer(0, "<think>0", repeat=1),
        answer(1, "many", repeat=0), answer(1, "<think>1</think>some", repeat=1),
        answer(2, "3"), replace(no_answer(2), repeat=1),
    ]  # fmt: skip
    found = scored(work, write(work, rows))
    assert (found.answered, found.unextracted) == (5, 3)
    assert found.unextracted_at == {"last_number": 2, "strip_reasoning": 1}
    assert found.mean == pytest.approx((0.5 + 0 + 0) / 3)
    assert [run["extracted"] for run in runs(work)] == [["0", None], [None, None], ["3"]]


def test_a_reasoning_only_answer_is_no_answer(tmp_path: Path) -> None:
    """[length-cut-reasoning-only] The endpoint keeps the trace apart and sends no content: no number is taken of it."""
    work = planned(tmp_path, [task(42, post_process="last_number")])
    cut = Generation(text="", reasoning="... so it could be 41 or 42", finish_reason="length")
    found = scored(work, write(work, [answer(0, "", outcome="reasoning_only", generation=cut)]))
    assert (found.mean, found.unextracted, found.outcomes) == (0.0, 1, {"reasoning_only": 1})


def test_all_metrics_see_the_same_answers(tmp_path: Path) -> None:
    """[avg-n-raw-text] The mean, the majority and pass@1 of four repeats are of what post-processing took."""
    spec = [
        "exact_match",
        {"metric": "exact_match", "reduce": "majority"},
        {"metric": "exact_match", "reduce": "pass_at_k", "k": 1},
    ]
    paris = task(0, targets=["Paris"], metric_name=spec, post_process="strip_reasoning")
    work = planned(tmp_path, [paris], repeats=4)
    text = "<think>Could be Lyon. No, it is Paris.</think>Paris"
    found = scored(work, write(work, [answer(0, text, repeat=repeat) for repeat in range(4)]))
    assert [metric.mean for metric in found.metrics] == [1.0, 1.0, 1.0]
    assert found.unextracted == 0


def test_the_majority_is_of_what_was_extracted(tmp_path: Path) -> None:
    """What extracts nothing has no vote: one right answer beside two cut traces is the majority."""
    majority = {"metric": "exact_match", "reduce": "majority"}
    work = planned(tmp_path, [task(7, metric_name=majority, post_process=PIPELINE)], repeats=3)
    rows = [answer(0, "<think>1", repeat=0), answer(0, "<think>1", repeat=1), answer(0, "it is 7.", repeat=2)]
    found = scored(work, write(work, rows))
    assert (found.mean, found.unextracted) == (1.0, 2)


def test_the_report_tells_what_was_not_extracted() -> None:
    """In Markdown over the answers and by step, in CSV and JSON as a number; a pair in which all was read has none."""
    odd = result_of(2, 4, outcomes={"ok": 4}, unextracted=2, unextracted_at={"last_number": 1, "strip_reasoning": 1})
    fine = result_of(4, 4, outcomes={"ok": 4})
    report = board(["a", "b"], {"d": 4}, {("a", "d"): odd, ("b", "d"): fine})
    page = markdown(report)
    assert "| model | dataset | ok | unextracted |" in page
    assert "| a | d | 4 | 2 of 4 (last_number 1, strip_reasoning 1) |" in page
    assert "| b | d |" not in page
    rows = {row["model"]: row["unextracted"] for row in csv.DictReader(io.StringIO(leaderboard_csv(report)))}
    assert rows == {"a": "2", "b": "0"}
    cells = {standing.model: standing.datasets["d"] for standing in report.leaderboard}
    assert (cells["a"].answered, cells["a"].unextracted, cells["b"].unextracted) == (4, 2, 0)
    assert "unextracted" not in markdown(board(["b"], {"d": 4}, {("b", "d"): fine}))
