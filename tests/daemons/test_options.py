"""Every option of `[infer]` and `[budget]` and of inferd's command line takes effect, and the lookahead is as told."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inferd.adapters.openai import OpenAIAdapter
from shared import claims
from shared.config import BudgetConfig, InferConfig, ModelConfig, default_max_workers
from shared.layout import WorkDir
from shared.records import Attempt, Message, Prompt
from tests.daemons.runs import answered, answers, behaving, ended, state, submitted, tasks, texts
from tests.harness import Process, heartbeat, infer_status, inferd, journal, openai, predictions, running, until
from tests.server import FakeServer


@pytest.fixture(scope="module")
def shared_server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def server(shared_server: FakeServer) -> FakeServer:
    shared_server.reset_stats()
    return shared_server


def test_each_option_has_a_test() -> None:
    """Each field of `[infer]` and `[budget]` is named in a test of this file; a new one fails here until it is."""
    tests = Path(__file__).read_text().split("def test_each_option_has_a_test", 1)[1]
    for config in (InferConfig, BudgetConfig):
        assert [name for name in config.__struct_fields__ if f'"{name}"' not in tests] == []


@pytest.mark.parametrize(
    ("model", "option", "table", "expected"),
    [(3, 5, 7, 3), (None, 5, 7, 5), (None, None, 7, 7), (None, None, None, default_max_workers())],
)
def test_max_workers(
    tmp_path: Path, server: FakeServer, model: int | None, option: int | None, table: int | None, expected: int
) -> None:
    """#26: max_workers: a model's own wins over --max-workers, that over `[infer]`, that over min(32, cores + 4)."""
    config = openai(server.url("d150"))
    del config["max_workers"]
    if model:
        config["max_workers"] = model
    work = submitted(tmp_path, [config], {"d": tasks(20)}, infer={"max_workers": table} if table else {})
    ended(inferd(work, *(["--max-workers", str(option)] if option else [])), 0)
    assert server.stats()["peak_in_flight"] == expected


def test_poll_interval(tmp_path: Path, server: FakeServer) -> None:
    """poll_interval, option and table: how often the dispatcher looks when nothing happens. Seen in the looks at a
    shard that somebody else holds, of which there is one in five polls; the option wins.
    """
    for options, table, quick in (
        (["--poll-interval", "0.02"], 30.0, True),
        ([], 0.02, True),
        (["--poll-interval", "30"], 0.02, False),
    ):
        work = submitted(
            tmp_path,
            [openai(server.url())],
            {"d": tasks(3)},
            root=tmp_path / f"{options}{table}",
            infer={"poll_interval": table},
        )
        claim = claims.take(work.shard_claim("m", "d"))
        assert claim is not None
        with running(inferd(work, *options)) as process:
            until(lambda: _waiting(work) == 1, "inferd finds the shard taken")  # noqa: B023
            looks = _looks(work)
            if quick:
                until(lambda: _looks(work) > looks + 5, "it looks again")  # noqa: B023
                claim.release()
                ended(process, 0)
            else:
                until(lambda: heartbeat(work.infer_heartbeat()).seq > 5, "beats go on")  # type: ignore[union-attr]  # noqa: B023
                assert _looks(work) <= looks + 1
                process.kill()
                claim.release()


def _waiting(work: WorkDir) -> float:
    return _counter(work, "pairs_waiting")


def _looks(work: WorkDir) -> int:
    return sum("another inferd works on it" in line for line in _log(work))


def test_log_interval(tmp_path: Path, server: FakeServer) -> None:
    """log_interval, option and table: how often progress is logged; the option wins. --verbose logs no less."""
    for options, table, expected in (([], 0.1, True), (["--log-interval", "0.1"], 60, True), ([], 60, False)):
        work = submitted(
            tmp_path,
            [openai(server.url("d50"), max_workers=1)],
            {"d": tasks(12)},
            root=tmp_path / f"{options}{table}",
            infer={"log_interval": table},
        )
        process = ended(inferd(work, *options, "--verbose"), 0)
        assert ("progress" in process.err) == expected
        assert ("progress" in "".join(_log(work))) == expected


