"""Few-shot examples drawn for each task: by the seed and the task alone, and never the task itself."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.clock import ManualClock
from shared.config import DatasetConfig, FewShotDraw, FieldMapping, ModelConfig, Suite
from shared.errors import SuiteError
from shared.layout import WorkDir
from shared.plan import make_plan, read_planned_tasks
from shared.records import Example, Limit, Message, PlanDraw, SampleLimit, TaskSpec
from shared.suite import parse_suite
from shared.tasks import few_shot, read_tasks

QA = FieldMapping(prompt="q", target="a", task_id="id")


def rows(count: int, prefix: str = "t") -> list[dict[str, Any]]:
    return [{"id": f"{prefix}{n}", "q": f"{prefix} question {n}", "a": f"answer {n}"} for n in range(count)]


def native(given_rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"task_id": row["id"], "prompt": row["q"], "targets": [row["a"]]} for row in given_rows]


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def drawn(path: Path, draw: FewShotDraw, *, fields: FieldMapping | None = QA, **more: Any) -> dict[str, TaskSpec]:
    dataset = DatasetConfig(abbr="d", path=path.name, fields=fields, few_shot_draw=draw, **more)
    return {task.task_id: task for task in read_tasks(dataset, path)}


limits: st.SearchStrategy[Limit | None] = st.one_of(
    st.none(),
    st.integers(1, 12),
    st.sampled_from([0.1, 0.5, "3:6", "2:", ":4"]),
    st.builds(SampleLimit, sample=st.integers(1, 12), seed=st.integers(0, 5)),
)


@settings(max_examples=60)
@given(
    order=st.permutations(range(10)),
    pool_order=st.permutations(range(8)),
    limit=limits,
    num=st.integers(1, 6),
    seed=st.integers(0, 3),
    own=st.booleans(),
    plain=st.booleans(),
)
def test_a_prompt_is_the_same_in_every_part(
    order: list[int], pool_order: list[int], limit: Limit | None, num: int, seed: int, own: bool, plain: bool
) -> None:
    """Whatever the limit, the order of the tasks and that of the examples: a task's examples are those that it has in
    the whole; all differ from each other, and none is the task's own.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        form = (lambda lines: lines) if plain else native
        source = write(folder / "train.jsonl", form(rows(8, "p")))
        draw = FewShotDraw(num=num, seed=seed, source=None if own else str(source))
        fields = QA if plain else None
        whole = drawn(write(folder / "d.jsonl", form(rows(10))), draw, fields=fields)
        write(source, [form(rows(8, "p"))[n] for n in pool_order])
        part = drawn(write(folder / "d.jsonl", [form(rows(10))[n] for n in order]), draw, fields=fields, limit=limit)
        assert part
        for task_id, task in part.items():
            assert task.few_shot == whole[task_id].few_shot
            assert len({example.prompt for example in task.few_shot}) == num
            assert task.prompt not in {example.prompt for example in task.few_shot}
            expected = "t question" if own else "p question"
            assert all(example.prompt.startswith(expected) for example in task.few_shot)


def test_seeds_and_tasks_draw_differently(tmp_path: Path) -> None:
    """Another seed gives other examples, and tasks don't all get the same; every example is drawn for some."""
    path = write(tmp_path / "d.jsonl", rows(60))
    one, two = (drawn(path, FewShotDraw(num=3, seed=seed)) for seed in (1, 2))
    assert sum(one[name].few_shot != two[name].few_shot for name in one) > 50
    assert len({task.few_shot for task in one.values()}) > 50
    assert len({example for task in one.values() for example in task.few_shot}) > 50


def test_a_draw_is_pinned(tmp_path: Path) -> None:
    """What a seed draws is the same in each version: answers that were paid for are found again."""
    found = drawn(write(tmp_path / "d.jsonl", rows(9)), FewShotDraw(num=3, seed=1))
    assert [[int(example.prompt[-1]) for example in found[f"t{n}"].few_shot] for n in range(3)] == [
        [8, 1, 4],
        [5, 7, 4],
        [4, 5, 1],
    ]


def test_the_same_question_is_the_task_itself(tmp_path: Path) -> None:
    """Under another id, or in another file: no task is shown its own answer."""
    lines = [*rows(2), {"id": "copy", "q": "t question 0", "a": "answer 0"}]
    path = write(tmp_path / "d.jsonl", lines)
    with pytest.raises(SuiteError, match="expected 2 examples that ask something else, the source has 1"):
        drawn(path, FewShotDraw(num=2))
    source = write(tmp_path / "train.jsonl", lines)
    assert drawn(path, FewShotDraw(num=1, source=str(source)))["t0"].few_shot == (Example("t question 1", "answer 1"),)


