"""Chats through the dispatcher, in one process: turn behind turn, no barrier, resumed in the middle.

The adapter's answers are digests of all that it was sent, so an answer in the wrong chat or turn shows in each later
one.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.dispatcher import Dispatcher
from shared.errors import Permanent, Retryable
from shared.records import ANSWERS, Generation, Prediction, Prompt, TaskSpec
from shared.requests import NO_KEY
from tests.unit.test_dispatcher import CONFIG, Bench, Scripted, always

TURNS = 3
Turn = tuple[str, int, int]  # (task_id, turn, repeat)


def chat(text: str, mode: str = "every") -> dict[str, Any]:
    messages = []
    for turn in range(TURNS):
        messages += [{"role": "user", "content": f"{text} {turn}"}, {"role": "assistant", "content": f"gold {turn}"}]
    return {"messages": messages, "chat_mode": mode}


class Talker(Scripted):
    """Answers a digest of the chat so far. turns: the calls of each; heard: what each was sent."""

    def __init__(self, of_turn: Callable[[Turn, int], str] = lambda turn, number: "ok") -> None:
        super().__init__("m0", always("ok"))
        self.turns: Counter[Turn] = Counter()
        self.heard: dict[Turn, tuple[str, ...]] = {}
        self._of_turn = of_turn

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        spoken = tuple(turn.content for turn in prompt.messages)
        turn = (task.task_id, sum(turn.role == "user" for turn in prompt.messages) - 1, prompt.repeat)
        with self._lock:
            self.turns[turn] += 1
            self.heard[turn] = spoken
            number = self.turns[turn]
        match self._of_turn(turn, number):
            case "later":
                raise Retryable("server_error", "500", status=500)
            case "never":
                raise Permanent("bad_request", "400", status=400)
        return Generation(text=answer(spoken, prompt.repeat), finish_reason="stop")


def answer(spoken: tuple[str, ...], repeat: int) -> str:
    return hashlib.sha256(repr((spoken, repeat)).encode()).hexdigest()[:8]


def conversation(text: str, repeat: int) -> list[str]:
    """What the answers of a chat must be."""
    spoken: tuple[str, ...] = ()
    found = []
    for turn in range(TURNS):
        spoken += (f"{text} {turn}",)
        found.append(answer(spoken, repeat))
        spoken += (found[-1],)
    return found


@contextmanager
def bench(docs: int, repeats: int = 1, mode: str = "every") -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        yield Bench(Path(folder), {"a": (docs, repeats)}, question=lambda text: chat(text, mode))


def said(rows: list[Prediction]) -> dict[tuple[int, int], list[str | None]]:
    found: dict[tuple[int, int], list[str | None]] = {}
    for row in sorted(rows, key=lambda row: (row.doc_id, row.repeat, row.idx)):
        found.setdefault((row.doc_id, row.repeat), []).append(row.generation.text if row.generation else None)
    return found


def whole(docs: int, repeats: int) -> dict[tuple[int, int], list[str]]:
    return {(doc, repeat): conversation(f"a {doc}", repeat) for doc in range(docs) for repeat in range(repeats)}


@settings(max_examples=15)
@given(st.integers(1, 6), st.integers(1, 2), st.integers(1, 3), st.data())
def test_stopped_in_the_middle_of_chats(docs: int, repeats: int, workers: int, data: st.DataObject) -> None:
    """However often and wherever it is stopped: no turn is asked twice, each was asked behind the answers that were
    kept, and the predictions hold every chat whole, in order.
    """
    total = docs * repeats * TURNS
    with bench(docs, repeats) as made:
        asked: Counter[Turn] = Counter()
        for after in sorted(data.draw(st.lists(st.integers(0, total), max_size=3))):
            talker = Talker()

            def stop(dispatcher: Dispatcher, talker: Talker = talker, after: int = after - asked.total()) -> None:
                opening = any(lane.opening for lane in dispatcher.lanes)
                if talker.turns.total() >= after and not dispatcher.draining and not opening:
                    dispatcher.stop("SIGTERM", 10.0)

            made.dispatch([talker], workers=workers, each_step=stop)
            asked += talker.turns
        rest = Talker()
        assert made.dispatch([rest], workers=workers).done == 1
        asked += rest.turns
        assert set(asked.values()) == {1}
        assert asked.total() == total
        rows = made.predictions("a")
        assert said(rows) == whole(docs, repeats)
        assert [(row.doc_id, row.idx, row.repeat) for row in rows] == sorted(
            (doc, idx, repeat) for doc in range(docs) for idx in range(TURNS) for repeat in range(repeats)
        )
        assert made.status("a").completed == total


def test_gold_turns_are_sent_and_wait_for_nothing() -> None:
    """every_with_gt: each turn behind the gold answers, all turns at once."""
    with bench(2, mode="every_with_gt") as made:
        talker = Talker()
        assert made.dispatch([talker]).done == 1
        assert talker.heard["a-1", 2, 0] == ("a 1 0", "gold 0", "a 1 1", "gold 1", "a 1 2")
        assert set(talker.turns.values()) == {1}
        assert len(made.predictions("a")) == 6


def test_no_barrier_between_chats() -> None:
    """While one chat's first turn is stuck, all others come to their end."""
    stuck, others = threading.Event(), []

    def script(turn: Turn, number: int) -> str:
        if turn == ("a-0", 0, 0):
            assert stuck.wait(30)
        elif turn[1] == TURNS - 1:
            others.append(turn)
            if len(others) == 4:
                stuck.set()
        return "ok"

    with bench(5) as made:
        assert made.dispatch([Talker(script)]).done == 1
        assert said(made.predictions("a")) == whole(5, 1)


