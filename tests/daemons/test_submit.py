"""`evalctl submit` beside inferds: never under one that works, and one that starts meanwhile asks the new suite."""

from __future__ import annotations

import json
from pathlib import Path

from shared import claims
from shared.layout import WorkDir
from tests.daemons.runs import submitted, tasks
from tests.harness import evalctl, heartbeat, inferd, openai, predictions, running, until, write_suite
from tests.server import FakeServer


def _beats(work: WorkDir) -> list[Path]:
    return work.infer_heartbeats() if work.root.is_dir() else []


def test_refused_while_a_further_inferd_works(tmp_path: Path) -> None:
    """Two share a work_dir and the first is killed: the second is still at work, and a suite can't be put under it. The
    killed one is told as gone, and once both are, the suite is taken.
    """
    with FakeServer() as server:
        model = openai(server.url("d300"), max_workers=1)
        work = submitted(tmp_path, [model], {"d": tasks(100), "e": tasks(100)})
        suite = tmp_path / "suite" / "suite.toml"
        with running(inferd(work)) as first, running(inferd(work)) as second:
            until(lambda: len(_beats(work)) == 2, "both beat")
            until(lambda: all((b := heartbeat(p)) and b.state == "running" for p in _beats(work)), "both run")
            first.kill_alone()
            refused = evalctl("submit", suite, "-w", work.root)
            assert refused.wait() == 2
            assert f"inferd is at work here (process {second.process.pid}" in refused.err
            second.kill_alone()
        shown = evalctl("status", "-w", work.root, "--json")
        assert shown.wait() == 3
        assert [view["state"] for view in json.loads(shown.out)["inferd"]] == ["gone", "gone"]
        taken = evalctl("submit", suite, "-w", work.root)
        assert taken.wait() == 0, taken.err
    assert _beats(work) == []


def test_an_inferd_that_starts_during_a_submit_asks_the_new_suite(tmp_path: Path) -> None:
    """It waits for the plan's claim, and reads suite and plan under it."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url())], {"d": tasks(5)})
        claim = claims.take(work.plan_claim)  # as a submit holds it
        assert claim is not None
        with running(inferd(work)) as asking:
            until(lambda: (beat := heartbeat(work.infer_heartbeat())) and beat.state == "starting", "inferd waits")
            write_suite(tmp_path / "other", [openai(server.url())], {"d": tasks(7)})
            claim.release()
            assert asking.wait() == 0, asking.err
        assert server.stats()["posts"] == 5
        again = evalctl("submit", tmp_path / "other" / "suite.toml", "-w", work.root)
        assert again.wait() == 0, again.err
        assert inferd(work).wait() == 0
    assert len(predictions(work)) == 7


def test_the_further_inferds_beat_goes_with_it(tmp_path: Path) -> None:
    """A beat that a killed one left is removed by the next start, so that nobody waits for it."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url())], {"d": tasks(3)})
        left = work.infer_heartbeat("dead")
        left.write_text("{}")
        assert inferd(work).wait() == 0
    assert not left.exists()
    assert work.infer_heartbeat().exists()
