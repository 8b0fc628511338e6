"""`evalctl run` when one of its processes is killed: it ends soon, says what is kept, and the same command goes on."""

from __future__ import annotations

from pathlib import Path

import psutil

from shared.layout import WorkDir
from tests.daemons.runs import answered, tasks
from tests.harness import Process, evalctl, infer_status, openai, predictions, report, running, until, write_suite
from tests.server import FakeServer


def _daemon(run: Process, name: str) -> psutil.Process:
    """The daemon of that name which the run started."""
    own = psutil.Process(run.process.pid).children()
    return next(child for child in own if name in child.cmdline())


def _answered(work: WorkDir) -> int:
    status = infer_status(work)
    return status.completed if status is not None else 0


def test_inferd_killed_under_run(tmp_path: Path) -> None:
    """The run ends long before evald's patience with a silent inferd (here 60 s), says how many answers are kept, and
    asks only for the others when it is started again.
    """
    with FakeServer() as server:
        suite = write_suite(
            tmp_path / "suite", [openai(server.url("d100"))], {"d": tasks(60)}, eval={"heartbeat_timeout": 60.0}
        )
        work = WorkDir(tmp_path / "work")
        with running(evalctl("run", suite, "-w", work.root)) as run:
            until(lambda: _answered(work) >= 8, "some requests are answered")
            _daemon(run, "inferd").kill()
            assert run.wait(40) == 1
        assert "inferd died of signal SIGKILL" in run.err
        assert "of 60 requests are answered and kept; the same command again goes on from there" in run.err
        kept, before = len(answered(work)), server.stats()["posts"]
        assert kept >= 8
        again = evalctl("run", suite, "-w", work.root, "--no-progress")
        assert again.wait() == 0, again.err
        assert server.stats()["posts"] - before == 60 - kept
    assert len(predictions(work)) == 60
    assert report(work)["leaderboard"][0]["score"] == 1.0


def test_run_itself_killed(tmp_path: Path) -> None:
    """Its daemons drain and end by themselves, so that the same command can go on."""
    with FakeServer() as server:
        suite = write_suite(tmp_path / "suite", [openai(server.url("d100"))], {"d": tasks(60)})
        work = WorkDir(tmp_path / "work")
        with running(evalctl("run", suite, "-w", work.root, "--no-progress")) as run:
            until(lambda: _answered(work) >= 8, "some requests are answered")
            daemons = [_daemon(run, "inferd"), _daemon(run, "evald")]
            run.kill_alone()
            psutil.wait_procs(daemons, timeout=30)
            assert [process for process in daemons if process.is_running()] == []
        again = evalctl("run", suite, "-w", work.root, "--no-progress")
        assert again.wait() == 0, again.err
        assert server.stats()["posts"] == 60, "what was in flight was kept, as by any drain"
    assert report(work)["leaderboard"][0]["score"] == 1.0
