"""However often a merge is advanced and in whatever order the answers came, the predictions are the same."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.feed import Asked, Failure
from inferd.merge import Merge
from shared import atomic
from shared.answers import AnswerIndex, key64, order_of
from shared.errors import WorkDirError
from shared.layout import WorkDir
from shared.records import Attempt, Generation, PlanPair, PlanShard, Prediction, TaskSpec, encode_record

DOCS, REPEATS = 6, 2
PLACES = [(doc_id, repeat) for doc_id in range(DOCS) for repeat in range(REPEATS)]
SHARD = PlanShard(stem="d", first=0, docs=DOCS, requests=len(PLACES))
PAIR = PlanPair(model="m", dataset="d", docs=DOCS, instances=DOCS, requests=len(PLACES), digest="", shards=(SHARD,))


def key_of(place: tuple[int, int]) -> str:
    return hashlib.sha256(repr(place).encode()).hexdigest()


class Bench:
    """A shard whose journal the test writes line by line, telling the index as the dispatcher does."""

    def __init__(self, folder: Path, text: str = "") -> None:
        self.text = text
        self.work = WorkDir(folder)
        tasks = self.work.tasks("d")
        tasks.parent.mkdir(parents=True)
        specs = [TaskSpec(task_id=f"t{doc_id}", prompt="?", targets=("x",)) for doc_id in range(DOCS)]
        tasks.write_bytes(b"".join(encode_record(spec) + b"\n" for spec in specs))
        self.journal = self.work.journal("m", "d", "0a")
        self.journal.parent.mkdir(parents=True)
        self.asked = Asked(0, REPEATS)
        for place in PLACES:
            self.asked.add(order_of(place[0], 0, place[1]), key64(key_of(place)))
        self.index = AnswerIndex([])
        self.failures: dict[tuple[int, int, int], Failure] = {}

    def answer(self, place: tuple[int, int]) -> None:
        doc_id, repeat = place
        generation = Generation(text=f"{place} é\u2028{self.text}", served_model="s")
        line = encode_record(
            Attempt(
                key=key_of(place), doc_id=doc_id, repeat=repeat, attempt=2, outcome="ok", latency=0.5, ended_at="",
                endpoint="http://h/v1", cost=0.25, generation=generation,
            )
        )  # fmt: skip
        with self.journal.open("ab") as file:
            offset = file.tell()
            file.write(line + b"\n")
        order = order_of(doc_id, 0, repeat)
        self.index.add(self.journal, [(order, key64(key_of(place)), offset, len(line), "ok")])

    def fail(self, place: tuple[int, int]) -> None:
        self.failures[(place[0], 0, place[1])] = Failure(key_of(place), "timeout", "late", 3, 1.5)

    def merge(self) -> Merge:
        return Merge(self.work, PAIR, SHARD, self.asked, self.index)

    @property
    def rows(self) -> list[Prediction]:
        lines = self.work.predictions("m", "d").read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line, type=Prediction) for line in lines]

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.journal.parent.iterdir()} - {self.journal.name}


@settings(max_examples=40)
@given(
    st.permutations(PLACES),
    st.sets(st.sampled_from(PLACES), max_size=4),
    st.sets(st.integers(0, len(PLACES)), max_size=5),
)
def test_the_same_in_whatever_steps(
    order: list[tuple[int, int]], failed: set[tuple[int, int]], advance_at: set[int]
) -> None:
    """One line a request in its order, each what the journal holds, or its failure."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        merge = bench.merge()
        for number, place in enumerate(order):
            if number in advance_at:
                merge.advance(bench.index.take_fresh(), bench.failures)
                assert bench.files == {name for name in bench.files if name.endswith(".new")}
            (bench.fail if place in failed else bench.answer)(place)
        digest = merge.finish(bench.index.take_fresh(), bench.failures)
        assert bench.files == {"d.jsonl"}
        assert digest == hashlib.sha256(bench.work.predictions("m", "d").read_bytes()).hexdigest()
        assert [(row.doc_id, row.repeat) for row in bench.rows] == PLACES
        for row in bench.rows:
            place = (row.doc_id, row.repeat)
            assert (row.task_id, row.key) == (f"t{row.doc_id}", key_of(place))
            if place in failed:
                assert (row.outcome, row.error, row.message, row.attempts) == ("error", "timeout", "late", 3)
            else:
                assert row.generation == Generation(text=f"{place} é\u2028", served_model="s")
                assert (row.attempts, row.latency, row.cost, row.endpoint) == (2, 0.5, 0.25, "http://h/v1")
        if not failed:  # what was merged answers for a journal that is gone; and merging it again changes nothing
            again = Merge(bench.work, PAIR, SHARD, bench.asked, AnswerIndex([], [bench.work.predictions("m", "d")]))
            assert again.finish(AnswerIndex([]).take_fresh(), {}) == digest


