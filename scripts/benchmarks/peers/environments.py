"""A virtual environment for each peer, in the user's cache: made on first use, made again when its pins change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).with_name("pins.toml")


class NotInstalled(Exception):
    """pip couldn't; the text is the end of what it said."""


@dataclass(frozen=True)
class Peer:
    name: str
    shown: str
    packages: tuple[str, ...]

    @property
    def label(self) -> str:
        """For the table: with the version of its first package."""
        return f"{self.shown} {self.packages[0].partition('==')[2]}"


def read_pins() -> dict[str, Peer]:
    found = tomllib.loads(PINS.read_text("utf-8"))
    return {name: Peer(name, table["shown"], tuple(table["packages"])) for name, table in found.items()}


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem-bench"


def python_of(peer: Peer) -> Path:
    """The peer's Python, with its packages installed."""
    folder = cache() / peer.name
    python, stamp = folder / "bin" / "python", folder / "installed.json"
    wanted = json.dumps([sys.version, peer.packages])
    if not stamp.is_file() or stamp.read_text("utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *peer.packages])
        stamp.write_text(wanted, "utf-8")
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise NotInstalled(done.stdout[-1000:])
