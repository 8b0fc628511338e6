"""The sample log of a run: switched on when all is scored already, it is written, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from evald.samples import SampleLine
from shared.atomic import replace
from tests.daemons.by_hand import beating, planned, publish, right
from tests.harness import evald


def test_a_log_that_is_wanted_later(tmp_path: Path) -> None:
    """evald sees that it is missing and scores the pair once more: the result is the same to the byte. Started again,
    it finds all in place and touches neither.
    """
    work = planned(tmp_path, {"d": 3})
    with beating(work):
        publish(work, right(3))
    assert evald(work).wait() == 0
    before = work.result("m", "d").read_bytes()
    assert not work.samples("m", "d").exists()
    replace(work.suite, work.suite.read_bytes().replace(b"[eval]\n", b"[eval]\nsample_log = true\n"))
    assert evald(work).wait() == 0
    assert work.result("m", "d").read_bytes() == before
    lines = [msgspec.json.decode(line, type=SampleLine) for line in work.samples("m", "d").read_bytes().splitlines()]
    assert [line.metrics for line in lines] == [{"exact_match": 1.0}] * 3
    inode = work.samples("m", "d").stat().st_ino
    assert evald(work).wait() == 0
    assert work.samples("m", "d").stat().st_ino == inode
