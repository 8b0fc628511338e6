"""evalctl doctor: what it finds on a mount, alone and with a peer, and what it makes of it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from evalctl.doctor import main
from evalctl.doctor.command import show
from evalctl.doctor.examine import diagnose
from evalctl.doctor.findings import Diagnosis, Finding, note, problem, settings_of
from evalctl.doctor.judge import SEEN, judge_hosts, judge_measures
from evalctl.doctor.meeting import Meeting, Silent, Word
from evalctl.doctor.mount import Mount, find, judge_mount, parse
from shared.clock import SystemClock
from shared.errors import UsageError
from shared.layout import WorkDir
from tests.harness import evalctl, running

ALONE = {
    *("mount", "host name", "rename", "replace", "flock", "fcntl", "claim", "O_EXCL", "hard link"),
    *("append", "fsync", "rights", "space", "inodes", "inotify"),
}
TOGETHER = {
    *("host names", "claim between hosts", "flock between hosts", "fcntl between hosts", "O_EXCL between hosts"),
    *(f"seen: {name}" for name in SEEN),
    "clocks",
}


def diagnosis(text: str) -> Diagnosis:
    return msgspec.json.decode(text, type=Diagnosis)


def by_check(found: Diagnosis) -> dict[str, Finding]:
    return {finding.check: finding for finding in found.findings}


# --- one host ---------------------------------------------------------------------------------------------------------


def test_a_local_folder_is_fine(tmp_path: Path) -> None:
    """All checks run, none finds a problem, and nothing is left."""
    process = evalctl("doctor", tmp_path, "--json")
    assert process.wait() == 0, process.err
    found = diagnosis(process.out)
    assert (found.schema, found.ok, found.peer) == (1, True, None)
    assert set(by_check(found)) == ALONE
    assert {name for name, finding in by_check(found).items() if finding.state == "problem"} == set()
    for name in ("rename", "flock", "fcntl", "claim", "O_EXCL", "append", "inotify"):
        assert by_check(found)[name].state == "ok", by_check(found)[name]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Path]:
    """A folder through FUSE."""
    if shutil.which("bindfs") is None or os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs bindfs, /dev/fuse and root")
    (tmp_path / "under").mkdir()
    (tmp_path / "over").mkdir()
    subprocess.run(["bindfs", str(tmp_path / "under"), str(tmp_path / "over")], check=True)
    yield tmp_path / "over"
    subprocess.run(["umount", str(tmp_path / "over")], check=True)


def test_a_folder_on_bindfs(bound: Path) -> None:
    """A file system that nobody vouches for: told as such, and tried all the same."""
    process = evalctl("doctor", bound, "--json")
    process.wait()
    found = by_check(diagnosis(process.out))
    assert set(found) == ALONE
    assert found["mount"].state == "note"
    assert "fuse" in found["mount"].text
    assert found["append"].state == "ok"


def test_a_table_for_people() -> None:
    """Beside what was found stands the remedy; the settings come as they go into a suite. Nothing acts as markup."""
    out = io.StringIO()
    findings = (
        note("fsync", "a line is safe after 0.12 s", infer__commit_interval=0.24),
        note("inotify", "no events: [red]x\x1b[31m", "raise a limit", eval__events=False),
        problem("flock", "no locks", "mount with locks"),
    )
    found = Diagnosis(
        as_of="", work_dir="/w", host="h", peer=None, ok=False, settings=settings_of(list(findings)), findings=findings
    )
    show(found, Console(file=out, width=200))
    text = out.getvalue()
    assert "problem  flock" in text
    assert "mount with locks" in text
    assert "[infer]\ncommit_interval = 0.24\n" in text
    assert "[eval]\nevents = false\n" in text
    assert "[red]x" in text
    assert "\x1b" not in text


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder: make it first"):
        diagnose(WorkDir(tmp_path / "missing"))
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_planted_in_its_place_is_not_followed(tmp_path: Path, kind: str) -> None:
    """Another user's link at `.doctor` leads nowhere."""
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    if kind == "link":
        (work / ".doctor").symlink_to(elsewhere)
    else:
        (work / ".doctor").write_text("x")
    result = CliRunner().invoke(main, [str(work), "--json"])
    assert result.exit_code != 0
    assert list(elsewhere.iterdir()) == []


# --- two hosts --------------------------------------------------------------------------------------------------------


def test_two_find_each_other(tmp_path: Path) -> None:
    """Both run all checks of two hosts, say the same, and leave nothing; on one host, and they say that."""
    with running(evalctl("doctor", tmp_path, "--peer", "--json")) as one:
        other = evalctl("doctor", tmp_path, "--peer", "--json")
        assert (one.wait(), other.wait()) == (0, 0), one.err + other.err
    found = [by_check(diagnosis(process.out)) for process in (one, other)]
    for checks in found:
        assert set(checks) == TOGETHER | ALONE - {"host name"}
        assert checks["host names"].state == "note"
        assert "nothing of this tells what two hosts see" in checks["host names"].text
    for name in TOGETHER:
        assert found[0][name] == found[1][name]
        assert found[0][name].state == "ok" or name == "host names", found[0][name]
    assert list(tmp_path.iterdir()) == []


def test_no_peer_within_the_time_limit(tmp_path: Path) -> None:
    """What a killed doctor left is no peer. (Case lock-file-garbage.)"""
    folder = tmp_path / ".doctor"
    folder.mkdir()
    dead = Word(token="d" * 32, first=True, host="dead", kernel="", heard=("0" * 32,))
    (folder / f"{dead.token}.json").write_bytes(msgspec.json.encode(dead))
    (folder / ("e" * 32 + ".json")).write_bytes(b"[" * 5000)
    os.mkfifo(folder / ("f" * 32 + ".json"))
    meeting = Meeting(folder, "h1", SystemClock())
    with pytest.raises(Silent, match=r"no other host came within 0\.3 s"):
        meeting.meet(0.3)
    meeting.leave()
    left = {path.name[0] for path in folder.iterdir()}
    assert left == {"e", "f"}, "what speaks of nobody is not ours to remove"


