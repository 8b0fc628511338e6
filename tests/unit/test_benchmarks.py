"""scripts/benchmarks: the parts that decide what a figure means. The figures themselves are no test's business."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.benchmarks import goals, table
from scripts.benchmarks.counts import Stats
from scripts.benchmarks.goals import GOALS, Goal, row_verdict, verdict
from scripts.benchmarks.ideal import list_schedule, waves
from scripts.benchmarks.large import start_of_last
from scripts.benchmarks.loads import LARGE, LOADS, RESUME, SMALL, Load, Slow
from scripts.benchmarks.peers.environments import read_pins
from scripts.benchmarks.peers.race import CONDITIONS, DRIVERS, FULL, LOAD, OWN, Lap
from scripts.benchmarks.peers.race import table as peers_table
from scripts.benchmarks.rows import figures
from scripts.benchmarks.runs import BenchError, Run, check
from scripts.benchmarks.server import Pace, Server, is_slow
from scripts.benchmarks.suites import bodies, task_lines, write_suite
from shared.suite import parse_suite

# --- the ideal --------------------------------------------------------------------------------------------------------


def test_waves_round_up() -> None:
    assert waves(512, 256, 0.2) == pytest.approx(0.4)
    assert waves(513, 256, 0.2) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("latencies", "workers", "expected"),
    [
        ([], 4, 0.0),
        ([2.0], 4, 2.0),
        ([1.0, 1.0, 1.0], 2, 2.0),
        ([3.0, 1.0, 1.0, 1.0], 2, 3.0),  # one worker has the slow one, the other the rest
        ([1.0, 1.0, 1.0, 3.0], 2, 4.0),  # the slow one comes last: the order is part of the load
        ([1.0, 2.0, 3.0], 1, 6.0),
    ],
)
def test_the_ideal_of_mixed_latencies(latencies: list[float], workers: int, expected: float) -> None:
    assert list_schedule(latencies, workers) == pytest.approx(expected)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 12))
def test_the_ideal_is_that_of_whoever_is_free_first(latencies: list[int], workers: int) -> None:
    free = [0] * workers
    for latency in latencies:
        first = free.index(min(free))
        free[first] += latency
    assert list_schedule(latencies, workers) == max(free)


@given(st.integers(1, 300), st.integers(1, 40))
def test_with_equal_latencies_both_ideals_are_one(requests: int, workers: int) -> None:
    assert list_schedule([0.25] * requests, workers) == pytest.approx(waves(requests, workers, 0.25))


# --- which answers are slow -------------------------------------------------------------------------------------------


def test_about_so_many_bodies_are_slow_and_always_the_same() -> None:
    load = Load("x", 1, 0, 20, 500, slow=Slow(1, 2000), distinct=True)
    slow = [body for body in bodies(load) if is_slow(body, 1)]
    assert 60 <= len(slow) <= 140
    assert all(is_slow(body, 2) for body in slow), "more percent: those and more"
    assert not any(is_slow(body, 0) for body in slow)


def test_a_path_says_how_long_an_answer_takes() -> None:
    load = Load("x", 1, 50, 1, 1, slow=Slow(0.5, 2000))
    pace = Pace("/".join(["", *load.path, "v1", "chat", "completions"]))
    assert (pace.delay, pace.percent, pace.slow_delay) == (0.05, 0.5, 2.0)
    assert Pace("/v1/chat/completions").delay == 0.0


# --- what the server counts -------------------------------------------------------------------------------------------


def test_busy_is_the_share_of_the_workers_time_until_the_last_request_came() -> None:
    stats = Stats()
    stats.reset(requests=4, workers=2)
    stats.arrive(10.0, 0.0, b"a")
    stats.arrive(10.0, 0.0, b"b")
    stats.leave(11.0)
    stats.leave(11.0)
    stats.arrive(12.0, 0.0, b"c")  # both were idle for a second
    stats.arrive(12.0, 0.0, b"d")
    stats.leave(15.0)  # after the last arrival nobody has to be busy
    told = stats.report()
    assert told["busy"] == pytest.approx(0.5)
    assert told["peak_in_flight"] == 2
    assert told["distinct"] == 4


def test_the_tail_is_looked_at_apart() -> None:
    stats = Stats()
    stats.reset(requests=100, workers=1)
    for number in range(100):
        begin = float(number) if number < 95 else 95 + 2.0 * (number - 95)
        stats.arrive(begin, 0.0, b"%d" % number)
        stats.leave(begin + 1.0)
    assert stats.report()["tail_busy"] == pytest.approx(0.55, abs=0.01)  # a second of two, but for the first
    assert stats.report()["busy"] > 0.9


def test_the_server_answers_counts_and_forgets() -> None:
    with Server() as server:
        server.reset(requests=3, workers=1)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for body in (b"one", b"two", b"two"):
            connection.request("POST", "/d1/t100-20/v1/chat/completions", body)
            answer = json.loads(connection.getresponse().read())
            assert answer["choices"][0]["message"]["content"] == "4"
        told = server.stats()
        assert (told["requests"], told["distinct"], told["answered"], told["peak_in_flight"]) == (3, 2, 3, 1)
        assert told["seconds"] >= 0.055
        assert server.latencies() == [0.02] * 3
        assert server.slow() == []
        server.reset(requests=3, workers=1)
        assert server.stats()["requests"] == 0
        connection.close()


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_inferd_and_the_bare_loop_are_given_the_same_prompts(tmp_path: Path) -> None:
    load = Load("x", 8, 50, 3, 5, distinct=True)
    tasks = Counter(json.loads(line)["prompt"] for dataset in range(3) for line in task_lines(load, dataset))
    sent = [json.loads(body) for body in bodies(load)]
    assert Counter(body["messages"][0]["content"] for body in sent) == tasks
    assert set(tasks.values()) == {1}
    assert {body["max_tokens"] for body in sent} == {64, 65, 66}
    file = write_suite(tmp_path / "suite", load, "http://127.0.0.1:1/v1", ('version = "7"',))
    suite = parse_suite(file.read_bytes(), str(file), tmp_path / "suite", {})
    assert suite.models[0].max_workers == 8
    assert suite.models[0].version == "7"
    assert [dataset.generation.max_tokens for dataset in suite.datasets] == [64, 65, 66]


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests": 999},
        {"distinct": 999},
        {"answered": 999},
        {"peak_in_flight": 63},
        {"peak_in_flight": 65},
        {"peak_connections": 90},
    ],
)
def test_a_figure_counts_only_if_the_server_saw_what_was_asked(wrong: dict[str, float]) -> None:
    load = Load("x", 64, 200, 1, 1000)
    right: dict[str, float] = {
        "requests": 1000,
        "distinct": 1000,
        "answered": 1000,
        "peak_in_flight": 64,
        "peak_connections": 65,
    }
    check(load, 1000, right, "inferd")
    with pytest.raises(BenchError):
        check(load, 1000, right | wrong, "inferd")


@pytest.mark.parametrize(("lines", "left"), [(0, 5), (2, 3), (5, 0), (9, 0)])
def test_the_last_lines_of_a_journal_are_found(
    lines: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.benchmarks.large.CHUNK", 7)
    path = tmp_path / "journal"
    path.write_bytes(b"".join(b"line %d, %s\n" % (number, b"x" * number) for number in range(5)))
    assert path.read_bytes()[: start_of_last(path, lines)].count(b"\n") == left
    assert path.read_bytes()[start_of_last(path, lines) :].count(b"\n") == 5 - left


# --- verdicts and tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "not measured"),
        (1.0, "reaches the aim"),
        (1.1, "reaches the aim"),
        (1.15, "reaches must"),
        (1.2, "reaches must"),
        (1.25, "FALLS SHORT by 0.050"),
    ],
)
def test_a_verdict_on_what_should_be_small(value: float | None, expected: str) -> None:
    assert verdict(Goal("x", "row", "ratio", 1.2, 1.1), value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(12.0, "reaches the aim"), (9.0, "reaches must"), (5.0, "FALLS SHORT by 3/s")]
)
def test_a_verdict_on_what_should_be_large(value: float, expected: str) -> None:
    assert verdict(Goal("x", "row", "rate", 8.0, 10.0, at_least=True, form="{:.0f}/s"), value) == expected


def test_a_rows_verdict_is_the_worst_of_its_goals() -> None:
    row = "c1024-200ms"
    assert row_verdict(row, {row: {"ratio": 1.0, "peak_mb": 90}}) == "reaches the aim"
    assert row_verdict(row, {row: {"ratio": 1.0, "peak_mb": 120}}) == "reaches must"
    assert row_verdict(row, {row: {"ratio": 1.0, "peak_mb": 160}}) == "peak mb FALLS SHORT by 10 MB"
    assert row_verdict(row, {row: {}}) == "–"
    assert row_verdict("no-goals", {"no-goals": {}}) == "–"


def test_every_goal_is_of_a_row_that_is_measured() -> None:
    rows = {*(load.name for load in LOADS), SMALL.name, LARGE.name, RESUME}
    assert {goal.row for goal in GOALS} <= rows
    assert all(goal.aim is None or goal.meets(goal.aim, goal.must) for goal in GOALS), "an aim is beyond its must"


RUN = Run(
    wall=2.0,
    asked=1.9,
    cpu=0.2,
    ideal=1.6,
    peak_mb=70.0,
    threads=10,
    connections=257,
    foreign=0.02,
    busy=0.9,
    tail_busy=0.8,
    fill=0.1,
    sent=1000,
    stall=0.05,
    first=0.5,
    whole=2.6,
)


def test_a_rows_figures_are_medians_and_the_largest_sizes() -> None:
    load = Load("x", 256, 50, 8, 1_000)
    own = [RUN, replace(RUN, wall=4.0, peak_mb=90.0, foreign=0.3), replace(RUN, wall=1.8)]
    found = figures(load, own, [replace(RUN, wall=1.7, cpu=0.1)])
    assert found["wall"] == 2.0
    assert found["ratio"] == pytest.approx(1.25)
    assert found["bare_ratio"] == pytest.approx(1.0625)
    assert found["per_second"] == pytest.approx(4000)
    assert found["cpu_us"] == pytest.approx(25.0)
    assert found["cpu_ratio"] == pytest.approx(2.0)
    assert found["peak_mb"] == 90.0
    assert found["foreign"] == 0.3
    assert "ratio" not in figures(Load("x", 256, 0, 1, 1_000), own, [])


def test_the_tables_are_whole() -> None:
    found = {"c256-50ms": figures(Load("x", 256, 50, 8, 1_000), [replace(RUN, foreign=0.2)], [])}
    line = table.row_line("c256-50ms", "words", found, noisy=0.10)
    head = table.rows_head()
    assert {text.count("|") for text in (*head, line)} == {len(table.COLUMNS) + 4}
    assert "20% (!)" in line, "others took more than what is allowed"
    assert "FALLS SHORT by 0.100" in line
    lines = table.goals_table(found, {goal.row for goal in GOALS})
    assert len(lines) == 2 + len(GOALS)
    assert len({text.count("|") for text in lines}) == 1
    assert sum("not measured" in text for text in lines) == len(GOALS) - 1
    assert len(table.goals_table(found, found)) == 3
    assert goals.value_of(GOALS[1], found) == pytest.approx(1.25)


# --- the peers --------------------------------------------------------------------------------------------------------


def test_every_peer_is_pinned_and_has_a_driver() -> None:
    peers = read_pins()
    assert {path.stem.removeprefix("drive_") for path in DRIVERS.glob("*.py")} == set(peers)
    assert all("==" in package for peer in peers.values() for package in peer.packages)


def test_the_peers_table_tells_who_did_not_end() -> None:
    lap = Lap(
        seconds=2.0,
        ideal=1.6,
        start=0.5,
        cpu=1.0,
        peak_mb=70,
        requests=LOAD.requests,
        distinct=LOAD.requests,
        answered=LOAD.requests,
        foreign=0.0,
    )
    laps = {(client, condition): lap for client in (OWN, "inspect-ai") for condition in CONDITIONS}
    laps["inspect-ai", CONDITIONS[0]] = replace(lap, state="late", answered=70, why="did not end within 120 s")
    laps["inspect-ai", CONDITIONS[1]] = replace(lap, answered=1990)
    laps[OWN, FULL] = replace(lap, seconds=0.5)
    lines = peers_table([OWN, "inspect-ai"], laps)
    assert len({line.count("|") for line in lines}) == 1
    assert "4,000" in lines[2]
    assert "| all |" in lines[2]
    assert "did not end (70 answered)" in lines[3]
    assert "1.25 (1990 answered)" in lines[3]
    assert f"70/{LOAD.requests}" in lines[3]