def test_max_attempts_and_backoff(tmp_path: Path, server: FakeServer) -> None:
    """max_attempts: so many calls, no more. backoff_base, backoff_max: waits are random up to the doubling ceiling,
    which the second caps.
    """
    items = [behaving(n, "500") for n in range(8)]
    infer = {"max_attempts": 7, "backoff_base": 0.01, "backoff_max": 0.08, "unhealthy_after": 1000}
    work = submitted(tmp_path, [openai(server.url(), max_workers=8)], {"d": items}, infer=infer)
    ended(inferd(work), 3)
    assert server.stats()["posts"] == 8 * 7
    quick = _waits(journal(work))
    infer = infer | {"max_attempts": 3, "backoff_base": 0.4, "backoff_max": 0.8}
    slow_work = submitted(
        tmp_path, [openai(server.url(), max_workers=8)], {"d": items}, root=tmp_path / "slow", infer=infer
    )
    ended(inferd(slow_work), 3)
    slow = _waits(journal(slow_work))
    assert len(slow) == 8 * 2
    assert sum(quick) / len(quick) < 0.12  # the mean of the ceilings' halves is 0.03
    assert sum(slow) / len(slow) > 0.12  # ... 0.3: below by chance once in some thousand runs
    assert len({round(wait, 2) for wait in slow}) > 4, "no jitter"


def test_retry_after_max(tmp_path: Path, server: FakeServer) -> None:
    """retry_after_max: an endpoint that asks for an hour is asked again after this."""
    work = submitted(
        tmp_path, [openai(server.url())], {"d": [behaving(0, "429x1-ra3600")]}, infer={"retry_after_max": 0.3}
    )
    ended(inferd(work), 0, timeout=30)
    assert _waits(journal(work))[0] >= 0.3


def test_attempt_timeout(tmp_path: Path, server: FakeServer) -> None:
    """attempt_timeout: the table's, and a model's own, which wins."""
    work = submitted(
        tmp_path,
        [openai(server.url("hang"), abbr="table"), openai(server.url("hang"), abbr="own", attempt_timeout=0.9)],
        {"d": tasks(1)},
        infer={"attempt_timeout": 0.2, "max_attempts": 1},
    )
    ended(inferd(work), 3)
    (table,), (own,) = journal(work, "table"), journal(work, "own")
    assert 0.2 <= table.latency < 0.85
    assert 0.9 <= own.latency < 5


@pytest.mark.parametrize(("option", "quick", "slow"), [("commit_interval", 0.01, 1.5), ("status_interval", 0.05, 30.0)])
def test_intervals(tmp_path: Path, server: FakeServer, option: str, quick: float, slow: float) -> None:
    """commit_interval: between the journal's writes. status_interval: between writes of a status. Counted in
    distinct states of the file while the run lasts.
    """
    counts = []
    for interval in (quick, slow):
        work = submitted(
            tmp_path,
            [openai(server.url("d40"), max_workers=1)],
            {"d": tasks(15)},
            root=tmp_path / str(interval),
            infer={option: interval},
        )
        states = set()
        with running(inferd(work)) as process:
            while process.running:
                if option == "commit_interval":
                    states.add(tuple(path.stat().st_size for path in work.journals("m", "d")))
                else:
                    states.add(getattr(infer_status(work), "completed", 0))
                time.sleep(0.005)
            ended(process, 0)
        counts.append(len(states))
    assert counts[0] > 8
    assert counts[1] <= 4


def test_heartbeat_interval(tmp_path: Path, server: FakeServer) -> None:
    """heartbeat_interval: stands in the beat, and so often it is told."""
    seqs = []
    for interval in (0.05, 60.0):
        work = submitted(
            tmp_path,
            [openai(server.url("d50"), max_workers=1)],
            {"d": tasks(15)},
            root=tmp_path / str(interval),
            infer={"heartbeat_interval": interval},
            eval={"heartbeat_timeout": 100.0},
        )
        ended(inferd(work), 0)
        beat = heartbeat(work.infer_heartbeat())
        assert beat is not None
        assert beat.interval == interval
        seqs.append(beat.seq)
    assert seqs[0] > 8
    assert seqs[1] == 3  # starting, running, finished


def test_drain_timeout(tmp_path: Path, server: FakeServer) -> None:
    """drain_timeout: 0 leaves what is in flight, more waits for it."""
    kept = []
    for timeout in (0, 20.0):
        work = submitted(
            tmp_path,
            [openai(server.url("d700"), max_workers=4)],
            {"d": tasks(8)},
            root=tmp_path / str(timeout),
            infer={"drain_timeout": timeout},
        )
        server.reset_stats()
        with running(inferd(work)) as process:
            until(lambda: server.stats()["in_flight"] == 4, "four are out")
            process.process.terminate()
            ended(process, 3)
        kept.append(len(answered(work)))
    assert kept == [0, 4]


