"""A disk that is full, or refuses: what was saved stays readable, no answers are paid for that can't be saved."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemons.runs import all_strict, answered, answers, ended, journal_file, state, submitted, tasks, texts
from tests.harness import infer_status, inferd, openai, predictions, running, task, until
from tests.server import FakeServer

COUNT = 100
WORKERS = 4
PADDING = "x" * 4000  # the server echoes the prompt, so each journal line takes more than 4 kB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0755", "tandem-test", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small tmpfs can't be mounted here (it needs root): {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _long_tasks() -> list[dict[str, object]]:
    return [task(n, prompt=f"{n} {PADDING}", targets=[f"echo: {n} {PADDING}"]) for n in range(COUNT)]


def _fill(path: Path, leave: int) -> None:
    """Fill the filesystem up to `leave` bytes."""
    free = os.statvfs(path.parent)
    path.write_bytes(b"\0" * (free.f_bavail * free.f_frsize - leave))


def test_disk_full(small_disk: Path, tmp_path: Path) -> None:
    """`disk-full-corrupts-log`: inferd stops sending, says ENOSPC and exits with 1; all that was journalled stays
    readable and no status is half written. With space again, the rest and nothing else is asked.
    """
    with FakeServer() as server:
        model = openai(server.url("d10"), max_workers=WORKERS)
        work = submitted(
            tmp_path, [model], {"d": _long_tasks()}, root=small_disk / "work", infer={"drain_timeout": 1.0}
        )
        _fill(small_disk / "ballast", 240_000)
        process = ended(inferd(work), 1)
        sent = server.stats()["posts"]
        kept = len(answered(work))
        assert "No space left on device" in process.err
        assert 10 < kept < 60
        assert sent <= kept + 2 * WORKERS + 16, "it went on paying for answers that it can't save"
        whole = journal_file(work).read_bytes()
        assert whole.endswith(b"\n"), "a half-written line was left behind"
        all_strict(work)
        assert state(work) in ("pending", "running")
        _make_room(small_disk)
        server.reset_stats()
        ended(inferd(work), 0)
        assert server.stats()["posts"] == COUNT - kept
    assert state(work) == "done"
    assert texts(predictions(work)) == [f"echo: {n} {PADDING}" for n in range(COUNT)]


def test_space_comes_back_while_draining(small_disk: Path, tmp_path: Path) -> None:
    """Answers that could not be saved are kept while the drain lasts, and saved when there is space again in time."""
    with FakeServer() as server:
        model = openai(server.url("d10"), max_workers=WORKERS)
        work = submitted(
            tmp_path, [model], {"d": _long_tasks()}, root=small_disk / "work", infer={"drain_timeout": 60.0}
        )
        _fill(small_disk / "ballast", 240_000)
        with running(inferd(work)) as process:
            _until_it_stops_sending(server)
            _make_room(small_disk)
            ended(process, 1)
        sent = server.stats()["posts"]
        assert len(answered(work)) == sent, "what was in memory was to be saved"
        assert state(work) == "pending"
        ended(inferd(work), 0)
        assert server.stats()["posts"] == COUNT


def _make_room(disk: Path) -> None:
    """As an administrator would: the ballast goes, the disk grows."""
    (disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)


def _until_it_stops_sending(server: FakeServer) -> None:
    """Its log and heartbeat lie on the full disk, so only the server can tell: it sees nothing for half a second."""
    seen, since = 0, time.monotonic()

    def silent() -> bool:
        nonlocal seen, since
        stats = server.stats()
        if stats["posts"] != seen or stats["in_flight"]:
            seen, since = stats["posts"], time.monotonic()
        return seen > 0 and time.monotonic() - since > 0.5

    until(silent, "nothing more is sent")
    assert seen < COUNT


def test_file_size_limit(tmp_path: Path) -> None:
    """EFBIG (a limit, a quota): as a full disk, and the half-written line is cut off. Without root, too."""
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url("d10"), max_workers=WORKERS)],
            {"d": _long_tasks()},
            infer={"drain_timeout": 0.5},
        )
        process = ended(inferd(work, prefix=["prlimit", "--fsize=150000"]), 1)
        kept = len(answered(work))
        assert "File too large" in process.err
        assert 10 < kept < 60
        assert server.stats()["posts"] <= kept + 2 * WORKERS + 16
        assert journal_file(work).read_bytes().endswith(b"\n")
        status = infer_status(work)
        assert status is not None
        assert (status.state, status.completed) == ("pending", kept)
        assert "File too large" in status.reason
        server.reset_stats()
        ended(inferd(work), 0)
        assert server.stats()["posts"] == COUNT - kept


def test_merge_refused(tmp_path: Path) -> None:
    """Predictions that can't be written: exit 1 at once, the pair `pending`, all answers kept; then none is asked."""
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url())],
            {"d": tasks(20)},
            infer={"drain_timeout": 300.0},  # not to be waited for
        )
        work.predictions("m", "d").mkdir(parents=True)
        process = ended(inferd(work), 1, timeout=30)
        assert "the predictions can't be written" in process.err
        assert state(work) == "pending"
        work.predictions("m", "d").rmdir()
        server.reset_stats()
        ended(inferd(work), 0)
        assert server.stats()["posts"] == 0
    assert texts(predictions(work)) == answers(20)


def test_statuses_refused(tmp_path: Path) -> None:
    """A run whose last statuses can't be written doesn't pass for a good one: exit 1, and the next start mends it."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("d20"))], {"d": tasks(20)})
        with running(inferd(work)) as process:
            until(lambda: answered(work), "an answer")
            folder = work.infer_status("m", "d").parent
            folder.rename(folder.with_name("elsewhere"))
            folder.write_text("in the way")
            ended(process, 1)
        folder.unlink()
        server.reset_stats()
        ended(inferd(work), 0)
        assert server.stats()["posts"] == 0
    assert state(work) == "done"


def test_read_only(tmp_path: Path) -> None:
    """A work_dir that can't be written to is refused before the first request, in one line."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url())], {"d": tasks(3)})
        work.infer_heartbeat().mkdir()
        process = ended(inferd(work), 1)
        assert "Traceback" not in process.err
        assert server.stats()["posts"] == 0
