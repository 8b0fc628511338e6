"""evald as a process: what it scores and when, what it never scores, when it ends, and what can't bring it down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from evald.results import PairResult
from shared.atomic import replace
from shared.clock import SystemClock
from shared.heartbeat import HeartbeatWriter
from shared.layout import WorkDir
from shared.records import Heartbeat
from shared.status import write_record
from tests.daemons.by_hand import beating, lines, pair_of, planned, predict, publish, right, say
from tests.harness import (
    Process,
    eval_status,
    evald,
    faketime,
    heartbeat,
    infer_status,
    inferd,
    openai,
    read,
    report,
    running,
    submit,
    task,
    until,
    write_suite,
)
from tests.server import FakeServer

EVENTS = pytest.mark.parametrize("events", ["--events", "--no-events"])


def broken_evald(work: WorkDir, *options: str, env: dict[str, str] | None = None) -> Process:
    """An evald that breaks on some answers; its calls and its gate lie beside the work_dir."""
    own = {"TANDEM_TEST_CALLS": str(calls(work)), "TANDEM_TEST_GATE": str(gate(work))}
    return Process("tests.daemons.broken_evald", "-w", str(work), *options, env=own | (env or {}))


def calls(work: WorkDir) -> Path:
    return work.root.parent / "calls"


def gate(work: WorkDir) -> Path:
    return work.root.parent / "gate"


def result(work: WorkDir, dataset: str = "d", model: str = "m") -> PairResult | None:
    return read(work.result(model, dataset), PairResult)  # type: ignore[no-any-return]


def scored(work: WorkDir, dataset: str = "d", model: str = "m") -> bool:
    status = eval_status(work, model, dataset)
    return status is not None and status.state == "done"


def said(work: WorkDir) -> str:
    """evald's log."""
    return "".join(path.read_text() for path in work.logs.glob("evald.*.log"))


def reason(work: WorkDir, dataset: str = "d", model: str = "m") -> str:
    status = eval_status(work, model, dataset)
    return status.reason if status is not None else ""


def up(work: WorkDir) -> None:
    """Wait until evald has read the plan and looks."""
    until(lambda: (beat := heartbeat(work.eval_heartbeat)) and beat.state == "running", "evald runs")
    until(lambda: "plan read" in said(work), "evald reads the plan")


def fully(work: WorkDir, n: int, dataset: str = "d", model: str = "m") -> None:
    """The pair has a score over n docs, and nothing half lies beside it."""
    found = result(work, dataset, model)
    assert found is not None
    assert (found.n_docs, found.n_scored, found.mean) == (n, n, 1.0)
    rows = work.scores(model, dataset).read_bytes().split(b"\n")
    assert [json.loads(row)["doc_id"] for row in rows[:-1]] == list(range(n))
    assert rows[-1] == b""


# --- scoring while others infer -----------------------------------------------------------------------------------


@EVENTS
def test_a_pair_is_scored_while_others_infer(tmp_path: Path, events: str) -> None:
    """A pair gets its score as soon as it is complete, while a slow model still answers; in the end all have one, and
    evald ends with 0 by itself.
    """
    with FakeServer() as server:
        models = [openai(server.url(), "fast"), openai(server.url("d250"), "slow", max_workers=1)]
        work = WorkDir(tmp_path / "work")
        submit(write_suite(tmp_path / "suite", models, {"d": [task(n) for n in range(16)]}), work)
        with running(inferd(work)) as asks, running(evald(work, events)) as scores:
            until(lambda: scored(work, model="fast"), "the fast model's pair is scored")
            slow = infer_status(work, "slow")
            assert slow is not None
            assert slow.state == "running"
            assert not scored(work, model="slow")
            until(lambda: work.report_json.exists(), "a summary before the end")
            assert asks.wait() == 0, asks.err
            assert scores.wait() == 0, scores.err
    fully(work, 16, model="fast")
    fully(work, 16, model="slow")
    assert report(work)["summary"]["pairs_scored"] == 2
    beat = heartbeat(work.eval_heartbeat)
    assert beat is not None
    assert beat.state == "finished"


@EVENTS
def test_finished_seen_before_rows(tmp_path: Path, events: str) -> None:
    """`finished-seen-before-rows`: a status that says done of predictions which are short by three rows, or aren't
    there, leads to no score; once the rows have come there is one, over all of them.
    """
    work = planned(tmp_path, {"short": 20, "absent": 20}, eval={"heartbeat_timeout": 30.0})
    with beating(work), running(evald(work, events)) as scores:
        up(work)
        whole = lines(right(20))
        predict(work, lines(right(17)), "short")
        say(work, whole, "short")
        say(work, whole, "absent")
        until(lambda: "incomplete" in reason(work, "short"), "evald sees that rows are missing")
        assert result(work, "short") is None
        assert result(work, "absent") is None
        predict(work, whole, "short")
        predict(work, whole, "absent")
        assert scores.wait() == 0, scores.err
    fully(work, 20, "short")
    fully(work, 20, "absent")


