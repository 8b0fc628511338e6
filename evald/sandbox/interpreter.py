"""Which Python runs in a sandbox, and which folders of this machine it needs to see."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from evald.sandbox.contract import SandboxUnavailable

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # one program, one verdict
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",  # a thread for each core of a large machine would pass for a fork bomb
    "OMP_NUM_THREADS": "1",
}
_ASK = (
    "import sys; print(sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, sep='\\n')\n"
    "print(sys.version.split()[0])"
)
INSIDE = str(Path(__file__).parent / "inside")
SHOWN = "/inside"  # where that folder is in the sandbox, below `/`


@dataclass(frozen=True)
class Interpreter:
    """argv: the command and its options. visible: folders."""

    argv: tuple[str, ...]
    visible: tuple[str, ...]
    version: str

    def module(self, name: str, arguments: Sequence[str]) -> list[str]:
        """The command that runs main() of a module of `inside`."""
        return [*self.argv, "-c", f"from inside.{name} import main; main()", *arguments]


@lru_cache(maxsize=1)
def compile_inside() -> None:
    """So that not each process has to: where the folder can be written, as installers did where it can't."""
    for path in Path(INSIDE).glob("*.py"):
        with suppress(OSError):
            py_compile.compile(str(path), doraise=False, quiet=2)


@lru_cache(maxsize=16)
def interpreter(path: str = "") -> Interpreter:
    """path: of a Python whose packages the programs may use; "": the one that runs evald, without any packages.

    Raises SandboxUnavailable.
    """
    compile_inside()
    if not path:
        own = _folders({sys.base_prefix, sys.base_exec_prefix})
        return Interpreter((os.path.realpath(sys.executable), "-s", "-S", "-P"), own, sys.version.split()[0])
    try:
        told = subprocess.run(
            [path, "-s", "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"python = {path!r} of code_exec doesn't run: {error}") from None
    *prefixes, version = told.stdout.split("\n")[:5]
    return Interpreter((path, "-s", "-P"), _folders({*prefixes, os.path.dirname(path)}), version)


def versions_now(pythons: Mapping[str, str]) -> dict[str, str]:
    """By path: the versions that are there now. One that doesn't run keeps the version that is known: nothing better
    could be made of its programs today.
    """
    now = dict(pythons)
    for path in pythons:
        with suppress(SandboxUnavailable):
            now[path] = interpreter(path).version
    return now


def _folders(paths: set[str]) -> tuple[str, ...]:
    """Without those that are seen anyway, or that lie in another one."""
    folders = sorted({path for path in paths if path and path not in ("/", "/usr") and not path.startswith("/usr/")})
    return tuple(path for path in folders if not any(path.startswith(other + "/") for other in folders))
