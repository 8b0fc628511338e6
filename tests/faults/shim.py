"""Calls of a process on one folder that fail or take long, and its wall clock set: shim.c, built and steered.

    with Shim(folder, scratch) as shim:
        process = Daemon(..., env=shim.env)
        shim.fail("sync", errno.EIO)        # every fsync and fdatasync under the folder, until heal()
        shim.slow("sync", 1.5, only="tmp_")     # those of journals take so long
        shim.set_clock(-3600)

Needs a C compiler, and no root.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import TracebackType

from tests.faults.means import Missing

CALLS = ("write", "sync", "rename", "truncate", "create")
_FIELDS = ("error", "times", "torn", "delay_ms", "failed", "entered", "left")
_CLOCK = 4 * len(CALLS) * len(_FIELDS)
_ONLY = _CLOCK + 4
_SIZE = _ONLY + 64


@cache
def build(folder: Path) -> Path:
    """The library, compiled into `folder`. Raises Missing where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Missing("a C compiler (Debian's packages `gcc` and `libc6-dev`)", installed_by_ci=True)
    if not sys.platform.startswith("linux"):
        raise Missing("Linux")
    library = folder / "shim.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", library, Path(__file__).with_name("shim.c"), "-ldl"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Missing(
            f"a C compiler that works (Debian's package `libc6-dev`): {done.stderr[:300]}", installed_by_ci=True
        )
    return library


class Shim:
    """under: the folder whose files it concerns. scratch: a folder for what it needs itself, on a disk that is well."""

    def __init__(self, under: Path, scratch: Path) -> None:
        self._library = build(scratch)
        self._file = scratch / "shim.control"
        self._file.write_bytes(b"\0" * _SIZE)
        with self._file.open("r+b") as file:
            self._block = mmap.mmap(file.fileno(), _SIZE)
        self.env = {
            "LD_PRELOAD": str(self._library),
            "TANDEM_FAULTS": str(self._file),
            "TANDEM_FAULTS_UNDER": os.path.realpath(under),
        }

    def __enter__(self) -> Shim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._block.close()

    def fail(self, call: str, error: int, *, times: int = -1, torn: bool = False, only: str = "") -> None:
        """Have the next `times` calls fail with that errno. torn: a write writes its first half. only: where the path
        holds this; for all calls at once.
        """
        self._aim(only)
        self._set(call, "torn", int(torn))
        self._set(call, "times", times)
        self._set(call, "error", error)

    def slow(self, call: str, seconds: float, *, only: str = "") -> None:
        """Have each call take so much longer."""
        self._aim(only)
        self._set(call, "delay_ms", round(seconds * 1000))

    def heal(self) -> None:
        """All calls as they are; those that are being held up go on."""
        for call in CALLS:
            for field in ("error", "delay_ms", "torn"):
                self._set(call, field, 0)
        self._aim("")

    def set_clock(self, offset: int) -> None:
        """The wall clock, so many seconds off the true time. The monotonic clock stays."""
        if not sysconfig.get_config_var("HAVE_SEM_CLOCKWAIT"):
            raise Missing("a Python whose locks wait on the monotonic clock (glibc 2.30 or later)")
        struct.pack_into("i", self._block, _CLOCK, offset)

    def failed(self, call: str) -> int:
        """How many calls were made to fail so far."""
        return self._get(call, "failed")

    def begun(self, call: str) -> int:
        """How many calls that were held up have begun."""
        return self._get(call, "entered")

    def over(self, call: str) -> int:
        """... and are over."""
        return self._get(call, "left")

    def _aim(self, only: str) -> None:
        struct.pack_into("64s", self._block, _ONLY, only.encode())

    def _place(self, call: str, field: str) -> int:
        return 4 * (CALLS.index(call) * len(_FIELDS) + _FIELDS.index(field))

    def _set(self, call: str, field: str, value: int) -> None:
        struct.pack_into("i", self._block, self._place(call, field), value)

    def _get(self, call: str, field: str) -> int:
        return int(struct.unpack_from("i", self._block, self._place(call, field))[0])
