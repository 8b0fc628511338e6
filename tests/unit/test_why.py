"""`evalctl why`: each cause from a state in which it stands, with its remedy, and what counts as progress."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from evalctl.circumstances import facts, last_error
from evalctl.main import main
from evalctl.state import DaemonView, PairView, State, read_state
from evalctl.why import Facts, Finding, Why, explain
from evald.results import Served
from shared import claims
from shared.clock import SystemClock
from shared.heartbeat import HeartbeatWriter
from shared.layout import WorkDir
from shared.records import Straggler
from tests.daemons.by_hand import planned, say

NONE = Served(names={})
SLOW = (Straggler("t1", 0, 2, 50.0), Straggler("t0", 0, 1, 70.0))
FULL = "the journal can't be written: [Errno 28] No space left on device"


def pair(dataset: str = "d", **more: Any) -> PairView:
    view = PairView(
        model="m", dataset=dataset, infer="running", eval="pending", docs=9, instances=9, total=9, completed=0,
        answered=0, reused=0, in_flight=0, attempts=0, outcomes={}, errors={}, failed={}, prompt_tokens=0,
        completion_tokens=0, cost=0.0, late_answers=0, duplicates=0, served_models=NONE, system_fingerprints=NONE,
        stragglers=(), rate=None, eta_seconds=None, reason="",
    )  # fmt: skip
    return structs.replace(view, **more)


def daemon(state: Any = "running", **more: Any) -> DaemonView:
    beats = {"host": "h1", "pid": 7, "boot_id": "b", "seq": 1, "interval": 5.0} if state != "not started" else {}
    return DaemonView(state=state, meaning=more.pop("meaning", "as it is"), **(beats | more))


def scene(*pairs: PairView, inferd: DaemonView | None = None, evald: DaemonView | None = None, **more: Any) -> State:
    pairs = pairs or (pair(),)
    state = State(
        work_dir="/w", as_of="", inferd=(inferd or daemon(),), evald=evald or daemon(), docs=9, instances=9,
        requests=9, completed=0, answered=0, attempts=0, in_flight=0, limit=0, retries_waiting=0, errors={}, failed={},
        late_answers=0, duplicates=0, prompt_tokens=0, completion_tokens=0, rate=None, eta_seconds=None, cost=0.0,
        pairs=pairs,
    )  # fmt: skip
    return structs.replace(state, **more)


def why(state: State, about: Facts | None = None, asked: str = "") -> Why:
    return explain(state, state, about or Facts(), asked)


def the(found: Why) -> Finding:
    (finding,) = found.findings
    return finding


LOOSE = pair(infer="pending")
CASES: dict[str, tuple[State, Facts, str, str, str]] = {
    "never started": (
        scene(LOOSE, inferd=daemon("not started", meaning="no heartbeat yet")), Facts(),
        "not_started", "no heartbeat yet", "inferd -w /w",
    ),
    "refused to start": (
        scene(LOOSE, inferd=daemon("not started")), Facts(last_errors={"inferd": "the key isn't set"}),
        "not_started", "the key isn't set", "inferd -w /w",
    ),
    "killed": (scene(LOOSE, inferd=daemon("gone")), Facts(), "died", "process 7 on h1", "inferd -w /w"),
    "stopped": (scene(LOOSE, inferd=daemon("aborted", reason="SIGTERM")), Facts(), "ended", "SIGTERM", "inferd -w /w"),
    "budget": (
        scene(LOOSE, inferd=daemon("aborted", reason="budget reached: 9 of 9 requests")), Facts(),
        "budget", "9 of 9 requests", "[budget]",
    ),
    "disk full at the end": (
        scene(LOOSE, inferd=daemon("aborted", reason=FULL)), Facts(), "disk_full", "No space left", "make room",
    ),
    "disk filling": (scene(), Facts(free_bytes=1 << 20, free_inodes=9), "disk_full", "1 MB and 9 inodes", "make room"),
    "disk behind": (
        scene(inferd=daemon(counters={"unsaved": 1024, "limit": 9})), Facts(),
        "disk_behind", "1024 answers", "evalctl doctor",
    ),
    "hangs": (scene(inferd=daemon(beat_seconds=16.0)), Facts(), "hangs", "hasn't beaten for 16 s", "kill it"),
    "paused": (scene(inferd=daemon("paused", reason="by ann")), Facts(), "paused", "by ann", "evalctl resume -w /w"),
    "draining": (scene(inferd=daemon("draining", reason="SIGTERM")), Facts(), "draining", "SIGTERM", "inferd -w /w"),
    "only probed": (
        scene(pair(reason="unhealthy, only probed: 20 failures in a row: connection: refused")), Facts(),
        "unhealthy", "20 failures in a row", "this host reaches it",
    ),
    "all wait for a retry": (
        scene(
            pair(errors={"rate_limited": 8, "timeout": 1}),
            pair("e", infer="done", eval="done", errors={"auth": 99}),
            inferd=daemon(counters={"retries_waiting": 4, "next_retry_seconds": 33.0}),
        ),
        Facts(), "retries", "4 requests wait for their retry, the next one for 33 s (failed attempts: rate_limited 8",
        "evalctl retune",
    ),
    "stragglers": (
        scene(pair(in_flight=4, stragglers=SLOW), inferd=daemon(counters={"in_flight": 4, "limit": 4})), Facts(),
        "slow", "all 4 workers wait for slow answers: m/d t0 (70 s, attempt 1), m/d t1 (50", "attempt_timeout",
    ),
    "claimed elsewhere": (
        scene(LOOSE), Facts(owners={"m/d": "process 9 on h2"}), "claimed", "process 9 on h2", "on its host",
    ),
    "failed": (
        scene(pair(infer="fail", reason="3 failed: auth: 401", failed={"auth": 3})), Facts(),
        "failed", "auth: 401", "api_key_env",
    ),
    "given up": (
        scene(pair(infer="fail", reason="given up: 10 refusals in a row: not_found: 404")), Facts(),
        "given_up", "10 refusals", "base_url",
    ),
    "no evald": (
        scene(pair(infer="done"), evald=daemon("gone", meaning="its process has died")), Facts(),
        "evald_missing", "its process has died", "evald -w /w",
    ),
    "no sandbox": (
        scene(pair(infer="done", eval="fail", reason="scoring failed: no sandbox for programs works here")), Facts(),
        "no_sandbox", "no sandbox", "bubblewrap",
    ),
    "scoring failed": (
        scene(pair(infer="done", eval="fail", reason="scoring failed: KeyError: 'x'")), Facts(),
        "scoring_failed", "KeyError", "evald again",
    ),
    "files under way": (
        scene(pair(infer="done", reason="incomplete: no such file")), Facts(), "incomplete", "no such file", "inferd",
    ),
    "nothing known": (scene(), Facts(), "unknown", "nothing is known", "--observe"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_cause_is_told_with_its_remedy(case: str) -> None:
    """One finding, of its cause, and no progress."""
    state, about, cause, what, remedy = CASES[case]
    found = why(state, about)
    assert the(found).cause == cause
    assert what in the(found).what
    assert remedy in the(found).remedy
    assert not found.progressing


def test_all_is_scored() -> None:
    """Nothing happens because nothing is left: that is no fault, whoever has ended."""
    state = scene(pair(infer="done", eval="done"), inferd=daemon("finished"), evald=daemon("finished"))
    found = why(state, Facts(free_bytes=0))
    assert (the(found).cause, found.progressing) == ("done", True)


def test_what_moves_is_progress() -> None:
    """Answers, calls that failed, scores; and the findings that stand beside it."""
    before = scene(pair(), pair("e", infer="fail", reason="x"))
    for later, text in (
        (pair(attempts=3, completed=2), "2 requests were answered"),
        (pair(attempts=3), "3 calls came back"),
        (pair(eval="done"), "1 pairs were scored"),
        (pair(infer="done", eval="running"), "evald scores m/d"),
    ):
        found = explain(before, scene(later, before.pairs[1]), Facts(), "")
        assert found.progressing
        assert text in found.moves[0]
        assert [finding.cause for finding in found.findings] == ["failed"]


def test_waiting_no_longer_than_usual_is_progress() -> None:
    """Calls in flight, none of them a straggler, under a beat that isn't known to be silent."""
    busy = scene(pair(in_flight=2), inferd=daemon(counters={"in_flight": 2, "limit": 4}))
    assert why(busy).progressing
    assert why(busy).findings == ()
    hung = structs.replace(busy, inferd=(structs.replace(busy.inferd[0], beat_seconds=99.0),))
    assert not why(hung).progressing