def _never(work: WorkDir) -> bytes:
    return lines(right(10))


def _short(work: WorkDir) -> bytes:
    predict(work, lines(right(7)))
    return lines(right(10))


def _damaged(work: WorkDir) -> bytes:
    data = lines(right(10)).replace(b'"task_id":"t5"', b'"task_id":\0\0\0\0')
    predict(work, data)
    return data


def _other_digest(work: WorkDir) -> bytes:
    predict(work, lines(["0", "1", "2", "3", "4", "5", "6", "7", "8", "no"]))
    return lines(right(10))


def _other_order(work: WorkDir) -> bytes:
    rows = lines(right(10)).splitlines(keepends=True)
    data = b"".join([rows[1], rows[0], *rows[2:]])
    predict(work, data)
    return data


def _folder(work: WorkDir) -> bytes:
    work.predictions("m", "d").mkdir(parents=True)
    return lines(right(10))


@pytest.mark.parametrize("damage", [_never, _short, _damaged, _other_digest, _other_order, _folder])
def test_what_is_not_the_plans_is_never_scored(tmp_path: Path, damage: Callable[[WorkDir], bytes]) -> None:
    """`finished-seen-before-rows`, #10: predictions that are missing, short, damaged, out of order, of other content
    than the status names, or no file: evald looks again for a while, then ends with 3 and says
    which pair is incomplete. There is no result, and it doesn't look all the time.
    """
    work = planned(tmp_path, {"d": 10}, eval={"heartbeat_timeout": 1.5})
    data = damage(work)
    say(work, data)
    with beating(work):
        pass
    with running(broken_evald(work)) as scores:
        assert scores.wait() == 3, scores.err
    assert result(work) is None
    assert not work.scores("m", "d").exists()
    status = eval_status(work)
    assert status is not None
    assert status.state == "fail"
    assert "incomplete: " in status.reason
    assert report(work)["leaderboard"][0]["rank"] is None
    assert "incomplete: " in report(work)["leaderboard"][0]["datasets"]["d"]["reason"]
    assert (calls(work).stat().st_size if calls(work).exists() else 0) <= 10 * 12


def test_unchanged_pairs_are_not_scored_again_changed_ones_are(tmp_path: Path) -> None:
    """Results are kept by content. A second evald leaves them alone; other predictions, or a result that was deleted,
    are scored; deleted results and summaries come back the same to the byte.
    """
    work = planned(tmp_path, {"same": 5, "changed": 5, "deleted": 5, "scoreless": 5})
    names = ("same", "changed", "deleted", "scoreless")
    for name in names:
        publish(work, right(5), name)
    with beating(work):
        pass
    assert evald(work).wait() == 0
    before = {name: work.result("m", name).stat().st_ino for name in names}
    texts = {path: path.read_bytes() for path in work.report_json.parent.iterdir()}
    kept = {path: path.read_bytes() for path in (work.result("m", "deleted"), work.scores("m", "deleted"))}
    assert len(texts) == 3
    work.result("m", "deleted").unlink()
    work.scores("m", "scoreless").unlink()
    shutil.rmtree(work.report_json.parent)
    with running(evald(work)) as scores:
        assert scores.wait() == 0, scores.err
    assert work.result("m", "same").stat().st_ino == before["same"]
    assert {path: path.read_bytes() for path in kept} == kept
    assert {path: path.read_bytes() for path in texts} == texts
    assert work.scores("m", "scoreless").exists()
    publish(work, ["no"] * 5, "changed")
    assert evald(work).wait() == 0
    assert work.result("m", "same").stat().st_ino == before["same"]
    changed = result(work, "changed")
    assert changed is not None
    assert changed.mean == 0.0


# --- names and plans ----------------------------------------------------------------------------------------------


