"""Shards as they are planned, and what of an earlier sharding is put where."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.shards import Shelf, open_shard
from shared import claims, requests
from shared.clock import ManualClock
from shared.config import DatasetConfig, ModelConfig, Suite
from shared.errors import SuiteError
from shared.journal import read_rows
from shared.layout import WorkDir
from shared.plan import make_plan, read_planned_ids, read_planned_tasks
from shared.records import Attempt, Generation, InferStatus, Plan, PlanPair, Prediction, encode_record
from shared.regroup import regroup
from shared.requests import Request
from shared.sharding import MAX_SHARDS
from shared.status import write_record

MODEL = ModelConfig(abbr="m", type="rule")


def dataset(folder: Path, docs: int, abbr: str = "d", choices: Sequence[int] = (), **more: Any) -> DatasetConfig:
    """choices: how many each doc has; it is asked by likelihood then."""
    rows: list[dict[str, Any]] = [{"task_id": f"t{n}", "prompt": f"q {n}"} for n in range(docs)]
    for number, row in enumerate(rows):
        if choices:
            many = choices[number % len(choices)]
            row |= {"request_type": "multiple_choice", "choices": [f"c{n}" for n in range(many)], "gold": [0]}
        else:
            row["targets"] = [str(number)]
    path = folder / f"{abbr}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DatasetConfig(abbr=abbr, path=str(path), **more)


def planned(work: WorkDir, *datasets: DatasetConfig) -> Plan:
    suite = Suite(base_dir=str(work.root.parent), models=(MODEL,), datasets=datasets)
    return make_plan(work, suite, repr(datasets).encode(), ManualClock())


def refused(work: WorkDir, *datasets: DatasetConfig) -> list[str]:
    with pytest.raises(SuiteError) as caught:
        planned(work, *datasets)
    return [str(problem) for problem in caught.value.problems]


@settings(max_examples=40)
@given(
    docs=st.integers(1, 30),
    by=st.tuples(st.sampled_from(["num_shards", "max_shard_size"]), st.integers(1, 40)),
    repeats=st.integers(1, 3),
    choices=st.lists(st.integers(2, 5), max_size=4),
)
def test_each_doc_is_in_one_shard(docs: int, by: tuple[str, int], repeats: int, choices: list[int]) -> None:
    """In the order of the docs, none empty, no more than docs; each shard's requests are those it will ask, though docs
    differ in how many they need.
    """
    with tempfile.TemporaryDirectory() as folder:
        key, value = by
        cut: dict[str, Any] = {key: value}
        config = dataset(Path(folder), docs, choices=choices, repeats=repeats, **cut)
        work = WorkDir(Path(folder, "work"))
        plan = planned(work, config)
        (pair,) = plan.pairs
        count = min(value, docs) if key == "num_shards" else -(-docs // value)
        assert [shard.stem for shard in pair.shards] == (["d"] if count == 1 else [f"d_{n}" for n in range(count)])
        assert [n for shard in pair.shards for n in range(shard.first, shard.first + shard.docs)] == list(range(docs))
        sizes = [shard.docs for shard in pair.shards]
        assert min(sizes) > 0
        if key == "num_shards":
            assert max(sizes) - min(sizes) <= 1
        else:
            assert max(sizes) <= value
            assert set(sizes[:-1]) <= {value}
        shelf = Shelf(work, plan)
        for shard in pair.shards:
            asked = list(shelf.requests(pair, shard, MODEL))
            assert len(asked) == shard.requests
            assert {one.doc_id for one in asked} == set(range(shard.first, shard.first + shard.docs))
        assert sum(shard.requests for shard in pair.shards) == pair.requests == pair.instances * repeats


def test_the_digest_knows_the_cut_and_one_shard_is_none(tmp_path: Path) -> None:
    """What 3 shards left isn't taken for what 4 left. In one piece a pair is what it was before there were shards; so
    is one of which no more shards can be made than docs.
    """
    work = WorkDir(tmp_path / "work")
    digests = {
        number: planned(work, dataset(tmp_path, 9, num_shards=number)).pairs[0].digest
        for number in (None, 1, 2, 3, 9, 10)
    }
    assert digests[None] == digests[1]
    assert digests[9] == digests[10]
    assert len(set(digests.values())) == 4


def test_names_that_would_be_one_file(tmp_path: Path) -> None:
    """`gsm8k_0` beside a gsm8k in shards is refused with the remedy, in another case too, and nothing is written;
    beside one in one piece it is a dataset like any other.
    """
    work = WorkDir(tmp_path / "work")
    split = dataset(tmp_path, 4, "gsm8k", num_shards=2)
    remedy = "rename one, or change its num_shards or max_shard_size"
    for name in ("gsm8k_0", "gsm8k_1"):
        text = f"gsm8k and {name}: both would have a shard in files named {name}: {remedy}"
        assert refused(work, split, dataset(tmp_path, 1, name)) == [text]
        assert refused(work, split, dataset(tmp_path, 4, name, num_shards=2)) == [text]
    (text,) = refused(work, split, dataset(tmp_path, 1, "GSM8K_1"))
    assert remedy in text
    assert not list(tmp_path.glob("work/**/*.json*"))
    assert len(planned(work, split, dataset(tmp_path, 1, "gsm8k_2")).pairs) == 2
    whole = msgspec.structs.replace(split, num_shards=None)
    assert len(planned(work, whole, dataset(tmp_path, 1, "gsm8k_0")).pairs) == 2


def test_too_many_and_too_long(tmp_path: Path) -> None:
    """A shard is a claim and four files: there is an end to their number, and to the length of their names."""
    work = WorkDir(tmp_path / "work")
    docs = MAX_SHARDS * 2 + 1
    assert refused(work, dataset(tmp_path, docs, max_shard_size=2)) == [
        "d: 2001 docs would be 1001 shards: max_shard_size must be at least 3 for these docs"
    ]
    assert refused(work, dataset(tmp_path, docs, num_shards=docs)) == [
        "d: 2001 docs would be 2001 shards: num_shards must be at most 1000 shards"
    ]
    assert len(planned(work, dataset(tmp_path, docs, max_shard_size=3)).pairs[0].shards) == 667
    (text,) = refused(work, dataset(tmp_path, 20, "n" * 148, num_shards=11))
    assert text.endswith("151 are allowed: shorten it") or "its shards' names are too long" in text


def test_a_shards_tasks_are_read_alone(tmp_path: Path) -> None:
    """What stands before a shard is passed over unread: damage there is its own shard's."""
    work = WorkDir(tmp_path / "work")
    planned(work, dataset(tmp_path, 6))
    path = work.tasks("d")
    path.write_bytes(b"\n".join([b"damaged", *path.read_bytes().split(b"\n")[1:]]))
    assert list(read_planned_ids(work, "d", 2, 5)) == ["t2", "t3", "t4"]


