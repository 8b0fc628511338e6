"""inferd killed at random moments: nothing journalled is asked again, nothing is answered twice, nothing is lost."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from inferd.adapters.openai import OpenAIAdapter
from shared.config import ModelConfig
from shared.layout import WorkDir
from shared.plan import read_planned_tasks
from shared.records import ANSWERS
from shared.requests import identity, requests_of
from tests.harness import (
    evald,
    heartbeat,
    infer_status,
    inferd,
    journal,
    openai,
    predictions,
    report,
    submit,
    task,
    until,
    write_suite,
)
from tests.server import FakeServer

KILLS = 50
WORKERS = 8
DATASETS = {"first": 500, "second": 300}


def test_killed_fifty_times_then_finished(tmp_path: Path) -> None:
    """Every request is answered exactly once in the predictions and once in the journal, and the server was never asked
    again for a request whose line was in the journal when inferd died. What was asked twice was in flight at a kill.
    """
    rng = random.Random(20261130)
    log = tmp_path / "server.log"
    with FakeServer(log=log) as server:
        model = openai(server.url("d40"), max_workers=WORKERS)
        suite = write_suite(
            tmp_path / "suite",
            [model],
            {name: [task(n, prompt=f"{name} {n} ANSWER={n}") for n in range(size)] for name, size in DATASETS.items()},
        )
        work = WorkDir(tmp_path / "work")
        submit(suite, work)
        digests = _body_digests(work, model)
        answered_before: dict[
            str, int
        ] = {}  # of what was journalled at the last kill, how often the server had answered it
        for _ in range(KILLS):
            process = inferd(work)
            posts = server.stats()["posts"]
            # Most kills fall into the middle of work, some before the first request.
            if rng.random() < 0.8:
                until(lambda: server.stats()["posts"] > posts or not process.running, "inferd asks")  # noqa: B023
                _sleep(rng.uniform(0.0, 0.15))
            else:
                _sleep(rng.uniform(0.0, 0.4))
            process.kill_alone()
            process.kill()
            answered = Counter(log.read_text().split()[::2]) if log.exists() else Counter()
            again = {digest for digest, count in answered_before.items() if answered[digest] > count}
            assert not again, "asked again although its answer was journalled"
            answered_before = {digests[key]: answered[digests[key]] for key in _answered_keys(work)}
        assert any(len(journal(work, dataset=name)) for name in DATASETS), (
            "no kill fell into the work: the test shows nothing"
        )
        last = inferd(work)
        assert last.wait() == 0, last.err
        stats = server.stats()
        assert evald(work).wait() == 0
    for name, size in DATASETS.items():
        rows = predictions(work, dataset=name)
        assert [(row.doc_id, row.repeat, row.outcome) for row in rows] == [(n, 0, "ok") for n in range(size)]
        assert [row.generation.text for row in rows if row.generation] == [str(n) for n in range(size)]
        keys = Counter(line.key for line in journal(work, dataset=name) if line.outcome in ANSWERS)
        assert set(keys.values()) == {1}, "a request has more than one answer in the journal"
        assert len(keys) == size
        status = infer_status(work, dataset=name)
        assert status is not None
        assert status.state == "done"
        assert status.reused > 0 or name == "first"
    asked_twice = stats["posts"] - sum(DATASETS.values())
    assert 0 <= asked_twice <= KILLS * WORKERS
    assert report(work)["leaderboard"][0]["score"] == 1.0


def _body_digests(work: WorkDir, model: dict[str, object]) -> dict[str, str]:
    """request_key -> SHA-256 of the body that is sent for it."""
    config = ModelConfig(**model)  # type: ignore[arg-type]
    adapter = OpenAIAdapter(config, timeout=1.0, secret=lambda name: None)
    found = {}
    for dataset in DATASETS:
        for doc_id, item in enumerate(read_planned_tasks(work, dataset)):
            for request in requests_of(item, doc_id, config, identity(config), 1):
                found[request.key] = hashlib.sha256(adapter.body(request.prompt)).hexdigest()
    return found


def _answered_keys(work: WorkDir) -> set[str]:
    return {line.key for name in DATASETS for line in journal(work, dataset=name) if line.outcome in ANSWERS}


def _sleep(seconds: float) -> None:
    """A random moment is what this test is about; there is nothing to wait for."""
    time.sleep(seconds)


@pytest.mark.parametrize("moment", ["before the first line", "in the merge"])
def test_killed_at_a_chosen_moment(tmp_path: Path, moment: str) -> None:
    """`retry-killed-early-loses-samples`: a resume that is killed right after it began takes nothing away from what
    there is.
    """
    with FakeServer() as server:
        suite = write_suite(tmp_path / "suite", [openai(server.url("d20"))], {"d": [task(n) for n in range(100)]})
        work = WorkDir(tmp_path / "work")
        submit(suite, work)
        first = inferd(work)
        until(lambda: len(journal(work)) >= 80, "80 answers in the journal")
        first.kill_alone()
        first.kill()
        kept = len({line.key for line in journal(work)})
        for _ in range(5):
            process = inferd(work)
            if moment == "in the merge":
                until(lambda: _runs(work), "inferd runs")
            process.kill_alone()
            process.kill()
            assert len({line.key for line in journal(work)}) >= kept
            kept = len({line.key for line in journal(work)})
        server.reset_stats()
        assert inferd(work).wait() == 0
        assert server.stats()["posts"] == 100 - kept
        assert [row.generation.text for row in predictions(work)] == [str(n) for n in range(100)]


def _runs(work: WorkDir) -> bool:
    beat = heartbeat(work.infer_heartbeat())
    return beat is not None and beat.state == "running"
