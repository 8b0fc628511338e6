"""What a fault needs of the machine, and what a test does where that is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Missing(Exception):
    """A fault can't be made here. installed_by_ci: it is no matter of rights, so in CI its lack is a failure."""

    def __init__(self, what: str, *, installed_by_ci: bool = False) -> None:
        super().__init__(f"needs {what}")
        self.installed_by_ci = installed_by_ci


@contextmanager
def or_skip() -> Iterator[None]:
    """Skip the test with the reason; fail it in CI where CI was to install what is missing."""
    try:
        yield
    except Missing as missing:
        if missing.installed_by_ci and os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
