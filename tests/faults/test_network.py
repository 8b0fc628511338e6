"""The network, or the server behind it, fails for a while: each request is answered in the end, what is asked again was
under way when it failed, and nothing is left open.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.means import or_skip
from tests.faults.resolver import NAME, How, Resolver
from tests.faults.scene import WORKERS, Scene
from tests.harness import until


def test_no_leak_over_many_faults(tmp_path: Path) -> None:
    """One process through 12 resets, 4 refusals, 2 silences and 4 restarts of the server: it has no more threads and
    sockets than it needs, and each answer that was paid for twice was under way at one of them.
    """
    with Scene(tmp_path, 2000, attempt_timeout=1.0) as scene:
        process = scene.start()
        scene.until_answered(5 * WORKERS)
        reset, refuse, swallow, kill = scene.proxy.reset, scene.proxy.refuse, scene.proxy.swallow, scene.endpoint.kill
        for step in (reset, refuse, reset, kill, reset, swallow, reset, refuse, reset, kill, reset) * 2:
            saved = scene.ledger.saved()
            step()
            if step == swallow:
                scene.until_errors("timeout", WORKERS)
            elif step != reset:
                scene.until_errors("connection", 1)
            if step == kill:
                scene.endpoint.start()
            scene.proxy.restore()
            scene.endpoint.open()
            scene.ledger.lose(step.__name__, saved)
            scene.until_answered(2 * WORKERS)
            scene.until_saved()
        scene.endpoint.behave("hang")  # so that it doesn't end under our eyes
        until(lambda: process.has().threads <= scene.bound, f"at most {scene.bound} threads")
        until(lambda: process.has().sockets <= scene.bound, f"at most {scene.bound} sockets")
        assert process.has().files <= scene.bound + 40
        scene.endpoint.behave()
        scene.ends_well(process)


@pytest.mark.parametrize("how", ["unknown", "failing", "silent"])
def test_name_not_found_for_a_while(tmp_path: Path, how: How) -> None:
    """The resolver doesn't know the name, fails, or says nothing when inferd begins. Those are connection errors, tried
    again; once it is well the next try finds it, and nothing is remembered of the bad times.
    """
    patience = {"max_attempts": 12, "backoff_base": 0.5, "backoff_max": 0.5}
    with (
        or_skip(),
        Resolver(tmp_path) as resolver,
        Scene(tmp_path, 100, host=NAME, connect_timeout=1.0, **patience) as scene,
    ):
        resolver.how = how
        process = scene.start(resolver.prefix)
        scene.until_errors("connection", 3)
        assert scene.asked() == 0
        resolver.how = "well"
        assert scene.ends_well(process) == 0


def test_storm(tmp_path: Path) -> None:
    """Everything is answered 429 for a while: no request is lost, and none is answered twice."""
    with Scene(tmp_path, 200) as scene:
        process = scene.start()
        scene.until_answered(50)
        scene.endpoint.behave("429-ms200")
        scene.until_errors("rate_limited", 150)
        scene.until_beats()
        scene.endpoint.behave()
        assert scene.ends_well(process) == 0
