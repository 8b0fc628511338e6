"""The loop, signals, and what the service manager is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shared.clock import ManualClock, SystemClock, utc
from shared.daemon import SignalEvent, StopSignal, notify, run_loop

ROOT = Path(__file__).parents[2]


def child(code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_steps_until_none() -> None:
    """Each step is told the time; between two it waits for what the first asked, and not at all for nothing."""
    clock = ManualClock()
    delays = iter([2.0, 0.0, -1.0, 0.5, None])
    steps: list[float] = []
    waits: list[float] = []

    def step(now: float) -> float | None:
        steps.append(now)
        return next(delays)

    def wait(delay: float) -> None:
        waits.append(delay)
        clock.advance(delay)

    run_loop(step, clock.monotonic, wait)
    assert steps == [0.0, 2.0, 2.0, 2.0, 2.5]
    assert waits == [2.0, 0.5]


def test_an_error_of_a_step_ends_the_loop() -> None:
    """It is for whoever runs the loop to say what it means."""
    with pytest.raises(ZeroDivisionError):
        run_loop(lambda now: 1 / 0, lambda: 0.0, lambda delay: None)


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)],
)
def test_one_asks_to_stop_a_second_to_hurry(first: signal.Signals, second: signal.Signals) -> None:
    """Real signals in a process of its own: flags, the last one's name, and `on_signal` for each."""
    code = """
from shared.daemon import StopSignal
stop = StopSignal()
stop.install()
calls = []
stop.on_signal = lambda: calls.append(stop.name)
assert not stop.event.is_set() and not stop.hurry.is_set() and stop.name == ""
print("ready", flush=True)
stop.event.wait()
print(stop.name, stop.hurry.is_set(), flush=True)
stop.hurry.wait()
print(stop.name, calls, flush=True)
"""
    process = child(code)
    try:
        assert process.stdout is not None
        process.send_signal(first)
        assert process.stdout.readline() == f"{first.name} False\n"
        process.send_signal(second)
        assert process.stdout.readline() == f"{second.name} {[first.name, second.name]}\n"
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_handler_never_waits_for_its_own_thread() -> None:
    """Thousands of signals that meet the main thread at every place inside `wait`: with a plain Event, whose lock isn't
    reentrant, the handler soon waits for itself for ever.
    """
    code = """
import os, signal, sys, threading, time
from shared.daemon import StopSignal
sys.setswitchinterval(0.0001)
stop = StopSignal()
stop.install()
print("ready", flush=True)
ended = threading.Event()
def send():
    for _ in range(3000):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.0002)
    ended.set()
threading.Thread(target=send, daemon=True).start()
rounds = 0
while not ended.is_set():
    stop.event.wait(0.001)
    stop.hurry.wait(0.001)
    rounds += 1
print("over", flush=True)
"""
    process = child(code)
    try:
        out, err = process.communicate(timeout=30)
        assert (out, process.returncode) == ("over\n", 0), err[-500:]
    finally:
        process.kill()
        process.communicate()


def test_an_event_wakes_all_who_wait() -> None:
    """Before and after it is set, with and without a timeout."""
    event = SignalEvent()
    assert not event.is_set()
    assert not event.wait(0)
    assert not event.wait(-1)
    assert not event.wait(0.001)
    woken = threading.Semaphore(0)

    def wait() -> None:
        if event.wait(10):
            woken.release()

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    event.set()
    event.set()
    for thread in threads:
        thread.join(10)
    assert all(woken.acquire(timeout=0) for _ in threads)
    assert event.is_set()
    assert event.wait()
    assert event.wait(0)


def test_nothing_is_installed_before_one_asks() -> None:
    """Making a StopSignal leaves the process's handlers alone."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    StopSignal()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


# --- the service manager ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real datagram socket, by path and in Linux's abstract name space."""
    name = f"tandem-test-{os.getpid()}" if abstract else str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else name)
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        for message in ("READY=1", "STATUS=läuft\nSTOPPING=1"):
            notify(message)
            assert manager.recv(4096).decode() == message


@pytest.mark.parametrize("address", [None, "", "@", "/no/such/socket", "/" + "x" * 200, "relative", "vsock:2:1234"])
def test_without_a_service_manager_the_work_goes_on(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, one that is gone, and names that can't be one."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


def fill(link: socket.socket, address: Path) -> None:
    while True:
        link.sendto(b"x", str(address))


def test_a_service_manager_that_does_not_read_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is full: the message is dropped after a second, not waited for."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        manager.bind(str(tmp_path / "s"))
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            fill(other, tmp_path / "s")
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "s"))
        thread = threading.Thread(target=notify, args=("READY=1",), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_utc_is_sortable_text() -> None:
    """Milliseconds, Z, always the same length; the form of every record."""
    assert utc(0) == "1970-01-01T00:00:00.000Z"
    assert utc(1_796_040_000.9996) == "2026-11-30T12:00:00.999Z"
    assert utc(1.5) == "1970-01-01T00:00:01.500Z"


def test_a_manual_clock_moves_when_told() -> None:
    """Both times together, or the wall clock alone."""
    clock = ManualClock(monotonic=10.0, time=100.0)
    clock.advance(5)
    assert (clock.monotonic(), clock.time()) == (15.0, 105.0)
    clock.step_wall(-50)
    assert (clock.monotonic(), clock.time()) == (15.0, 55.0)


def test_the_system_clock_is_the_systems() -> None:
    """The time module's two clocks."""
    clock = SystemClock()
    assert abs(clock.time() - time.time()) < 5
    assert abs(clock.monotonic() - time.monotonic()) < 5