def test_nothing_is_seen_of_one_that_isnt_finished(tmp_path: Path) -> None:
    """A request without an end is told; abandoned, it leaves nothing behind."""
    bench = Bench(tmp_path)
    merge = bench.merge()
    for place in PLACES[:-1]:
        bench.answer(place)
    with pytest.raises(WorkDirError, match="doc 5 repeat 1 has no answer in the journal any more"):
        merge.finish(bench.index.take_fresh(), {})
    merge.abandon()
    assert bench.files == set()
    bench.answer(PLACES[-1])
    bench.merge().finish(bench.index.take_fresh(), {})
    assert len(bench.rows) == len(PLACES)


def test_a_journal_that_was_changed_is_noticed(tmp_path: Path) -> None:
    """A line that isn't where and what it was told to be gives no prediction."""
    bench = Bench(tmp_path)
    for place in PLACES:
        bench.answer(place)
    content = bench.journal.read_bytes()
    bench.journal.write_bytes(content[len(content) // 2 :] + content[: len(content) // 2])
    with pytest.raises(WorkDirError, match="start inferd again"):
        bench.merge().finish(bench.index.take_fresh(), {})


def test_a_disk_that_refuses_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of a megabyte, so that a write fails while others are still to come: a new merge of the same index, which
    grew meanwhile, is whole.
    """
    bench = Bench(tmp_path, text="x" * 1_000_000)
    for place in PLACES[:-1]:
        bench.answer(place)
    merge = bench.merge()
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write_all", refusing)
        with pytest.raises(OSError, match="No space left"):
            merge.advance(bench.index.take_fresh(), {})
    merge.abandon()
    assert bench.files == set()
    bench.answer(PLACES[-1])
    bench.merge().finish(bench.index.take_fresh(), {})
    assert [(row.doc_id, row.repeat) for row in bench.rows] == PLACES


def refusing(fd: int, data: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_task_that_was_renamed(tmp_path: Path) -> None:
    """What an earlier merge holds is taken under the name that the task has now."""
    bench = Bench(tmp_path)
    for place in PLACES:
        bench.answer(place)
    bench.merge().finish(bench.index.take_fresh(), {})
    tasks = bench.work.tasks("d")
    tasks.write_bytes(tasks.read_bytes().replace(b'"t3"', b'"renamed"'))
    index = AnswerIndex([], [bench.work.predictions("m", "d")])
    Merge(bench.work, PAIR, SHARD, bench.asked, index).finish(index.take_fresh(), {})
    assert [row.task_id for row in bench.rows if row.doc_id == 3] == ["renamed"] * REPEATS
    assert [row.task_id for row in bench.rows if row.doc_id == 4] == ["t4"] * REPEATS


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))), st.integers(0, 9), st.integers(1, 4))
def test_asked_gives_back_what_was_put(rows: list[tuple[int, int]], first: int, repeats: int) -> None:
    """Whether places follow each other or not, or only at the start."""
    usual = [(order_of(first + doc, 0, repeat), 7) for doc in range(3) for repeat in range(repeats)]
    for given_rows in (rows, usual, usual + rows):
        asked = Asked(first, repeats)
        for row in given_rows:
            asked.add(*row)
        assert list(asked) == given_rows
