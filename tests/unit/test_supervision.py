"""What a service manager is told, and when; over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalctl.submit import submit
from shared.clock import ManualClock
from shared.layout import WorkDir
from shared.records import Heartbeat
from shared.supervision import ServiceManager
from tests.harness import inferd, running, task, write_suite


class Manager:
    """Its end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def told(self) -> list[str]:
        """Every message that has come."""
        found = []
        self._socket.settimeout(0.0)
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def collect(self) -> list[str]:
        """Messages as they come, on a thread, so that none of a process has to wait."""
        found: list[str] = []

        def take() -> None:
            self._socket.settimeout(None)
            while True:
                try:
                    found.append(self._socket.recv(4096).decode())
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


def test_the_watchdog_is_fed_in_time_and_no_more_often(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    clock = ManualClock()
    service = ServiceManager(clock, {"WATCHDOG_USEC": "8000000"})
    assert service.patience == 2.0
    for _ in range(80):  # eight seconds
        service.feed()
        clock.advance(0.1)
    assert manager.told() == ["WATCHDOG=1"] * 4


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "x"},
        {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"},
    ],
)
def test_no_watchdog_is_fed_that_isnt_ours(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    service = ServiceManager(ManualClock(), env)
    service.feed()
    assert service.patience == float("inf")
    assert manager.told() == []


def test_a_reload_and_a_beat_are_told(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    service = ServiceManager(ManualClock(monotonic=12.5), {})
    service.reloading()
    service.ready()
    beat = Heartbeat(
        time="",
        seq=1,
        boot_id="b",
        host="h",
        pid=1,
        state="paused",
        interval=5.0,
        counters={"in_flight": 3.0, "cpu": 1.0},
    )
    service.tell(beat)
    assert manager.told() == ["RELOADING=1\nMONOTONIC_USEC=12500000", "READY=1", "STATUS=paused: 3 in flight"]


def test_ready_is_told_once_and_only_of_what_works(manager: Manager, tmp_path: Path) -> None:
    """By the process itself, after its first beat; never where the suite is wrong. (Case type-notify-and-daemonize.)"""
    told = manager.collect()
    work = WorkDir(tmp_path / "work")
    submit(write_suite(tmp_path / "suite", [{"abbr": "r", "type": "rule"}], {"d": [task(1)]}), work)
    env = {"NOTIFY_SOCKET": str(manager.path)}
    with running(inferd(work, env=env)) as process:
        assert process.wait() == 0
    assert told.count("READY=1") == 1
    assert told[0].startswith("STATUS=starting")
    assert told[-1].startswith("STATUS=finished: 1 requests ended")
    told.clear()
    work.suite.write_text("[[models]]\n")
    with running(inferd(work, env=env)) as process:
        assert process.wait() == 2
    assert "READY=1" not in told