@EVENTS
def test_foreign_names_and_other_plans_are_never_scored(tmp_path: Path, events: str) -> None:
    """#10, #11: a `done` of another plan, names that begin alike, journals, unfinished temporary files and other
    people's files lead to no score and no stop; the pair itself is scored when its own status says done.
    """
    work = planned(tmp_path, {"d": 5, "other": 5}, eval={"heartbeat_timeout": 30.0})
    data = lines(["stale"] * 5)
    predict(work, data)
    say(work, data, plan_digest="0" * 64)
    publish(work, right(5), "other")
    folder = work.predictions_folder("m")
    for name in ("d-0", "d_0", "D", "d.bak", "x y"):
        replace(folder / f"{name}.jsonl", data)
        status = msgspec.json.decode(work.infer_status("m", "other").read_bytes())
        replace(work.infer_status_root / "m" / f"{name}.json", msgspec.json.encode(status | {"stem": name}))
    (folder / f"tmp_d.{'0' * 32}.jsonl").write_bytes(data)
    (folder / ".d.jsonl.123.new").write_bytes(data)
    (folder / "folder.jsonl").mkdir()
    (work.predictions_root / "a file").write_bytes(b"x")
    replace(work.predictions_root / "unknown" / "d.jsonl", data)
    with beating(work), running(evald(work, events)) as scores:
        until(lambda: scored(work, "other"), "the other pair is scored")
        assert eval_status(work).state == "pending"  # type: ignore[union-attr]
        assert result(work) is None
        publish(work, right(5))
        assert scores.wait() == 0, scores.err
    fully(work, 5)
    assert sorted(path.name for path in work.result("m", "d").parent.iterdir()) == [
        "d.json", "d.scores.jsonl", "other.json", "other.scores.jsonl",
    ]  # fmt: skip


def test_a_stale_done_ends_as_missing(tmp_path: Path) -> None:
    """#10: predictions and a `done` of another plan alone: exit status 3, no score."""
    work = planned(tmp_path, {"d": 5})
    data = lines(right(5))
    predict(work, data)
    say(work, data, plan_digest="0" * 64)
    with beating(work):
        pass
    with running(evald(work)) as scores:
        assert scores.wait() == 3, scores.err
    assert result(work) is None
    assert "inference incomplete" in reason(work)


def test_another_suite_submitted_while_evald_runs(tmp_path: Path) -> None:
    """A plan that changes under evald: what was being scored for the old plan is not taken for the new one's."""
    work = planned(tmp_path, {"d": 3}, eval={"heartbeat_timeout": 30.0})
    publish(work, ["gate", "gate", "2"])
    old = pair_of(work)
    with running(broken_evald(work)) as scores:
        until(calls(work).exists, "the old plan's pair is being scored")
        planned(tmp_path, {"d": 4}, eval={"heartbeat_timeout": 30.0})
        assert pair_of(work) != old
        with beating(work):
            until(lambda: said(work).count("plan read") == 2, "evald reads the new plan")
            gate(work).touch()
            until(lambda: work.result("m", "d").exists(), "the old pair's result")
            until(lambda: (s := eval_status(work)) and s.state == "pending", "the new plan's pair waits")
            publish(work, right(4))
            assert scores.wait() == 0, scores.err
    fully(work, 4)
    assert report(work)["leaderboard"][0]["score"] == 1.0


# --- killed and started in any order ------------------------------------------------------------------------------


def test_killed_while_scoring(tmp_path: Path) -> None:
    """evald killed -9 in the middle of scoring: its workers don't outlive it, nothing half is left under a final name,
    and another evald scores everything.
    """
    names = [f"d{n}" for n in range(4)]
    work = planned(tmp_path, dict.fromkeys(names, 4))
    for name in names:
        publish(work, ["gate" if name == "d3" else "0", "1", "2", "no"], name)
    with beating(work), running(broken_evald(work)) as scores:
        until(lambda: all(scored(work, name) for name in names[:3]), "three pairs are scored")
        until(lambda: (s := eval_status(work, dataset="d3")) and s.state == "running", "another is being scored")
        family = psutil.Process(scores.process.pid).children(recursive=True)
        assert len(family) >= 3  # the fork server, its tracker, a worker
        scores.kill_alone()
        scores.process.communicate()
        until(lambda: not any(_alive(child) for child in family), "all of its processes end", 10.0)
        for name in names:
            found = result(work, name)
            assert (found is None) == (name == "d3")
            assert work.scores("m", name).exists() == (name != "d3")
    gate(work).touch()
    with running(broken_evald(work)) as scores:
        assert scores.wait() == 0, scores.err
    for name in names:
        found = result(work, name)
        assert found is not None
        assert (found.n_docs, found.n_scored, found.mean) == (4, 4, 0.5 if name == "d3" else 0.75)
    assert report(work)["summary"]["pairs_scored"] == 4


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE  # type: ignore[no-any-return]
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("order", ["evald first", "inferd first", "evald killed first", "inferd killed first"])
def test_any_order(tmp_path: Path, order: str) -> None:
    """The daemons may start in either order, be killed and started again in either: all is asked and scored once."""
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        models = [openai(server.url("d20"), name, max_workers=2) for name in ("m", "n")]
        suite = write_suite(
            tmp_path / "suite", models, {"d": [task(n) for n in range(60)]}, eval={"heartbeat_timeout": 20.0}
        )
        submit(suite, work)
        if order == "evald first":
            scores = evald(work)
            up(work)
            asks = inferd(work)
        else:
            asks = inferd(work)
            until(lambda: server.stats()["posts"] > 5, "inferd asks")
            scores = evald(work)
        if order.endswith("killed first"):
            up(work)
            first, second = (scores, asks) if order == "evald killed first" else (asks, scores)
            first.kill_alone()
            second.kill_alone()
            first.kill()
            second.kill()
            first, second = (inferd, evald) if order == "evald killed first" else (evald, inferd)  # type: ignore[assignment]
            started = {first: first(work), second: second(work)}  # type: ignore[operator]
            asks, scores = started[inferd], started[evald]  # type: ignore[index]
        with running(asks), running(scores):
            assert asks.wait() == 0, asks.err
            assert scores.wait() == 0, scores.err
    fully(work, 60, model="m")
    fully(work, 60, model="n")