@pytest.mark.parametrize(("rate", "expected"), [(0.0, "fail"), (0.1, "fail"), (0.2, "done")])
def test_max_error_rate(tmp_path: Path, server: FakeServer, rate: float, expected: str) -> None:
    """max_error_rate: with two errors in ten the pair is `done` from 0.2 on, the errors as rows of its predictions."""
    items = [behaving(0, "422detail"), behaving(1, "400ctx"), *tasks(8, first=2)]
    work = submitted(tmp_path, [openai(server.url())], {"d": items}, infer={"max_error_rate": rate})
    ended(inferd(work), 0 if expected == "done" else 3)
    assert state(work) == expected
    if expected == "done":
        assert [row.error for row in predictions(work)] == ["bad_request", "context_length"] + [None] * 8
    else:
        assert not work.predictions("m", "d").exists()


def test_unhealthy_after_and_timeout(tmp_path: Path, server: FakeServer) -> None:
    """unhealthy_after: so many failures in a row and the model is only probed. unhealthy_timeout: after so long it is
    given up. fail_fast_after: so many refusals for good and the pair is given up.
    """
    items = tasks(300)
    posts = {}
    for options in (
        {"unhealthy_after": 6, "unhealthy_timeout": 0.5},
        {"unhealthy_after": 60, "unhealthy_timeout": 0.5},
        {"fail_fast_after": 5},
        {"fail_fast_after": 50},
    ):
        server.reset_stats()
        how = "500" if "unhealthy_after" in options else "422detail"
        work = submitted(
            tmp_path,
            [openai(server.url(how), max_workers=2)],
            {"d": items},
            root=tmp_path / f"{options}",
            infer=options,
        )
        process = ended(inferd(work), 3)
        assert "given up" in process.err
        posts[next(iter(options.items()))] = server.stats()["posts"]
    assert posts["unhealthy_after", 6] <= 6 + 2 + 3  # and some probes
    assert 60 <= posts["unhealthy_after", 60] <= 60 + 2 + 3
    assert 5 <= posts["fail_fast_after", 5] <= 5 + 4
    assert 50 <= posts["fail_fast_after", 50] <= 50 + 4


def test_a_model_that_recovers(tmp_path: Path, server: FakeServer) -> None:
    """An unhealthy model that answers a probe is asked as before: nothing is lost but time."""
    work = submitted(
        tmp_path,
        [openai(server.url("500x1"), max_workers=4)],
        {"d": tasks(12)},
        infer={"unhealthy_after": 4, "unhealthy_timeout": 60.0},
    )
    process = ended(inferd(work), 0, timeout=50)
    assert "unhealthy" in process.err
    assert texts(predictions(work)) == answers(12)


@pytest.mark.parametrize(
    ("budget", "least", "most"),
    [({"requests": 30}, 30, 30), ({"tokens": 15 * 30}, 20, 34), ({"usd": 0.00045}, 20, 34)],
)
def test_budget(tmp_path: Path, server: FakeServer, budget: dict[str, Any], least: int, most: int) -> None:
    """`[budget]` "usd", "tokens", "requests": a ceiling over the whole run ends it with exit status 4 and the reason.
    Started again it is still reached, also by what finished pairs took; raised, the run goes on with the rest.
    """
    price = {"input": 25.0, "output": 50.0}  # at 12 and 3 tokens: 0.00045 USD a request, so 0.0135 for thirty
    if "usd" in budget:
        budget = {"usd": 0.00045 * 30}
    datasets = {"d": tasks(10), "e": tasks(40, first=10)}
    model = openai(server.url(), price=price)
    work = submitted(tmp_path, [model], {"d": datasets["d"]}, budget=budget)
    ended(inferd(work), 0)
    submitted(tmp_path, [model], datasets, budget=budget)
    ended(inferd(work), 4)
    sent = server.stats()["posts"]
    assert least <= sent <= most
    status = infer_status(work, dataset="e")
    assert status is not None
    assert (status.state, "budget reached" in status.reason) == ("pending", True)
    beat = heartbeat(work.infer_heartbeat())
    assert beat is not None
    assert "budget reached" in beat.reason
    ended(inferd(work), 4)
    assert server.stats()["posts"] <= sent + (0 if "requests" in budget else 4)
    submitted(tmp_path, [model], datasets, budget={name: value * 10 for name, value in budget.items()})
    ended(inferd(work), 0)
    assert server.stats()["posts"] == 50
    assert texts(predictions(work, dataset="e")) == answers(50)[10:]


