"""Claims: one process at a time, and free again however its holder ended."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared import claims
from shared.claims import held, owner, take
from shared.errors import WorkDirError

ROOT = Path(__file__).parents[2]

HOLDER = """
import sys, pathlib
from shared.claims import take
claim = take(pathlib.Path(sys.argv[1]))
print("no" if claim is None else claim.token, flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that took the claim; its token, or `no`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "claims" / "shards" / "d.lock"


def test_one_process_at_a_time(path: Path) -> None:
    """While another process holds it, it isn't given; the other one's token and identity are told."""
    with holder(path) as (process, token):
        assert len(token) == 32
        assert take(path) is None
        assert take(path, timeout=0.05, poll_interval=0.01) is None
        assert held(path) is True
        assert owner(path) == f"process {process.pid} on {os.uname().nodename}"
    claim = take(path, timeout=10, poll_interval=0.01)
    assert claim is not None
    with holder(path) as (_, answer):
        assert answer == "no"
    claim.release()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_goes_with_its_holder(path: Path, number: int) -> None:
    """#23: kill -9 included: the next one has it at once, with another token."""
    with holder(path) as (process, token):
        process.send_signal(number)
        process.wait(10)
        assert held(path) is False
        claim = take(path)
        assert claim is not None
        assert claim.token != token
        claim.release()


def test_waiting_for_it(path: Path) -> None:
    """Whoever waits gets it when its holder goes."""
    with holder(path) as (process, _):
        process.kill()
        with take(path, timeout=-1, poll_interval=0.01) or pytest.fail("waited for ever, and not given") as claim:
            assert held(path) is True
            assert claim.token
    assert held(path) is False


def test_one_claim_in_one_process_too(path: Path) -> None:
    """A process can't take the same claim twice, and can after it was released; each time under another token."""
    first = take(path)
    assert first is not None
    assert take(path) is None
    first.release()
    first.release()
    second = take(path)
    assert second is not None
    assert second.token != first.token
    second.release()


def test_claims_are_apart(path: Path) -> None:
    """One shard's claim is in nobody else's way."""
    with take(path) or pytest.fail("not given"):
        other = take(path.with_name("e.lock"))
        assert other is not None
        other.release()


def test_asking_does_not_take(path: Path) -> None:
    """`held` of a claim that nobody ever took makes no file; of a free one, it leaves it free."""
    assert held(path) is False
    assert not path.parent.exists()
    claim = take(path)
    assert claim is not None
    assert held(path) is True
    claim.release()
    for _ in range(3):
        assert held(path) is False
    again = take(path)
    assert again is not None
    assert held(path) is True
    again.release()


def test_a_glance_does_not_turn_a_daemon_away(path: Path) -> None:
    """Somebody asks in a loop; a daemon that tries for START_PATIENCE gets its claim every time."""
    code = """
import sys, pathlib
from shared.claims import held
print("looking", flush=True)
while True:
    held(pathlib.Path(sys.argv[1]))
"""
    (take(path) or pytest.fail("not given")).release()
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(5):
            claim = take(path, timeout=claims.START_PATIENCE * 10, poll_interval=0.005)
            assert claim is not None
            claim.release()
    finally:
        process.kill()
        process.communicate()


def test_who_took_it_is_for_people(path: Path) -> None:
    """What stands beside the lock may be missing or damaged: then it says so vaguely instead of failing."""
    assert owner(path) == "another process"
    (take(path) or pytest.fail("not given")).release()
    beside = path.with_name("d.lock.owner")
    for content in (b"", b"\xff", b"{}", b"x" * 10_000):
        beside.write_bytes(content)
        assert owner(path) == "another process"


def test_a_claim_that_cannot_be_signed_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk when the owner is written: the error is told, and the claim is free."""

    def refusing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(claims, "replace", refusing)
        with pytest.raises(OSError, match="No space"):
            take(path)
    assert held(path) is False


def test_many_at_once(path: Path) -> None:
    """Ten processes try at the same time: exactly one holds it, and after its end exactly one other."""
    code = HOLDER.replace("take(pathlib.Path(sys.argv[1]))", "take(pathlib.Path(sys.argv[1]), timeout=0)")
    started = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(5)
    ]
    try:
        answers = [process.stdout.readline().strip() for process in processes if process.stdout is not None]
        assert sum(answer != "no" for answer in answers) == 1, (answers, time.monotonic() - started)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Case flock-enosys-endless-loop: told at once, with the place; nothing runs without a lock, nothing spins."""

    def no_flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", no_flock)
    with pytest.raises(WorkDirError, match=f"{re.escape(str(path.parent))}: this file system has no locks"):
        claims.take(path, timeout=60.0)
    assert not path.exists()


LEFT = [f"999999999\n{socket.gethostname()}\n", "1\nanother-host\n", '{"token":"x"}', ""]


@pytest.mark.parametrize("owner", LEFT, ids=["a dead process", "another host", "half a record", "nothing"])
def test_a_file_that_a_crash_left(path: Path, owner: str) -> None:
    """Case soft-lock-left-after-crash: no file in a claim's place ever decides; the kernel's lock does, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(owner)
    path.with_name(path.name + ".owner").write_text(owner)
    assert claims.held(path) is False
    claim = claims.take(path)
    assert claim is not None
    assert claims.held(path) is True
    claim.release()