def test_stopped_by_a_signal(tmp_path: Path) -> None:
    """SIGTERM ends evald soon, in the middle of scoring: what isn't scored is pending and says why, the beat says
    aborted, the exit status 3; started again it goes on.
    """
    work = planned(tmp_path, {"d": 2, "e": 2})
    publish(work, ["hang", "1"])
    with beating(work):
        with running(broken_evald(work)) as scores:
            until(lambda: (s := eval_status(work)) and s.state == "running", "the pair is being scored")
            scores.signal(signal.SIGTERM)
            assert scores.wait() == 3, scores.err
        assert "stopped by SIGTERM" in reason(work)
        assert [eval_status(work, dataset=name).state for name in "de"] == ["pending", "pending"]  # type: ignore[union-attr]
        beat = heartbeat(work.eval_heartbeat)
        assert beat is not None
        assert beat.state == "aborted"
        publish(work, right(2))
        publish(work, right(2), "e")
        with running(evald(work)) as scores:
            assert scores.wait() == 0, scores.err


def test_two_evalds(tmp_path: Path) -> None:
    """A second evald in a work_dir ends with 1 and says who is there; the first isn't disturbed."""
    work = planned(tmp_path, {"d": 3}, eval={"heartbeat_timeout": 30.0})
    with beating(work), running(evald(work)) as first:
        up(work)
        second = evald(work)
        assert second.wait() == 1
        assert "another evald is at work here" in second.err
        assert f"process {first.process.pid} on" in second.err
        assert "Traceback" not in second.err
        publish(work, right(3))
        assert first.wait() == 0, first.err
    fully(work, 3)


# --- inferd's end -------------------------------------------------------------------------------------------------


def test_inferd_killed_for_good(tmp_path: Path) -> None:
    """An inferd that died: evald ends heartbeat_timeout later with 3, not before; what is complete is scored, nothing
    else is, and every other pair has its reason.
    """
    with FakeServer() as server:
        models = [openai(server.url(), "fast"), openai(server.url("d500"), "slow", max_workers=1)]
        work = WorkDir(tmp_path / "work")
        submit(write_suite(tmp_path / "suite", models, {"d": [task(n) for n in range(40)]}), work)
        with running(inferd(work)) as asks, running(evald(work)) as scores:
            until(lambda: scored(work, model="fast"), "the fast model's pair is scored")
            killed = time.monotonic()
            asks.kill_alone()
            asks.kill()
            assert scores.wait() == 3, scores.err
            assert time.monotonic() - killed > 2.5  # of a timeout of 3 s, and a beat every 0.2 s
    fully(work, 40, model="fast")
    assert result(work, model="slow") is None
    assert not work.scores("slow", "d").exists()
    assert "heartbeat has not changed" in reason(work, model="slow")
    assert "/40 requests answered" in reason(work, model="slow")
    rows = {row["model"]: row for row in report(work)["leaderboard"]}
    assert rows["slow"]["rank"] is None
    assert rows["slow"]["score"] is None
    assert "heartbeat has not changed" in rows["slow"]["datasets"]["d"]["reason"]
    assert rows["fast"]["rank"] == 1