def test_one_pair() -> None:
    """What another pair does is neither this one's progress nor its fault; that it must wait for its turn is told."""
    others = (pair("e", infer="fail", reason="x"), pair("f", in_flight=2))
    before = scene(pair(infer="pending"), *others)
    after = scene(pair(infer="pending"), others[0], pair("f", in_flight=2, attempts=9))
    found = explain(before, after, Facts(), "m/d")
    assert (the(found).cause, the(found).pair, found.progressing) == ("queued", "m/d", False)
    assert "behind m/f" in the(found).what


def test_a_pair_waits_though_another_moves() -> None:
    """Its own calls count, not those of its inferd."""
    counters = {"in_flight": 2.0, "limit": 4.0, "retries_waiting": 3.0, "next_retry_seconds": 20.0}
    state = scene(pair(errors={"rate_limited": 3}), pair("f", in_flight=2), inferd=daemon(counters=counters))
    assert the(why(state, asked="m/d")).cause == "retries"
    assert why(state).findings == ()


# --- what it looks at ---------------------------------------------------------------------------------------------


def line(event: str, level: str = "info", **more: str) -> bytes:
    return json.dumps({"event": event, "level": level, **more}).encode()


def test_the_last_error_of_the_last_run() -> None:
    """Errors before the last start are of an earlier run."""
    old = [line("running"), line("stopping", "error", reason="old")]
    assert last_error(old) == "stopping: old"
    assert last_error([*old, line("running")]) == ""
    new = line("pair failed", "error", model="m", dataset="d", reason="new")
    assert last_error([*old, line("running"), new, b"[1]", b"torn {"]) == "pair failed: m: d: new"


