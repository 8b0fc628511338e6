"""A server or an adapter that misbehaves: what becomes of the request, and that nothing becomes of the others."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from shared.layout import WorkDir
from shared.records import Attempt
from tests.daemons.runs import all_strict, answered, answers, behaving, ended, state, submitted, tasks, texts
from tests.harness import (
    evald,
    heartbeat,
    infer_status,
    inferd,
    journal,
    openai,
    predictions,
    report,
    running,
    task,
    until,
)
from tests.server import FakeServer


class Fault(NamedTuple):
    """outcome: of the one request that meets the fault. error: the class its failed attempts are counted under;
    attempts: how many it takes in all.
    """

    outcome: str
    error: str | None = None
    attempts: int = 1


ATTEMPTS = 3
FAULTS = {
    "d300": Fault("ok"),
    "drip": Fault("error", "timeout", ATTEMPTS),
    "hang": Fault("error", "timeout", ATTEMPTS),
    "429x2-ms50": Fault("ok", "rate_limited", 3),
    "429": Fault("error", "rate_limited", ATTEMPTS),
    "500x2": Fault("ok", "server_error", 3),
    "500": Fault("error", "server_error", ATTEMPTS),
    "502-text": Fault("error", "server_error", ATTEMPTS),
    "503x1-none": Fault("ok", "server_error", 2),
    "503x1-ms20": Fault("ok", "rate_limited", 2),
    "html": Fault("error", "bad_response", ATTEMPTS),
    "badjson": Fault("error", "bad_response", ATTEMPTS),
    "empty-choices": Fault("error", "bad_response", ATTEMPTS),
    "error200": Fault("error", "bad_response", ATTEMPTS),
    "midclose": Fault("error", "connection", ATTEMPTS),
    "midclosex1": Fault("ok", "connection", 2),
    "reset": Fault("error", "connection", ATTEMPTS),
    "resetx2": Fault("ok", "connection", 3),
    "shutx1": Fault("ok", "connection", 2),
    "401": Fault("error", "auth"),
    "404": Fault("error", "not_found"),
    "quota": Fault("error", "quota"),
    "422detail": Fault("error", "bad_request"),
    "400ctx": Fault("error", "context_length"),
    "null": Fault("empty"),
    "empty": Fault("empty"),
    "prompt-too-long": Fault("empty"),
    "long": Fault("truncated"),
    "filter": Fault("filtered"),
    "400filter": Fault("filtered"),
    "reasoning-only": Fault("reasoning_only"),
    "tool": Fault("tool_call"),
    "function": Fault("tool_call"),
    "400credit": Fault("error", "quota"),
    "refusal": Fault("refused"),
    "nousage": Fault("ok"),
    "logprobs-inf": Fault("ok"),
    "logprobs-nan": Fault("ok"),
    "u2028": Fault("ok"),
}
GOOD = 4  # requests of each dataset beside the one that meets the fault


@pytest.fixture(scope="module")
def all_faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkDir]:
    """One run of both daemons over a dataset for each fault: a bad request, then four good ones."""
    with FakeServer() as server:
        work = submitted(
            tmp_path_factory.mktemp("faults"),
            [openai(server.url(), max_workers=8)],
            {name: [behaving(0, name), *tasks(GOOD, first=1)] for name in FAULTS},
            infer={
                "max_attempts": ATTEMPTS,
                "attempt_timeout": 0.7,
                "max_error_rate": 0.2,
                "retry_after_max": 0.1,
                "unhealthy_after": 1000,
            },
        )
        ended(inferd(work), 0)
        ended(evald(work), 0)
        yield work


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault(all_faults: WorkDir, name: str) -> None:
    """#1, #34: the request has the right outcome, class and number of attempts in journal, predictions and status; the
    other requests of its dataset are answered; the pair is `done`, as `max_error_rate` allows one error in five.
    """
    work, fault = all_faults, FAULTS[name]
    status = infer_status(work, dataset=name)
    assert status is not None
    assert (status.state, status.total, status.completed) == ("done", 1 + GOOD, 1 + GOOD)
    failed = fault.attempts - (fault.outcome != "error")
    assert status.errors == ({fault.error: failed} if failed else {})
    assert status.failed == ({fault.error: 1} if fault.outcome == "error" else {})
    assert status.attempts == fault.attempts + GOOD
    expected = Counter({"ok": GOOD}) + Counter({fault.outcome: fault.outcome != "error"})
    assert status.outcomes == dict(expected)
    lines = [line for line in journal(work, dataset=name) if line.doc_id == 0]
    assert [line.attempt for line in lines] == list(range(1, fault.attempts + 1))
    assert [line.error for line in lines] == [fault.error] * failed + [None] * (fault.attempts - failed)
    assert [line.outcome for line in lines] == ["error"] * failed + [fault.outcome] * (fault.attempts - failed)
    bad, *good = predictions(work, dataset=name)
    assert (bad.outcome, bad.attempts) == (fault.outcome, fault.attempts)
    assert (bad.error, bad.generation is None) == ((fault.error, True) if fault.outcome == "error" else (None, False))
    assert bool(bad.message) == (fault.outcome == "error")
    assert texts(good) == answers(1 + GOOD)[1:]


@pytest.mark.parametrize(("name", "scored"), [("null", 5), ("long", 5), ("filter", 5), ("500", 4), ("hang", 4)])
def test_errors_are_missing_and_answers_are_scored(all_faults: WorkDir, name: str, scored: int) -> None:
    """An empty, cut or refused answer is scored like any; an error is missing, never a wrong answer."""
    found = report(all_faults)["leaderboard"][0]["datasets"][name]
    assert (found["n"], found["n_docs"]) == (scored, 5)
    assert found["coverage"] == scored / 5


def test_prompt_too_long_is_counted_apart(all_faults: WorkDir) -> None:
    """`prompt-too-long-silent-empty`: an empty answer cut by length is asked once and counted as empty, not wrong."""
    status = infer_status(all_faults, dataset="prompt-too-long")
    assert status is not None
    assert status.outcomes["empty"] == 1
    row = predictions(all_faults, dataset="prompt-too-long")[0]
    assert row.generation is not None
    assert row.generation.finish_reason == "length"
    assert row.generation.usage is not None
    assert (row.generation.usage.prompt_tokens, row.generation.usage.completion_tokens) == (2664, 0)


def test_no_file_holds_what_json_has_not(all_faults: WorkDir) -> None:
    """`logprobs-inf`: infinities and NaN from a server reach no file; every line of every file is strict JSON."""
    assert all_strict(all_faults) > 10 * len(FAULTS)
    assert predictions(all_faults, dataset="logprobs-inf")[0].outcome == "ok"


def test_line_separators_in_answers(all_faults: WorkDir) -> None:
    """`u2028-splits-record`: U+2028, U+2029 and U+0085 in an answer come through code point by code point."""
    assert texts(predictions(all_faults, dataset="u2028")) == ["one\u2028two\u2029three\x85four", "1", "2", "3", "4"]


def test_deadline_cuts_a_drip(all_faults: WorkDir) -> None:
    """A body that drips a byte a second is cut at the attempt's wall-clock deadline, each time."""
    lines = [line for line in journal(all_faults, dataset="drip") if line.doc_id == 0]
    assert all(0.7 <= line.latency < 5 for line in lines)