def test_inferd_finished_with_a_failed_pair(tmp_path: Path) -> None:
    """#14: inferd says that it finished, so evald ends at once, not when the heartbeat is stale; exit status 3, and the
    failed pair keeps inferd's reason.
    """
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        suite = write_suite(
            tmp_path / "suite",
            [openai(server.url(), "good"), openai(server.url("404"), "bad")],
            {"d": [task(n) for n in range(10)]},
            eval={"heartbeat_timeout": 300.0},
        )
        submit(suite, work)
        with running(evald(work)) as scores, running(inferd(work)) as asks:
            assert asks.wait() == 3
            assert scores.wait() == 3, scores.err
    fully(work, 10, model="good")
    assert result(work, model="bad") is None
    assert reason(work, model="bad").startswith("inference failed: ")
    assert [(e["model"], e["stage"]) for e in report(work)["errors"]] == [("bad", "infer")]


def test_inferd_never_comes(tmp_path: Path) -> None:
    """#22: no heartbeat at all is "not started": evald waits startup_timeout, then ends with 3 and the reason."""
    work = planned(tmp_path, {"d": 3}, eval={"startup_timeout": 0.5, "heartbeat_timeout": 300.0})
    with running(evald(work)) as scores:
        assert scores.wait() == 3, scores.err
    assert "inferd has not started: no heartbeat" in reason(work)


def test_inferd_comes_late(tmp_path: Path) -> None:
    """Within startup_timeout inferd may come as late as it will; so it may after a run that ended long ago."""
    work = planned(tmp_path, {"d": 3}, eval={"startup_timeout": 60.0, "heartbeat_timeout": 2.0})
    with running(evald(work)) as scores:
        up(work)
        time.sleep(2.5)  # longer than heartbeat_timeout: no condition shows that nothing happens
        assert scores.running
        with beating(work):
            publish(work, right(3))
            assert scores.wait() == 0, scores.err


def test_inferd_stopped_for_a_while(tmp_path: Path) -> None:
    """An inferd that stands still for longer than heartbeat_timeout (SIGSTOP) is gone for evald, which ends with 3.
    It goes on when it is let, and a second evald scores everything.
    """
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        suite = write_suite(
            tmp_path / "suite", [openai(server.url("d50"), max_workers=1)], {"d": [task(n) for n in range(30)]},
            eval={"heartbeat_timeout": 1.0},
        )  # fmt: skip
        submit(suite, work)
        with running(inferd(work)) as asks, running(evald(work)) as scores:
            until(lambda: server.stats()["posts"] > 3, "inferd asks")
            up(work)
            asks.signal(signal.SIGSTOP)
            assert scores.wait() == 3, scores.err
            assert "heartbeat has not changed" in reason(work)
            asks.signal(signal.SIGCONT)
            with running(evald(work)) as again:
                assert asks.wait() == 0, asks.err
                assert again.wait() == 0, again.err
    fully(work, 30)


def test_a_dead_second_inferd_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Two inferds shared a plan; one was killed, the other finished. Once the dead one's beat is stale evald takes the
    other's word.
    """
    work = planned(tmp_path, {"d": 3, "e": 3}, eval={"heartbeat_timeout": 1.0})
    publish(work, right(3))
    say(work, b"", "e", state="fail", reason="refused")
    write_record(work.infer_heartbeat("aa"), Heartbeat(
        time="", seq=4, boot_id="b", host="h", pid=1, state="running", interval=5.0,
    ))  # fmt: skip
    replace(work.infer_heartbeat("bak"), b"somebody's own file")
    with beating(work) as beat, running(evald(work)) as scores:
        up(work)
        beat.finish("finished")
        assert scores.wait() == 3, scores.err
    fully(work, 3)
    assert "inferd finished" in said(work)


# --- clocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inferd_clock", "evald_clock"), [("-300s", "+0s"), ("+3600s", "+0s"), ("+0s", "+3600s")])
def test_clocks_that_differ(tmp_path: Path, inferd_clock: str, evald_clock: str) -> None:
    """`clock-skew-false-dead`, #20: the hosts' clocks minutes or an hour apart, in either direction: no false stop, and
    all is scored. A heartbeat_timeout of seconds is far less than the difference.
    """
    fake = faketime()
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        model = openai(server.url("d100"), max_workers=2)
        submit(write_suite(tmp_path / "suite", [model], {"d": [task(n) for n in range(16)]}), work)
        with (
            running(inferd(work, env=fake | {"FAKETIME": inferd_clock})) as asks,
            running(evald(work, env=fake | {"FAKETIME": evald_clock})) as scores,
        ):
            assert asks.wait() == 0, asks.err
            assert scores.wait() == 0, scores.err
    fully(work, 16)
    beats = [heartbeat(work.infer_heartbeat()), heartbeat(work.eval_heartbeat)]
    stamps = sorted(beat.time for beat in beats if beat is not None)
    assert stamps[0][:13] != stamps[1][:13] or inferd_clock == "-300s", "the clocks did not differ"


def test_a_dead_inferd_with_a_clock_ahead(tmp_path: Path) -> None:
    """`clock-skew-false-dead`, the other way: a beat from an hour ahead doesn't live longer for it."""
    fake = faketime()
    with FakeServer() as server:
        work = WorkDir(tmp_path / "work")
        model = openai(server.url("d100"), max_workers=1)
        suite = write_suite(
            tmp_path / "suite", [model], {"d": [task(n) for n in range(1000)]}, eval={"heartbeat_timeout": 1.0}
        )
        submit(suite, work)
        with (
            running(inferd(work, env=fake | {"FAKETIME": "+3600s"})) as asks,
            running(evald(work)) as scores,
        ):
            up(work)
            until(lambda: server.stats()["posts"] > 0, "inferd asks")
            asks.kill()
            assert scores.wait() == 3, scores.err
    assert "heartbeat has not changed" in reason(work)


