"""A disk that fails for a while, is full to the last byte, or slow: nothing that was saved is lost, nothing that was
saved is asked again, and a slow one costs time and nothing else.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.faults.disk import SmallDisk
from tests.faults.means import or_skip
from tests.faults.scene import WORKERS, Scene
from tests.harness import infer_status, until

JOURNALS = "/tmp_"


def _scene(folder: Path, count: int = 200, **more: Any) -> Scene:
    with or_skip():
        return Scene(folder, count, shim=True, **more)


@pytest.mark.parametrize("call", ["write", "torn write", "sync", "write and truncate"])
def test_journal_fails(tmp_path: Path, call: str) -> None:
    """EIO at the journal: inferd stops asking, says so and ends with 1. What it saved before is there, what it couldn't
    save is asked again, and that alone.
    """
    with _scene(tmp_path) as scene:
        process = scene.start()
        scene.until_answered(50)
        scene.until_saved()
        saved = scene.ledger.saved()
        for name in call.removeprefix("torn ").split(" and "):
            scene.shim.fail(name, errno.EIO, torn=call != "write", only=JOURNALS)
        assert process.wait() == 1, process.said[-2000:]
        assert "Input/output error" in process.said
        scene.shim.heal()
        assert saved <= scene.ledger.saved()
        loss = scene.ledger.lose(call, scene.ledger.saved())
        assert len(loss.unsaved) < scene.count - len(saved), "it went on paying for what it can't save"
        assert scene.ends_well(scene.start()) == len(loss.unsaved)


@pytest.mark.parametrize("call", ["torn write", "sync"])
def test_journal_fails_once(tmp_path: Path, call: str) -> None:
    """An error that passes while inferd drains costs no answer."""
    with _scene(tmp_path, drain_timeout=30.0) as scene:
        process = scene.start()
        scene.until_answered(50)
        scene.shim.fail(call.removeprefix("torn "), errno.EIO, times=1, torn=True, only=JOURNALS)
        assert process.wait() == 1, process.said[-2000:]
        assert scene.ledger.owed() <= scene.ledger.saved()
        assert scene.ends_well(scene.start()) == 0


@pytest.mark.parametrize("call", ["sync", "rename"])
def test_small_files_fail(tmp_path: Path, call: str) -> None:
    """Beats and statuses that can't be written for a while: inferd goes on asking and saving, and once the disk is well
    they are written, and the run is a good one.
    """
    with _scene(tmp_path, 300) as scene:
        process = scene.start()
        scene.until_answered(20)
        for only in ("infer_status", "infer_heartbeat"):
            before = scene.shim.failed(call)
            scene.shim.fail(call, errno.EIO, only=only)
            until(lambda: scene.shim.failed(call) > before + 1, "it fails more than once")  # noqa: B023
            scene.until_answered(20)
            scene.until_saved()
            scene.shim.heal()
        scene.until_beats()
        assert scene.ends_well(process) == 0
    for model in scene.models:
        status = infer_status(scene.work, model["abbr"])
        assert status is not None
        assert status.state == "done"


def test_slow_journal(tmp_path: Path) -> None:
    """While one fdatasync takes its time, requests go out and answers come in as before, and the heartbeat goes on."""
    with _scene(tmp_path, 700) as scene:
        process = scene.start()
        scene.until_answered(20)
        scene.shim.slow("sync", 60, only=JOURNALS)
        until(lambda: scene.shim.begun("sync"), "a commit is held up")
        scene.until_answered(20 * WORKERS)
        scene.until_beats()
        scene.until_answered(20 * WORKERS)
        assert scene.shim.over("sync") == 0, "it was no longer held up: the test shows nothing"
        assert len(scene.ledger.saved()) < scene.answered()
        scene.shim.heal()
        assert scene.ends_well(process) == 0


def test_slow_disk(tmp_path: Path) -> None:
    """Each fsync of whatever file takes 0.2 s, from the start to the end: the run is a good one all the same."""
    with _scene(tmp_path) as scene:
        scene.shim.slow("sync", 0.2)
        process = scene.start()
        scene.until_answered(100)
        scene.until_beats(2)
        assert scene.ends_well(process) == 0


def test_slow_statuses(tmp_path: Path) -> None:
    """Eight pairs end together and each fsync of a status takes 0.8 s, so that the last statuses take longer than a
    moment: they are waited for, and the run is a good one.
    """
    with _scene(tmp_path, 80, datasets=4) as scene:
        process = scene.start()
        scene.until_answered(20)
        scene.shim.slow("sync", 0.8, only="infer_status")
        assert scene.ends_well(process) == 0


def test_full_to_the_last_byte(tmp_path: Path) -> None:
    """A disk without a byte left: inferd ends with 1 whenever that comes; before its first request nothing is asked.
    With room again it goes on.
    """
    with or_skip(), SmallDisk(tmp_path / "disk", "4m") as disk, Scene(tmp_path, 200, root=disk.folder) as scene:
        disk.fill()
        early = scene.start()
        assert early.wait() == 1, early.said
        assert "No space left on device" in early.said
        assert scene.asked() == 0
        disk.make_room()
        process = scene.start()
        scene.until_answered(50)
        disk.fill()
        assert process.wait() == 1, process.said[-2000:]
        assert "No space left on device" in process.said
        disk.make_room()
        loss = scene.ledger.lose("full", scene.ledger.saved())
        assert scene.ends_well(scene.start()) == len(loss.unsaved)
