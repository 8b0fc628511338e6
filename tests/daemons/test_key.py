"""An API key appears in no file, log line, error, status or process title, whatever the endpoint says of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shared.layout import WorkDir
from tests.daemons.runs import tasks
from tests.harness import Process, evalctl, evald, inferd, journal, openai, submit, until, write_suite
from tests.server import FakeServer

KEY = "sk-MARKED-3f9c1d27"
OTHER = "team/secret+word=="


class Telltale:
    """A user's adapter that puts the key into its error."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def generate(self, prompt: Any, task: Any) -> Any:
        raise RuntimeError(f"refused: key {os.environ['TANDEM_TEST_KEY']} is not known")


def _titles(process: Process) -> str:
    """The command lines of the process and of what it started; its environment is for its own user alone."""
    return Path(f"/proc/{process.process.pid}/cmdline").read_text()


@pytest.mark.parametrize("behaviour", ["echo-key", "echo-key-422", "401", "d1", "hang"])
def test_the_key_is_nowhere(tmp_path: Path, behaviour: str) -> None:
    """#32: error bodies that echo it, refusals of it, answers, timeouts, and an adapter that raises with it in its
    text.
    """
    env = {"TANDEM_TEST_KEY": KEY, "TANDEM_TEST_OTHER": OTHER}
    with FakeServer() as server:
        models = [
            openai(
                server.url(behaviour),
                api_key_env="TANDEM_TEST_KEY",
                headers={"X-Team": "${TANDEM_TEST_OTHER}"},
                attempt_timeout=0.5,
            ),
            {"abbr": "telltale", "type": "tests.daemons.test_key:Telltale"},
        ]
        suite = write_suite(tmp_path / "suite", models, {"d": tasks(6)}, infer={"max_attempts": 2})
        work = WorkDir(tmp_path / "work")
        submit(suite, work, env=env)
        asking = inferd(work, "-v", env=env)
        until(lambda: not asking.running or journal(work), "an attempt ended")
        said = _titles(asking) if asking.running else ""
        asking.wait()
        scoring = evald(work, "-v", env=env)
        scoring.wait()
        shown = [evalctl("status", "-w", work.root), evalctl("report", "-w", work.root, "--json")]
        for process in shown:
            process.wait()
        said += "".join(process.out + process.err for process in (asking, scoring, *shown))
        assert server.stats()["posts"] > 0
    found = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(found) > 10
    for secret in (KEY, OTHER):
        assert secret not in said
        assert [path for path, content in found.items() if secret.encode() in content] == []
    assert any(line.message for line in journal(work, "telltale")), "the telltale adapter was asked"
