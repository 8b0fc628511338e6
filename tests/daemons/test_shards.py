"""A pair in shards: the same answers and the same scores as in one piece, whoever asks which of them, and nothing asked
twice when the number of shards changes. Throughout: the server counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evald.score import ScoreJob, score_pair
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import ANSWERS, Attempt, InferStatus, Plan, Prediction
from tests.daemons.runs import answers, behaving, ended, submitted, tasks, texts
from tests.harness import evalctl, evald, inferd, openai, read, report, running, until
from tests.server import FakeServer

SIZE = 40


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


class Run:
    """A work_dir of one pair whose number of shards can be changed."""

    def __init__(self, folder: Path, server: FakeServer) -> None:
        self.folder = folder
        self.server = server
        self.items = tasks(SIZE)
        self.model = openai(server.url())
        self.work = WorkDir(folder / "work")
        self.infer: dict[str, Any] = {}

    def submit(self, shards: int, **more: Any) -> Plan:
        options = {"repeats": 2, "num_shards": shards} | more
        submitted(self.folder, [self.model], {"d": self.items}, dataset_options=options, infer=self.infer)
        plan = read_plan(self.work)
        assert plan is not None
        return plan

    def asked(self, shards: int, *, code: int = 0) -> int:
        """Submit, run, and how many requests that took."""
        self.submit(shards)
        self.server.reset_stats()
        ended(inferd(self.work), code)
        return int(self.server.stats()["posts"])

    def stems(self) -> list[str]:
        plan = read_plan(self.work)
        assert plan is not None
        return [shard.stem for pair in plan.pairs for shard in pair.shards]

    def predictions(self) -> list[Prediction]:
        """In the order of the shards."""
        paths = [self.work.predictions("m", stem) for stem in self.stems()]
        return [
            msgspec.json.decode(line, type=Prediction)
            for path in paths
            for line in path.read_bytes().split(b"\n")
            if line
        ]

    def whole(self) -> bool:
        rows = self.predictions()
        assert [(row.doc_id, row.repeat) for row in rows] == [(doc, repeat) for doc in range(SIZE) for repeat in (0, 1)]
        assert texts(rows) == [text for text in answers(SIZE) for _ in range(2)]
        return all(self.state(stem) == "done" for stem in self.stems())

    def state(self, stem: str) -> str:
        status: InferStatus | None = read(self.work.infer_status("m", stem), InferStatus)
        return status.state if status is not None else "missing"

    def journalled(self) -> set[str]:
        """The keys of what is answered in any journal."""
        found = set()
        for path in self.work.predictions_folder("m").glob("tmp_*.jsonl"):
            if not path.name.endswith(".merged.jsonl"):
                for line in path.read_bytes().split(b"\n")[:-1]:
                    row = msgspec.json.decode(line, type=Attempt)
                    if row.outcome in ANSWERS:
                        found.add(row.key)
        return found

    def scored(self) -> tuple[dict[str, Any], bytes]:
        """The pair's result, without what names the files it was made of, and its scores; scored in this process."""
        plan = read_plan(self.work)
        assert plan is not None
        (pair,), (dataset,) = plan.pairs, plan.datasets
        statuses = [read(self.work.infer_status("m", shard.stem), InferStatus) for shard in pair.shards]
        score_pair(ScoreJob(str(self.work), pair, dataset, tuple(status.digest for status in statuses), 10))
        result = json.loads(self.work.result("m", "d").read_bytes())
        for name in ("content", "predictions_digest", "plan_digest"):
            del result[name]
        return result, self.work.scores("m", "d").read_bytes()


@pytest.fixture
def run(tmp_path: Path, server: FakeServer) -> Run:
    return Run(tmp_path, server)


@pytest.fixture(scope="module")
def in_one_piece(tmp_path_factory: pytest.TempPathFactory, server: FakeServer) -> tuple[dict[str, Any], bytes]:
    """What all others are held against. One answer is wrong."""
    run = Run(tmp_path_factory.mktemp("whole"), server)
    run.items = _one_wrong()
    assert run.asked(1) == 2 * SIZE
    assert run.stems() == ["d"]
    return run.scored()


def _one_wrong() -> list[dict[str, Any]]:
    items = tasks(SIZE)
    items[7]["targets"] = ["another"]
    return items


