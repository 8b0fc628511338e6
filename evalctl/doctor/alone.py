"""The checks that one host can make by itself. Each gets an empty folder on the mount, and may leave anything in it.

Those that need a second process fork it, so `inotify`, which starts threads, comes last.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import stat
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from evalctl.doctor.beside import Beside
from evalctl.doctor.events import Listening
from evalctl.doctor.findings import Finding, note, ok, problem
from shared.atomic import FILE_MODE, AppendFile, make_folder, replace
from shared.claims import take

COUNT = 20  # operations that a median is taken over
RENAMES = 100
BUDGET = 2.0  # seconds after which a check goes by what it has

SLOW_SYNC = 0.05  # seconds: [infer] commit_interval as it is by default
SLOW_REPLACE = 0.1
MIB = 1 << 20

_LOCKS = (
    "use a mount whose locks work (NFS: version 4, or 3 with its lock daemon): claims keep two daemons apart by them"
)


def rename(folder: Path) -> list[Finding]:
    """Files are replaced as Tandem does it, while another process reads."""
    path = folder / "replaced"
    replace(path, _version(0))
    reader = Beside(lambda stopped: _read_on(path, stopped))
    times: list[float] = []
    deadline = time.monotonic() + BUDGET
    while len(times) < RENAMES and time.monotonic() < deadline:
        times.append(_seconds(lambda: replace(path, _version(len(times) + 1))))
    reads, missing, torn = reader.result()
    found = []
    if missing or torn:
        text = f"of {reads} reads while the file was replaced {missing} found none and {torn} found a torn one"
        found.append(problem("rename", text, "use another file system: status files would be misread here"))
    else:
        found.append(ok("rename", f"{reads} reads during {len(times)} replacements: each saw one whole version"))
    median = statistics.median(times)
    told = f"{1 / median:.0f} a second (median {median:.4f} s, with fsync)"
    if median > SLOW_REPLACE:
        # Each status file takes a twentieth of its writer's time then.
        found.append(note("replace", told, infer__status_interval=math.ceil(20 * median)))
    else:
        found.append(ok("replace", told))
    return found


def _read_on(path: Path, stopped: Callable[[], bool]) -> tuple[int, int, int]:
    """(reads, of which there was no file, of which it was torn)"""
    reads = missing = torn = 0
    while True:
        last = stopped()  # asked first, so that there is a read even if it comes late
        try:
            torn += not _is_whole(path.read_bytes())
        except FileNotFoundError:
            missing += 1
        except OSError as error:
            if error.errno != errno.ESTALE:  # NFS says so of a file that was replaced meanwhile: Tandem looks again
                raise
        reads += 1
        if last:
            return reads, missing, torn


def _version(number: int) -> bytes:
    return f"{number:015d}\n".encode() * 512


def _is_whole(data: bytes) -> bool:
    return len(data) == 512 * 16 and data == data[:16] * 512


def locks(folder: Path) -> list[Finding]:
    found = []
    for name, lock in (("flock", fcntl.flock), ("fcntl", fcntl.lockf)):
        path = folder / name
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            excluded = Beside(lambda _, path=path, lock=lock: is_locked(path, lock)).result()  # type: ignore[misc]
        except OSError as error:
            found.append(problem(name, f"locks don't work: {error}", _LOCKS))
        else:
            told = f"a lock {'excludes' if excluded else 'does not exclude'} another process"
            found.append(ok(name, told) if excluded else problem(name, told, _LOCKS))
        finally:
            os.close(fd)
    return found


def is_locked(path: Path, lock: Callable[[int, int], object]) -> bool:
    """Whether somebody else holds this kind of lock on it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return True
    finally:
        os.close(fd)
    return False


def claims(folder: Path) -> list[Finding]:
    """A claim as Tandem takes it: it excludes, it can be had once it is released, and it goes with its process."""
    check, path = "claim", folder / "one.lock"
    claim = take(path)
    if claim is None:
        return [problem(check, "a claim that nobody has can't be taken", _LOCKS)]
    with claim:
        excluded = Beside(lambda _: take(path) is None).result()
    if not excluded:
        return [problem(check, "two processes held one claim at once", _LOCKS)]
    holder = Beside(lambda stopped: _hold(path, folder / "held", stopped))
    held = _until((folder / "held").exists)
    holder.kill()
    again = take(path, timeout=BUDGET)
    if again is None or not held:
        return [problem(check, "the claim of a process that was killed isn't free", _LOCKS)]
    again.release()
    return [ok(check, "excludes another process, and goes with the process that held it")]


def _hold(path: Path, sign: Path, stopped: Callable[[], bool]) -> None:
    if take(path) is None:
        return  # without a sign
    make_folder(sign)
    while not stopped():
        time.sleep(0.01)


