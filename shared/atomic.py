"""Durable writes: the only place with os.replace, fsync and ftruncate.

Guarantees (on a local filesystem, and on NFS with default options): after `replace` returned, a reader sees the whole
new content or the whole old one, never a mixture, and the new content survives a power loss. After `AppendFile.append`
returned, what was appended survives. Limits: two writers of one file are not arbitrated here (the layout gives each
file one writer); a full disk shows as OSError at `replace` or `sync`, and the old content stays.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import stat
import zlib
from collections.abc import Callable, Iterable
from io import BufferedReader
from pathlib import Path

FILE_MODE = 0o640
MOSTLY = 1 << 16
"""Bytes of which most files that are read as a whole have less."""
_TEMPORARY = re.compile(r"\.(.*)\.[0-9a-f]{8}-\d+\.new", re.DOTALL)
_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}"
FOLDER_MODE = 0o750


def make_folder(path: Path) -> None:
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Make `data` the content of `path`, atomically and durably. Its folder is made if missing."""
    replace_lines(path, (data,))


def replace_lines(path: Path, chunks: Iterable[bytes], *, tick: Callable[[], None] = lambda: None) -> tuple[int, str]:
    """Stream `chunks` into `path`, atomically and durably; returns (size in bytes, SHA-256) of what was written.

    Nothing is seen of it before all chunks came; if `chunks` raises, nothing is left behind. tick: called now and then,
    for whoever has to show that a long write goes on.
    """
    file = Replacement(path)
    try:
        file.write(chunks, tick=tick)
    except BaseException:
        file.abandon()
        raise
    return file.size, file.commit()


class Replacement:
    """A file on its way to replace another: written bit by bit, seen only once it is committed. Its folder is made if
    missing. A process that is killed leaves its temporary file, for `sweep`.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self.path = path
        self.size = 0
        # A temporary name of this process's own, on whichever host: two writers never share one.
        self._temporary = path.with_name(f".{path.name[:200]}.{_HOST}-{os.getpid()}.new")
        self._digest = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._temporary, flags, FILE_MODE)

    def write(self, chunks: Iterable[bytes], *, tick: Callable[[], None] = lambda: None) -> None:
        """Append all chunks. After an error it can only be abandoned."""
        for chunk in _batches(chunks):
            write_all(self._fd, chunk)
            self._digest.update(chunk)
            self.size += len(chunk)
            tick()

    def commit(self) -> str:
        """Make it durable and give it its name; returns the SHA-256 of its content. On an error nothing is left behind,
        and what was there before stays.
        """
        try:
            try:
                os.fsync(self._fd)
            finally:
                os.close(self._fd)
            os.replace(self._temporary, self.path)
        except BaseException:
            self._unlink()
            raise
        sync_folder(self.path.parent)
        return self._digest.hexdigest()

    def abandon(self) -> None:
        """Leave nothing behind, as far as the disk lets us; never raises."""
        try:
            os.close(self._fd)
        except OSError:
            pass  # what was written is thrown away
        self._unlink()

    def _unlink(self) -> None:
        try:
            os.unlink(self._temporary)
        except OSError:
            pass  # the first error is the one to tell


def promote(staged: Path, path: Path) -> None:
    """Give a file that is already durable its final name."""
    os.replace(staged, path)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def sweep(folder: Path, of: str = "") -> None:
    """Remove what killed writers left half-written in `folder`; `of`: of that file alone. Only for its one writer.

    A writer that is still at work loses at most this one write, with an error, and nothing that was complete.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        match = _TEMPORARY.fullmatch(name)
        if match is not None and (not of or match[1] == of[:200]):
            remove(folder / name)


def sync_folder(folder: Path) -> None:
    """Make names created in or moved into `folder` survive a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def look_again(folder: Path) -> None:
    """Have the file system learn anew which names the folder holds, if it is there.

    NFS remembers for up to 30 s that a name was missing, and opening it then fails although it is there by now; listing
    the folder ends that (seen with Linux's client and default options).
    """
    try:
        with os.scandir(folder) as entries:
            for _ in entries:
                pass
    except FileNotFoundError:
        pass


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file through a fresh open, so that a cached attribute is never believed.

    Raises OSError as open and read do; ValueError when it isn't a regular file (a FIFO would block for ever) or is
    longer than `limit` bytes.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path}: not a regular file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(min(limit + 1, MOSTLY))
            if len(data) == MOSTLY:  # memory for all that may come is taken only where there is more
                data += file.read(limit + 1 - MOSTLY)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise ValueError(f"{path}: larger than {limit} bytes")
    return data


def open_regular(path: Path) -> BufferedReader:
    """A regular file, to be read bit by bit. Raises OSError as open does, and when it is anything else: a FIFO would
    block for ever.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


class AppendFile:
    """A file that one writer only ever appends to.

    `append` writes whole lines and makes them durable. When a write fails half-way (a full disk), the file is cut back
    to its last good length, so that what was appended before stays readable and the same lines can be appended again.
    resume: the file may be there already; a half-written line at its end is cut off. Who resumes sees to it that nobody
    else writes to it.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        make_folder(path.parent)
        self.path = path
        new = 0 if resume else os.O_EXCL
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | new, FILE_MODE)
        self._size = _end_of_lines(self._fd) if resume else 0
        self._torn = resume
        try:
            sync_folder(path.parent)
        except OSError:
            self.close()
            if not resume:
                remove(path)  # so that the same claim can try again
            raise

    def append(self, data: bytes) -> int:
        """Write and make durable; returns the offset of `data` in the file. Raises OSError (ENOSPC, EDQUOT, EIO ...);
        then nothing of `data` counts as written.
        """
        try:
            torn = self._torn and not self._cut()
            self._torn = True
            # The half-written end of an earlier try that could not be cut off is made a damaged line of its own.
            write_all(self._fd, b"\n" + data if torn else data)
            os.fdatasync(self._fd)
        except OSError:
            self._cut()
            raise
        self._torn = False
        self._size = os.lseek(self._fd, 0, os.SEEK_END)
        return self._size - len(data)

    def _cut(self) -> bool:
        """Back to the last good length; False when the filesystem refuses that too."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            return False  # readers ignore a torn tail as well
        self._torn = False
        return True

    def close(self) -> None:
        os.close(self._fd)


def _end_of_lines(fd: int, block: int = 1 << 16) -> int:
    """The offset behind the last newline of a file."""
    end = os.lseek(fd, 0, os.SEEK_END)
    while end:
        start = max(end - block, 0)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _batches(chunks: Iterable[bytes], size: int = 1 << 20) -> Iterable[bytes]:
    """The same bytes in pieces of about `size`, so that many short lines cost few system calls."""
    pending: list[bytes] = []
    length = 0
    for chunk in chunks:
        pending.append(chunk)
        length += len(chunk)
        if length >= size:
            yield b"".join(pending)
            pending.clear()
            length = 0
    if pending:
        yield b"".join(pending)
