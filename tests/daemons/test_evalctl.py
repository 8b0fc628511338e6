"""evalctl's commands as processes: what they print, where, and with which exit status."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.atomic import replace
from shared.layout import WorkDir
from tests.daemons.by_hand import beating, planned, publish, right, say
from tests.harness import (
    ROOT,
    Process,
    evalctl,
    evald,
    faketime,
    heartbeat,
    infer_status,
    inferd,
    journal,
    openai,
    report,
    running,
    submit,
    task,
    until,
    write_suite,
)
from tests.server import FakeServer

RULE = {"abbr": "r", "type": "rule"}


def ctl(*options: str | Path, code: int = 0, timeout: float = 60.0, **more: Any) -> Process:
    process = evalctl(*options, **more)
    assert process.wait(timeout) == code, process.out[-1000:] + process.err[-2000:]
    assert "Traceback" not in process.err
    return process


def state(work: WorkDir) -> dict[str, Any]:
    process = evalctl("status", "-w", work.root, "--json")
    assert process.wait() in (0, 3), process.err  # 3: something is missing as things stand
    return json.loads(process.out)  # type: ignore[no-any-return]


def files(folder: Path) -> dict[str, bytes]:
    """Every file but the claims, which hold no state."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "claims" not in path.parts
    }


def small(folder: Path, model: dict[str, Any] = RULE, count: int = 3, **more: Any) -> Path:
    return write_suite(folder / "suite", [model], {"d": [task(n) for n in range(count)]}, **more)


# --- help and usage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        *("", "init", "validate", "submit", "run", "status", "why", "top", "metrics", "report", "demo", "serve-model"),
        "inferd",
        "evald",
    ],
)
def test_help_shows_an_example(command: str) -> None:
    """Each command, and each daemon, explains itself with an example."""
    daemon = command in ("inferd", "evald")
    process = Process(command, "--help") if daemon else evalctl(*command.split(), "--help")
    assert process.wait() == 0
    name = f"{command} -w" if daemon else f"evalctl {command}".strip()
    assert name in process.out
    assert "Example" in process.out or command == ""
    assert process.err == ""


@pytest.mark.parametrize(
    "options", [["nonsense"], ["run"], ["run", "suite.toml"], ["status"], ["status", "-w", "x", "--interval", "0"]]
)
def test_bad_usage(options: list[str]) -> None:
    """What isn't understood: exit status 2, and how it would be."""
    assert "Usage" in ctl(*options, code=2).err


# --- init and validate --------------------------------------------------------------------------------------------


def test_init_writes_a_suite_that_runs_and_overwrites_nothing(tmp_path: Path) -> None:
    """What init writes is sound and runs as it is; a second init in the same folder changes nothing: exit status 2."""
    folder = tmp_path / "new" / "suite"
    said = ctl("init", folder)
    assert "evalctl run" in said.out
    before = files(folder)
    assert set(before) == {"suite.toml", "tasks.jsonl"}
    assert "is there already" in ctl("init", folder, code=2).err
    assert files(folder) == before
    (folder / "suite.toml").unlink()
    (folder / "tasks.jsonl").write_text("mine")
    ctl("init", folder, code=2)
    assert (folder / "tasks.jsonl").read_text() == "mine"
    assert not (folder / "suite.toml").exists()
    shutil.rmtree(folder)
    ctl("init", folder)
    found = json.loads(ctl("run", folder / "suite.toml", "-w", tmp_path / "run", "--no-progress", "--json").out)
    assert found["summary"]["pairs_scored"] == found["summary"]["pairs"] == 2


def test_validate_counts(tmp_path: Path) -> None:
    """Docs, instances, requests, tokens and cost before anything is asked; as text and as JSON; nothing is written."""
    model = openai("http://127.0.0.1:9/v1", price={"input": 1000.0, "output": 2000.0}, generation={"max_tokens": 10})
    suite = write_suite(
        tmp_path / "suite", [model, RULE], {"d": [task(n) for n in range(5)]}, dataset_options={"repeats": 3}
    )
    before = files(tmp_path)
    said = ctl("validate", suite)
    assert "2 models x 1 datasets = 2 pairs" in said.out
    assert "docs 10, instances 10, requests 30" in said.out
    assert "USD" in said.out
    found = json.loads(ctl("validate", suite, "--json").out)
    assert (found["pairs"], found["docs"], found["instances"], found["requests"]) == (2, 10, 10, 30)
    assert found["per_dataset"] == {"d": 5}
    assert found["completion_tokens"] == 15 * 10 + 15 * 256
    assert found["cost"] >= 15 * 10 * 2000 / 1e6
    assert files(tmp_path) == before