def test_retry_after_is_waited_for(tmp_path: Path) -> None:
    """429 with `Retry-After: 1`: the next attempt comes no sooner than that, and meanwhile others have the slot."""
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url(), max_workers=1)],
            {"d": [behaving(0, "429x1"), *tasks(20, first=1)]},
        )
        ended(inferd(work), 0)
    lines = journal(work)
    first, second = (line for line in lines if line.doc_id == 0)
    assert (_moment(second) - second.latency) - _moment(first) >= 0.99
    between = [line for line in lines if _moment(first) <= _moment(line) < _moment(second) and line != first]
    assert len(between) == 20


def test_last_sample_hangs(tmp_path: Path) -> None:
    """`last-sample-hang`: 68 of 69 are answered and journalled although the last drips for ever; the pair ends as
    `fail` for its timeout after two attempts, and the process exits.
    """
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url(), max_workers=12)],
            {"d": [*tasks(68), behaving(68, "drip")]},
            infer={"max_attempts": 2, "attempt_timeout": 1.0},
        )
        ended(inferd(work), 3, timeout=20)
    status = infer_status(work)
    assert status is not None
    assert (status.state, status.completed, status.outcomes, status.failed) == ("fail", 69, {"ok": 68}, {"timeout": 1})
    assert status.errors == {"timeout": 2}
    assert "1/69 requests failed (timeout 1)" in status.reason
    assert len(answered(work)) == 68
    assert [line.error for line in journal(work) if line.doc_id == 68] == ["timeout", "timeout"]
    assert not work.predictions("m", "d").exists()


