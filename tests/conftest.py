"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.server import FakeServer

# Seconds depend on the machine and what else runs on it; a test that means them measures them itself.
settings.register_profile("tandem", deadline=None)
settings.load_profile("tandem")


@pytest.fixture(scope="session")
def evaldata() -> Path:
    """Published benchmarks with other systems' answers and known scores. Beside the repository, not in it."""
    folder = Path(__file__).parents[2] / "shared" / "evaldata"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{folder} is missing")
        pytest.skip(f"{folder} is missing")
    return folder


@pytest.fixture(scope="module")
def shared_server() -> Iterator[FakeServer]:
    """One for all tests of a module: see `server`."""
    with FakeServer() as running:
        yield running


@pytest.fixture
def server(shared_server: FakeServer) -> FakeServer:
    """A server that hasn't been asked anything yet."""
    shared_server.reset_stats()
    return shared_server
