"""The units under a real systemd: they start, tell how they are, reload, come back after a crash and a hang, drain at a
stop, keep secrets and the sandbox, and don't loop on what no restart mends.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalctl.submit import submit as put
from shared.layout import WorkDir
from tests.harness import ROOT, openai, task, until, write_suite
from tests.real.systemd_box import PYTHON, PYTHON_ENVIRONMENT, Box, booted, skip_without_systemd

UNITS = ("inferd@.service", "evald@.service")
WORK = "/srv/tandem"
QUICK = "[Service]\nWatchdogSec=2\nRestartSec=100ms\n"
PROGRAM = {
    "task_id": "c1",
    "prompt": "def add(a, b):\n",
    "targets": ["none"],
    "metric_name": "code_exec",
    "post_process": "none",
    "metadata": {
        "entry_point": "add",
        "test": "def check(add):\n    assert add(1, 2) == 3\n",
        "solution": "def add(a, b):\n    return a + b\n",
    },
}
SECRET = "sk-from-the-credential-store"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """With everything installed as docs/operate.md says, an endpoint, and three work_dirs: `slow`, which takes a while,
    `program`, which needs evald's sandbox, and `keyless`, whose API key nobody has.
    """
    skip_without_systemd()
    folder = tmp_path_factory.mktemp("systemd")
    shown = folder / "mnt"
    shown.mkdir(mode=0o755)
    endpoint = openai("http://127.0.0.1:8000/d50/v1", max_workers=2, api_key_env="OPENAI_API_KEY")
    many = {"d": [task(n) for n in range(3000)]}
    patient = {"heartbeat_timeout": 60.0}
    write_suite(shown / "slow", [endpoint], many, eval=patient)
    write_suite(shown / "program", [{"abbr": "r", "type": "rule"}], {"c": [PROGRAM]})
    write_suite(shown / "keyless", [endpoint | {"api_key_env": "NOBODYS_KEY"}], many)
    (shown / "credential").write_text(SECRET)
    (shown / "quick.conf").write_text(QUICK)
    for name in ("inferd", "evald", "evalctl"):
        program = shown / name
        variables = " ".join(f"{key}={value}" for key, value in PYTHON_ENVIRONMENT.items())
        program.write_text(f'#!/bin/sh\n{variables} exec {PYTHON} -m {name} "$@"\n')
        program.chmod(0o755)
    with booted(folder) as box:
        box.run("mkdir", "-p", "/opt/tandem/bin")
        box.run("cp", *(f"/mnt/{name}" for name in ("inferd", "evald", "evalctl")), "/opt/tandem/bin")
        box.run("/opt/src/scripts/install-systemd")
        box.run("install", "-m", "600", "/mnt/credential", "/etc/credstore/OPENAI_API_KEY")
        for unit in UNITS:
            box.run("install", "-D", "-m", "644", "/mnt/quick.conf", f"/etc/systemd/system/{unit}.d/quick.conf")
        box.run("systemctl", "daemon-reload")
        variables = [word for key, value in PYTHON_ENVIRONMENT.items() for word in ("-E", f"{key}={value}")]
        server = [PYTHON, "-m", "tests.server", "--port", "8000", "--log", "/mnt/answers"]
        box.run("systemd-run", "--unit=endpoint", *variables, *server)
        submit = ["evalctl", "submit", "--no-env", "/mnt/slow/suite.toml", "-w", f"{WORK}/slow"]
        box.run("runuser", "-u", "tandem", "--", *submit)
        for name in ("program", "keyless"):  # the same without the start of a process
            put(shown / name / "suite.toml", WorkDir(shown / "work" / name), check_env=False)
        box.run("cp", "-r", "/mnt/work/program", "/mnt/work/keyless", WORK)
        box.run("chown", "-R", "tandem:tandem", WORK)
        yield box


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_exposed_no_more_than_2(unit: str, tmp_path: Path) -> None:
    """By systemd's own judgement. At most 2.0 of 10."""
    skip_without_systemd()
    (tmp_path / unit).write_bytes((ROOT / "systemd" / unit).read_bytes())
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", tmp_path / unit],
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stdout[-300:] + judged.stderr


