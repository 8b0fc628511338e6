"""The plan: exact, the same each time, and changed exactly by what changes what is asked."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.shards import Shelf
from shared import requests
from shared.clock import ManualClock
from shared.config import DatasetConfig, ModelConfig, Suite
from shared.errors import SuiteError, WorkDirError
from shared.layout import WorkDir
from shared.plan import make_plan, read_plan, read_planned_tasks, suite_digest, tasks_digest
from shared.records import GenerationSettings, Plan
from shared.requests import requests_of

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12).map(lambda text: f"q {text}")
datasets = st.lists(st.tuples(st.lists(texts, min_size=1, max_size=5), st.integers(1, 3)), min_size=1, max_size=3)


def rows(prompts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"task_id": f"t{n}", "prompt": prompt, "targets": [str(n)]} for n, prompt in enumerate(prompts)]


def suite_of(
    folder: Path, given_datasets: Sequence[tuple[Sequence[str], int]], models: Sequence[ModelConfig] = ()
) -> Suite:
    """A suite whose datasets d0, d1 ... hold these prompts with these repeats."""
    made = []
    for number, (prompts, repeats) in enumerate(given_datasets):
        path = folder / f"d{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(prompts)))
        made.append(DatasetConfig(abbr=f"d{number}", path=str(path), repeats=repeats))
    return Suite(
        base_dir=str(folder), models=tuple(models) or (ModelConfig(abbr="m", type="rule"),), datasets=tuple(made)
    )


def plan(work: WorkDir, suite: Suite, clock: ManualClock | None = None) -> Plan:
    return make_plan(work, suite, b"text", clock or ManualClock())


def content(work: WorkDir) -> dict[str, bytes]:
    """Every file of the work_dir."""
    return {str(path.relative_to(work.root)): path.read_bytes() for path in work.root.rglob("*") if path.is_file()}


@settings(max_examples=30)
@given(datasets, st.integers(1, 3))
def test_counts_are_exact(given_datasets: list[tuple[list[str], int]], models: int) -> None:
    """Every pair once, in the suite's order; docs and requests as many as there are, shard by shard; the tasks file
    holds the tasks in order, and its digest is the plan's.
    """
    with tempfile.TemporaryDirectory() as folder:
        configs = [ModelConfig(abbr=f"m{number}", type="rule") for number in range(models)]
        suite = suite_of(Path(folder), given_datasets, configs)
        work = WorkDir(Path(folder, "work"))
        made = plan(work, suite)
        assert read_plan(work) == made
        assert made.suite_digest == suite_digest(b"text", suite)
        assert [(pair.model, pair.dataset) for pair in made.pairs] == [
            (model.abbr, dataset.abbr) for model in suite.models for dataset in suite.datasets
        ]
        shelf = Shelf(work, made)
        for pair in made.pairs:
            prompts, repeats = given_datasets[int(pair.dataset[1:])]
            assert (pair.docs, pair.instances, pair.requests) == (len(prompts), len(prompts), len(prompts) * repeats)
            assert sum(shard.requests for shard in pair.shards) == pair.requests
            model = configs[int(pair.model[1:])]
            asked = [request for shard in pair.shards for request in shelf.requests(pair, shard, model)]
            assert [(request.doc_id, request.idx, request.repeat) for request in asked] == [
                (doc_id, 0, repeat) for doc_id in range(len(prompts)) for repeat in range(repeats)
            ]
            assert len({request.key for request in asked}) == pair.requests
        for dataset, (prompts, repeats) in zip(made.datasets, given_datasets, strict=True):
            tasks = list(read_planned_tasks(work, dataset.abbr))
            assert [(task.task_id, task.prompt) for task in tasks] == [(f"t{n}", p) for n, p in enumerate(prompts)]
            assert (dataset.docs, dataset.repeats) == (len(prompts), repeats)
            assert dataset.digest == tasks_digest(work.tasks(dataset.abbr))
            shelf.check(dataset.abbr)


@settings(max_examples=20)
@given(datasets)
def test_planning_again_changes_nothing(given_datasets: list[tuple[list[str], int]]) -> None:
    """Not a byte of any file, created_at included, whatever time it is."""
    with tempfile.TemporaryDirectory() as folder:
        suite = suite_of(Path(folder), given_datasets)
        work = WorkDir(Path(folder, "work"))
        clock = ManualClock()
        first = plan(work, suite, clock)
        before = content(work)
        clock.advance(1000)
        assert plan(work, suite, clock) == first
        assert content(work) == before
        assert sorted(before) == sorted(["plan.json", *(f"tasks/d{n}.jsonl" for n in range(len(given_datasets)))])


@settings(max_examples=40)
@given(datasets, st.data())
def test_digests_change_exactly_with_what_is_asked(
    given_datasets: list[tuple[list[str], int]], data: st.DataObject
) -> None:
    """One dataset changes: its digest and its pairs' do, no other's; changed back, all is as it was."""
    with tempfile.TemporaryDirectory() as folder:
        suite = suite_of(Path(folder), given_datasets)
        before = plan(WorkDir(Path(folder, "a")), suite)
        which = data.draw(st.integers(0, len(given_datasets) - 1))
        prompts, repeats = given_datasets[which]
        changed = list(given_datasets)
        only_repeats = data.draw(st.booleans())
        changed[which] = (prompts, repeats + 1) if only_repeats else ([*prompts[:-1], prompts[-1] + "x"], repeats)
        after = plan(WorkDir(Path(folder, "b")), suite_of(Path(folder), changed))
        for number, (old, new) in enumerate(zip(before.datasets, after.datasets, strict=True)):
            assert (old.digest == new.digest) == (number != which or only_repeats)
        for number, (one, two) in enumerate(zip(before.pairs, after.pairs, strict=True)):
            assert (one.digest == two.digest) == (number != which)
        back = plan(WorkDir(Path(folder, "a")), suite_of(Path(folder), given_datasets))
        assert back == before


BASE = ModelConfig(abbr="m", type="openai", base_url="http://h/v1", model="served")


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        ({"model": "other"}, True),
        ({"version": "2"}, True),
        ({"type": "local"}, True),
        ({"generation": GenerationSettings(temperature=0.5)}, True),
        ({"extra_body": {"a": 1}}, True),
        ({"max_tokens_field": "max_completion_tokens"}, True),
        ({"stream": True}, True),
        ({"base_url": "http://elsewhere/v1"}, False),
        ({"api_key_env": "KEY"}, False),
        ({"headers": {"x-a": "b"}}, False),
        ({"max_workers": 3}, False),
        ({"attempt_timeout": 9.0}, False),
    ],
    ids=str,
)
def test_the_pairs_digest_follows_the_model(change: dict[str, Any], matters: bool, tmp_path: Path) -> None:
    """What can change an answer changes it; where the server stands, who pays and how fast doesn't."""
    digests = {
        plan(WorkDir(tmp_path / "w"), suite_of(tmp_path, [(["q"], 1)], [model])).pairs[0].digest
        for model in (BASE, msgspec.structs.replace(BASE, **change))
    }
    assert (len(digests) == 2) == matters


