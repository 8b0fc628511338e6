"""Lines of journals and predictions, read back by the place that the index knows."""

from __future__ import annotations

import os
from pathlib import Path


class Lines:
    """Reads lines of a file by their place; those that follow each other cost one read a megabyte."""

    WINDOW = 1 << 20

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._start, self._window = 0, b""

    def close(self) -> None:
        os.close(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        first = offset - self._start
        if first < 0 or first + length > len(self._window):
            self._start, self._window = offset, os.pread(self._fd, max(length, self.WINDOW), offset)
            first = 0
        return self._window[first : first + length]
