"""A file system of a few megabytes that can be filled up: a tmpfs, so ENOSPC comes from the kernel. Needs root."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType

from tests.faults.means import Missing


class SmallDisk:
    """Mounted at `folder` for the length of a `with`."""

    def __init__(self, folder: Path, size: str = "1m") -> None:
        self.folder = folder
        self._size = size
        self._ballast = folder / "ballast"

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(parents=True, exist_ok=True)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self._size},mode=0755", "tandem-test", self.folder],
            capture_output=True,
            text=True,
        )
        if mounted.returncode:
            raise Missing(f"root, to mount a small tmpfs: {mounted.stderr.partition(chr(10))[0]}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)

    def fill(self) -> None:
        """To the last byte."""
        block = b"\0" * 65536
        fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            while block:
                try:
                    os.write(fd, block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    block = block[: len(block) // 2]
        finally:
            os.close(fd)

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)
