"""How a folder is mounted, by the kernel's list of mounts (man 5 proc_pid_mountinfo), and what is known of such mounts.

Pure but for `mount_of`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from evalctl.doctor.findings import Finding, note, ok, problem

LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"})
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
NFS = frozenset({"nfs", "nfs4"})

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """options: of the mount and of its file system together."""

    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def mount_of(folder: Path) -> Mount | None:
    """The mount that the folder lies on; None where the kernel's list doesn't tell."""
    try:
        text = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    return find(parse(text), os.path.realpath(folder))


def parse(text: str) -> list[Mount]:
    """The mounts in their order. Lines of another form are passed over."""
    found = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        here, there = left.split(" "), right.split(" ")
        if not dash or len(here) < 6 or len(there) < 3:
            continue
        options = dict.fromkeys([*here[5].split(","), *there[2].split(",")])
        found.append(Mount(_plain(here[4]), there[0], _plain(there[1]), tuple(options)))
    return found


def find(mounts: list[Mount], path: str) -> Mount | None:
    """The one that holds `path`: the longest mount point above it; of equal ones the last, which hides the others."""
    holding = [one for one in mounts if path == one.point or path.startswith(one.point.rstrip("/") + "/")]
    return max(reversed(holding), key=lambda one: len(one.point), default=None)


def judge_mount(mount: Mount | None) -> list[Finding]:
    check = "mount"
    if mount is None:
        return [note(check, "the kernel's list of mounts doesn't tell what the folder lies on")]
    told = f"{mount.kind} on {mount.point} ({', '.join(mount.options)})"
    options = set(mount.options)
    faults = []
    if "ro" in options:
        faults.append(problem(check, f"{told}: read-only", "mount it with `rw`"))
    if mount.kind in NFS:
        if "soft" in options or "softerr" in options:
            text = f"{told}: a server that is slow for a while makes writes fail"
            faults.append(problem(check, text, "mount it with `hard` (the default): Tandem waits, and loses nothing"))
        if "nolock" in options or any(f"local_lock={what}" in options for what in ("all", "flock")):
            text = f"{told}: locks hold on one host alone, so two hosts may pay for the same answers"
            faults.append(problem(check, text, "mount it without `nolock` and `local_lock`"))
    if faults:
        return faults
    if mount.kind in IN_MEMORY:
        return [note(check, f"{told}: gone when this machine restarts", "use a folder on a disk for what was paid for")]
    if mount.kind == "overlay":
        return [note(check, f"{told}: gone with its container", "mount a volume there")]
    if mount.kind in LOCAL or mount.kind in NFS:
        return [ok(check, told)]
    return [note(check, f"{told}: not a file system that Tandem is tested on; what follows below was tried here")]


def _plain(text: str) -> str:
    """A blank is written as \\040, and so on."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