@given(st.lists(st.binary() | st.builds(lambda depth: b"[" * depth, st.integers(0, 100_000)), max_size=5))
def test_any_log_can_be_read(lines: list[bytes]) -> None:
    """Whatever lies in logs/: no error, and a bounded text."""
    assert len(last_error(lines)) <= 500


@pytest.fixture
def work(tmp_path: Path) -> Iterator[WorkDir]:
    """One in which an inferd beats, on nothing."""
    made = planned(tmp_path, {"d": 2})
    claim = claims.take(made.inferd_claim())
    assert claim is not None
    beat = HeartbeatWriter(made.infer_heartbeat(), SystemClock(), 5.0)
    beat.set_state("paused", "paused by ann@h1")
    beat.start()
    yield made
    beat.finish("finished")
    claim.release()


def test_facts_of_a_real_folder(work: WorkDir) -> None:
    """Free space; who holds a claim beside those that beat; the log's end, and no FIFO and no link for one."""
    say(work, b"", state="running", completed=0)
    claim = claims.take(work.shard_claim("m", "d"))
    assert claim is not None
    work.logs.mkdir(exist_ok=True)
    log = work.log("inferd", "h1")
    log.write_bytes(b"x" * (1 << 17) + b"\n" + line("stopping", "error", reason="no key") + b"\n")
    state = read_state(work, 0.0)
    here = structs.replace(state.inferd[0], state="running")
    found = facts(work, structs.replace(state, inferd=(here,)))
    assert found.free_bytes
    assert found.owners == {}  # this very process holds it, and beats here
    other = structs.replace(here, pid=here.pid + 1)
    found = facts(work, structs.replace(state, inferd=(other,)))
    assert found.owners == {"m/d": f"process {os.getpid()} on {here.host}"}
    assert found.last_errors == {"inferd": "stopping: no key"}
    claim.release()
    log.unlink()
    os.mkfifo(log)
    assert facts(work, state).last_errors == {}
    log.unlink()
    log.symlink_to("/dev/zero")
    assert facts(work, state).last_errors == {}


def test_the_command(work: WorkDir, tmp_path: Path) -> None:
    """Text with the remedy, JSON with schema and as_of; 1 where nothing moves, 2 for an unknown pair, 1 with what makes
    a plan where there is none.
    """
    said = CliRunner().invoke(main, ["why", "-w", str(work), "--observe", "0"])
    assert said.exit_code == 1, said.output
    assert "paused by ann@h1\n    -> `evalctl resume -w" in said.output
    said = CliRunner().invoke(main, ["why", "m/d", "-w", str(work), "--observe", "0", "--json"])
    found = json.loads(said.output)
    assert set(found) == {"schema", "work_dir", "as_of", "pair", "progressing", "moves", "findings"}
    assert found["findings"][0]["cause"] == "paused"
    said = CliRunner().invoke(main, ["why", "m/x", "-w", str(work), "--observe", "0"])
    assert said.exit_code == 2
    assert "did you mean m/d" in said.output
    said = CliRunner().invoke(main, ["why", "-w", str(tmp_path), "--observe", "0"])
    assert said.exit_code == 1
    assert "evalctl submit" in said.output