def test_validate_tells_all_problems_with_their_places(tmp_path: Path) -> None:
    """Every problem at once, each with its place; exit status 2; in JSON mode stdout stays empty."""
    suite = write_suite(
        tmp_path / "suite",
        [RULE, openai("no address", api_key_env="TANDEM_TEST_UNSET_KEY")],
        {"d": [task(0)]},
        eval={"heartbeat_timeout": -1.0},
    )
    said = ctl("validate", suite, "--json", code=2)
    assert said.out == ""
    for text in ("models[1].base_url", "models[1].api_key_env", "TANDEM_TEST_UNSET_KEY", "eval.heartbeat_timeout"):
        assert text in said.err
    misspelt = ctl("validate", small(tmp_path / "0", {"abbr": "a", "type": "rulle"}), code=2).err
    assert "models[0].type" in misspelt
    assert "did you mean rule" in misspelt
    bad = write_suite(tmp_path / "bad", [RULE], {"d": [task(0), {"task_id": "x"}, task(0)]})
    assert "d.jsonl:2" in ctl("validate", bad, code=2).err
    assert "can't be read" in ctl("validate", tmp_path / "missing.toml", code=2).err


# --- submit -------------------------------------------------------------------------------------------------------


def test_submit_starts_nothing_and_freezes(tmp_path: Path) -> None:
    """submit leaves a suite, a plan and the tasks, and no process; the frozen suite finds its relative files from
    anywhere, and the work_dir goes on without them.
    """
    suite = small(tmp_path)
    work = WorkDir(tmp_path / "work")
    said = ctl("submit", suite, "-w", work.root)
    assert "1 pairs, 3 requests planned" in said.out
    assert set(files(work.root)) == {"suite.toml", "plan.json", "tasks/d.jsonl"}
    ctl("validate", work.suite)
    shutil.rmtree(tmp_path / "suite")
    assert inferd(work).wait() == 0
    assert evald(work).wait() == 0
    assert report(work)["leaderboard"][0]["score"] is not None


def test_submit_refuses_while_inferd_runs(tmp_path: Path) -> None:
    """Another suite can't be put under a running inferd: exit status 2, who it is, and nothing changes."""
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        suite = small(tmp_path, openai(server.url("hang")))
        submit(suite, work)
        with running(inferd(work)) as asks:
            until(lambda: server.stats()["posts"], "inferd asks")
            before = work.plan.read_bytes(), work.suite.read_bytes()
            said = ctl("submit", small(tmp_path, openai(server.url("d1")), 4), "-w", work.root, code=2)
            assert f"process {asks.process.pid} on" in said.err
            assert (work.plan.read_bytes(), work.suite.read_bytes()) == before
            asks.kill()
        ctl("submit", tmp_path / "suite" / "suite.toml", "-w", work.root)  # a killed one holds nothing up


def test_a_failing_submit_leaves_the_work_dir_as_it_was(tmp_path: Path) -> None:
    """A bad suite, a bad line in one of two task files, an unset key: nothing in the work_dir changes."""
    work = WorkDir(tmp_path / "work")
    good = small(tmp_path)
    ctl("submit", good, "-w", work.root)
    before = files(work.root)
    bad_task = write_suite(tmp_path / "1", [RULE], {"d": [task(9)], "e": [task(0), {"task_id": "t1"}]})
    bad_model = write_suite(tmp_path / "2", [{"abbr": "m", "type": "nothing"}], {"d": [task(9)]})
    unset = write_suite(tmp_path / "3", [openai("http://127.0.0.1:9/v1", api_key_env="TANDEM_TEST_UNSET_KEY")], {
        "d": [task(9)]})  # fmt: skip
    for suite in (bad_task, bad_model, unset):
        ctl("submit", suite, "-w", work.root, code=2)
        assert files(work.root) == before
    ctl("submit", unset, "-w", work.root, "--no-env")
    assert files(work.root) != before


# --- run ----------------------------------------------------------------------------------------------------------


