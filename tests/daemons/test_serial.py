"""`evalctl run --serial`: one process in place of both daemons, over the same files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from shared import claims
from shared.layout import WorkDir
from tests.daemons.runs import answered, answers, ended, state, submitted, tasks, texts
from tests.harness import (
    ROOT,
    eval_status,
    evalctl,
    evald,
    heartbeat,
    inferd,
    openai,
    predictions,
    report,
    running,
    task,
    until,
    write_suite,
)
from tests.server import FakeServer

BUILT_IN = [{"abbr": name, "type": name} for name in ("rule", "noisy", "biased")]


def files(work: WorkDir) -> set[str]:
    """Of all that says what came out; journals, claims and logs carry names of their own."""
    found = (path.relative_to(work.root) for path in work.root.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[0] not in ("claims", "logs") and not path.name.startswith("tmp_")}


def test_the_same_as_the_two_daemons(tmp_path: Path, server: FakeServer) -> None:
    """The same files and, to the byte, the same scores; results too, over the same predictions. A pair that failed is
    told alike. Results and summary that were deleted come back the same from evald.
    """
    failing = openai(server.url("failif-17"), "failing")
    suite = write_suite(tmp_path / "s", [*BUILT_IN, failing], {"d": tasks(40), "e": tasks(12, metric_name="f1")})
    serial, pair = WorkDir(tmp_path / "serial"), WorkDir(tmp_path / "pair")
    run = evalctl("run", suite, "-w", serial.root, "--serial", "--no-progress", "--json")
    other = evalctl("run", suite, "-w", pair.root, "--no-progress", "--json")
    ended(run, 3)
    ended(other, 3)
    assert files(serial) == files(pair)
    reports = [json.loads(process.out) for process in (run, other)]
    for told in reports:
        del told["summary"]["wall_seconds"]
    assert reports[0] == reports[1]
    assert [(fault["model"], fault["dataset"]) for fault in reports[0]["errors"]] == [("failing", "d")]
    for model in ("rule", "noisy", "biased"):
        for dataset in ("d", "e"):
            assert serial.scores(model, dataset).read_bytes() == pair.scores(model, dataset).read_bytes()
    for beat in (serial.infer_heartbeat(), serial.eval_heartbeat):
        assert heartbeat(beat).state == "finished"  # type: ignore[union-attr]
    results = {path: path.read_bytes() for path in serial.result("rule", "d").parent.parent.rglob("*.json*")}
    for path in results:
        path.unlink()
    ended(evald(serial), 3)
    assert {path: path.read_bytes() for path in results} == results
    assert "failing x d: not scored" in run.err


def test_ways_change_in_the_middle(tmp_path: Path) -> None:
    """#7: serial, stopped by Ctrl-C; inferd, stopped; serial to the end: nothing is asked twice or left out."""
    with FakeServer() as server:
        model = openai(server.url("d100"), max_workers=4)
        datasets = {"d": tasks(40), "e": tasks(20)}
        work = submitted(tmp_path, [model], datasets)
        suite = tmp_path / "suite" / "suite.toml"
        with running(evalctl("run", suite, "-w", work.root, "--serial")) as process:
            until(lambda: len(answered(work)) >= 8, "the first answers")
            process.signal(signal.SIGINT)
            ended(process, 3)
        first = len(answered(work))
        assert (first, server.stats()["posts"]) == (server.stats()["posts"], first), "what was in flight is kept"
        assert first < 40
        assert f"not finished: {first} of 60 requests are answered and kept" in process.err
        assert state(work) == "pending"
        assert heartbeat(work.infer_heartbeat()).state == "aborted"  # type: ignore[union-attr]
        assert eval_status(work).state == "pending"  # type: ignore[union-attr]
        with running(inferd(work)) as process:
            until(lambda: len(answered(work)) > first, "more answers")
            process.signal(signal.SIGTERM)
            ended(process, 3)
        ended(evalctl("run", suite, "-w", work.root, "--serial"), 0)
        assert server.stats()["posts"] == 60
    assert texts(predictions(work)) == answers(40)
    assert texts(predictions(work, dataset="e")) == answers(20)
    assert report(work)["leaderboard"][0]["score"] == 1.0


def test_it_refuses_where_evald_is_at_work(tmp_path: Path) -> None:
    """Where inferd is, nothing can be submitted; tests/unit/test_api.py has both."""
    suite = write_suite(tmp_path / "s", BUILT_IN[:1], {"d": tasks(3)})
    work = WorkDir(tmp_path / "work")
    claim = claims.take(work.evald_claim)
    assert claim is not None
    with claim:
        process = ended(evalctl("run", suite, "-w", work.root, "--serial"), 2)
    assert f"evald is at work here (process {os.getpid()}" in process.err
    assert answered(work, "rule") == set()


def debugged(folder: Path, typed: str, **more: Any) -> tuple[WorkDir, subprocess.CompletedProcess[str]]:
    items = [task(number, metric_name="tests.daemons.debugged:metric") for number in range(6)]
    model = {"abbr": "m", "type": "tests.daemons.debugged:Adapter"}
    suite = write_suite(folder / "s", [model], {"d": items}, infer={"max_error_rate": 0.5})
    work = WorkDir(folder / "work")
    command = [sys.executable, "-m", "evalctl", "run", suite, "-w", work.root, "--serial", "--max-workers", "1", "-v"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONBREAKPOINT"}
    done = subprocess.run(command, input=typed, capture_output=True, text=True, cwd=ROOT, env=env, timeout=60)
    return work, done


def test_a_debugger_works_in_adapter_and_metric(tmp_path: Path) -> None:
    """With one worker. And exceptions carry tracebacks."""
    work, done = debugged(tmp_path, "p 'asked ' + task.task_id\nc\np 'scored ' + sample.task.task_id\nc\n")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "asked t1" in done.stdout
    assert "scored t3" in done.stdout
    assert "self._broken()" in done.stderr
    assert 'raise ValueError("a metric\'s defect")' in done.stderr
    assert eval_status(work).state == "done"  # type: ignore[union-attr]
    assert [row.outcome for row in predictions(work)] == ["ok", "ok", "error", "ok", "ok", "ok"]


def test_leaving_the_debugger_ends_the_run(tmp_path: Path) -> None:
    """As Ctrl-C does; here inside a metric: the pair is scored another time."""
    work, done = debugged(tmp_path, "c\nq\n")
    assert done.returncode == 3, done.stderr[-2000:]
    assert "not finished: 5 of 6 requests are answered and kept" in done.stderr.replace("\n", " ")
    status = eval_status(work)
    assert status is not None
    assert (status.state, status.reason) == ("pending", "stopped by SIGINT")