def creation(folder: Path) -> list[Finding]:
    """O_EXCL, raced by two processes; a hard link to a name that is taken."""
    other = Beside(lambda _: wins(folder, backwards=True))
    own = wins(folder)
    total = own + other.result()
    if total == RACED:
        found = [ok("O_EXCL", f"of two that created {RACED} files at once, each had its own")]
    else:
        text = f"{RACED} files were created {total} times by two at once"
        found = [problem("O_EXCL", text, "use another file system: two writers would share one journal here")]
    one = folder / "0"
    try:
        os.link(one, folder / "linked")
        os.link(one, folder / "linked")
    except FileExistsError:
        found.append(ok("hard link", "works, and refuses a name that is taken"))
    except OSError as error:
        found.append(note("hard link", f"can't be made ({error.strerror}): Tandem makes none"))
    else:
        found.append(note("hard link", "replaces a name that is taken: Tandem makes none"))
    return found


RACED = 30


def wins(folder: Path, *, backwards: bool = False) -> int:
    """How many of the same names this process created first."""
    won = 0
    for number in reversed(range(RACED)) if backwards else range(RACED):
        try:
            os.close(os.open(folder / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
        except FileExistsError:
            continue
        won += 1
    return won


def append(folder: Path) -> list[Finding]:
    """A journal: appended line by line, each with its fsync; torn, and gone on with."""
    path = folder / "journal"
    line = b"x" * 511 + b"\n"
    file = AppendFile(path)
    times: list[float] = []
    deadline = time.monotonic() + BUDGET
    while len(times) < COUNT and time.monotonic() < deadline:
        times.append(_seconds(lambda: file.append(line)))
    file.close()
    with path.open("ab") as torn:
        torn.write(b"half a li")
    again = AppendFile(path, resume=True)
    again.append(line)
    again.close()
    found = []
    if path.read_bytes() == line * (len(times) + 1):
        found.append(ok("append", "a journal that was torn goes on where its last whole line ends"))
    else:
        text = "a journal that was torn and gone on with doesn't hold what was appended"
        found.append(problem("append", text, "use another file system: answers that were paid for would be lost here"))
    median = statistics.median(times)
    told = f"a line is safe after {median:.4f} s (median of {len(times)})"
    if median > SLOW_SYNC:
        # Two thirds of the time are left to the disk's other work; lines that come meanwhile share one fsync.
        found.append(note("fsync", told, infer__commit_interval=round(2 * median, 2)))
    else:
        found.append(ok("fsync", told))
    return found


def rights(folder: Path) -> list[Finding]:
    """Who can read what daemons write, and who else can write here."""
    root = folder.parent.parent
    above = os.stat(root)
    path = folder / "mode"
    replace(path, b"x")
    made = os.stat(path)
    mode = stat.S_IMODE(made.st_mode)
    umask = _umask()
    found = []
    if above.st_mode & stat.S_IWOTH:
        text = f"everybody may write in {root} (mode {stat.S_IMODE(above.st_mode):04o}): what they plant there is read"
        found.append(note("rights", text, f"chmod o-w {root}"))
    if made.st_uid != os.geteuid():
        text = f"what this user (uid {os.geteuid()}) writes belongs to uid {made.st_uid}: the server maps it"
        found.append(note("rights", text, "run all daemons as one user that the server knows"))
    if mode != FILE_MODE & ~umask:
        text = f"files come out with mode {mode:04o} instead of {FILE_MODE & ~umask:04o}: the mount decides"
        found.append(note("rights", text))
    if umask & 0o040:
        text = f"umask {umask:04o}: only this user can read what it writes, no daemon of another one"
        found.append(note("rights", text, "umask 027, where they share a group"))
    return found or [ok("rights", f"files come out with mode {mode:04o} (umask {umask:04o})")]


def _umask() -> int:
    """There is no way to ask but to set it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def space(folder: Path) -> list[Finding]:
    there = os.statvfs(folder)
    free = there.f_bavail * there.f_frsize
    told = f"{free / MIB:,.0f} MiB free"
    found = [_enough("space", free, 64 * MIB, 1024 * MIB, told)]
    if there.f_files:
        found.append(_enough("inodes", there.f_favail, 1000, 10_000, f"{there.f_favail:,} inodes free"))
    else:
        found.append(ok("inodes", "not counted on this file system"))
    return found


def _enough(check: str, free: int, least: int, plenty: int, told: str) -> Finding:
    if free >= plenty:
        return ok(check, told)
    remedy = "make room: with a full disk inferd stops, loses nothing, and goes on once it is started again"
    return problem(check, told, remedy) if free < least else note(check, told, remedy)


def inotify(folder: Path) -> list[Finding]:
    """Whether this host is told of its own changes, as evald listens."""
    check = "inotify"
    listening = Listening(folder)
    if listening.error:
        remedy = "raise fs.inotify.max_user_instances or fs.inotify.max_user_watches"
        return [note(check, f"no events: {listening.error}", remedy, eval__events=False)]
    replace(folder / "seen.json", b"{}")
    heard = _until(lambda: listening.heard)
    listening.stop()
    if heard:
        return [ok(check, "this host's own changes are told at once")]
    return [note(check, "this host isn't told of changes; the scan finds them all", eval__events=False)]


CHECKS: tuple[Callable[[Path], list[Finding]], ...] = (
    *(rename, locks, claims, creation, append, rights, space),
    inotify,
)


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + BUDGET
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