def test_the_abbr_is_only_a_name(tmp_path: Path) -> None:
    """A model that is known to its server by another name may be called anything here."""
    one, two = BASE, msgspec.structs.replace(BASE, abbr="renamed")
    pairs = [plan(WorkDir(tmp_path / "w"), suite_of(tmp_path, [(["q"], 1)], [model])).pairs[0] for model in (one, two)]
    assert pairs[0].digest == pairs[1].digest
    assert pairs[0].model != pairs[1].model


def test_a_bad_dataset_leaves_all_as_it_was(tmp_path: Path) -> None:
    """Every problem of every file at once; plan and tasks files of the earlier suite stay to the byte."""
    work = WorkDir(tmp_path / "work")
    plan(work, suite_of(tmp_path, [(["a", "b"], 1), (["c"], 1)]))
    before = content(work)
    suite = suite_of(tmp_path, [(["new"], 1), (["x"], 1), (["y"], 1)])
    (tmp_path / "d1.jsonl").write_text('{"task_id": "a"}\n')
    (tmp_path / "d2.jsonl").write_text("not json\n")
    with pytest.raises(SuiteError) as caught:
        plan(work, suite)
    places = [problem.place for problem in caught.value.problems]
    assert any("d1.jsonl:1" in place for place in places)
    assert any("d2.jsonl:1" in place for place in places)
    assert content(work) == before


