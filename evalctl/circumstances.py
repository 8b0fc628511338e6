"""What `evalctl why` looks at beside the status files: free space, claims, the end of the logs. Reads only; what can't
be read tells nothing.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from evalctl.state import AT_WORK, State
from evalctl.why import Facts
from shared import claims
from shared.layout import WorkDir
from shared.plan import read_plan

TAIL = 1 << 16  # bytes of a log
LOGS = 256  # files of logs/ looked at
CLAIMS = 2000  # looked at
LONGEST = 500  # characters of a log's message
BEGINS = frozenset({"running", "planning", "plan read"})
"""Events with which a daemon's run begins: what a log holds before them is of an earlier one."""


def facts(work: WorkDir, state: State) -> Facts:
    free_bytes, free_inodes = _free(work.root)
    errors = {daemon: error for daemon in ("inferd", "evald") if (error := _last_error(work, daemon))}
    return Facts(free_bytes=free_bytes, free_inodes=free_inodes, owners=_owners(work, state), last_errors=errors)


def _free(folder: Path) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None, None
    inodes = found.f_favail if found.f_files else None  # some filesystems count none
    return found.f_bavail * found.f_frsize, inodes


def _owners(work: WorkDir, state: State) -> dict[str, str]:
    """Of pairs that nobody who beats here works on: who holds their claim."""
    plan = read_plan(work)
    here = {f"process {view.pid} on {view.host}" for view in state.inferd if view.state in AT_WORK}
    left = {(pair.model, pair.dataset) for pair in state.pairs if pair.infer in ("pending", "running")}
    shards = [
        (pair, shard)
        for pair in (plan.pairs if plan is not None else ())
        if (pair.model, pair.dataset) in left
        for shard in pair.shards
    ]
    owners = {}
    for pair, shard in shards[:CLAIMS]:
        claim = work.shard_claim(pair.model, shard.stem)
        if claims.held(claim) and (owner := claims.owner(claim)) not in here:
            owners[f"{pair.model}/{pair.dataset}"] = owner
    return owners


def _last_error(work: WorkDir, daemon: str) -> str:
    """The last error of the daemon's last run, of whichever host's log was written to last."""
    try:
        with os.scandir(work.logs) as entries:
            names = [entry.name for entry in islice(entries, LOGS)]
    except OSError:
        return ""
    logs = [work.logs / file for file in names if file.startswith(f"{daemon}.") and file.endswith(".log")]
    newest = max(logs, key=_changed, default=None)
    return last_error(_tail(newest)) if newest is not None else ""


def last_error(lines: Iterable[bytes]) -> str:
    """Of lines of a log, in words. What is no line of ours is passed over."""
    found = ""
    for line in lines:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(said, dict):
            continue
        if said.get("event") in BEGINS:
            found = ""
        elif said.get("level") in ("error", "critical"):
            told = [str(said[key]) for key in ("event", "model", "dataset", "reason", "error") if said.get(key)]
            found = ": ".join(told)[:LONGEST]
    return found


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _tail(path: Path) -> list[bytes]:
    """Its last whole lines."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(fd, "rb") as file:
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return []
            file.seek(max(found.st_size - TAIL, 0))
            lines = file.read(TAIL).split(b"\n")
        except OSError:
            return []
    return lines if found.st_size <= TAIL else lines[1:]
