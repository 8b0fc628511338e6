"""Trouble at an endpoint, through real daemons: how long a retry waits, that a wait holds nobody up, and what can be
taken up again afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

import pytest

from shared.layout import WorkDir
from shared.records import Attempt
from tests.daemons.runs import answered, answers, behaving, ended, state, submitted, tasks, texts
from tests.harness import evalctl, infer_status, inferd, journal, openai, predictions, report, running, until
from tests.harness import evald as evald_process
from tests.server import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running_server:
        yield running_server


def ended_at(line: Attempt) -> float:
    return datetime.fromisoformat(line.ended_at).timestamp()


def sent_at(line: Attempt) -> float:
    return ended_at(line) - line.latency


def attempts_of(work: WorkDir, doc_id: int) -> list[Attempt]:
    return [line for line in journal(work) if line.doc_id == doc_id]


@pytest.mark.parametrize(
    ("how", "cap", "least", "most"),
    [
        ("ra1", 300.0, 0.99, 2.5),
        ("ra0.4", 300.0, 0.39, 1.9),
        ("ms600", 300.0, 0.59, 2.1),
        ("ra86400", 0.5, 0.49, 2.0),
        ("ms86400000", 0.5, 0.49, 2.0),
        ("raFri%2C%2031%20Dec%209999%2023:59:59%20GMT", 0.5, 0.49, 2.0),
        ("raFri%2C%2031%20Dec%201999%2023:59:59%20GMT", 300.0, 0.0, 1.5),
        ("raabc", 300.0, 0.0, 1.5),
        ("ra-5", 300.0, 0.0, 1.5),
        ("none", 300.0, 0.0, 1.5),
    ],
)
def test_how_long_a_retry_waits(
    tmp_path: Path, server: FakeServer, how: str, cap: float, least: float, most: float
) -> None:
    """`retry-after-dropped`: seconds, milliseconds and a date are waited for, up to `retry_after_max`; what can't be
    used is as nothing. Meanwhile the only slot answers all others.
    """
    work = submitted(
        tmp_path,
        [openai(server.url(), max_workers=1)],
        {"d": [behaving(0, f"429x1-{how}"), *tasks(10, first=1)]},
        infer={"retry_after_max": cap},
    )
    ended(inferd(work), 0)
    first, second = attempts_of(work, 0)
    assert least <= sent_at(second) - ended_at(first) <= most
    if least >= 0.39:
        between = [line for line in journal(work) if ended_at(first) <= ended_at(line) < ended_at(second)]
        assert len([line for line in between if line.doc_id]) == 10
    assert texts(predictions(work)) == answers(11)


def test_a_date_is_waited_for(tmp_path: Path, server: FakeServer) -> None:
    """`Retry-After` with an HTTP date: the next attempt comes no sooner than that moment, and not long after."""
    moment = int(time.time()) + 5
    behaviour = f"429x1-ra{quote(formatdate(moment, usegmt=True), safe='')}"
    work = submitted(
        tmp_path, [openai(server.url(), max_workers=1)], {"d": [behaving(0, behaviour), *tasks(5, first=1)]}
    )
    ended(inferd(work), 0)
    first, second = attempts_of(work, 0)
    assert ended_at(first) < moment - 0.5, "the answer came too late: the test shows nothing"
    assert moment - 0.05 <= sent_at(second) <= moment + 2.0


def test_a_used_up_quota_is_final_and_can_be_taken_up_again(tmp_path: Path, server: FakeServer) -> None:
    """`insufficient-quota-429`: a model whose quota is used up is given up after the first few calls, none of them
    tried again; the reason says so, another model is not touched by it. When the quota is filled up, the next run asks
    exactly what has no answer.
    """
    models = [openai(server.url("quota"), abbr="poor", max_workers=4), openai(server.url(), abbr="rich", max_workers=4)]
    work = submitted(tmp_path, models, {"d": tasks(200)}, infer={"fail_fast_after": 10})
    ended(inferd(work), 3)
    lines = journal(work, "poor")
    assert 10 <= len(lines) <= 10 + 4
    assert {(line.attempt, line.error, line.outcome) for line in lines} == {(1, "quota", "error")}
    status = infer_status(work, "poor")
    assert status is not None
    assert status.state == "fail"
    assert "quota" in status.reason
    assert "not run" in status.reason
    assert texts(predictions(work, "rich")) == answers(200)
    said = evalctl("status", "-w", work.root)
    assert said.wait() == 3
    assert f"quota {len(lines)} (account)" in said.out

    models[0]["base_url"] = server.url()
    server.reset_stats()
    submitted(tmp_path, models, {"d": tasks(200)}, infer={"fail_fast_after": 10})
    ended(inferd(work), 0)
    assert server.stats()["posts"] == 200
    assert texts(predictions(work, "poor")) == answers(200)


@pytest.mark.parametrize(
    "trouble", ["hang", "drip", "429-ra100", "429-none", "429-ms1", "500", "reset", "d300/500"], ids=lambda how: how
)
def test_one_endpoints_trouble_slows_nobody_else(tmp_path: Path, server: FakeServer, trouble: str) -> None:
    """While one model's endpoint hangs, breaks or refuses in masses, another's pair goes on as if it were alone: 100
    answers of 50 ms over 4 workers take 1.25 s.
    """
    work = submitted(
        tmp_path,
        [
            openai(server.url(trouble), abbr="ill", max_workers=16, attempt_timeout=30.0),
            openai(server.url("d50"), abbr="well", max_workers=4),
        ],
        {"d": tasks(100)},
        infer={"max_attempts": 100, "unhealthy_after": 10, "drain_timeout": 0.2},
    )
    with running(inferd(work)) as process:
        until(lambda: state(work, "well") == "done", "the well one is done")
        assert state(work, "ill") == "running", "it was to be in trouble throughout: the test shows nothing"
        process.process.terminate()
        ended(process, 3)
    lines = journal(work, "well")
    assert len(lines) == len(answered(work, "well")) == 100
    assert max(map(ended_at, lines)) - min(map(sent_at, lines)) < 3.0
    assert max(line.latency for line in lines) < 2.0
    assert not answered(work, "ill")


def test_who_answered_is_kept_and_a_change_is_shown(tmp_path: Path, server: FakeServer) -> None:
    """An endpoint that changes its model under way: each answer keeps the name and the fingerprint; status, results and
    report count them and mark the pair; one that doesn't change isn't marked.
    """
    work = submitted(
        tmp_path, [openai(server.url("drift3")), openai(server.url("drift1"), abbr="same")], {"d": tasks(30)}
    )
    ended(inferd(work), 0)
    rows = predictions(work)
    assert [row.generation.served_model for row in rows if row.generation] == [f"fake-{n % 3}" for n in range(30)]
    status = infer_status(work)
    assert status is not None
    assert status.served_models == ("fake-0", "fake-1", "fake-2")
    assert status.system_fingerprints == ("fp_0", "fp_1", "fp_2")
    told = evalctl("status", "-w", work.root)
    told.wait()
    assert "m x d: served by fake-0, fake-1, fake-2; fingerprints fp_0, fp_1, fp_2" in told.out
    ended(evald_process(work), 0)
    told = evalctl("status", "-w", work.root)
    told.wait()
    assert "m x d: served by fake-0 (10), fake-1 (10), fake-2 (10); fingerprints fp_0 (10)" in told.out
    assert "same x d" not in told.out
    cells = {standing["model"]: standing["datasets"]["d"] for standing in report(work)["leaderboard"]}
    assert (cells["m"]["served_changed"], cells["same"]["served_changed"]) == (True, False)
    assert cells["same"]["served_models"]["names"] == {"fake-0": 30}
    assert "- m x d: served by fake-0 (10), fake-1 (10), fake-2 (10)" in work.report_md.read_text()
