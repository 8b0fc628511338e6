"""inferd told to stop, stopped by force, doubled by mistake: what is in flight is kept, nothing is asked twice."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from shared import claims
from shared.layout import WorkDir
from shared.records import ANSWERS
from tests.daemons.runs import answered, answers, behaving, ended, state, submitted, tasks, texts
from tests.harness import heartbeat, infer_status, inferd, journal, openai, predictions, running, until
from tests.server import FakeServer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(tmp_path: Path, number: int) -> None:
    """Nothing new is sent; what is in flight is answered and journalled; exit status 3, status `pending` and heartbeat
    `aborted`, both with the reason. The next start asks only the rest.
    """
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("d400"), max_workers=8)], {"d": tasks(40), "e": tasks(40)})
        with running(inferd(work)) as process:
            until(lambda: server.stats()["posts"] >= 16, "two rounds are out")
            process.signal(number)
            ended(process, 3)
        sent = server.stats()["posts"]
        assert sent <= 24
        kept = len(answered(work)) + len(answered(work, dataset="e"))
        assert kept == sent, "what was in flight is paid for, and was to be kept"
        status = infer_status(work)
        assert status is not None
        assert status.state == "pending"
        assert signal.Signals(number).name in status.reason
        assert status.completed == len(answered(work))
        beat = heartbeat(work.infer_heartbeat())
        assert beat is not None
        assert (beat.state, beat.reason) == ("aborted", signal.Signals(number).name)
        submitted(
            tmp_path, [openai(server.url(), max_workers=8)], {"d": tasks(40), "e": tasks(40)}
        )  # the same server, faster
        ended(inferd(work), 0)
        assert server.stats()["posts"] == 80
    assert texts(predictions(work)) == texts(predictions(work, dataset="e")) == answers(40)


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """While a drain waits for a hung call, a second signal ends it; what was answered before is kept."""
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url(), max_workers=4)],
            {"d": [*tasks(10), behaving(10, "hang")]},
            infer={"attempt_timeout": 300.0, "drain_timeout": 300.0},
        )
        with running(inferd(work)) as process:
            until(lambda: len(answered(work)) == 10, "the others' answers")
            process.signal(signal.SIGTERM)
            until(lambda: _beat_state(work) == "draining", "the drain")
            process.signal(signal.SIGTERM)
            ended(process, 3, timeout=15)
    assert state(work) == "pending"
    assert len(answered(work)) == 10


def test_drain_timeout(tmp_path: Path) -> None:
    """A drain ends at its timeout although a call hangs; retries that wait aren't waited for."""
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url(), max_workers=4)],
            {"d": [*tasks(10), behaving(10, "hang"), behaving(11, "429-ra200")]},
            infer={"attempt_timeout": 300.0, "drain_timeout": 0.5},
        )
        with running(inferd(work)) as process:
            until(lambda: len(journal(work)) == 11, "all but the hung one")
            process.signal(signal.SIGTERM)
            ended(process, 3, timeout=15)
    status = infer_status(work)
    assert status is not None
    assert (status.state, status.completed, status.total) == ("pending", 10, 12)


def test_stopped_while_it_waits_for_a_plan(tmp_path: Path) -> None:
    """A signal is heeded before the first request as well: here while somebody else holds the plan's claim."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url())], {"d": tasks(3)})
        claim = claims.take(work.plan_claim)
        assert claim is not None
        with claim, running(inferd(work)) as process:
            until(lambda: _beat_state(work) == "starting", "it has begun")
            process.signal(signal.SIGTERM)
            ended(process, 3, timeout=15)
        assert server.stats()["posts"] == 0
    beat = heartbeat(work.infer_heartbeat())
    assert beat is not None
    assert (beat.state, "SIGTERM" in beat.reason) == ("aborted", True)


def test_two_on_one_work_dir(tmp_path: Path) -> None:
    """#8: two inferds started at once on one work_dir share it: no request is asked twice, both exit 0, each pair has
    one predictions file, and each writes its own heartbeat.
    """
    names = [f"d{n}" for n in range(6)]
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url("d20"), max_workers=2)],
            {name: [_named(name, n) for n in range(20)] for name in names},
        )
        with running(inferd(work)) as first, running(inferd(work)) as second:
            ended(first, 0)
            ended(second, 0)
        stats = server.stats()
    assert stats["posts"] == stats["distinct"] == 120
    for name in names:
        assert texts(predictions(work, dataset=name)) == answers(20)
        keys = Counter(line.key for line in journal(work, dataset=name) if line.outcome in ANSWERS)
        assert set(keys.values()) == {1}
        assert state(work, dataset=name) == "done"
    assert len(work.infer_heartbeats()) == 2


def test_the_second_takes_over(tmp_path: Path) -> None:
    """When the first of two is killed, the second goes on with its shards: what was journalled isn't asked again."""
    with FakeServer() as server:
        work = submitted(
            tmp_path, [openai(server.url("d50"), max_workers=4)], {"d": [_named("d", n) for n in range(200)]}
        )
        with running(inferd(work)) as first:
            until(lambda: answered(work), "the first one's answers")
            with running(inferd(work)) as second:
                until(lambda: len(work.infer_heartbeats()) == 2, "the second one's heartbeat")
                first.kill()
                kept = len(answered(work))
                ended(second, 0)
        assert kept < 200, "the first had ended before it was killed: the test shows nothing"
        assert server.stats()["posts"] <= 200 + 3 * 4  # what was in flight or not yet synced at the kill
    assert texts(predictions(work)) == answers(200)