def test_lookahead(tmp_path: Path, server: FakeServer) -> None:
    """Of 40 datasets the next is opened when fewer than 2 x max_workers samples are left in the open ones; all are
    asked, and the first ones' requests overlap.
    """
    names = [f"d{n:02}" for n in range(40)]
    work = submitted(
        tmp_path,
        [openai(server.url("d20"), max_workers=4)],
        {name: _named(name, 6) for name in names},
    )
    opened = []
    with running(inferd(work)) as process:
        while process.running:
            states = {name: infer_status(work, dataset=name) for name in names}
            opened.append(sum(status is not None and status.state == "running" for status in states.values()))
            time.sleep(0.01)
        ended(process, 0)
    # 8 samples left, of 6 a dataset: 2 that hold them, 4 in the opening, 4 whose last ones are out, 2 in the merge.
    assert 2 <= max(opened) <= 12
    assert server.stats()["posts"] == 240
    starts = sorted((_began(line), name) for name in names for line in journal(work, dataset=name))
    first = [name for _, name in starts[:12]]
    assert len(set(first)) >= 2, "no dataset was asked beside the first"


def test_at_most_32_datasets_hold_what_waits(tmp_path: Path, server: FakeServer) -> None:
    """However many samples the workers could take, no more than 32 datasets hold requests that wait to be sent."""
    names = [f"d{n:02}" for n in range(80)]
    work = submitted(tmp_path, [openai(server.url("hang"), max_workers=64)], {name: _named(name, 3) for name in names})
    with running(inferd(work)) as process:
        until(lambda: _counter(work, "in_flight") == 64, "all workers wait")
        seen = heartbeat(work.infer_heartbeat())
        assert seen is not None
        until(lambda: heartbeat(work.infer_heartbeat()).seq > seen.seq + 3, "further beats")  # type: ignore[union-attr]
        statuses = [status for name in names if (status := infer_status(work, dataset=name)) is not None]
        process.kill()
    open_now = [status for status in statuses if status.state == "running"]
    assert sum(status.in_flight for status in open_now) == 64
    assert 2 <= sum(status.in_flight < status.total for status in open_now) <= 32
    assert len(open_now) < len(names)


def test_models_overlap(tmp_path: Path, server: FakeServer) -> None:
    """#29: two models are asked at the same time, each up to its own max_workers."""
    work = submitted(
        tmp_path,
        [openai(server.url("d200"), abbr="a", max_workers=5), openai(server.url("d200"), abbr="b", max_workers=7)],
        {"d": tasks(21)},
    )
    ended(inferd(work), 0)
    assert server.stats()["peak_in_flight"] == 12


def test_datasets_take_turns(tmp_path: Path) -> None:
    """With room for two datasets in the lookahead, the server is asked for both in turns, none after the other."""
    log = tmp_path / "server.log"
    with FakeServer(log=log) as server:
        model = openai(server.url("d20"), max_workers=8)
        work = submitted(tmp_path, [model], {"a": _named("a", 15), "b": _named("b", 60)})
        ended(inferd(work), 0)
    adapter = OpenAIAdapter(ModelConfig(**model), timeout=1.0, secret=lambda name: None)
    names = {
        hashlib.sha256(adapter.body(Prompt(messages=(Message("user", item["prompt"]),)))).hexdigest(): name
        for name in "ab"
        for item in _named(name, 60)
    }
    turns = [names[digest] for digest in log.read_text().split()[::2]]
    last_a = max(at for at, name in enumerate(turns) if name == "a")
    assert turns[: last_a + 1].count("b") >= 4


def test_bad_usage(tmp_path: Path) -> None:
    """No work_dir, no suite, a bad option: exit 2, one line that names the remedy, no traceback."""
    for options in (["-w", str(tmp_path / "none")], ["-w", str(tmp_path)], ["-w", str(tmp_path), "--max-workers", "0"]):
        process = ended(Process("inferd", *options), 2)
        assert "Traceback" not in process.err
        assert process.err.strip()


def _named(name: str, count: int) -> list[dict[str, Any]]:
    return [{**item, "prompt": f"{name} {n} ANSWER={n}"} for n, item in enumerate(tasks(count))]


def _counter(work: WorkDir, name: str) -> float:
    beat = heartbeat(work.infer_heartbeat())
    return beat.counters.get(name, -1) if beat is not None else -1


def _log(work: WorkDir) -> list[str]:
    return [line for path in work.logs.iterdir() for line in path.read_text().split("\n")]


def _ended(line: Attempt) -> float:
    return datetime.fromisoformat(line.ended_at).timestamp()


def _began(line: Attempt) -> float:
    return _ended(line) - line.latency


def _waits(lines: list[Attempt]) -> list[float]:
    """Seconds from each attempt's end to the next one's begin, to a few milliseconds."""
    by_key: dict[str, list[Attempt]] = {}
    for line in lines:
        by_key.setdefault(line.key, []).append(line)
    return [
        _began(after) - _ended(before) + 0.002 for attempts in by_key.values() for before, after in pairwise(attempts)
    ]