def test_pool_is_as_large_as_max_workers(tmp_path: Path) -> None:
    """`pool-smaller-than-workers`: with max_workers = 256 the server sees 256 requests at once, and never more."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("d300"), max_workers=256)], {"d": tasks(512)})
        ended(inferd(work), 0)
        assert server.stats()["peak_in_flight"] == 256
    assert texts(predictions(work)) == answers(512)


def test_memory_and_beats_over_20000_samples(tmp_path: Path) -> None:
    """`unbounded-task-fanout`, #27, #28: the process grows by no more than what is in flight, the first answer is
    journalled early, and the heartbeat goes on throughout.
    """
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("d1"), max_workers=8)], {"d": tasks(20_000)})
        with running(inferd(work)) as process:
            until(lambda: any(path.stat().st_size for path in work.journals("m", "d")), "the first answer", 5)
            assert server.stats()["posts"] < 5_000
            measured = psutil.Process(process.process.pid)
            rss, beats = [measured.memory_info().rss], {}
            while process.running:
                beat = heartbeat(work.infer_heartbeat())
                if beat is not None:
                    beats[beat.seq] = time.monotonic()
                try:
                    rss.append(measured.memory_info().rss)
                except psutil.NoSuchProcess:
                    break
                time.sleep(0.05)
            ended(process, 0)
        assert server.stats()["posts"] == 20_000
    rss = [size for size in rss if size]
    assert max(rss) - rss[0] < 40 << 20
    seen = list(beats.values())
    assert len(seen) > 5
    assert max(after - before for before, after in pairwise(seen)) < 2.0  # told every 0.2 s


def test_a_hung_model_is_given_up(tmp_path: Path) -> None:
    """`health-ok-but-hung`: a model whose server accepts and never answers is only probed, then given up with the
    reason, long before all its samples were tried; another model finishes unaffected; inferd doesn't spin meanwhile.
    """
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [
                openai(server.url("hang"), abbr="hung", max_workers=8, attempt_timeout=0.3),
                openai(server.url("d20"), abbr="well", max_workers=1),
            ],
            {"d": tasks(250), "e": tasks(50)},
            infer={"unhealthy_after": 20, "unhealthy_timeout": 2.0},
        )
        with running(inferd(work)) as process:
            measured = psutil.Process(process.process.pid)
            until(lambda: state(work, "hung", "d") == "fail", "the hung model is given up")
            until(lambda: state(work, "hung", "e") == "fail", "its other pair as well")
            assert process.running, "the other model was to be slower: the test shows nothing"
            before, since = sum(measured.cpu_times()[:2]), time.monotonic()
            ended_by = time.monotonic() + 1.0
            until(lambda: time.monotonic() > ended_by or not process.running, "a second")
            if process.running:
                assert (sum(measured.cpu_times()[:2]) - before) / (time.monotonic() - since) < 0.5
            ended(process, 3)
    for dataset in ("d", "e"):
        status = infer_status(work, "hung", dataset)
        assert status is not None
        assert "given up" in status.reason
        assert "timeout" in status.reason
        assert state(work, "well", dataset) == "done"
    assert 20 <= len(journal(work, "hung", "d") + journal(work, "hung", "e")) < 100
    assert texts(predictions(work, "well", "d")) == answers(250)
    beat = heartbeat(work.infer_heartbeat())
    assert beat is not None
    assert beat.state == "finished"


def test_server_down(tmp_path: Path) -> None:
    """`all-failed-exit-zero`: nobody listens. Exit status 3; status and log tell how many failed, and why."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        port = bound.getsockname()[1]
        work = submitted(
            tmp_path,
            [openai(f"http://127.0.0.1:{port}/v1")],
            {"d": tasks(50)},
            infer={"max_attempts": 2, "unhealthy_after": 1000},
        )
        process = ended(inferd(work), 3)
    status = infer_status(work)
    assert status is not None
    assert (status.state, status.completed, status.failed) == ("fail", 50, {"connection": 50})
    for text in (status.reason, process.err):
        assert "50/50 requests failed (connection 50)" in text
        assert "refused" in text.lower() or "connect" in text.lower()
        assert f"127.0.0.1:{port}" in text


