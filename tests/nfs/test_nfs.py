"""Both daemons on a real NFSv4.2 mount that two hosts see, with default options: caches, locks, faults and all."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nfs.machine import Machine

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each scene of tests/nfs/inside.py found."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    try:
        machine.run(
            f"export MODULES={machine.modules} OPENBLAS_NUM_THREADS=1\n. {ROOT}/tests/nfs/mounts.sh\n"
            f"cd {ROOT} && {sys.executable} -m tests.nfs.inside"
        )
    finally:
        shutil.rmtree(machine.modules)  # 400 MB
    return {path.stem: json.loads(path.read_text()) for path in machine.out.glob("*.json")}


def whole(scene: dict[str, Any]) -> None:
    """Each request was answered once, and each pair scored over all its docs."""
    assert scene["answered"] == scene["asked"] == scene["requests"]
    assert scene["answered_twice"] == 0
    docs = scene["requests"] // len(scene["scored"])
    assert list(scene["scored"].values()) == [[docs, 1.0]] * 3
    assert scene["leftovers"] == []
    assert (scene["inferd"], scene["evald"]) == (0, 0)


def test_a_kill_on_one_host_goes_on_at_the_other(found: dict[str, dict[str, Any]]) -> None:
    scene = found["two-hosts"]
    whole(scene)
    assert scene["killed"] == -9
    assert scene["asked_again"] <= 40  # what was in flight, and what had come in during the last fsync


@pytest.mark.parametrize("name", ["server-restarts", "mount-hangs", "root-squashed"])
def test_a_mount_that_comes_back(found: dict[str, dict[str, Any]], name: str) -> None:
    """Case of the design: calls hang, nothing is lost, nothing is asked again."""
    whole(found[name])
    assert found[name]["asked_again"] == 0


def test_clocks_apart_and_a_file_held_open(found: dict[str, dict[str, Any]]) -> None:
    """Ten minutes between the hosts' clocks are no matter, nor what NFS does to a file that somebody holds open."""
    scene = found["clocks-apart"]
    whole(scene)
    assert scene["asked_again"] == 0
    assert scene["silly"] == 1


def test_root_is_nobody(found: dict[str, dict[str, Any]]) -> None:
    assert found["root-squashed"]["owners"] == [65534]


def test_a_host_that_is_gone_too_long(found: dict[str, dict[str, Any]]) -> None:
    """evald gives up, with 3, and made no number of what was incomplete; what came later is scored by the next one."""
    scene = found["never-back"]
    assert scene["evald_first"] == 3
    assert scene["scored_first"] < 3
    whole(scene)
    assert scene["asked_again"] == 0


def test_a_full_disk_stops_it_and_loses_nothing(found: dict[str, dict[str, Any]]) -> None:
    scene = found["disk-full"]
    assert scene["inferd_first"] == 1
    whole(scene)
    assert scene["asked_again"] <= 40


def test_doctors_on_two_hosts_find_each_other(found: dict[str, dict[str, Any]]) -> None:
    """Both say the same of what lies between them: locks exclude, changes are seen by listing and by open, and inotify
    tells nothing. Nothing of theirs is left.
    """
    scene = found["doctor"]
    assert scene["status"] == {"h1": 0, "h2": 0}
    assert scene["left"] == []
    said = {host: {one["check"]: one for one in scene["said"][host]["findings"]} for host in ("h1", "h2")}
    assert [scene["said"][host]["peer"] for host in ("h1", "h2")] == ["h2", "h1"]
    between = [
        name for name in said["h1"] if "between hosts" in name or name.startswith(("seen: ", "host names", "clocks"))
    ]
    assert len(between) == 12
    assert all(said["h1"][name] == said["h2"][name] or name == "host names" for name in between)
    for name in ("claim", "flock", "fcntl", "O_EXCL"):
        assert said["h1"][f"{name} between hosts"]["state"] == "ok"
    for name in ("seen: listed", "seen: opened", "seen: fresh", "rename", "append", "claim"):
        assert said["h2"][name]["state"] == "ok"
    assert said["h1"]["mount"]["text"].startswith("nfs4 on /run/h1 (")
    assert scene["said"]["h1"]["settings"]["eval.events"] is False
