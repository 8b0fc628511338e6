"""Tasks that aren't asked for a text, through both daemons."""

from __future__ import annotations

from pathlib import Path

from evald.results import PairResult
from shared.layout import WorkDir
from shared.plan import read_plan
from tests.harness import evald, inferd, read, submit, write_suite


def test_one_request_a_choice_and_one_doc_in_the_denominator(tmp_path: Path) -> None:
    tasks = [
        {
            "task_id": f"t{number}",
            "prompt": f"Which one? {number}",
            "choices": ["alpha", "beta", "gamma", "delta"],
            "gold": [number % 4],
            "request_type": "multiple_choice",
        }
        for number in range(10)
    ]
    work = WorkDir(tmp_path / "work")
    model = {"abbr": "m", "type": "rule"}
    submit(write_suite(tmp_path / "s", [model], {"d": tasks}, dataset_options={"repeats": 2}), work)
    plan = read_plan(work)
    assert plan is not None
    assert (plan.pairs[0].docs, plan.pairs[0].instances, plan.pairs[0].requests) == (10, 40, 80)
    asking = inferd(work)
    assert asking.wait() == 0, asking.err
    scoring = evald(work)
    assert scoring.wait() == 0, scoring.err
    result = read(work.result("m", "d"), PairResult)
    assert (result.n_docs, result.n_scored, result.instances, result.requests) == (10, 10, 40, 80)
    assert (result.metric, result.mean, result.metrics[0].n) == ("acc", 1.0, 10)
