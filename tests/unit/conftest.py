"""What the unit tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def evaldata() -> Path:
    """Published benchmarks with other systems' answers and known scores. Beside the repository, not in it."""
    folder = Path(__file__).parents[3] / "shared" / "evaldata"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{folder} is missing")
        pytest.skip(f"{folder} is missing")
    return folder
