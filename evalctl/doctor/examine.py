"""All checks in their order, and what they come to."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import uuid
from collections.abc import Callable
from pathlib import Path

from evalctl.doctor.alone import CHECKS, RACED
from evalctl.doctor.findings import Diagnosis, Finding, note, ok, problem, settings_of
from evalctl.doctor.judge import judge_hosts, judge_measures
from evalctl.doctor.meeting import Meeting, Silent
from evalctl.doctor.mount import judge_mount, mount_of
from evalctl.doctor.peer import hosts, together
from shared.atomic import make_folder
from shared.clock import SystemClock, utc
from shared.errors import UsageError
from shared.layout import WorkDir

MEET = 60.0  # seconds that the other host is waited for


def diagnose(work: WorkDir, *, peer: bool = False, timeout: float = MEET) -> Diagnosis:
    """Test the mount of a work_dir. peer: with another host that does the same; timeout: how long to wait for it.

    Raises UsageError when there is no such folder. Leaves nothing in it.
    """
    if not work.root.is_dir():
        raise UsageError(f"{work.root}: no such folder: make it first (mkdir), or mount it")
    host = socket.gethostname()
    found = judge_mount(mount_of(work.root))
    other: str | None = None
    try:
        _make(work.doctor)
    except OSError as error:
        remedy = "let the user that runs the daemons write there"
        found.append(problem("rights", f"nothing can be written: {error.strerror or error}", remedy))
    else:
        try:
            found += [_host_name(host)] if not peer else []
            found += alone(work.doctor)
            if peer:
                other, more = _with_peer(work.doctor, host, timeout)
                found += more
        finally:
            _remove(work.doctor)
    return Diagnosis(
        as_of=utc(SystemClock().time()),
        work_dir=str(work.root),
        host=host,
        peer=other,
        ok=all(finding.state != "problem" for finding in found),
        settings=settings_of(found),
        findings=tuple(found),
    )


def alone(doctor: Path) -> list[Finding]:
    """The checks of one host, each in a folder of its own."""
    own = doctor / uuid.uuid4().hex
    found: list[Finding] = []
    try:
        for check in CHECKS:
            folder = own / check.__name__
            make_folder(folder)
            found += _checked(check, folder)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return found


def _checked(check: Callable[[Path], list[Finding]], folder: Path) -> list[Finding]:
    try:
        return check(folder)
    except OSError as error:
        return [problem(check.__name__, f"can't be tried: {error}", "see what the mount's log says of it")]


def _with_peer(doctor: Path, host: str, timeout: float) -> tuple[str | None, list[Finding]]:
    meeting = Meeting(doctor, host, SystemClock())
    try:
        meeting.meet(timeout)
        own, other = hosts(meeting)
        found = judge_hosts((own.host, own.kernel), (other.host, other.kernel), both_first=own.first and other.first)
        return other.host, found + judge_measures(together(meeting, SystemClock()), RACED)
    except Silent as error:
        remedy = f"run `evalctl doctor {doctor.parent} --peer` on the other host at the same time"
        return None, [problem("peer", str(error), remedy)]
    except (OSError, ValueError) as error:
        return None, [problem("peer", f"can't be tried: {error}", "see what the mount's log says of it")]
    finally:
        meeting.leave()


def _host_name(host: str) -> Finding:
    if host in ("", "localhost", "localhost.localdomain"):
        remedy = "give each host a name of its own (hostnamectl hostname): an NFS server tells them apart by it"
        return note("host name", f"this host is called {host!r}", remedy)
    return ok(
        "host name", f"{host}: on NFS no other host may be called so, or their locks are taken for one's (--peer tells)"
    )


def _make(doctor: Path) -> None:
    """A folder of ours: what another user planted in its place isn't followed."""
    make_folder(doctor)
    if not stat.S_ISDIR(os.lstat(doctor).st_mode):
        raise UsageError(f"{doctor}: not a folder: remove it")


def _remove(doctor: Path) -> None:
    try:
        os.rmdir(doctor)
    except OSError:
        pass  # another doctor is at work in it