def test_the_units_are_sound(box: Box) -> None:
    """systemd-analyze finds nothing to say of them; it exits with 0 even where it does."""
    names = [f"/etc/systemd/system/{name}" for name in (*UNITS, "tandem@.target")]
    assert box.run("systemd-analyze", "verify", *names) == ""


def test_what_no_restart_mends_is_not_restarted(box: Box) -> None:
    """A suite whose key is nowhere: exit status 2, once, with the remedy in the journal."""
    box.run("systemctl", "start", "inferd@keyless", code=1)
    shown = box.show("inferd@keyless", "Result", "ExecMainStatus", "NRestarts", "ActiveState")
    assert shown == {"Result": "exit-code", "ExecMainStatus": "2", "NRestarts": "0", "ActiveState": "failed"}
    assert "LoadCredential=NOBODYS_KEY" in box.journal("inferd@keyless")


def test_programs_run_in_the_sandbox_under_the_unit(box: Box) -> None:
    """A run from its start to its end, with a program of a model's judged in a real sandbox."""
    box.run("systemctl", "start", "tandem@program.target")
    for unit in ("inferd@program", "evald@program"):
        until(lambda unit=unit: box.show(unit, "ActiveState")["ActiveState"] in ("inactive", "failed"), f"{unit} ended")
        assert box.show(unit, "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}, box.journal(
            unit
        )
    score = json.loads(box.run("cat", f"{WORK}/program/results/r/c.scores.jsonl"))
    assert score["score"] == 1.0


def test_a_life_under_systemd(box: Box) -> None:
    """Start, status, reload, crash, hang, commands of evalctl, stop. (Cases type-notify-and-daemonize,
    watchdog-from-dead-loop.)
    """
    unit = "inferd@slow"

    def pid() -> str:
        return box.show(unit, "MainPID")["MainPID"]

    def told() -> str:
        return box.show(unit, "StatusText")["StatusText"]

    def is_back(restarts: str) -> bool:
        return box.show(unit, "NRestarts", "ActiveState") == {"NRestarts": restarts, "ActiveState": "active"}

    box.run("systemctl", "start", "tandem@slow.target")
    for each in (unit, "evald@slow"):
        assert box.show(each, "ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
    until(lambda: "2 in flight" in told(), "progress is told")

    box.run("sed", "-i", "s/max_workers = 2/max_workers = 3/", f"{WORK}/slow/suite.toml")
    box.run("systemctl", "reload", unit, "evald@slow")
    until(
        lambda: "running: " in (text := told()) and "3 in flight" in text,
        "reloaded",
    )
    assert box.show(unit, "ActiveState")["ActiveState"] == "active"
    assert "nothing changed" in box.journal("evald@slow")

    box.run("kill", "-KILL", pid())
    until(lambda: is_back("1"), "it is started again after a crash")
    box.run("kill", "-STOP", pid())
    until(lambda: is_back("2"), "it is started again after it hung")
    assert "Watchdog timeout" in box.journal(unit)

    # As root: another user than the daemon's.
    assert "obeyed" in box.run("evalctl", "retune", "--max-workers", "4", "-w", f"{WORK}/slow")
    until(lambda: "4 in flight" in told(), "as many as was asked for")

    box.run("systemctl", "stop", "evald@slow", unit)
    assert box.show(unit, "Result", "ExecMainStatus") == {"Result": "exit-code", "ExecMainStatus": "3"}
    journal = box.journal(unit)
    assert "draining" in journal
    assert "unfinished=1" in journal
    assert box.run("systemctl", "show", unit, "-p", "ControlGroup").strip() == "ControlGroup="  # nothing is left of it
    kept = int(box.run("sh", "-c", f'cat {WORK}/slow/predictions/m/tmp_*.jsonl | grep -c \'"outcome":"ok"\''))
    given = int(box.run("sh", "-c", "wc -l < /mnt/answers"))
    assert 0 <= given - kept <= 2 * 3  # lost is at most what was in flight when it was killed, twice
    for place in ("journalctl --no-pager", f"cat -v {WORK}/slow/logs/* {WORK}/slow/suite.toml"):
        assert SECRET not in box.run("sh", "-c", place)
