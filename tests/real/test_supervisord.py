"""The sample for supervisord under the real one: start, crash and restart, SIGHUP, and a stop that leaves nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from evalctl.submit import submit
from shared.layout import WorkDir
from tests.harness import ROOT, heartbeat, infer_status, openai, task, until, write_suite
from tests.server import FakeServer

OWN = """\
[supervisord]
nodaemon=true
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
[unix_http_server]
file={folder}/s
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/s
"""


class Supervisor:
    def __init__(self, config: Path) -> None:
        self._config = config

    def ctl(self, *words: str) -> str:
        command = [sys.executable, "-W", "ignore", "-m", "supervisor.supervisorctl", "-c", str(self._config), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    def state(self, name: str) -> str:
        """As `RUNNING pid 12`, or `EXITED`."""
        found = re.search(rf"{name}-math\s+(\w+)(?:\s+(pid \d+))?", self.ctl("status", f"tandem-math:{name}-math"))
        return " ".join(filter(None, found.groups())) if found else ""


@contextmanager
def supervised(folder: Path, work: WorkDir) -> Iterator[Supervisor]:
    """The sample as it is, but for where things lie and who they run as."""
    text = (ROOT / "systemd" / "supervisord.conf").read_text()
    for before, after in (
        ("/srv/tandem/math", str(work)),
        ("/opt/tandem/bin/inferd", f"{sys.executable} -m inferd"),
        ("/opt/tandem/bin/evald", f"{sys.executable} -m evald"),
        ("/etc/tandem/credentials", str(folder)),
        ("/var/log/supervisor", str(folder)),
        ("user=tandem\n", f"directory={ROOT}\n"),
    ):
        assert before in text
        text = text.replace(before, after)
    config = folder / "supervisord.conf"
    config.write_text(OWN.format(folder=folder) + text)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "supervisor.supervisord", "-c", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: (folder / "s").exists(), "supervisord listens")
        yield Supervisor(config)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def ours(work: WorkDir) -> list[int]:
    """Every process that works there, the children of daemons included: each has it in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TANDEM_TEST_OF") == str(work):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return [pid for pid in found if pid != os.getpid()]


def test_a_life_under_supervisord(tmp_path: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("supervisor") is None:
        if os.environ.get("CI"):
            pytest.fail("supervisor is not installed")
        pytest.skip("supervisor is not installed (extra `dev`)")
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "SOME_KEY").write_text("sk-of-supervisord")
    work = WorkDir(tmp_path / "work")
    monkeypatch.setenv("TANDEM_TEST_OF", str(work))
    model = openai(server.url("d50"), max_workers=2, api_key_env="SOME_KEY")
    suite = write_suite(
        tmp_path / "suite", [model], {"d": [task(n) for n in range(3000)]}, eval={"heartbeat_timeout": 60.0}
    )
    submit(suite, work, check_env=False)
    with supervised(folder, work) as supervisor:
        until(lambda: (status := infer_status(work)) and status.completed > 5, "it answers: the key was found")
        until(lambda: heartbeat(work.eval_heartbeat), "evald beats")
        first = supervisor.state("inferd")
        assert first.startswith("RUNNING")
        assert supervisor.state("evald").startswith("RUNNING")

        os.kill(int(first.split()[-1]), signal.SIGKILL)
        until(lambda: (now := supervisor.state("inferd")).startswith("RUNNING") and now != first, "it was restarted")
        until(lambda: (status := infer_status(work)) and status.reused > 5, "it goes on where it was")

        work.suite.write_text(work.suite.read_text().replace("max_workers = 2", "max_workers = 4"))
        supervisor.ctl("signal", "HUP", "tandem-math:inferd-math")
        until(lambda: server.stats()["in_flight"] == 4, "it was read again")

        supervisor.ctl("stop", "tandem-math:inferd-math")
        said = (folder / "inferd-math.log").read_text()
        assert "draining" in said
        assert "exit_status=3" in said
        assert supervisor.state("inferd") == "STOPPED"
        until(lambda: supervisor.state("evald") == "EXITED", "inferd has ended, so evald ends, and stays down")
        supervisor.ctl("start", "tandem-math:inferd-math")
        until(lambda: (beat := heartbeat(work.infer_heartbeat())) and beat.state == "running", "it runs again")
    assert ours(work) == [], "supervisord ended, and nothing of it is left"
    assert len(server.stats()["answered_twice"]) <= 2  # at most what the kill cut off