# --- from one sharding to another -------------------------------------------------------------------------------------

CLAIMS = [f"{n:032x}" for n in range(20)]


def lines(work: WorkDir, pair: PlanPair, first: int, end: int) -> list[Attempt]:
    """An answer to each request of these docs."""
    identity = requests.identity(MODEL)
    found = []
    for doc_id, task in enumerate(read_planned_tasks(work, pair.dataset, first, end), first):
        (request,) = requests.requests_of(task, doc_id, MODEL, identity, 1)
        assert isinstance(request, Request)
        found.append(
            Attempt(
                key=request.key, doc_id=doc_id, attempt=1, outcome="ok", latency=0.1, ended_at="", cost=1.0,
                generation=Generation(text=task.task_id),
            )
        )  # fmt: skip
    return found


def journal(work: WorkDir, stem: str, claim: str, rows: Sequence[Attempt]) -> None:
    path = work.journal("m", stem, claim)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode_record(row) + b"\n" for row in rows))


def merged(work: WorkDir, stem: str, rows: Sequence[Attempt]) -> None:
    path = work.predictions("m", stem)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = [
        Prediction(
            task_id=f"t{row.doc_id}", key=row.key, doc_id=row.doc_id, outcome="ok", attempts=1, cost=row.cost,
            generation=row.generation,
        )
        for row in rows
    ]  # fmt: skip
    path.write_bytes(b"".join(encode_record(row) + b"\n" for row in found))


