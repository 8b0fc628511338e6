"""Faults of lm-evaluation-harness that Tandem must not have, over both daemons."""

from __future__ import annotations

from pathlib import Path

from evald.results import PairResult
from tests.daemons.runs import ended, submitted
from tests.harness import evald, infer_status, inferd, openai, predictions, read, task
from tests.server import FakeServer

DOCS = 1000
BAD = 500


def test_one_bad_request_among_a_thousand_and_two_models(tmp_path: Path, server: FakeServer) -> None:
    """A request that is refused for good costs its own doc alone; and of two models over one endpoint, which are asked
    the very same, neither is given the other's answers: each asks for all of its own.
    """
    tasks = [task(number) for number in range(DOCS)]
    tasks[BAD]["prompt"] = "BEHAVE=400 " + tasks[BAD]["prompt"]
    models = [openai(server.url(), abbr, max_workers=16) for abbr in ("a", "b")]
    work = submitted(tmp_path, models, {"d": tasks}, infer={"max_error_rate": 0.01})
    server.reset_stats()
    ended(inferd(work), 0)
    assert server.stats()["posts"] == 2 * DOCS
    ended(evald(work), 0)
    for abbr in ("a", "b"):
        status = infer_status(work, abbr)
        assert status is not None
        assert (status.state, status.completed, status.failed) == ("done", DOCS, {"bad_request": 1})
        assert [row.doc_id for row in predictions(work, abbr) if row.generation is None] == [BAD]
        result = read(work.result(abbr, "d"), PairResult)
        assert (result.n_docs, result.n_scored, result.n_missing, result.mean) == (DOCS, DOCS - 1, 1, 1.0)