def test_run_to_the_end(tmp_path: Path) -> None:
    """Not on a terminal: progress lines on stderr, the table on stdout; with --no-progress none; with --json stdout is
    the report and nothing else. Run again, nothing is asked.
    """
    with FakeServer() as server:
        suite = small(tmp_path, openai(server.url("d20")), 10)
        first = ctl("run", suite, "-w", tmp_path / "work")
        assert "/10 requests" in first.err
        assert "100.0" in first.out
        again = ctl("run", suite, "-w", tmp_path / "work", "--no-progress", "--json")
        assert again.err == ""
        assert json.loads(again.out)["leaderboard"][0]["score"] == 1.0
        assert json.loads(again.out) == report(WorkDir(tmp_path / "work"))
        assert server.stats()["posts"] == 10


def test_run_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal the state is drawn and taken away again; the table stays."""
    suite = small(tmp_path)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "evalctl", "run", str(suite), "-w", str(tmp_path / "work")],
        cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        shown += data
    os.close(ours)
    assert process.wait(60) == 0
    assert b"inferd" in shown
    assert b"1 of 1 pairs scored" in shown
    assert b"Traceback" not in shown


def test_all_failed_exit_status(tmp_path: Path) -> None:
    """`all-failed-exit-zero`: nothing answers: exit status 3, a line on stderr with the counts, the reason and the
    address, and no score. One failing pair of two: 3 as well, and the other has its score.
    """
    infer = {"max_attempts": 1, "unhealthy_timeout": 0.2}
    nowhere = openai("http://127.0.0.1:9/v1", "dead")
    alone = write_suite(tmp_path / "1", [nowhere], {"d": [task(n) for n in range(50)]}, infer=infer)
    said = ctl("run", alone, "-w", tmp_path / "w1", "--no-progress", "--json", code=3)
    again, reason = said.err.splitlines()
    assert again.startswith("not finished: 0 of 50 requests are answered and kept; the same command again goes on")
    for text in ("dead x d", "not scored", "/50 requests failed", "127.0.0.1:9", "connect"):
        assert text in reason
    found = json.loads(said.out)
    assert (found["leaderboard"][0]["score"], found["leaderboard"][0]["rank"]) == (None, None)
    both = write_suite(tmp_path / "2", [nowhere, RULE], {"d": [task(n) for n in range(50)]}, infer=infer)
    said = ctl("run", both, "-w", tmp_path / "w2", "--no-progress", code=3)
    assert "dead x d: not scored" in said.err
    assert "r " in said.out
    assert "1 of 2 pairs scored" in said.out


def test_run_exit_statuses(tmp_path: Path) -> None:
    """2 for a bad suite; 1 with the daemon's last words when a daemon can't work; 3 when the budget ended it."""
    ctl("run", tmp_path / "missing.toml", "-w", tmp_path / "w", code=2)
    suite = small(tmp_path, infer={"max_workers": 1}, budget={"requests": 1})
    said = ctl("run", suite, "-w", tmp_path / "budget", "--no-progress", code=3)
    assert "not scored" in said.err
    assert "budget" in said.err
    work = WorkDir(tmp_path / "taken")
    with FakeServer() as server:
        slow = small(tmp_path / "other", openai(server.url("d600"), max_workers=1))
        submit(slow, work)
        with running(evald(work)):
            until(lambda: heartbeat(work.eval_heartbeat), "an evald is there")
            said = ctl("run", slow, "-w", work.root, "--no-progress", code=1)
    assert "evald ended with exit status 1" in said.err
    assert "another evald is at work here" in said.err


def test_ctrl_c_drains_and_a_run_goes_on(tmp_path: Path) -> None:
    """Ctrl-C once: what is in flight ends and is kept, exit status 3. The same command again asks only the rest."""
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        suite = small(tmp_path, openai(server.url("d100"), max_workers=2), 20)
        with running(evalctl("run", suite, "-w", work.root, "--no-progress")) as first:
            until(lambda: server.stats()["posts"] >= 5, "some requests")
            first.signal(signal.SIGINT)
            assert first.wait() == 3, first.err
        assert "stopping" in first.err
        assert "Traceback" not in first.err
        posts = server.stats()["posts"]
        assert 5 <= posts < 20
        assert len(journal(work)) == posts
        beat = heartbeat(work.infer_heartbeat())
        assert beat is not None
        assert beat.state == "aborted"
        ctl("run", suite, "-w", work.root, "--no-progress")
        assert server.stats()["posts"] == 20
        assert report(work)["leaderboard"][0]["score"] == 1.0


def test_ctrl_c_twice_kills(tmp_path: Path) -> None:
    """A second Ctrl-C ends both daemons at once, whatever is in flight; neither is left behind."""
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        suite = small(tmp_path, openai(server.url("hang")), infer={"drain_timeout": 300.0, "attempt_timeout": 300.0})
        with running(evalctl("run", suite, "-w", work.root, "--no-progress")) as run:
            until(lambda: server.stats()["posts"], "requests in flight")
            until(lambda: heartbeat(work.eval_heartbeat), "evald is there")
            run.signal(signal.SIGINT)
            until(lambda: heartbeat(work.infer_heartbeat()).state == "draining", "inferd drains")  # type: ignore[union-attr]
            pids = [heartbeat(path).pid for path in (work.infer_heartbeat(), work.eval_heartbeat)]  # type: ignore[union-attr]
            run.signal(signal.SIGINT)
            assert run.wait(30) == 1
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
        assert state(work)["inferd"][0]["state"] == "gone"


# --- status -------------------------------------------------------------------------------------------------------


def test_status_tells_what_lives(tmp_path: Path) -> None:
    """Not started, running, gone after kill -9, finished: judged by the claim, not by a clock. JSON and table agree."""
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        suite = small(tmp_path, openai(server.url("d200"), max_workers=1), 8)
        submit(suite, work)
        found = state(work)
        assert (found["inferd"][0]["state"], found["evald"]["state"]) == ("not started", "not started")
        assert "not started" in ctl("status", "-w", work.root).out
        with running(inferd(work)) as asks:
            until(lambda: (s := infer_status(work)) and s.completed, "a request is answered")
            server.behave("hang")  # so that it is at work still, however long the look takes
            found = state(work)
            assert found["inferd"][0]["state"] == "running"
            assert found["inferd"][0]["pid"] == asks.process.pid
            assert found["pairs"][0]["infer"] == "running"
            assert 0 < found["completed"] <= 8
            assert found["as_of"].endswith("Z")
            asks.kill()
        server.behave()
        found = state(work)
        assert found["inferd"][0]["state"] == "gone"
        assert "start inferd again" in found["inferd"][0]["meaning"]
        assert "gone" in ctl("status", "-w", work.root, code=3).out
        assert inferd(work).wait() == 0
        assert evald(work).wait() == 0
        found = state(work)
        assert (found["inferd"][0]["state"], found["evald"]["state"]) == ("finished", "finished")
        assert (found["pairs"][0]["infer"], found["pairs"][0]["eval"]) == ("done", "done")
        assert (found["requests"], found["completed"]) == (8, 8)
        assert found["pairs"][0]["reused"] >= 1


@pytest.mark.parametrize("wrong", ["-176s", "+176s"])
def test_a_clock_that_is_set_right(tmp_path: Path, wrong: str) -> None:
    """`pid-identity-clock-step`: the clock is corrected by 176 s under a live inferd: status still says that it runs, a
    second inferd takes no shard that the first one holds, and nothing is asked twice.
    """
    clock = tmp_path / "clock"
    clock.write_text(wrong)
    fake = faketime() | {"FAKETIME_TIMESTAMP_FILE": str(clock)}  # of the first alone: time.sleep fails under faketime
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        submit(small(tmp_path, openai(server.url("d200"), max_workers=1), 20), work)
        with running(inferd(work, env=fake)) as first:
            until(lambda: (s := infer_status(work)) and s.completed, "a request is answered")
            before = heartbeat(work.infer_heartbeat())
            replace(clock, b"+0s")
            with running(inferd(work)) as second:
                until(lambda: len(work.infer_heartbeats()) == 2, "the second one beats")
                (other,) = set(work.infer_heartbeats()) - {work.infer_heartbeat()}
                until(lambda: heartbeat(other).counters.get("pairs_waiting") == 1, "it finds the shard taken")  # type: ignore[union-attr]
                shown = state(work)
                assert [view["state"] for view in shown["inferd"]] == ["running", "running"]
                assert {view["pid"] for view in shown["inferd"]} == {first.process.pid, second.process.pid}
                assert shown["pairs"][0]["infer"] == "running"
                after = heartbeat(work.infer_heartbeat())
                assert len(list(work.journals("m", "d"))) == 1
                assert first.wait() == 0, first.err
                assert second.wait() == 0, second.err
        stats = server.stats()
        assert stats["posts"] == stats["distinct"] == 20
    assert before is not None
    assert after is not None
    assert (after.time < before.time) == wrong.startswith("+"), "the clock was not set"


def test_status_json_has_its_fields(tmp_path: Path) -> None:
    """The keys that scripts build on."""
    work = planned(tmp_path, {"d": 2})
    say(work, b"", state="running", completed=1, outcomes={"ok": 1}, attempts=3, errors={"timeout": 2})
    found = state(work)
    assert set(found) == {
        "schema", "work_dir", "as_of", "inferd", "evald", "docs", "instances", "requests", "completed", "answered",
        "attempts", "in_flight", "limit", "retries_waiting", "errors", "failed", "late_answers", "duplicates",
        "prompt_tokens", "completion_tokens", "rate", "eta_seconds", "cost", "pairs",
    }  # fmt: skip
    assert {"model", "dataset", "infer", "eval", "total", "completed", "reused", "in_flight", "attempts", "outcomes",
            "errors", "failed", "late_answers", "duplicates", "served_models", "system_fingerprints", "stragglers",
            "rate", "eta_seconds", "reason"} <= set(found["pairs"][0])  # fmt: skip
    assert {"state", "meaning", "host", "pid", "boot_id", "seq", "beat_seconds", "counters"} <= set(found["evald"])
    assert (found["attempts"], found["errors"], found["pairs"][0]["total"]) == (3, {"timeout": 2}, 2)


@pytest.mark.parametrize("as_json", [True, False])
def test_status_watch_ends_by_itself(tmp_path: Path, as_json: bool) -> None:
    """--watch shows the state until both daemons have ended, then ends with 0; with --json a line each time. That an
    earlier run's daemons have ended doesn't end it.
    """
    options = ["--json"] if as_json else []
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        suite = small(tmp_path, openai(server.url("d200"), max_workers=1), 5)
        ctl("run", suite, "-w", work.root, "--no-progress")
        submit(small(tmp_path, openai(server.url("d200"), max_workers=1), 10), work)
        with running(evalctl("status", "-w", work.root, "--watch", "--interval", "0.1", *options)) as watch:
            with running(inferd(work)) as asks, running(evald(work)) as scores:
                until(lambda: server.stats()["posts"] > 6, "inferd asks anew")
                assert watch.running
                assert asks.wait() == 0, asks.err
                assert scores.wait() == 0, scores.err
            assert watch.wait() == 0, watch.err
    if as_json:
        lines = [json.loads(line) for line in watch.out.splitlines()]
        assert len(lines) > 2
        assert lines[-1]["pairs"][0]["eval"] == "done"
    else:
        assert "finished" in watch.out


def test_status_and_report_without_a_plan(tmp_path: Path) -> None:
    """No folder, or a folder without a plan: exit status 1 and what makes one."""
    for command in ("status", "report"):
        assert "no" in ctl(command, "-w", tmp_path / "missing", code=1).err
        assert "evalctl submit" in ctl(command, "-w", tmp_path, code=1).err
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("name", ["infer_heartbeat", "plan.json"])
def test_status_of_what_is_no_file(tmp_path: Path, name: str) -> None:
    """`lock-file-is-fifo`: a FIFO, or a file of another schema, where a record belongs is told, and nothing hangs."""
    work = planned(tmp_path, {"d": 2})
    path = work.root / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    process = evalctl("status", "-w", work.root)
    assert process.wait(30) == (0 if name == "infer_heartbeat" else 1)
    assert "not a regular file" in process.out + process.err
    path.unlink()
    path.write_text('{"schema": 99}')
    process = evalctl("status", "-w", work.root)
    assert process.wait(30) == (0 if name == "infer_heartbeat" else 1)
    assert "schema 99" in process.out + process.err


# --- report -------------------------------------------------------------------------------------------------------


def test_report(tmp_path: Path) -> None:
    """Exit status 3 while pairs are missing, 0 when none is; table, JSON and Markdown of the same; --write makes
    summary/ anew. Reading changes nothing.
    """
    work = planned(tmp_path, {"d": 2, "e": 2})
    publish(work, right(2))
    with beating(work):
        pass
    assert evald(work).wait() == 3
    before = files(work.root)
    assert "1 of 2 pairs scored" in ctl("report", "-w", work.root, code=3).out
    assert json.loads(ctl("report", "-w", work.root, "--json", code=3).out) == report(work)
    assert ctl("report", "-w", work.root, "--markdown", code=3).out == work.report_md.read_text() + "\n"
    assert files(work.root) == before
    publish(work, right(2), "e")
    assert evald(work).wait() == 0
    shutil.rmtree(work.report_json.parent)
    said = ctl("report", "-w", work.root)
    assert "100.0" in said.out
    assert not work.report_json.exists()
    ctl("report", "-w", work.root, "--write")
    assert report(work)["leaderboard"][0]["rank"] == 1


def test_hostile_texts_in_a_whole_run(tmp_path: Path) -> None:
    """Names and reasons with escapes, markup, HTML and formulas: nothing of it acts on a terminal, in Markdown or in a
    spreadsheet.
    """
    model = {"abbr": "[red]m[/red]", "type": "tests.daemons.told:Hostile"}
    suite = write_suite(tmp_path / "suite", [model, RULE], {"=1+1": [task(0), task(1)]}, infer={"max_attempts": 1})
    work = WorkDir(tmp_path / "work")
    out = [ctl("run", suite, "-w", work.root, code=3)]
    out += [ctl(*options, "-w", work.root, code=code) for options, code in (
        (["status"], 3), (["report"], 3), (["report", "--markdown"], 3))]  # fmt: skip
    texts = [text for process in out for text in (process.out, process.err)]
    texts += [work.report_md.read_text(), work.leaderboard_csv.read_text()]
    for text in texts:
        assert all(char.isprintable() or char == "\n" for char in text), repr(text)
    assert "[red]m[/red]" in out[0].out
    assert "<script>" not in work.report_md.read_text()
    rows = list(csv.reader(io.StringIO(work.leaderboard_csv.read_text())))
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    for path in work.logs.iterdir():
        assert "\x1b" not in path.read_text()


# --- demo ---------------------------------------------------------------------------------------------------------


def test_demo(tmp_path: Path) -> None:
    """A sound installation: exit status 0, the table, and the word that all works; in the folder that was named."""
    said = ctl("demo", "-w", tmp_path / "demo", "--no-progress")
    assert "everything works here" in said.out
    assert "3 of 3 pairs scored" in said.out
    found = json.loads(ctl("demo", "-w", tmp_path / "demo", "--no-progress", "--json").out)
    assert (found["ok"], found["exit_code"], found["errors"]) == (True, 0, [])
    assert found["report"]["leaderboard"][0]["model"] == "rule"


def test_demo_where_no_sandbox_works(tmp_path: Path) -> None:
    """It leaves its task of a program out, says why, and works for the rest."""
    (tmp_path / "sitecustomize.py").write_text("import evald.sandbox.choice as c\nc._found['auto'] = 'none works here'")
    process = evalctl("demo", "--no-progress", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert process.wait() == 0, process.err
    assert "leaves out its task of a program: none works here" in process.out + process.err
    assert "10 tasks" in " ".join(process.out.split())


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        ("import inferd.adapters.builtin as b\nb.RuleAdapter.judge = b.NoisyAdapter.judge\n"
         "b.RuleAdapter._error_rate = 1.0", "ranks"),
        ("import inferd.adapters.builtin as b\ndef no(*_): raise RuntimeError('broken')\nb.RuleAdapter.generate = no",
         "infer"),
        ("import evald.score as s\ndef no(*_): raise RuntimeError('broken')\ns.score_pair = no", "daemons"),
        ("import evald.metrics as m\ndef no(*_): raise RuntimeError('broken')\n"
         "m.METRICS['f1'] = m.of_text('f1', '1', 0.5, no)", "task"),
    ],
    ids=["the rule model is wrong", "an adapter raises", "scoring raises", "a metric raises"],
)  # fmt: skip
def test_demo_of_a_broken_installation(tmp_path: Path, broken: str, check: str) -> None:
    """Whatever is broken: not 0, and what it was, in words and in the JSON's `errors`."""
    (tmp_path / "sitecustomize.py").write_text(broken)
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = evalctl("demo", "--no-progress", "--json", env=env)
    assert process.wait() != 0
    found = json.loads(process.out)
    assert found["ok"] is False
    assert found["exit_code"] != 0
    assert check in [error["check"] for error in found["errors"]]
    assert f"demo: {check}: " in process.err
