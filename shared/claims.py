"""Claims: which process works on what. A lease held by a kernel lock, which goes with the process however it dies.

Correctness never rests on a claim: whoever holds one writes to files that carry its token. It only keeps two processes
from paying for the same answers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
import uuid
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from shared.atomic import make_folder, read_regular, replace
from shared.errors import WorkDirError

START_PATIENCE = 0.5
"""Seconds for which a daemon tries for its own claim, so that somebody's glance at it (`held`) doesn't turn it away."""


class Owner(msgspec.Struct, frozen=True):
    """Who holds a claim, for people: `<claim>.owner`.

    {"token":"0a1b","host":"h1","pid":4242}
    """

    token: str
    host: str
    pid: int


class Claim:
    """A claim that is held until `release` or the process's end."""

    def __init__(self, lock: FileLock, token: str, path: Path) -> None:
        self._lock = lock
        self._path = path
        self.token = token

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take(path: Path, *, timeout: float = 0.0, poll_interval: float = 0.2) -> Claim | None:
    """The claim at `path`, or None when another holds it for longer than `timeout` seconds (-1: wait for ever).

    Raises WorkDirError where the file system has no locks: a file that stands for one would outlive a crash, and two
    would pay for the same answers.
    """
    make_folder(path.parent)
    _check_locks(path.parent)
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=timeout, poll_interval=poll_interval)
    except Timeout:
        return None
    claim = Claim(lock, uuid.uuid4().hex, path)
    try:
        replace(_owner_path(path), msgspec.json.encode(Owner(claim.token, socket.gethostname(), os.getpid())) + b"\n")
    except BaseException:
        claim.release()
        raise
    return claim


_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
_checked: set[Path] = set()


def _check_locks(folder: Path) -> None:
    """Once a folder; on a file of its own, since even a glance at a claim could turn somebody away."""
    if folder in _checked:
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise WorkDirError(
                    f"{folder}: this file system has no locks ({error.strerror}): mount it with them (NFS: version 4, "
                    "or 3 without `nolock` and with rpc.statd; Lustre: -o flock), or put the work_dir elsewhere"
                ) from None
            raise
    _checked.add(folder)


def held(path: Path) -> bool | None:
    """Whether a live process holds the claim; None when this filesystem can't tell. Asking doesn't take it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO in its place would block for ever
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        # Shared, and for an instant only: a daemon that starts just now tries again (`START_PATIENCE`).
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        return False
    finally:
        os.close(fd)


def owner(path: Path) -> str:
    """Who took the claim last, as a text for people."""
    try:
        known = msgspec.json.decode(read_regular(_owner_path(path), 4096), type=Owner)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError):
        return "another process"
    return f"process {known.pid} on {known.host}"


def _owner_path(path: Path) -> Path:
    return path.with_name(path.name + ".owner")