def test_two_on_a_model_that_is_given_up(tmp_path: Path) -> None:
    """Two inferds on one hung model: each gives it up, neither waits for the other for ever nor overwrites what the
    other wrote, and each pair ends as `fail`.
    """
    names = [f"d{n}" for n in range(6)]
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url("503-none"), max_workers=2)],
            {name: [_named(name, n) for n in range(30)] for name in names},
            infer={"unhealthy_after": 5, "unhealthy_timeout": 0.5},
        )
        with running(inferd(work)) as first, running(inferd(work)) as second:
            ended(first, 3, timeout=45)
            ended(second, 3, timeout=45)
        assert server.stats()["posts"] < 100
    for name in names:
        assert state(work, dataset=name) == "fail"


def test_given_up_keeps_what_is_done(tmp_path: Path) -> None:
    """A model that is given up leaves the pairs alone that an earlier run finished, and finishes those that lack
    nothing but their merge, wherever in the suite they stand.
    """
    done = {"done": tasks(5), "merge": tasks(5)}
    new = {f"new{n}": [_named(f"new{n}", k) for k in range(5)] for n in range(40)}
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url())], done)
        ended(inferd(work), 0)
        before = work.infer_status("m", "done").read_bytes()
        work.infer_status("m", "merge").unlink()
        work.predictions("m", "merge").unlink()
        submitted(tmp_path, [openai(server.url("401"))], new | done, infer={"fail_fast_after": 3})
        ended(inferd(work), 3)
    assert work.infer_status("m", "done").read_bytes() == before
    assert texts(predictions(work, dataset="merge")) == answers(5)
    assert state(work, dataset="merge") == "done"
    for name in new:
        status = infer_status(work, dataset=name)
        assert status is not None
        assert (status.state, "given up" in status.reason) == ("fail", True), name


def test_a_stopped_process_has_no_heartbeat(tmp_path: Path) -> None:
    """SIGSTOP: the heartbeat stops changing, and goes on after SIGCONT with the same boot_id."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("d50"), max_workers=1)], {"d": tasks(30)})
        with running(inferd(work)) as process:
            until(lambda: _beat_state(work) == "running", "it runs")
            process.signal(signal.SIGSTOP)
            until(lambda: _is_stopped(process.process.pid), "it is stopped")
            before = heartbeat(work.infer_heartbeat())
            time.sleep(1.0)  # five beats' time, in which nothing is to happen: there is nothing else to wait for
            assert heartbeat(work.infer_heartbeat()) == before
            process.signal(signal.SIGCONT)
            assert before is not None
            until(lambda: heartbeat(work.infer_heartbeat()).seq > before.seq, "it beats again")  # type: ignore[union-attr]
            assert heartbeat(work.infer_heartbeat()).boot_id == before.boot_id  # type: ignore[union-attr]
            ended(process, 0)


def _named(name: str, number: int) -> dict[str, object]:
    return {
        "task_id": f"t{number}",
        "prompt": f"{name} {number} ANSWER={number}",
        "targets": [str(number)],
    }


def _beat_state(work: WorkDir) -> str:
    beat = heartbeat(work.infer_heartbeat())
    return beat.state if beat is not None else ""


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