@pytest.mark.parametrize("how", ["400param", "401"])
def test_a_pair_refused_for_good_fails_fast(tmp_path: Path, how: str) -> None:
    """`max-completion-tokens`: an endpoint that refuses a parameter refuses each request. The pair is given up after
    the first few, none is retried, and the message names the parameter.
    """
    with FakeServer() as server:
        work = submitted(
            tmp_path, [openai(server.url(how))], {"d": tasks(1000), "e": tasks(3)}, infer={"fail_fast_after": 10}
        )
        ended(inferd(work), 3)
        stats = server.stats()
    assert stats["posts"] <= 10 + 3 + 2 * 4
    assert stats["max_per_body"] <= 2  # the same prompt stands in both datasets
    status = infer_status(work)
    assert status is not None
    assert status.state == "fail"
    assert ("temperature" if how == "400param" else "Incorrect API key") in status.reason
    assert "not run" in status.reason


def test_a_context_length_error_is_final(tmp_path: Path) -> None:
    """`negative-max-tokens-400`: classed as context_length, one request, no retry, and the others are answered."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url())], {"d": [behaving(0, "400neg"), *tasks(5, first=1)]})
        ended(inferd(work), 3)
        assert server.stats()["posts"] == 6
    assert [(line.error, line.attempt, line.status) for line in journal(work) if line.doc_id == 0] == [
        ("context_length", 1, 400)
    ]
    status = infer_status(work)
    assert status is not None
    assert (status.failed, status.outcomes) == ({"context_length": 1}, {"ok": 5})


def test_errors_are_asked_again(tmp_path: Path) -> None:
    """`errors-saved-as-empty-answers`: what failed in run 1 and nothing else is asked in run 2."""
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url())],
            {"d": [*tasks(7), *(behaving(n, "503x2-none") for n in range(7, 10))]},
            infer={"max_attempts": 2},
        )
        ended(inferd(work), 3)
        assert len(answered(work)) == 7
        assert not work.predictions("m", "d").exists()
        server.reset_stats()
        # The server's count of tries was forgotten too: heal it by asking one attempt more.
        submitted(
            tmp_path,
            [openai(server.url())],
            {"d": [*tasks(7), *(behaving(n, "503x2-none") for n in range(7, 10))]},
            infer={"max_attempts": 3},
        )
        ended(inferd(work), 0)
        stats = server.stats()
    assert stats["distinct"] == 3
    status = infer_status(work)
    assert status is not None
    assert (status.state, status.reused, status.outcomes) == ("done", 7, {"ok": 10})
    assert texts(predictions(work)) == answers(10)


def test_late_answer_is_dropped(tmp_path: Path) -> None:
    """`late-result-after-timeout`: an adapter that sleeps past its deadline loses the call. The second attempt's answer
    is the only one; the late one is counted and kept nowhere. No worker is lost by it.
    """
    work = submitted(
        tmp_path,
        [
            {
                "abbr": "m",
                "type": "tests.daemons.adapters:Late",
                "max_workers": 2,
                "attempt_timeout": 0.2,
                "options": {"late": 5.8, "other": 0.25},
            }
        ],
        {"d": tasks(30)},
    )
    ended(inferd(work), 0)
    assert texts(predictions(work))[0] == "B"
    assert predictions(work)[0].attempts == 2
    assert [(line.attempt, line.error) for line in journal(work) if line.doc_id == 0] == [(1, "timeout"), (2, None)]
    assert all(line.generation is None or line.generation.text != "A" for line in journal(work))
    assert len(answered(work)) == 30
    beat = heartbeat(work.infer_heartbeat())
    assert beat is not None
    assert beat.counters["late_answers"] == 1
    status = infer_status(work)
    assert status is not None
    assert (status.late_answers, status.duplicates) == (1, 1)  # it was paid for, and the second one as well


ODD = {
    "raises": "ValueError: this adapter has a defect",
    "raises-surrogate": "ValueError: half \ufffd",
    "none": "can't be kept",
    "number": "can't be kept",
    "confidence": "can't be kept",
    "usage": "can't be kept",
    "tokens": "can't be kept",
    "returns-text": "str, not a Generation",
    "exits": "SystemExit",
}
STRANGE = {"surrogate": "half \ufffd", "name": "1", "nan": "2"}


def test_odd_adapter(tmp_path: Path) -> None:
    """An adapter that raises, or returns what is no Generation, ends that one request, recorded once under the class
    `adapter`; text that can't be written as UTF-8 is mended; the others are answered and the process ends.
    """
    odd = [task(number, category=name) for number, name in enumerate([*STRANGE, *ODD])]
    good = tasks(20, first=len(odd))
    work = submitted(
        tmp_path,
        [{"abbr": "m", "type": "tests.daemons.adapters:Odd", "max_workers": 2}],
        {"d": [*odd, *good]},
        infer={"max_error_rate": 0.5, "attempt_timeout": 1.0},
    )
    ended(inferd(work), 0)
    rows = predictions(work)
    for row, text in zip(rows, STRANGE.values(), strict=False):
        assert row.outcome == "ok"
        assert row.generation is not None
        assert row.generation.text == text
    for row, (name, message) in zip(rows[len(STRANGE) :], ODD.items(), strict=False):
        assert (name, row.outcome, row.error, row.attempts) == (name, "error", "adapter", 1)
        assert message in (row.message or ""), name
    assert texts(rows[len(odd) :]) == [str(n) for n in range(len(odd), len(odd) + 20)]
    assert infer_status(work).failed == {"adapter": len(ODD)}  # type: ignore[union-attr]
    assert all_strict(work)


def test_retries_waiting_are_bounded(tmp_path: Path) -> None:
    """While an endpoint answers 429 for minutes, what waits for its retry is bounded: nothing new is sent beyond it."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("429-ra100"), max_workers=16)], {"d": tasks(3000)})
        with running(inferd(work)) as process:
            until(lambda: len(journal(work)) >= 1024, "1024 refusals")
            seen = heartbeat(work.infer_heartbeat())
            assert seen is not None
            until(lambda: heartbeat(work.infer_heartbeat()).seq > seen.seq + 2, "two more beats")  # type: ignore[union-attr]
            assert server.stats()["posts"] <= 1024 + 16
            process.process.terminate()
            ended(process, 3)


def _moment(line: Attempt) -> float:
    return datetime.fromisoformat(line.ended_at).timestamp()
