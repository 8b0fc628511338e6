"""Chats through both daemons: turn behind turn, killed in the middle, asked as text, and scored by turns."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from evald.results import PairResult
from inferd.adapters.openai import OpenAIAdapter
from shared.config import ModelConfig
from shared.layout import WorkDir
from shared.plan import read_plan, read_planned_tasks
from shared.records import ANSWERS, EvalRun
from shared.requests import Request, follow_up, identity, requests_of
from tests.daemons.runs import ended, submitted
from tests.harness import evald, infer_status, inferd, journal, openai, predictions, read, until
from tests.server import FakeServer, told_of

KILLS = 4
WORKERS = 6
CHATS = 40
TURNS = 4


def chat(number: int, turns: int = TURNS, **more: Any) -> dict[str, Any]:
    """A chat whose right answers the fake server finds in the questions."""
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {number} {turn} ANSWER={number}-{turn} now"})
        messages.append({"role": "assistant", "content": f"{number}-{turn}"})
    return {"task_id": f"t{number}", "messages": messages, "chat_mode": "every", **more}


def test_killed_in_the_middle_of_chats(tmp_path: Path) -> None:
    """Chats whose every answer is a digest of all that was said before: killed again and again, inferd asks nothing
    twice whose answer it had journalled, and each chat comes out whole.
    """
    rng = random.Random(20261201)
    log = tmp_path / "server.log"
    with FakeServer(log=log) as server:
        model = openai(server.url("d15/history"), max_workers=WORKERS)
        work = submitted(tmp_path, [model], {"d": [chat(number) for number in range(CHATS)]})
        before: dict[str, int] = {}  # how often each body was answered whose answer was journalled at the last kill
        for kill in range(1, KILLS + 1):
            process = inferd(work)
            wanted = kill * CHATS * TURNS // (KILLS + 1) + rng.randrange(-8, 9)
            until(lambda: len(journal(work)) >= wanted or not process.running, "inferd asks")  # noqa: B023
            process.kill_alone()
            process.kill()
            answered = Counter(log.read_text().split()[::2])
            assert not [body for body, count in before.items() if answered[body] > count]
            before = {body: answered[body] for body in _bodies(work, model)}
        begun = {(line.doc_id, line.idx) for line in journal(work)}
        assert any((doc, 0) in begun and (doc, TURNS - 1) not in begun for doc in range(CHATS)), "no chat was cut"
        ended(inferd(work), 0)
        answered = Counter(log.read_text().split()[::2])
        assert not [body for body, count in before.items() if answered[body] > count]
        status = infer_status(work)
        assert status is not None
        assert (status.state, status.completed, status.reused) == ("done", CHATS * TURNS, len(before))
    rows = predictions(work)
    assert [(row.doc_id, row.idx) for row in rows] == [(doc, turn) for doc in range(CHATS) for turn in range(TURNS)]
    for number in range(CHATS):
        said: list[dict[str, str]] = []
        for row in rows[number * TURNS : (number + 1) * TURNS]:
            said.append({"role": "user", "content": chat(number)["messages"][2 * row.idx]["content"]})
            assert row.generation is not None
            assert row.generation.text == told_of(said)
            said.append({"role": "assistant", "content": row.generation.text})
    assert set(Counter(line.key for line in journal(work) if line.outcome in ANSWERS).values()) == {1}


def _bodies(work: WorkDir, model: dict[str, Any]) -> set[str]:
    """SHA-256 of the body of each request whose answer is in the journal, made anew from the journal."""
    config = ModelConfig(**model)
    adapter = OpenAIAdapter(config, timeout=1.0, secret=lambda name: None)
    said = {(line.doc_id, line.idx): line.generation for line in journal(work)}
    found = set()
    for doc_id, task in enumerate(read_planned_tasks(work, "d")):
        request = next(requests_of(task, doc_id, config, identity(config), 1))
        assert isinstance(request, Request)
        while (generation := said.get((doc_id, request.idx))) is not None:
            found.add(hashlib.sha256(adapter.body(request.prompt)).hexdigest())
            if not request.later:
                break
            request = follow_up(request, generation, config, identity(config))
    return found


def test_every_mode_in_every_form(tmp_path: Path, server: FakeServer) -> None:
    """Three modes, asked as a chat, as plain text and as ChatML, whole and as a stream, by threads and by the engine:
    docs, instances and requests are counted apart, a doc's score is the mean over its scored turns, and one chat in
    which a turn is refused for good is missing: it isn't wrong.
    """
    broken, ended_early = chat(3, 2), chat(3, 2)
    broken["messages"][0]["content"] = ended_early["messages"][2]["content"] = "BEHAVE=400 question 3"
    half = chat(2, 2, turn_targets=[["2-0"], ["another"]])
    whole = [chat(0, 2), chat(1, 2, targets=["1-1"]), half]
    every, gold = [*whole, broken], [{**task, "chat_mode": "every_with_gt"} for task in [*whole, ended_early]]
    last = [{**chat(number, 2), "chat_mode": "last", "targets": [f"{number}-1"]} for number in range(2)]
    models = [
        openai(server.url(), "chat", system="be brief"),
        openai(server.url(), "text", prompt_format="text"),
        openai(server.url(), "chatml", prompt_format="chatml", stream=True, transport="engine"),
    ]
    for model in models:
        model["generation"] = {"logprobs": True} if model["abbr"] != "chat" else {}
    work = submitted(tmp_path, models, {"every": every, "gold": gold, "last": last}, infer={"max_error_rate": 0.5})
    ended(inferd(work), 0)
    ended(evald(work), 0)
    plan = read_plan(work)
    assert plan is not None
    assert {(pair.dataset, pair.docs, pair.instances, pair.requests) for pair in plan.pairs} == {
        ("every", 4, 8, 8),
        ("gold", 4, 8, 8),
        ("last", 2, 2, 2),
    }
    for abbr in ("chat", "text", "chatml"):
        for dataset, not_run in (("every", {"not_run": 1}), ("gold", {})):
            status = infer_status(work, abbr, dataset)
            assert status is not None
            assert (status.state, status.failed) == ("done", {"bad_request": 1} | not_run)
            result = read(work.result(abbr, dataset), PairResult)
            assert (result.n_docs, result.n_scored, result.n_missing, result.n_score_errors) == (4, 3, 1, 0)
            assert result.mean == (1.0 + 1.0 + 0.5) / 3
            assert result.outcomes == {"error": 1, "ok": 7 - len(not_run)} | not_run
            scores = work.scores(abbr, dataset).read_bytes().splitlines()
            runs = [msgspec.json.decode(line, type=EvalRun) for line in scores]
            assert [run.extracted for run in runs] == [("0-0", "0-1"), ("1-1",), ("2-0", "2-1"), ()]
            assert [run.score for run in runs] == [1.0, 1.0, 0.5, None]
            confident = predictions(work, abbr, dataset)[0].generation
            assert confident is not None
            assert confident.confidence == (None if abbr == "chat" else 0.5)
        result = read(work.result(abbr, "last"), PairResult)
        assert (result.n_docs, result.requests, result.mean) == (2, 2, 1.0)