@pytest.mark.parametrize("step", ["-7200s", "+7200s"])
def test_a_clock_that_is_set(tmp_path: Path, step: str) -> None:
    """evald's clock is set by two hours, back or ahead, while a pair is scored and others are inferred: no false stop,
    no false limit of time, and all is scored.
    """
    fake = faketime()
    clock = tmp_path / "clock"
    clock.write_text("+0s")
    work = planned(
        tmp_path, {"d": 3, "e": 3}, eval={"heartbeat_timeout": 20.0, "pair_timeout": 60.0, "log_interval": 0.3}
    )
    publish(work, ["gate", "1", "2"])
    fake |= {"FAKETIME_TIMESTAMP_FILE": str(clock)}
    with beating(work), running(broken_evald(work, env=fake)) as scores:
        until(calls(work).exists, "the pair is being scored")
        before = eval_status(work)
        replace(clock, step.encode())
        told = said(work).count('"event": "progress"')
        until(lambda: said(work).count('"event": "progress"') > told + 2, "evald lives on for a while")
        gate(work).touch()
        until(lambda: scored(work), "it is scored")
        publish(work, right(3), "e")
        assert scores.wait() == 0, scores.err
    after = eval_status(work)
    assert before is not None
    assert after is not None
    assert (after.updated_at < before.updated_at) == step.startswith("-"), "the clock was not set"
    fully(work, 3, "e")


