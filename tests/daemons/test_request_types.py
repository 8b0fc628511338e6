"""Tasks that aren't asked for a text, through both daemons."""

from __future__ import annotations

from pathlib import Path

from evald.results import PairResult
from shared.layout import WorkDir
from shared.plan import read_plan
from tests.daemons.runs import ended, submitted
from tests.harness import evald, inferd, journal, predictions, read, submit, task, write_suite


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


def test_doc_7(tmp_path: Path) -> None:
    """The worked example of docs/tasks.md: four choices, (-1.2, true), (-0.4, true), (-2.1, true), (-3.0, true), B is
    right. With two repeats there are 8 requests and one doc; a call that failed is an attempt of its own.
    """
    told = [[-1.2, True], [-0.4, True], [-2.1, True], [-3.0, True]]
    one = {"task_id": "doc-7", "request_type": "multiple_choice", "prompt": "?", "choices": list("abcd"), "gold": [1]}
    known = {"abbr": "m", "type": "tests.daemons.likely:Known", "options": {"told": told, "busy": [" c"]}}
    for repeats in (1, 2):
        folder = tmp_path / str(repeats)
        options = {"repeats": repeats}
        work = submitted(folder, [known], {"d": [one]}, dataset_options=options, infer={"backoff_base": 0.01})
        ended(inferd(work), 0)
        ended(evald(work), 0)
        result = read(work.result("m", "d"), PairResult)
        assert (result.mean, result.n_docs, result.n_scored, result.metrics[0].n) == (1.0, 1, 1, 1)
        assert (result.instances, result.requests, result.attempts) == (4, 4 * repeats, 4 * repeats + 1)
        (failed,) = [attempt for attempt in journal(work) if attempt.error]
        assert (failed.error, failed.status, failed.idx) == ("server_error", 503, 2)
        assert failed.latency >= 0


def test_no_barrier(tmp_path: Path) -> None:
    """An answer that comes only once all others came, of another request type, dataset and setting: one request holds
    up no other.
    """
    mixed = [task(0, category="gate")]
    mixed += [task(n, generation={"temperature": n / 10}) for n in range(1, 5)]
    sure = [
        {"task_id": f"s{n}", "request_type": "multiple_choice", "prompt": "?", "choices": ["a", "b"], "gold": [0]}
        for n in range(5)
    ]
    gate = {"abbr": "m", "type": "tests.daemons.likely:Gate", "options": {"count": 4 + 10}, "max_workers": 2}
    work = submitted(tmp_path, [gate], {"mixed": mixed, "sure": sure})
    ended(inferd(work), 0)
    assert [row.outcome for row in predictions(work, "m", "mixed")] == ["ok"] * 5
