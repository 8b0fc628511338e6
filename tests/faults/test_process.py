"""A process that is stopped and goes on, and a clock that is set: to a request both are nothing but time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.means import or_skip
from tests.faults.scene import WORKERS, Scene
from tests.harness import until

GRACE = 5.0  # seconds after an attempt's deadline at which inferd gives its call up as hung


@pytest.mark.parametrize("beyond", [0.5, GRACE + 1.0], ids=["deadline", "grace"])
def test_stopped_longer_than_an_attempt(tmp_path: Path, beyond: float) -> None:
    """SIGSTOP for longer than an attempt may take, or so long that calls count as hung. With SIGCONT inferd goes on;
    nothing is asked again but what was under way, and threads that stood in for hung ones end.
    """
    timeout = 1.0
    with Scene(tmp_path, 400, attempt_timeout=timeout) as scene:
        process = scene.start()
        scene.until_answered(50)
        scene.until_saved()
        process.stop()
        saved = scene.ledger.saved()
        time.sleep(timeout + beyond)  # it stands still: there is nothing to wait for but time
        process.go_on()
        scene.until_answered(2 * WORKERS)
        scene.until_beats()
        loss = scene.ledger.lose("stop", saved)
        scene.endpoint.behave("hang")  # so that it doesn't end under our eyes
        until(lambda: process.has().threads <= scene.bound, f"at most {scene.bound} threads")
        scene.endpoint.behave()
        assert scene.ends_well(process) <= len(loss.unsaved)


@pytest.mark.parametrize("seconds", [-86_400, 86_400])
def test_clock_set(tmp_path: Path, seconds: int) -> None:
    """The wall clock is set by a day while requests are under way and others wait for their retry: neither deadlines
    nor waits change, and the heart beats on.
    """
    with or_skip(), Scene(tmp_path, 200, shim=True) as scene:
        process = scene.start()
        scene.until_answered(50)
        scene.endpoint.behave("429-ms500")
        scene.until_errors("rate_limited", 30)
        scene.shim.set_clock(seconds)
        scene.endpoint.behave()
        scene.until_answered(20)
        scene.until_beats()
        scene.shim.set_clock(0)
        assert scene.ends_well(process) == 0
        assert not any(scene.errors("timeout"))