def test_names_that_would_share_a_file_are_refused(tmp_path: Path) -> None:
    """`D` and `d` are one file where case is ignored: said, and nothing written."""
    suite = suite_of(tmp_path, [(["a"], 1), (["b"], 1)])
    one, two = suite.datasets
    named = (msgspec.structs.replace(one, abbr="D"), msgspec.structs.replace(two, abbr="d"))
    work = WorkDir(tmp_path / "work")
    with pytest.raises(SuiteError, match="D and d: these names collide as file names"):
        plan(work, msgspec.structs.replace(suite, datasets=named))
    assert content(work) == {}


def test_more_repeats_than_fit_are_refused(tmp_path: Path) -> None:
    """The journal's index has 16 bits for a repeat."""
    with pytest.raises(SuiteError, match="65536 repeats"):
        plan(WorkDir(tmp_path / "work"), suite_of(tmp_path, [(["a"], 1 << 16)]))
    plan(WorkDir(tmp_path / "work"), suite_of(tmp_path, [(["a"], (1 << 16) - 1)]))


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema":9}', b"\x00" * 99])
def test_a_damaged_plan_is_replaced(tmp_path: Path, damage: bytes) -> None:
    """Reading it fails with the place; planning again mends it."""
    work = WorkDir(tmp_path / "work")
    suite = suite_of(tmp_path, [(["a"], 1)])
    made = plan(work, suite)
    work.plan.write_bytes(damage)
    with pytest.raises(WorkDirError, match=r"plan\.json"):
        read_plan(work)
    assert plan(work, suite) == made
    assert read_plan(work) == made


def test_no_plan_is_none(tmp_path: Path) -> None:
    """Nothing was planned yet."""
    assert read_plan(WorkDir(tmp_path)) is None


@pytest.mark.parametrize("kind", ["changed", "cut", "longer", "empty"])
def test_a_tampered_tasks_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Not the bytes that were planned: nothing is asked of it. Planning again mends it."""
    work = WorkDir(tmp_path / "work")
    suite = suite_of(tmp_path, [(["first", "second"], 1)])
    made = plan(work, suite)
    path = work.tasks("d0")
    sound = path.read_bytes()
    path.write_bytes(
        {"changed": sound.replace(b"first", b"fourth"), "cut": sound[:-5], "longer": sound + sound, "empty": b""}[kind]
    )
    with pytest.raises(WorkDirError, match="not the file that was planned: submit the suite again"):
        Shelf(work, made).check("d0")
    assert plan(work, suite) == made
    Shelf(work, made).check("d0")


def test_a_damaged_line_is_told_with_its_number(tmp_path: Path) -> None:
    """For readers that stream without the check."""
    work = WorkDir(tmp_path / "work")
    plan(work, suite_of(tmp_path, [(["first", "second", "third"], 1)]))
    path = work.tasks("d0")
    lines = path.read_bytes().split(b"\n")
    for damage in (b"\x00\x00", b"{}", b'{"task_id":"\xff","prompt":"p","targets":["1"]}', b"[" * 100_000):
        path.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
        with pytest.raises(WorkDirError, match=r"d0\.jsonl:2: damaged"):
            list(read_planned_tasks(work, "d0"))


def test_long_planning_ticks(tmp_path: Path) -> None:
    """So that a heartbeat can tell it from a hang."""
    ticks: list[None] = []
    work = WorkDir(tmp_path / "work")
    suite = suite_of(tmp_path, [(["x" * 300_000] * 10, 1)])
    make_plan(work, suite, b"", ManualClock(), tick=lambda: ticks.append(None))
    assert len(ticks) >= 2


def test_keys_are_those_of_the_planned_tasks(tmp_path: Path) -> None:
    """What inferd computes from the tasks file is what the suite's own tasks give: nothing is lost on the way."""
    work = WorkDir(tmp_path / "work")
    suite = suite_of(tmp_path, [(["é\u2028", "b"], 2)], [BASE])
    made = plan(work, suite)
    identity = requests.identity(BASE)
    (pair,) = made.pairs
    from_disk = [request.key for request in Shelf(work, made).requests(pair, pair.shards[0], BASE)]
    direct = [
        request.key
        for doc_id, task in enumerate(read_planned_tasks(work, "d0"))
        for request in requests_of(task, doc_id, BASE, identity, 2)
    ]
    assert from_disk == direct