@pytest.mark.parametrize("allowed", [0.0, 0.5])
def test_turns_behind_an_error_are_not_run(allowed: float) -> None:
    """Turn 1 of one chat is refused for good: the turns behind it are recorded as not run, with the reason, and are
    never sent; all others end. The pair is done where so much may fail; a later run asks just what is missing.
    """
    config = msgspec.structs.replace(CONFIG, max_error_rate=allowed)
    with bench(4) as made:
        talker = Talker(lambda turn, number: "never" if turn[:2] == ("a-2", 1) else "ok")
        made.dispatch([talker], config=config)
        status = made.status("a")
        assert status.state == ("done" if allowed else "fail")
        assert (status.total, status.completed) == (12, 12)
        assert (status.outcomes, status.failed) == ({"ok": 10}, {"bad_request": 1, "not_run": 1})
        assert talker.turns["a-2", 2, 0] == 0
        if not allowed:
            assert "2/12 requests failed (bad_request 1, not_run 1)" in status.reason
            again = Talker()
            assert made.dispatch([again], config=config).done == 1
            assert set(again.turns) == {("a-2", 1, 0), ("a-2", 2, 0)}
            assert said(made.predictions("a")) == whole(4, 1)
            return
        rows = [row for row in made.predictions("a") if row.doc_id == 2]
        assert [row.outcome for row in rows] == ["ok", "error", "not_run"]
        assert (rows[2].key, rows[2].attempts) == (NO_KEY, 0)
        assert rows[2].message == "not asked: turn 1 before it has no answer"
        assert sum(row.outcome in ANSWERS for row in made.predictions("a")) == 10


def test_tried_again_turns_go_on() -> None:
    """Errors that pass delay a chat and change nothing of it."""
    with bench(3, 2) as made:
        talker = Talker(lambda turn, number: "later" if number == 1 else "ok")
        assert made.dispatch([talker]).done == 1
        assert set(talker.turns.values()) == {2}
        assert said(made.predictions("a")) == whole(3, 2)


def test_another_earlier_answer_asks_the_later_turns_again() -> None:
    """A journal whose first turn was answered otherwise: the turns behind it, whose keys hold that answer, are asked
    anew; the other chats aren't.
    """
    with bench(2) as made:
        made.dispatch([Talker()])
        made.work.predictions("m0", "a").unlink()
        (path,) = made.work.journals("m0", "a")
        old = conversation("a 0", 0)[0]
        path.write_bytes(path.read_bytes().replace(f'"text":"{old}"'.encode(), b'"text":"another"'))
        talker = Talker()
        assert made.dispatch([talker]).done == 1
        assert sorted(talker.turns) == [("a-0", 1, 0), ("a-0", 2, 0)]
        assert talker.heard["a-0", 1, 0] == ("a 0 0", "another", "a 0 1")
        assert said(made.predictions("a"))[1, 0] == conversation("a 1", 0)


def test_a_damaged_line_in_the_middle_costs_that_turn_alone() -> None:
    """Asked again, it gets the answer that it had: the turns behind it are journalled already."""
    with bench(2, 2) as made:
        made.dispatch([Talker()])
        made.work.predictions("m0", "a").unlink()
        (path,) = made.work.journals("m0", "a")
        lines = path.read_bytes().split(b"\n")
        hurt = next(at for at, line in enumerate(lines) if b'"doc_id":1,"idx":1,"repeat":1' in line)
        path.write_bytes(b"\n".join([*lines[:hurt], b"\0" * len(lines[hurt]), *lines[hurt + 1 :]]))
        talker = Talker()
        assert made.dispatch([talker]).done == 1
        assert dict(talker.turns) == {("a-1", 1, 1): 1}
        assert said(made.predictions("a")) == whole(2, 2)
        assert made.status("a").reused == 2 * 2 * TURNS - 1


def test_chats_are_found_in_the_predictions_alone() -> None:
    """Journals cleared away, status lost: the chain of each chat is found in the predictions, and nothing is asked."""
    with bench(2, 2) as made:
        made.dispatch([Talker()])
        before = made.work.predictions("m0", "a").read_bytes()
        for path in (*made.work.journals("m0", "a"), made.work.infer_status("m0", "a")):
            path.unlink()
        talker = Talker()
        assert made.dispatch([talker]).done == 1
        assert not talker.turns
        assert made.work.predictions("m0", "a").read_bytes() == before
        assert made.status("a").reused == 2 * 2 * TURNS
