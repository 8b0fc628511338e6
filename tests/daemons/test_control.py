"""Commands to daemons at work, given by evalctl: what they do, how they are acknowledged, and when they are refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from evalctl.main import main
from shared.layout import WorkDir
from shared.records import Command, encode_record
from tests.harness import (
    evald,
    heartbeat,
    infer_status,
    inferd,
    openai,
    running,
    submit,
    task,
    until,
    write_suite,
)
from tests.server import FakeServer


def told(work: WorkDir, command: str, *options: str, code: int = 0) -> dict[str, Any]:
    """A command's JSON; its message where it was refused before it was given. Without the start of a process."""
    ended = CliRunner().invoke(main, [command, "-w", str(work), "--json", *options])
    assert ended.exit_code == code, ended.output
    return json.loads(ended.stdout) if ended.stdout else {"message": ended.stderr}


def words(given: dict[str, Any]) -> list[tuple[str, str]]:
    return [(word["daemon"], word["outcome"]) for word in given["daemons"]]


def state(work: WorkDir) -> str:
    beat = heartbeat(work.infer_heartbeat())
    return beat.state if beat is not None else ""


def in_flight(server: FakeServer) -> int:
    return int(server.stats()["in_flight"])


def test_a_run_is_steered(tmp_path: Path, server: FakeServer) -> None:
    """pause, resume, retune, cancel, reload, SIGHUP and drain: obeyed, acknowledged in the beat, and seen to act; what
    can't be is refused with the reason, and nothing of it stays in the folder. (ARCHITECTURE: the control folder.)
    """
    work = WorkDir(tmp_path / "work")
    datasets = {"d": [task(n) for n in range(3000)], "e": [task(n) for n in range(3000)]}
    models = [
        openai(server.url("d50"), max_workers=2, transport="threads"),
        openai(server.url("d50"), "eng", transport="engine"),
    ]
    submit(write_suite(tmp_path / "suite", models, datasets), work)
    assert "nobody could pause" in told(work, "pause", code=1)["message"]
    with running(inferd(work)) as infer, running(evald(work)) as score:
        until(lambda: (status := infer_status(work)) and status.completed > 5, "it answers")
        until(lambda: heartbeat(work.eval_heartbeat), "evald beats")

        dry = told(work, "pause", "--dry-run")
        assert (dry["dry_run"], words(dry), state(work)) == (True, [("inferd", "silent")], "running")
        assert list(work.control.iterdir()) == []

        assert words(told(work, "pause")) == [("inferd", "obeyed")]
        beat = heartbeat(work.infer_heartbeat())
        assert beat is not None
        assert [(word.command, word.obeyed) for word in beat.acknowledged] == [("pause", True)]
        assert beat.state == "paused"
        until(lambda: in_flight(server) == 0, "what was in flight has ended")
        sent = server.stats()["posts"]
        until(lambda: (now := heartbeat(work.infer_heartbeat())) and now.seq > beat.seq + 2, "it goes on beating")
        assert server.stats()["posts"] == sent
        assert "paused already" in told(work, "pause", code=1)["message"]

        for name, before in (("m", 2), ("eng", 4)):  # a pool of threads, and an engine
            assert told(work, "retune", "--max-workers", "7", "--model", name)["daemons"][0]["text"] == (
                f"max_workers of {name}: {before} -> 7"
            )
        assert "max_workers is 7 already" in told(work, "retune", "--max-workers", "7", code=1)["daemons"][0]["text"]
        assert words(told(work, "resume")) == [("inferd", "obeyed")]
        until(lambda: in_flight(server) == 14, "as many are in flight as may be now")
        told(work, "retune", "--max-workers", "1")
        until(lambda: in_flight(server) <= 2, "and as few")
        assert "did you mean m/d" in told(work, "cancel", "m/dd", code=2)["message"]
        assert "unknown" in told(work, "retune", "--max-workers", "7", "--model", "x", code=2)["message"]

        assert words(told(work, "cancel", "m/d", "--reason", "wrong template")) == [("inferd", "obeyed")]
        failed = until(lambda: (now := infer_status(work)) and now.state == "fail" and now, "the pair is given up")
        assert "wrong template" in failed.reason
        assert "nothing to cancel" in told(work, "cancel", "m/d", code=1)["message"]

        text = work.suite.read_text()
        work.suite.write_text(
            text.replace("max_workers = 2", "max_workers = 3")
            .replace("watch_interval = 0.2", "watch_interval = 0.3")
            .replace("attempt_timeout = 10.0", "attempt_timeout = 11.0")
        )
        reloaded = {word["daemon"]: word["text"] for word in told(work, "reload")["daemons"]}
        assert reloaded == {
            "inferd": "max_workers of m = 3; at the next start: attempt_timeout",
            "evald": "watch_interval = 0.3",
        }
        until(lambda: in_flight(server) == 4, "three of one model, one of the other")
        work.suite.write_text(text.replace('"e"', '"f"'))
        refused = told(work, "reload", code=1)["daemons"][0]
        assert (refused["outcome"], "evalctl submit" in refused["text"]) == ("refused", True)
        work.suite.write_text(text)
        infer.signal(signal.SIGHUP)  # the suite says 2 again
        until(lambda: in_flight(server) == 3, "it was read again")
        assert list(work.control.iterdir()) == []

        assert words(told(work, "drain")) == [("inferd", "obeyed")]
        assert infer.wait() == 3
        assert "evalctl drain (" in infer.err
        assert score.wait() == 3


def test_every_inferd_obeys_and_old_commands_move_nobody(tmp_path: Path, server: FakeServer) -> None:
    """Two inferds share a plan: both acknowledge. A command that was left behind is for nobody who starts later; files
    that are no commands are told of once and hold nothing up.
    """
    work = WorkDir(tmp_path / "work")
    datasets = {name: [task(n) for n in range(2000)] for name in ("d", "e", "f")}
    submit(write_suite(tmp_path / "suite", [openai(server.url("d50"), max_workers=1)], datasets), work)
    work.control.mkdir()
    stale = Command(id="0-old", command="drain", boots=("an-earlier-start",), time="", by="x")
    work.command("0-old").write_bytes(encode_record(stale))
    (work.control / "garbage.json").write_bytes(b"\x00{[")
    with running(inferd(work)) as first:
        until(lambda: state(work) == "running", "the first runs")
        with running(inferd(work)) as second:
            beats = until(lambda: len(work.infer_heartbeats()) == 2 and work.infer_heartbeats(), "the second beats")
            until(lambda: all(getattr(heartbeat(path), "state", "") == "running" for path in beats), "it runs")
            assert words(told(work, "pause")) == [("inferd", "obeyed")] * 2
            assert {getattr(heartbeat(path), "state", "") for path in beats} == {"paused"}
            assert not work.command("0-old").exists()  # evalctl swept it away
            assert words(told(work, "cancel", "m/f")) == [("inferd", "obeyed")] * 2  # a pair that isn't open yet
            until(lambda: (now := infer_status(work, dataset="f")) and now.state == "fail", "it is given up too")
            assert words(told(work, "stop")) == [("inferd", "obeyed")] * 2
            assert (first.wait(), second.wait()) == (3, 3)
    assert first.err.count("not a command") == second.err.count("not a command") == 1