def test_a_third_is_turned_away(tmp_path: Path) -> None:
    first, second = (Meeting(tmp_path / ".doctor", "h", SystemClock()) for _ in range(2))
    assert (first.word.first, second.word.first) == (True, False)
    with pytest.raises(UsageError, match="two doctors are at work"):
        Meeting(tmp_path / ".doctor", "h", SystemClock())
    first.leave()
    second.leave()
    assert list((tmp_path / ".doctor").iterdir()) == []


def test_a_peer_that_falls_silent(tmp_path: Path) -> None:
    one, other = (Meeting(tmp_path / ".doctor", "h", SystemClock()) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(other.meet, 30)
        one.meet(30)
        meeting.result()
    assert one.leads != other.leads
    with pytest.raises(Silent, match=r"h said nothing more within 0\.1 s"):
        one.wait("ping-0", 0.1)
    one.leave()
    other.leave()


# --- what is made of it -----------------------------------------------------------------------------------------------

FINE: dict[str, float | None] = {
    **dict.fromkeys(SEEN, 0.1),
    "flock_excluded": 1,
    "fcntl_excluded": 1,
    "wins": 30,
    "skew": 0.0,
    "trip": 0.1,
}


def judged(**changed: float | None) -> dict[str, Finding]:
    return {finding.check: finding for finding in judge_measures({**FINE, **changed}, 30)}


def test_nothing_to_say_of_a_good_mount() -> None:
    assert {finding.state for finding in judged().values()} == {"ok"}


@pytest.mark.parametrize(
    ("changed", "check", "state"),
    [
        ({"flock_excluded": 0}, "flock between hosts", "problem"),
        ({"fcntl_excluded": 0}, "fcntl between hosts", "problem"),
        ({"wins": 31}, "O_EXCL between hosts", "problem"),
        ({"listed": None}, "seen: listed", "problem"),
        ({"opened": None}, "seen: opened", "problem"),
        ({"listed": 5.0}, "seen: listed", "note"),
        ({"probed": None}, "seen: probed", "note"),
        ({"stat": 3.0}, "seen: stat", "note"),
        ({"events": None}, "seen: events", "note"),
        ({"skew": 600.0}, "clocks", "note"),
        ({"skew": None}, "clocks", "note"),
        ({"skew": 2.02}, "clocks", "ok"),  # within what the measuring took
    ],
)
def test_each_measure_has_its_consequence(changed: dict[str, Any], check: str, state: str) -> None:
    """Only what Tandem goes by is a problem; every one has a remedy."""
    found = judged(**changed)
    assert found[check].state == state
    assert state != "problem" or found[check].remedy
    assert {name for name, finding in found.items() if finding.state != "ok"} == ({check} if state != "ok" else set())


def test_settings_that_follow() -> None:
    assert settings_of(list(judged(events=None, listed=10.0).values())) == {
        "eval.events": False,
        "eval.heartbeat_timeout": 100,
    }


def test_hosts_of_one_name_are_a_problem() -> None:
    """An NFS server tells its clients apart by their names: two of one name don't exclude each other."""
    (names, _) = judge_hosts(("h", "a"), ("h", "b"), both_first=False)
    assert (names.check, names.state) == ("host names", "problem")
    (names, claim) = judge_hosts(("h", "a"), ("i", "b"), both_first=True)
    assert (names.state, claim.state) == ("ok", "problem")


MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:40 / /srv/a\040b rw,nosuid - nfs4 server:/a\040b rw,vers=4.2,hard,local_lock=none
31 22 0:41 / /srv/old rw - nfs server:/old rw,vers=3,soft,nolock,local_lock=all
a line of another kind
32 22 0:42 / /srv/old ro - tmpfs tmpfs rw
"""


def test_which_mount_a_folder_lies_on() -> None:
    """The longest point above it, the last of equal ones; blanks are escaped there."""
    mounts = parse(MOUNTS)
    assert len(mounts) == 4
    for path, source in (("/srv/a b/run", "server:/a b"), ("/srv/ab", "/dev/sda1"), ("/srv/old", "tmpfs")):
        found = find(mounts, path)
        assert found is not None
        assert found.source == source
    assert find([], "/srv") is None


@pytest.mark.parametrize(
    ("kind", "options", "states"),
    [
        ("ext4", ["rw"], ["ok"]),
        ("nfs4", ["rw", "hard", "local_lock=none"], ["ok"]),
        ("nfs4", ["ro", "hard"], ["problem"]),
        ("nfs", ["rw", "soft", "nolock"], ["problem", "problem"]),
        ("nfs", ["rw", "hard", "local_lock=all"], ["problem"]),
        ("tmpfs", ["rw"], ["note"]),
        ("overlay", ["rw"], ["note"]),
        ("fuse.sshfs", ["rw"], ["note"]),
    ],
)
def test_what_is_known_of_a_mount(kind: str, options: list[str], states: list[str]) -> None:
    found = judge_mount(Mount("/srv", kind, "s", tuple(options)))
    assert [finding.state for finding in found] == states
    assert all(finding.remedy for finding in found if finding.state == "problem")


def test_the_json_has_the_sample_of_its_docstring() -> None:
    text = (Finding.__doc__ or "").replace("\n", " ")
    value, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    assert msgspec.to_builtins(msgspec.convert(value, Finding)) == value