@pytest.mark.parametrize(("shards", "inferds"), [(3, 1), (16, 1), (1, 3), (3, 3), (16, 3)])
def test_same_numbers(run: Run, in_one_piece: tuple[dict[str, Any], bytes], shards: int, inferds: int) -> None:
    """From 3 and 16 shards, from one inferd and three: each request is asked once, n is the number of docs, and result
    and scores are the same to the byte.
    """
    run.items = _one_wrong()
    run.submit(shards)
    run.server.reset_stats()
    processes = [inferd(run.work) for _ in range(inferds)]
    for process in processes:
        ended(process, 0)
    assert run.server.stats()["posts"] == 2 * SIZE
    assert len(run.stems()) == shards
    assert run.whole()
    result, scores = run.scored()
    assert (result, scores) == in_one_piece
    assert result["n_docs"] == result["n_scored"] == SIZE
    assert [metric["n"] for metric in result["metrics"]] == [SIZE]


def test_evald_scores_once_all_shards_are_done(run: Run) -> None:
    """Both daemons at work: the pair is scored once, over all docs. `evalctl status` adds the shards up."""
    run.submit(3)
    with running(evald(run.work)) as scorer:
        ended(inferd(run.work), 0)
        assert scorer.wait() == 0
    assert scorer.err.count("pair scored") + scorer.out.count("pair scored") == 1
    standing = report(run.work)["leaderboard"][0]
    assert (standing["n_docs"], standing["n_scored"], standing["score"], standing["pairs"]) == (SIZE, SIZE, 1.0, 1)
    shown = evalctl("status", "-w", run.work.root, "--json")
    assert shown.wait() == 0
    (pair,) = json.loads(shown.out)["pairs"]
    assert (pair["infer"], pair["eval"], pair["total"], pair["completed"]) == ("done", "done", 2 * SIZE, 2 * SIZE)


def test_the_number_of_shards_changes_in_the_middle(run: Run) -> None:
    """Killed with 3, gone on with 16, then in one piece, then as 3 again: what is journalled under whatever name is
    found, and the server gets each request once. The costs are told once too.
    """
    run.model = openai(run.server.url("d30"))
    run.submit(3)
    run.server.reset_stats()
    with running(inferd(run.work)) as process:
        until(lambda: len(run.journalled()) >= 20, "some answers are journalled")
        process.kill()
    run.model = openai(run.server.url())
    known = len(run.journalled())
    assert 20 <= known < 2 * SIZE
    assert run.asked(16) == 2 * SIZE - known
    assert run.whole()
    statuses = [read(run.work.infer_status("m", stem), InferStatus) for stem in run.stems()]
    assert sum(status.attempts for status in statuses) == 2 * SIZE
    assert sum(status.reused for status in statuses) == known
    for shards in (1, 3):
        assert run.asked(shards) == 0
        assert run.whole()
    names = sorted(path.name for path in run.work.infer_status_of("m").iterdir())
    assert names == ["d_0.json", "d_1.json", "d_2.json"], "no status of another sharding is left"


def test_predictions_of_another_sharding_answer(run: Run) -> None:
    """Journals cleared away: 3 shards' predictions answer for 16, these for one; what isn't needed any more goes at the
    next start, and a request whose prompt changed is asked alone.
    """
    assert run.asked(3) == 2 * SIZE
    for shards in (16, 1):
        for path in run.work.predictions_folder("m").glob("tmp_*.jsonl"):
            if not path.name.endswith(".merged.jsonl"):
                path.unlink()
        assert run.asked(shards) == 0
        assert run.whole()
    assert run.work.all_merged("m")
    assert run.asked(1) == 0
    assert [path.name for path in run.work.predictions_folder("m").iterdir()] == ["d.jsonl"]
    run.items[3]["prompt"] = "anew ANSWER=3"
    assert run.asked(3) == 2
    assert run.whole()


@pytest.mark.parametrize("shards", [1, 4])
def test_the_error_rate_is_the_pairs(run: Run, shards: int) -> None:
    """Four of 40 docs fail, all in the first quarter: a tenth of the pair may, whatever share that is of a shard; and
    where fewer may, the pair fails in shards as well.
    """
    run.items = [behaving(n, "422detail") for n in range(4)] + tasks(SIZE - 4, first=4)
    run.infer = {"max_error_rate": 0.1}
    assert run.asked(shards) == 2 * SIZE
    assert {run.state(stem) for stem in run.stems()} == {"done"}
    run.infer = {"max_error_rate": 0.09}
    run.items = [behaving(0, "422detail"), *tasks(18, first=1), *[behaving(n, "422detail") for n in (19, 29, 39)]]
    run.items += tasks(SIZE - len(run.items), first=40)
    run.asked(shards, code=3)
    assert "fail" in {run.state(stem) for stem in run.stems()}
