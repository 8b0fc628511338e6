"""Where secrets come from: the environment first, then systemd's credentials folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.secrets import lookup


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "API_KEY").write_text("from the file\n")
    (tmp_path / "BLANK").write_text(" \n")
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe")
    (tmp_path / "LARGE").write_bytes(b"x" * (1 << 17))
    (tmp_path / "FOLDER").mkdir()
    os.mkfifo(tmp_path / "FIFO")
    (tmp_path.parent / "OUTSIDE").write_text("not yours")
    return tmp_path


def test_the_environment_wins(folder: Path) -> None:
    """Its value as it is; an empty variable is no secret."""
    env = {"API_KEY": "from the env", "CREDENTIALS_DIRECTORY": str(folder)}
    assert lookup("API_KEY", env) == "from the env"
    assert lookup("API_KEY", env | {"API_KEY": ""}) == "from the file"
    assert lookup("API_KEY", {"API_KEY": ""}) is None


def test_the_credentials_folder(folder: Path) -> None:
    """The file of that name, without the newline that an editor leaves."""
    assert lookup("API_KEY", {"CREDENTIALS_DIRECTORY": str(folder)}) == "from the file"


@pytest.mark.parametrize(
    "name", ["MISSING", "BLANK", "BINARY", "LARGE", "FOLDER", "FIFO", "../OUTSIDE", "/etc/hostname", "", ".", ".."]
)
def test_what_is_no_secret_is_unset(folder: Path, name: str) -> None:
    """Missing, empty, no text, too large, no file, and names that lead out of the folder: None, without waiting."""
    assert lookup(name, {"CREDENTIALS_DIRECTORY": str(folder)}) is None


def test_nowhere_to_look() -> None:
    """No variable and no folder, or a folder that isn't there."""
    assert lookup("API_KEY", {}) is None
    assert lookup("API_KEY", {"CREDENTIALS_DIRECTORY": ""}) is None
    assert lookup("API_KEY", {"CREDENTIALS_DIRECTORY": "/no/such/folder"}) is None
