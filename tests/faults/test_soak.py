"""The soak, short: every kind of fault once, in an order and at moments drawn from a fixed seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.soak import FAULTS, Options, Soak


def test_soak(tmp_path: Path) -> None:
    """What must hold is in soak.py. Without root, or without a C compiler, some kinds are left out."""
    report = Soak(tmp_path, Options(seconds=1, seed=20261130, workers=6, requests=2400, long_stops=False)).run()
    print(report.table())
    assert not report.violation, report.table()
    assert report.requests == report.answered_once > 0
    assert set(report.faults) | set(report.skipped) == set(FAULTS)
    if "disk slow" in report.skipped and os.environ.get("CI"):
        pytest.fail(f"CI was to install a compiler: {report.skipped}")