def test_what_an_example_shows(tmp_path: Path) -> None:
    """The task's prompt and its first target; of choices the right one; of plain rows what templates say."""
    draw = FewShotDraw(num=1)
    path = write(tmp_path / "d.jsonl", rows(2))
    told = FewShotDraw(num=1, prompt="Q: {{ q }}", target="so {{ a }}")
    assert drawn(path, told)["t0"].few_shot == (Example("Q: t question 1", "so answer 1"),)
    shared = {"request_type": "multiple_choice", "choices": ["red", "green"], "gold": [1]}
    choices = write(tmp_path / "c.jsonl", [{"task_id": f"t{n}", "prompt": f"q{n}", **shared} for n in range(2)])
    assert drawn(choices, draw, fields=None)["t0"].few_shot == (Example("q1", "green"),)
    turns = (Message("system", "be brief"), Message("user", "{{ q }}"))
    fields = FieldMapping(target="a", task_id="id")
    assert drawn(path, draw, fields=fields, messages=turns)["t1"].few_shot == (Example("t question 0", "answer 0"),)


def test_own_examples_win(tmp_path: Path) -> None:
    """A task line that has some keeps them."""
    lines = native(rows(3))
    lines[1]["few_shot"] = [{"prompt": "mine", "target": "1"}]
    found = drawn(write(tmp_path / "d.jsonl", lines), FewShotDraw(num=1), fields=None)
    assert found["t1"].few_shot == (Example("mine", "1"),)
    assert len(found["t0"].few_shot) == 1


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a larger source so many are kept, and which doesn't depend on their order."""
    monkeypatch.setattr(few_shot, "POOL", 5)
    path = write(tmp_path / "d.jsonl", rows(4))
    source = write(tmp_path / "train.jsonl", rows(30, "p"))
    draw = FewShotDraw(num=2, seed=3, source=str(source))
    found = drawn(path, draw)
    write(source, rows(30, "p")[::-1])
    assert drawn(path, draw) == found
    assert len({example for task in found.values() for example in task.few_shot}) <= 5


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("few_shot_draw = { num = 0 }", "few_shot_draw.num: expected an integer from 1 to 100, got 0"),
        ('few_shot_draw = { num = 1, source = "no.jsonl" }', "few_shot_draw.source: no such file"),
        ('few_shot_draw = { num = 1, target = "{{ a" }', "few_shot_draw.target: isn't a valid template"),
        (
            'few_shot_draw = { num = 1 }\nfew_shot = [{ prompt = "p", target = "t" }]',
            "few_shot_draw: expected one of few_shot and few_shot_draw, got both",
        ),
    ],
)
def test_what_is_no_draw_is_refused(tmp_path: Path, lines: str, problem: str) -> None:
    """With its place."""
    write(tmp_path / "d.jsonl", rows(1))
    text = '[[models]]\nabbr = "m"\ntype = "rule"\n[[datasets]]\nabbr = "d"\npath = "d.jsonl"\n'
    with pytest.raises(SuiteError) as caught:
        parse_suite(f'{text}fields = {{ prompt = "q", target = "a" }}\n{lines}\n', "s", tmp_path)
    assert [str(one).startswith(f"datasets[0].{problem}") for one in caught.value.problems] == [True]


def test_a_bad_source_is_told_with_its_line(tmp_path: Path) -> None:
    """And no task is made without its examples."""
    path = write(tmp_path / "d.jsonl", rows(2))
    source = write(tmp_path / "train.jsonl", [*rows(3), {"id": "x", "q": "?"}])
    with pytest.raises(SuiteError, match=r"train\.jsonl:4: .*no field"):
        drawn(path, FewShotDraw(num=1, source=str(source)))


def test_draws_are_frozen_and_recorded(tmp_path: Path) -> None:
    """In tasks/<dataset>.jsonl, with seed, source and size of the pool in the plan; a source that changes later changes
    nothing that was planned.
    """
    path = write(tmp_path / "d.jsonl", rows(3))
    source = write(tmp_path / "train.jsonl", rows(7, "p"))
    draw = FewShotDraw(num=2, seed=5, source=str(source))
    dataset = DatasetConfig(abbr="d", path=str(path), fields=QA, few_shot_draw=draw, num_shards=3)
    work = WorkDir(tmp_path / "work")
    suite = Suite(base_dir=str(tmp_path), models=(ModelConfig(abbr="m", type="rule"),), datasets=(dataset,))
    (planned,) = make_plan(work, suite, b"", ManualClock()).datasets
    assert planned.few_shot_draw == PlanDraw(num=2, seed=5, source=str(source), pool=7)
    expected = drawn(path, draw)
    source.unlink()
    assert {task.task_id: task for task in read_planned_tasks(work, "d")} == expected
