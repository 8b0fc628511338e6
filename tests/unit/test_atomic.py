"""Durable writes: whole or not at all, and nothing left lying about."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import atomic
from shared.atomic import (
    _HOST,
    MOSTLY,
    AppendFile,
    open_regular,
    promote,
    read_regular,
    remove,
    replace,
    replace_lines,
    sweep,
)

ROOT = Path(__file__).parents[2]


def _python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# A reader of its own: it opens again and again, and every content it sees must be one letter, 100 000 times.
READER = """
import sys
seen = 0
while True:
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    assert len(data) == 100_000 and len(set(data)) == 1, (len(data), set(data))
    seen += 1
    if seen == 50:
        print("reading", flush=True)
    if data[:1] == b"!":
        break
print(seen)
"""


def test_a_reader_never_sees_a_mixture(tmp_path: Path) -> None:
    """Another process reads while the file is replaced: whole contents alone, and at last the newest."""
    path = tmp_path / "f"
    replace(path, b"a" * 100_000)
    reader = _python(READER, path)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        for number in range(300):
            replace(path, bytes([97 + number % 26]) * 100_000)
        replace(path, b"!" * 100_000)
        out, err = reader.communicate(timeout=30)
    finally:
        reader.kill()
    assert reader.returncode == 0, err
    assert int(out) > 50


def test_many_writers_of_many_files(tmp_path: Path) -> None:
    """Threads that replace files of one folder don't disturb each other."""
    errors: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for number in range(50):
                replace(tmp_path / name, f"{name} {number}".encode())
        except BaseException as error:  # noqa: BLE001  # told by the assert below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(f"f{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"f{number}" for number in range(8)]
    assert all((tmp_path / f"f{number}").read_bytes() == f"f{number} 49".encode() for number in range(8))


def test_size_and_digest_are_of_what_was_written(tmp_path: Path) -> None:
    """Streamed chunks, larger and smaller than a batch; tick is called on the way."""
    chunks = [b"x" * 700_000, b"", b"y" * 700_000, b"\n", b"z" * 3_000_000]
    ticks: list[None] = []
    size, digest = replace_lines(tmp_path / "f", iter(chunks), tick=lambda: ticks.append(None))
    data = b"".join(chunks)
    assert (tmp_path / "f").read_bytes() == data
    assert (size, digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert len(ticks) >= 2
    assert replace_lines(tmp_path / "empty", ()) == (0, hashlib.sha256(b"").hexdigest())
    assert (tmp_path / "empty").read_bytes() == b""


def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    """Whatever goes wrong: chunks that raise, a full disk at write, at fsync or at the rename."""
    path = tmp_path / "f"
    replace(path, b"old")

    def chunks() -> Iterator[bytes]:
        yield b"n" * 2_000_000
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_lines(path, chunks())
    for name in ("write", "fsync", "replace"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, name, _no_space)
            with pytest.raises(OSError, match="No space"):
                replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_folders_and_files_are_closed_to_others(tmp_path: Path) -> None:
    """Folders that had to be made and files let the owner write, the group read, and nobody else in."""
    old = os.umask(0)
    try:
        replace(tmp_path / "a/b/f", b"x")
        AppendFile(tmp_path / "c/j").close()
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a/b", "c", "a/b/f", "c/j")}
    assert modes == {"a/b": 0o750, "c": 0o750, "a/b/f": 0o640, "c/j": 0o640}


def test_a_link_in_place_of_the_temporary_file_is_refused(tmp_path: Path) -> None:
    """Whoever can guess the temporary name can't have another file overwritten through it."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / f".f.{_HOST}-{os.getpid()}.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        replace(tmp_path / "d" / "f", b"x")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "d" / "f").exists()


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    """A temporary file of the same name is in nobody's way, and is gone afterwards."""
    (tmp_path / f".f.{_HOST}-{os.getpid()}.new").write_bytes(b"half" * 1000)
    replace(tmp_path / "f", b"x")
    assert (tmp_path / "f").read_bytes() == b"x"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_a_long_name_has_a_temporary_name(tmp_path: Path) -> None:
    """The longest name that a file system takes can still be replaced."""
    replace(tmp_path / ("x" * 240), b"1")
    assert (tmp_path / ("x" * 240)).read_bytes() == b"1"


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path) -> None:
    """SIGKILL in the middle of a long write: a reader sees the old content."""
    path = tmp_path / "f"
    replace(path, b"old")
    code = """
import sys, pathlib
from shared.atomic import replace_lines
def chunks():
    yield b"n" * 3_000_000
    print("writing", flush=True)
    sys.stdin.read()
replace_lines(pathlib.Path(sys.argv[1]), chunks())
"""
    writer = _python(code, path)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=30)
    assert path.read_bytes() == b"old"