def left(work: WorkDir, plan: Plan) -> dict[str, int]:
    """How many requests each shard still has to ask; the costs that the shards find add up in `cost`."""
    shelf = Shelf(work, plan)
    found = {"cost": 0}
    for pair in plan.pairs:
        for shard in pair.shards:
            opened = open_shard(shelf, pair, shard, MODEL, lambda: None)
            with opened.claim:  # type: ignore[union-attr]
                found[shard.stem] = len(opened.feed.take(1000).requests)  # type: ignore[union-attr]
                found["cost"] += round(opened.index.tally.cost)  # type: ignore[union-attr]
    return found


@settings(max_examples=15)
@given(
    cuts=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    docs=st.integers(1, 10),
    gone=st.booleans(),
    lost=st.booleans(),
)
def test_answers_are_found_under_every_sharding(cuts: list[int], docs: int, gone: bool, lost: bool) -> None:
    """From any number of shards to any other: all that is journalled, or merged where journals are gone, is found, each
    by the one shard that needs it, and is paid for once in the sums; also where the plan between was lost.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = WorkDir(Path(folder, "work"))
        for number, cut in enumerate(cuts):
            plan = planned(work, dataset(Path(folder), docs, num_shards=cut))
            (pair,) = plan.pairs
            found = left(work, plan)
            if number == 0:
                assert sum(found.values()) == docs
                for shard in pair.shards:
                    rows = lines(work, pair, shard.first, shard.first + shard.docs)
                    if not gone:
                        journal(work, shard.stem, CLAIMS[0], rows)
                    merged(work, shard.stem, rows)
            else:
                assert found == {"cost": docs} | {shard.stem: 0 for shard in pair.shards}
            if lost:
                work.plan.unlink()


def test_only_what_can_hold_others_docs_is_moved(tmp_path: Path) -> None:
    """A dataset that grows behind full shards leaves those as they are, statuses too; the last one, which may have held
    more once, is put where all look.
    """
    work = WorkDir(tmp_path / "work")
    plan = planned(work, dataset(tmp_path, 5, max_shard_size=2))
    (pair,) = plan.pairs
    for shard in pair.shards:
        rows = lines(work, pair, shard.first, shard.first + shard.docs)
        journal(work, shard.stem, CLAIMS[0], rows)
        merged(work, shard.stem, rows)
        status = InferStatus(model="m", dataset="d", stem=shard.stem, state="done", plan_digest="p", total=1)
        write_record(work.infer_status("m", shard.stem), status)
    plan = planned(work, dataset(tmp_path, 7, max_shard_size=2))
    journals = [f"tmp_{stem}.{CLAIMS[0]}.jsonl" for stem in ("d", "d_0", "d_1")]
    names = {path.name for path in work.predictions_folder("m").iterdir() if "merged" not in path.name}
    assert names == {"d_0.jsonl", "d_1.jsonl", *journals}
    assert len(work.all_merged("m")["d"]) == 1
    assert sorted(path.stem for path in work.infer_status_of("m").iterdir()) == ["d_0", "d_1"]
    assert left(work, plan) == {"cost": 5, "d_0": 0, "d_1": 0, "d_2": 1, "d_3": 1}


def test_killed_before_the_plan_is_written(tmp_path: Path) -> None:
    """What was moved already is found under the old plan too, and under the new one when that is made again; a copy of
    a journal, of the same claim, replaces nothing.
    """
    work = WorkDir(tmp_path / "work")
    old = planned(work, dataset(tmp_path, 6, num_shards=3))
    for shard in old.pairs[0].shards:
        journal(work, shard.stem, CLAIMS[0], lines(work, old.pairs[0], shard.first, shard.first + shard.docs))
    elsewhere = WorkDir(tmp_path / "elsewhere")
    new = planned(elsewhere, dataset(tmp_path, 6, num_shards=4))
    regroup(work, old, new)
    assert len(work.journals("m", "d")) == 3
    assert left(work, old) == {"cost": 6, "d_0": 0, "d_1": 0, "d_2": 0}
    again = planned(work, dataset(tmp_path, 6, num_shards=4))
    assert left(work, again) == {"cost": 6, "d_0": 0, "d_1": 0, "d_2": 0, "d_3": 0}


def test_a_dataset_of_such_a_name_is_left_alone(tmp_path: Path) -> None:
    """`d_7` is a dataset here, not a shard of d: its files stay, however d is cut."""
    work = WorkDir(tmp_path / "work")
    other = dataset(tmp_path, 2, "d_7")
    plan = planned(work, dataset(tmp_path, 4), other)
    pair = next(pair for pair in plan.pairs if pair.dataset == "d_7")
    journal(work, "d_7", CLAIMS[0], lines(work, pair, 0, 2))
    for cut in (2, 4, 3, 1):
        plan = planned(work, dataset(tmp_path, 4, num_shards=cut), other)
        assert work.journals("m", "d_7") == [work.journal("m", "d_7", CLAIMS[0])]
        assert left(work, plan)["d_7"] == 0


@pytest.mark.parametrize("by", [journal, merged])
def test_a_pair_that_comes_back_finds_its_answers(tmp_path: Path, by: Any) -> None:
    """Left out for a while (`--datasets`), in shards of which one is called as another dataset is, and the other
    way round: neither takes the other's answers for its own.
    """
    work = WorkDir(tmp_path / "work")
    names = {journal: (CLAIMS[0],), merged: ()}[by]
    cut, whole = dataset(tmp_path, 6, num_shards=3), dataset(tmp_path, 6)
    namesake = dataset(tmp_path, 4, "d_0", repeats=1)
    (pair,) = planned(work, cut).pairs
    for shard in pair.shards:
        by(work, shard.stem, *names, lines(work, pair, shard.first, shard.first + shard.docs))
    planned(work, dataset(tmp_path, 1, "e"))
    (other,) = planned(work, namesake).pairs
    claim = {journal: (CLAIMS[1],), merged: ()}[by]
    by(work, "d_0", *claim, lines(work, other, 0, 4))
    assert left(work, planned(work, msgspec.structs.replace(namesake, num_shards=2), whole))["d"] == 0
    for once in (namesake, dataset(tmp_path, 1, "e"), whole, dataset(tmp_path, 6, limit=3)):
        planned(work, once)
    assert left(work, planned(work, namesake, whole)) == {"cost": 10, "d": 0, "d_0": 0}


def test_what_is_claimed_is_left_alone(tmp_path: Path) -> None:
    """Where the plan was lost while an inferd works: the journal that it writes keeps its name."""
    work = WorkDir(tmp_path / "work")
    plan = planned(work, dataset(tmp_path, 4, num_shards=2))
    (pair,) = plan.pairs
    for stem in ("d_0", "d_1"):
        journal(work, stem, CLAIMS[0], lines(work, pair, 0, 1))
    claim = claims.take(work.shard_claim("m", "d_1"))
    assert claim is not None
    with claim:
        regroup(work, None, plan)
    assert work.journals("m", "d_0") == []
    assert len(work.journals("m", "d_1")) == len(work.journals("m", "d")) == 1


def test_shards_read_no_more_than_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the cut stays, each journal is read by one shard, and once."""
    work = WorkDir(tmp_path / "work")
    plan = planned(work, dataset(tmp_path, 8, num_shards=4))
    (pair,) = plan.pairs
    for shard in pair.shards:
        journal(work, shard.stem, CLAIMS[0], lines(work, pair, shard.first, shard.first + shard.docs))
    read: list[str] = []

    def counted(path: Path, *rest: Any) -> Iterator[Any]:
        read.append(path.name)
        return read_rows(path, *rest)

    monkeypatch.setattr("shared.answers.read_rows", counted)
    planned(work, dataset(tmp_path, 8, num_shards=4))
    assert left(work, plan) == {"cost": 8} | {shard.stem: 0 for shard in pair.shards}
    assert sorted(read) == [f"tmp_d_{n}.{CLAIMS[0]}.jsonl" for n in range(4)]
