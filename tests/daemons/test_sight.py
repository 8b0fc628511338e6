"""What operators see of real daemons: the webhook's news, the log of failed attempts, and why nothing happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from evalctl.main import main
from shared.layout import WorkDir
from tests.daemons.runs import behaving, submitted
from tests.harness import evald, inferd, openai, running, task, until
from tests.server import FakeServer
from tests.unit.test_vigil import SECRET, hook


def why(work: WorkDir, *options: str) -> tuple[int, dict[str, Any]]:
    said = CliRunner().invoke(main, ["why", "-w", str(work), "--json", "--observe", "0", *options])
    return said.exit_code, json.loads(said.stdout)


def test_a_run_that_fails_is_told_everywhere(tmp_path: Path) -> None:
    """The webhook hears of the pair and of both ends; the log has each failed attempt with run, model, dataset and
    request; `why` names the cause. The hook's URL stands nowhere.
    """
    with FakeServer() as server, hook(200) as (url, bodies):
        tasks = [task(0), behaving(1, "500x1"), behaving(2, "401")]
        work = submitted(tmp_path, [openai(server.url("d1"))], {"d": tasks})
        with work.suite.open("a") as file:
            file.write('\n[notify]\nurl_env = "HOOK_URL"\n')
        env = {"HOOK_URL": url, "no_proxy": "127.0.0.1"}
        asks = inferd(work, "--verbose", env=env)
        assert asks.wait() == 3, asks.err
        scores = evald(work, env=env)
        assert scores.wait() == 3, scores.err
    assert (bodies[0]["daemon"], bodies[0]["event"]) == ("inferd", "failure")
    assert bodies[0]["reason"].startswith("1 more failed")
    told = [(body["daemon"], body["event"]) for body in bodies if body["reason"].startswith("ended with status 3")]
    assert told == [("inferd", "failure"), ("evald", "failure")]
    lines = [json.loads(line) for path in work.logs.glob("inferd.*.log") for line in path.read_bytes().splitlines()]
    assert {line["run"] for line in lines} == {"work"}
    failed = {line["task"]: line for line in lines if line["event"] == "attempt failed"}
    assert {name: (line["error"], line["status"], line["attempt"]) for name, line in failed.items()} == {
        "t1": ("server_error", 500, 1), "t2": ("auth", 401, 1),
    }  # fmt: skip
    assert (failed["t1"]["model"], failed["t1"]["dataset"], len(failed["t1"]["request"])) == ("m", "d", 64)
    assert failed["t1"]["retry_in"] > 0
    assert failed["t2"]["retry_in"] is None
    for path in work.root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in asks.err + scores.err
    code, found = why(work)
    assert code == 1
    assert [(finding["cause"], finding["pair"]) for finding in found["findings"]] == [("failed", "m/d")]
    assert "api_key_env" in found["findings"][0]["remedy"]


def test_why_follows_what_happens(tmp_path: Path) -> None:
    """No inferd yet; an endpoint that doesn't answer, with the request's name; inferd killed."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("hang"), max_workers=1)], {"d": [task(0), task(1)]})
        code, found = why(work)
        assert (code, found["findings"][0]["cause"]) == (1, "not_started")
        with running(inferd(work)) as asks:
            slow = until(lambda: (f := why(work, "m/d")[1]["findings"]) and f[0]["cause"] == "slow" and f, "it is slow")
            assert "all 1 workers wait for slow answers: m/d t0 (" in slow[0]["what"]
            asks.kill()
        code, found = why(work)
        assert (code, found["findings"][0]["cause"]) == (1, "died")
        assert f"process {asks.process.pid} on" in found["findings"][0]["what"]