# --- the file system ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "count"), [("max_inotify_instances", 0), ("max_inotify_watches", 0), ("max_inotify_watches", 2)]
)
def test_inotify_limits(tmp_path: Path, limit: str, count: int) -> None:
    """`inotify-limits`: no inotify instance or watch is left: one warning that names the setting, and the scan scores
    everything. So it does where the watches reach for some of the folders only.
    """
    work = planned(tmp_path, {"d": 3}, [f"m{n}" for n in range(5)], eval={"heartbeat_timeout": 30.0})
    for n in range(5):
        say(work, b"", model=f"m{n}", state="running")
    narrow = ["unshare", "--user", "--map-root-user", "sh", "-c",
              f'echo {count} > /proc/sys/user/{limit} && exec "$@"', "sh"]  # fmt: skip
    if subprocess.run([*narrow, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace can be made here, whose limits could be lowered")
    with beating(work), running(evald(work, prefix=narrow)) as scores:
        up(work)
        for n in range(5):
            publish(work, right(3), model=f"m{n}")
        assert scores.wait() == 0, scores.err
    warnings = [line for line in said(work).splitlines() if "no filesystem events" in line]
    assert len(warnings) <= 1
    assert warnings or count
    assert all("fs.inotify.max_user_instances or fs.inotify.max_user_watches" in line for line in warnings)
    for n in range(5):
        fully(work, 3, model=f"m{n}")


@EVENTS
def test_the_work_dir_goes_away_and_comes_back(tmp_path: Path, events: str) -> None:
    """`remount-stops-events`: the work_dir is gone for a few seconds: evald warns, makes nothing in its place, and
    scores what comes after. So it does when infer_status/ was made anew.
    """
    work = planned(tmp_path, {"d": 3, "e": 3, "f": 3}, eval={"heartbeat_timeout": 30.0})
    away = WorkDir(tmp_path / "away")
    with beating(work), running(evald(work, events)) as scores:
        up(work)
        publish(work, right(3))
        until(lambda: scored(work), "a pair is scored")
        until(work.leaderboard_csv.exists, "the summary is written to its end")
        os.rename(work.root, away.root)
        until(lambda: "the work_dir can't be read" in said(away), "evald warns")
        if events == "--events":  # once is enough: it takes a beat's interval
            until(lambda: _beats_again(away, scores), "a beat would have been written", 12.0)
        assert not work.root.exists()
        os.rename(away.root, work.root)
        publish(work, right(3), "e")
        until(lambda: scored(work, "e"), "another pair is scored")
        shutil.rmtree(work.infer_status_root)
        publish(work, right(3))
        publish(work, right(3), "e")
        publish(work, right(3), "f")
        assert scores.wait() == 0, scores.err
    for name in "def":
        fully(work, 3, name)


def _beats_again(away: WorkDir, scores: Process) -> bool:
    assert scores.running
    return "heartbeat can't be written" in said(away)


def test_a_status_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    """Of two pairs one has a folder, then garbage, where its status belongs: the other is scored meanwhile."""
    work = planned(tmp_path, {"d": 3, "e": 3}, eval={"heartbeat_timeout": 30.0})
    predict(work, lines(right(3)))
    work.infer_status("m", "d").mkdir(parents=True)
    with beating(work), running(evald(work)) as scores:
        publish(work, right(3), "e")
        until(lambda: scored(work, "e"), "the other pair is scored")
        work.infer_status("m", "d").rmdir()
        replace(work.infer_status("m", "d"), b"\0" * 100)
        up(work)
        say(work, lines(right(3)))
        assert scores.wait() == 0, scores.err
    fully(work, 3)


# --- scorers that break -------------------------------------------------------------------------------------------


def test_samples_a_scorer_cannot_score(tmp_path: Path) -> None:
    """`samples-silently-dropped`: the scorer raises for 6 of 294 docs. They are counted and named with their reasons,
    the headline is marked, and n_docs = scored + errors.
    """
    bad = (3, 50, 51, 100, 200, 293)
    work = planned(tmp_path, {"d": 294})
    publish(work, ["raise" if n in bad else str(n) for n in range(294)])
    with beating(work):
        pass
    with running(broken_evald(work)) as scores:
        assert scores.wait() == 0, scores.err
    found = result(work)
    assert found is not None
    assert (found.n_docs, found.n_scored, found.n_score_errors, found.n_missing) == (294, 288, 6, 0)
    assert [error.task_id for error in found.score_errors] == [f"t{n}" for n in bad]
    assert all("no way to score 'raise'" in error.reason for error in found.score_errors)
    assert found.mean == 1.0
    assert found.bounds is not None
    assert found.bounds.low == pytest.approx(288 / 294)
    row = report(work)["leaderboard"][0]
    assert row["complete"] is False
    assert row["coverage"] == pytest.approx(288 / 294)
    assert [error["stage"] for error in report(work)["errors"]] == ["task"] * 6
    table = work.report_md.read_text()
    assert "100.0\\*" in table
    assert "6 of 294 docs have no score" in table


def test_scorers_that_hang_or_kill_their_process(tmp_path: Path) -> None:
    """#15, #17, case no-pair-isolation: a pair whose scoring hangs, or takes its process down, fails alone and says
    why; the others are scored, before and after it. Exit status 3. Where the case has it tried again at the next scan,
    the design has it tried at the next start (#16): what hung once would hang again.
    """
    answers = {"a": "0", "hang": "hang", "die": "die", "exit": "exit", "z": "0"}
    work = planned(tmp_path, dict.fromkeys(answers, 2), eval={"pair_timeout": 2.5})
    for name, answer in answers.items():
        publish(work, [answer, "1"], name)
    with beating(work):
        pass
    with running(broken_evald(work)) as scores:
        assert scores.wait() == 3, scores.err
    fully(work, 2, "a")
    fully(work, 2, "z")
    for name, text in (("hang", "took longer than 2.5 s"), ("die", "SIGKILL"), ("exit", "exit status 7")):
        status = eval_status(work, dataset=name)
        assert status is not None
        assert status.state == "fail"
        assert text in status.reason
        assert result(work, name) is None
    assert {e["dataset"] for e in report(work)["errors"]} == {"hang", "die", "exit"}
    publish(work, ["0", "1"], "hang")
    with running(evald(work)) as scores:  # a failed pair is no finished one (#16): the next start scores it
        assert scores.wait() == 0, scores.err


def test_a_worker_killed_while_it_waits(tmp_path: Path) -> None:
    """The kernel may kill a worker that does nothing just now: the next pair gets another."""
    work = planned(tmp_path, {"d": 3, "e": 3}, eval={"heartbeat_timeout": 30.0})
    publish(work, right(3))
    with beating(work), running(evald(work)) as scores:
        until(lambda: scored(work), "a pair is scored")
        until(lambda: work.report_json.exists(), "and in the summary")
        workers = _workers(scores)
        assert workers
        for worker in workers:
            worker.kill()
        publish(work, right(3), "e")
        assert scores.wait() == 0, scores.err
    fully(work, 3, "e")


def _workers(scores: Process) -> list[psutil.Process]:
    """The processes below the fork server."""
    try:
        children = psutil.Process(scores.process.pid).children()
        return [worker for child in children for worker in child.children()]
    except psutil.NoSuchProcess:
        return []


# --- options ------------------------------------------------------------------------------------------------------


def test_watch_interval_and_events(tmp_path: Path) -> None:
    """#18: with a long watch_interval a new pair is noticed by events alone: at once with them, not without. The
    option wins over the suite.
    """
    work = planned(tmp_path, {"d": 3}, eval={"watch_interval": 300.0, "heartbeat_timeout": 900.0, "events": False})
    say(work, b"", state="running")
    with beating(work):
        with running(evald(work)) as scores:
            up(work)
            publish(work, right(3))
            time.sleep(1.5)  # no condition shows that nothing happens
            assert scores.running
            assert not scored(work)
            scores.signal(signal.SIGTERM)
            assert scores.wait() == 3
        for options in (["--events"], ["--watch-interval", "0.2"]):
            say(work, b"", state="running")
            with running(evald(work, *options)) as scores:
                until(lambda: said(work).count("plan read") and _fresh(work), "evald looks")
                publish(work, right(3))
                assert scores.wait(30.0) == 0, scores.err


def _fresh(work: WorkDir) -> bool:
    status, beat = eval_status(work), heartbeat(work.eval_heartbeat)
    return status is not None and status.state == "pending" and beat is not None and beat.state == "running"


def test_heartbeat_timeout_and_log_interval(tmp_path: Path) -> None:
    """#18: heartbeat_timeout and log_interval as options win over the suite's; progress lines come as often as told."""
    work = planned(tmp_path, {"d": 3}, eval={"heartbeat_timeout": 300.0, "log_interval": 300.0})
    beat = HeartbeatWriter(work.infer_heartbeat(), SystemClock(), 5.0)
    beat.start()
    beat.finish("finished")
    write_record(work.infer_heartbeat(), msgspec.structs.replace(heartbeat(work.infer_heartbeat()), state="running"))
    with running(evald(work, "--heartbeat-timeout", "1")) as scores:
        assert scores.wait(30.0) == 3, scores.err
    assert "heartbeat has not changed" in reason(work)
    assert '"event": "progress"' not in said(work)
    with running(evald(work, "--heartbeat-timeout", "2", "--log-interval", "0.3")) as scores:
        assert scores.wait(30.0) == 3, scores.err
    assert said(work).count('"event": "progress"') >= 3


@pytest.mark.parametrize(("options", "most"), [((), 1), (("--max-num-workers", "3", "-v"), 3)])
def test_max_num_workers(tmp_path: Path, options: tuple[str, ...], most: int) -> None:
    """#18: at most max_num_workers processes score at once, and as many do when there is work; the option wins over
    the suite.
    """
    work = planned(tmp_path, {f"d{n}": 2 for n in range(4)}, eval={"max_num_workers": 1, "calibration_bins": 7})
    for n in range(4):
        publish(work, ["gate", "1"], f"d{n}")
    with beating(work):
        pass
    with running(broken_evald(work, *options)) as scores:
        until(lambda: calls(work).exists() and calls(work).stat().st_size >= most, "so many pairs are being scored")
        time.sleep(0.5)  # no condition shows that nothing more begins
        assert calls(work).stat().st_size == most
        assert len(_workers(scores)) == most
        gate(work).touch()
        assert scores.wait() == 0, scores.err
    found = result(work, "d0")
    assert found is not None
    assert len(found.calibration.n) == 7  # calibration_bins
    assert ('"event": "scoring"' in said(work)) == ("-v" in options)


def test_bad_usage(tmp_path: Path) -> None:
    """No such folder, and a folder without a suite: exit status 2 and the remedy, no traceback."""
    missing = evald(WorkDir(tmp_path / "missing"))
    empty = evald(WorkDir(tmp_path))
    for process in (missing, empty):
        assert process.wait() == 2
        assert "evalctl submit" in process.err
        assert "Traceback" not in process.err
    assert not (tmp_path / "missing").exists()