def test_promote_and_remove(tmp_path: Path) -> None:
    """A staged file gets its final name; removing twice is no error."""
    replace(tmp_path / "staged", b"new")
    replace(tmp_path / "f", b"old")
    promote(tmp_path / "staged", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert not (tmp_path / "staged").exists()
    remove(tmp_path / "f")
    remove(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_read_regular(tmp_path: Path) -> None:
    """A regular file up to the limit and no byte more; a missing one is told as missing."""
    (tmp_path / "f").write_bytes(b"12345")
    assert read_regular(tmp_path / "f", 5) == b"12345"
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        read_regular(tmp_path / "f", 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "g", 4)
    for size in (MOSTLY - 1, MOSTLY, MOSTLY + 1, 3 * MOSTLY):
        (tmp_path / "f").write_bytes(b"x" * size)
        assert len(read_regular(tmp_path / "f", size)) == size
        with pytest.raises(ValueError, match="larger than"):
            read_regular(tmp_path / "f", size - 1)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """A FIFO without a writer would block for ever, a device never ends: refused instead of waited for."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a regular file"):
            read_regular(path, 10)


def test_open_regular(tmp_path: Path) -> None:
    """The same for what is read bit by bit, as an OSError that names the file; no descriptor stays open."""
    (tmp_path / "f").write_bytes(b"one\ntwo")
    with open_regular(tmp_path / "f") as file:
        assert list(file) == [b"one\n", b"two"]
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for path, kind in ((tmp_path / "fifo", OSError), (Path("/dev/zero"), OSError), (tmp_path, IsADirectoryError)):
        with pytest.raises(kind) as refused:
            open_regular(path)
        assert refused.value.filename == str(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """As any other thing that is no regular file, and without leaving a descriptor open."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(ValueError, match="not a regular file"):
            read_regular(tmp_path, 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_append_file_appends(tmp_path: Path) -> None:
    """Lines lie one after the other; the file must be new, and its folder is made."""
    file = AppendFile(tmp_path / "p" / "j")
    file.append(b"a\n")
    file.append(b"b\nc\n")
    assert (tmp_path / "p" / "j").read_bytes() == b"a\nb\nc\n"
    file.close()
    with pytest.raises(FileExistsError):
        AppendFile(tmp_path / "p" / "j")


def test_a_write_that_failed_half_way_is_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there stays, no half line stays, and the same lines can be appended again."""
    file = AppendFile(tmp_path / "j")
    file.append(b"one\n")
    real = os.write

    def half(fd: int, data: memoryview) -> int:
        if len(data) <= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                file.append(b"two two two\n")
            assert (tmp_path / "j").read_bytes() == b"one\n"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _no_space)  # a full disk on NFS shows here
        with pytest.raises(OSError, match="No space"):
            file.append(b"two two two\n")
    file.append(b"two two two\n")
    file.close()
    assert (tmp_path / "j").read_bytes() == b"one\ntwo two two\n"


def test_a_real_limit_is_met_and_cut_back(tmp_path: Path) -> None:
    """The kernel itself refuses (RLIMIT_FSIZE): whole lines stay, and when there is room again it goes on."""
    code = """
import pathlib, resource, signal, sys
from shared.atomic import AppendFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = AppendFile(pathlib.Path(sys.argv[1]))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
written = refused = 0
for number in range(20):
    try:
        file.append(b"%098d\\n" % number * 1)
        written += 1
    except OSError:
        refused += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
file.append(b"last\\n")
print(written, refused)
"""
    child = _python(code, tmp_path / "j")
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    assert out.split() == ["10", "10"]
    lines = (tmp_path / "j").read_bytes().split(b"\n")
    assert lines == [b"%098d" % number for number in range(10)] + [b"last", b""]


def test_a_journal_that_could_not_be_made_can_be_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the folder's fsync fails, the name is taken back, so that the same claim can try again."""
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "sync_folder", _no_space)
        with pytest.raises(OSError, match="No space"):
            AppendFile(tmp_path / "j")
    assert not (tmp_path / "j").exists()
    AppendFile(tmp_path / "j").close()


def test_a_torn_end_that_cant_be_cut_off_stays_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write fails half-way and so does the cut: what is appended next isn't glued to the torn half."""
    file = AppendFile(tmp_path / "j")
    file.append(b"one\n")
    real_write, real_cut = os.write, os.ftruncate

    def half(fd: int, data: bytes) -> int:
        if len(data) > 1:
            return real_write(fd, bytes(data[:1]))
        raise OSError(errno.ENOSPC, "full")

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(os, "write", half)
    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(OSError, match="full"):
        file.append(b"xy")
    monkeypatch.setattr(os, "write", real_write)
    file.append(b"two\n")
    monkeypatch.setattr(os, "ftruncate", real_cut)
    file.append(b"three\n")
    file.close()
    assert (tmp_path / "j").read_bytes() == b"one\nx\ntwo\nthree\n"


def test_sweep_takes_no_other_files_leftovers(tmp_path: Path) -> None:
    """Of one file alone: not those of a file whose name begins alike, nor what isn't a leftover."""
    names = [
        ".a.jsonl.00000000-1.new",
        ".a.jsonl.jsonl.00000000-1.new",
        ".b.jsonl.00000000-1.new",
        "a.jsonl",
        ".a.jsonl.new",
    ]
    for name in names:
        (tmp_path / name).touch()
    sweep(tmp_path, "a.jsonl")
    assert sorted(os.listdir(tmp_path)) == sorted(names[1:])
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(names[3:])
    sweep(tmp_path / "none")
