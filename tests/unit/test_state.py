"""What `evalctl status` makes of status files: counts, drift, stragglers and faults, in the record and in words."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from evalctl.state import State, read_state
from evalctl.tables import state_table
from evalctl.watching import Beats, is_silent
from evald.results import PairResult, Served
from shared import claims
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import Heartbeat, InferStatus, Straggler, encode_record
from shared.status import write_record
from tests.unit.test_leaderboard import result_of
from tests.unit.test_score import planned, task

STRAGGLERS = tuple(Straggler(f"t{n}", n % 2, 1 + n, 10.0 * n) for n in range(5))


def told(work: WorkDir, **fields: Any) -> InferStatus:
    """The pair's status with these fields."""
    plan = read_plan(work)
    assert plan is not None
    (pair,) = plan.pairs
    status = InferStatus(
        model="m", dataset="d", stem="d", state="running", plan_digest=pair.digest, total=pair.requests
    )
    status = msgspec.structs.replace(status, **fields)
    write_record(work.infer_status("m", "d"), status)
    return status


def shown(state: State) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=False, width=300).print(state_table(state))
    return out.getvalue()


@pytest.fixture
def work(tmp_path: Path) -> Iterator[WorkDir]:
    made = planned(tmp_path, [task(n) for n in range(3)])
    claim = claims.take(made.inferd_claim_of(made.infer_heartbeat()))  # an inferd is at work
    assert claim is not None
    beat = Heartbeat(time="", seq=1, boot_id="b", host="h", pid=1, state="running", interval=5.0)
    write_record(made.infer_heartbeat(), beat)
    yield made
    claim.release()


def test_what_went_wrong_is_told_with_whose_fault_it_is(work: WorkDir) -> None:
    """Failed attempts by class, with the fault; answers that aren't ordinary; what was paid for in vain."""
    told(
        work, outcomes={"ok": 1, "filtered": 2}, errors={"timeout": 2, "auth": 1}, failed={"auth": 1}, late_answers=1,
        duplicates=2,
    )  # fmt: skip
    state = read_state(work, 0.0)
    assert (state.late_answers, state.duplicates) == (1, 2)
    text = shown(state)
    assert "failed attempts: auth 1 (account), timeout 2 (endpoint), late answers dropped: 1, paid for twice: 2" in text
    assert "m x d: answers: filtered 2; failed attempts: auth 1 (account)" in text
    assert "failed for good: auth 1 (account)" in text


def test_nothing_is_told_where_nothing_is_amiss(work: WorkDir) -> None:
    """One served model, one fingerprint, ordinary answers: no note below the table."""
    told(work, outcomes={"ok": 3}, served_models=("m-1",), system_fingerprints=("f",))
    state = read_state(work, 0.0)
    assert "m x d:" not in shown(state)
    assert list(state.pairs[0].served_models.names) == ["m-1"]


def test_drift_is_told_by_name_and_by_count_once_scored(work: WorkDir) -> None:
    """While it runs the names, as the status has them; after scoring, with how many answers each gave; a result of
    other predictions isn't believed.
    """
    told(work, served_models=("a", "b"), system_fingerprints=("f",))
    assert "m x d: served by a, b" in shown(read_state(work, 0.0))
    status = told(work, state="done", digest="x", served_models=("a", "b"))
    result = result_of(3, 3, plan_digest=status.plan_digest, served_models=Served(names={"a": 2, "b": 1}))
    write(work, result)
    assert "m x d: served by a (2), b (1)" in shown(read_state(work, 0.0))
    write(work, msgspec.structs.replace(result, predictions_digest=("other",)))
    assert "m x d: served by a, b" in shown(read_state(work, 0.0))


def write(work: WorkDir, result: PairResult) -> None:
    path = work.result("m", "d")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_record(result))


def test_stragglers_are_named(work: WorkDir) -> None:
    """The longest first, the rest in a number; all of them in the JSON. Of a dead inferd nothing is in flight."""
    told(work, stragglers=STRAGGLERS)
    state = read_state(work, 0.0)
    text = shown(state)
    assert "long in flight: t4 (40 s, attempt 5), t3 repeat 1 (30 s, attempt 4), t2 (20 s, attempt 3), 2 more" in text
    assert len(json.loads(encode_record(state))["pairs"][0]["stragglers"]) == 5
    work.infer_heartbeat().unlink()
    assert read_state(work, 0.0).pairs[0].stragglers == ()


def test_what_is_under_way_and_what_it_cost(work: WorkDir) -> None:
    """In flight and its limit, retries that wait, 429s, tokens, cost; a bar for what runs; in words and in the JSON."""
    told(
        work, completed=1, errors={"rate_limited": 5, "timeout": 1}, prompt_tokens=70, completion_tokens=30, cost=0.25,
        failed={"auth": 1},
    )  # fmt: skip
    counters = {"in_flight": 3.0, "limit": 4.0, "retries_waiting": 2.0, "odd": 1e300}
    write_record(work.infer_heartbeat(), beat(1, counters=counters))
    state = read_state(work, 0.0)
    text = shown(state)
    assert "in flight 3 of 4, 2 retries waiting, 429s: 5, tokens 70 prompt, 30 completion, 0.2500 USD" in text
    assert "━━━───────" in text
    found = json.loads(encode_record(state))
    names = ("in_flight", "limit", "retries_waiting", "prompt_tokens", "completion_tokens", "cost", "failed", "as_of")
    assert [found[name] for name in names] == [3, 4, 2, 70, 30, 0.25, {"auth": 1}, "1970-01-01T00:00:00.000Z"]
    assert found["schema"] == 1


def beat(seq: int, **more: Any) -> Heartbeat:
    return Heartbeat(time="", seq=seq, boot_id="b", host="h", pid=1, state="running", interval=5.0, **more)


def test_a_beat_is_judged_by_its_change(work: WorkDir) -> None:
    """`clock-skew-false-dead`: seconds since it changed, by the looker's clock alone; silent after three intervals, and
    back with the next beat.
    """
    told(work)
    beats = Beats()
    seen = []
    for now, seq in ((100.0, 1), (110.0, 1), (116.0, 1), (117.0, 2)):
        write_record(work.infer_heartbeat(), beat(seq))
        state = beats.look(read_state(work, now * 1e6), now)
        seen.append((state.inferd[0].beat_seconds, is_silent(state.inferd[0]), "it hangs" in shown(state)))
    assert seen == [(0.0, False, False), (10.0, False, False), (16.0, True, True), (0.0, False, False)]
    assert read_state(work, 0.0).inferd[0].beat_seconds is None
    assert state.evald.beat_seconds is None
