"""Which models meet which datasets, and which part of a suite is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalctl.estimate import estimate
from evalctl.submit import check, submit
from evald.report.markdown import markdown
from evald.summary import read_report
from inferd.service import planned
from shared.clock import ManualClock
from shared.combinations import pairs_of, selected
from shared.config import CombinationConfig, DatasetConfig, ModelConfig, SelectConfig, Suite
from shared.errors import SuiteError
from shared.layout import WorkDir
from shared.log import configure
from shared.plan import read_plan
from shared.suite import parse_suite

SUITE = """
[[models]]
abbr = "qwen-1"
type = "rule"
tags = ["small", "chat"]
[[models]]
abbr = "qwen-2"
type = "rule"
tags = ["big", "chat"]
[[models]]
abbr = "llama"
type = "rule"
tags = ["big"]

[[datasets]]
abbr = "gsm8k"
path = "d.jsonl"
tags = ["math"]
[[datasets]]
abbr = "mgsm"
path = "d.jsonl"
tags = ["math", "languages"]
[[datasets]]
abbr = "mmlu"
path = "d.jsonl"
repeats = 3

[[groups]]
name = "math"
datasets = ["gsm8k", "mgsm"]
"""
MATH = '[[combinations]]\nmodels = ["qwen-*"]\ndatasets = ["tag:math"]\n'
LLAMA = '[[combinations]]\nmodels = ["llama"]\n'
ALL = [(model, dataset) for model in ("qwen-1", "qwen-2", "llama") for dataset in ("gsm8k", "mgsm", "mmlu")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "d.jsonl").write_text('{"task_id":"t","prompt":"p","targets":["1"]}\n')
    (tmp_path / "suite.toml").write_text(SUITE)
    return tmp_path


def pairs(folder: Path, more: str = "", select: SelectConfig | None = None) -> list[tuple[str, str]]:
    (folder / "suite.toml").write_text(SUITE + more)
    suite, _ = check(folder / "suite.toml", None, select or SelectConfig())
    return pairs_of(suite)


def refused(folder: Path, more: str = "", select: SelectConfig | None = None) -> list[str]:
    with pytest.raises(SuiteError) as caught:
        pairs(folder, more, select)
    return [str(problem) for problem in caught.value.problems]


def test_by_default_each_meets_each(folder: Path) -> None:
    """In the suite's order."""
    assert pairs(folder) == ALL


def test_combinations_say_who_meets_whom(folder: Path) -> None:
    """Globs of names and of tags; what several tables say adds up, and nothing comes twice."""
    expected = [pair for pair in ALL if pair[0] == "llama" or pair[1] != "mmlu"]
    assert pairs(folder, MATH + LLAMA) == expected
    assert pairs(folder, MATH + LLAMA + MATH) == expected


@pytest.mark.parametrize(
    ("more", "problems"),
    [
        (
            MATH + '[[combinations]]\nmodels = ["lama", "tag:bgi"]\ndatasets = ["tag:x"]\n',
            [
                'combinations[1].models[0]: matches none of the models; unknown "lama"; did you mean llama?',
                'combinations[1].models[1]: none of the models carries such a tag; unknown "bgi"; did you mean big?',
                "combinations[1].datasets[0]: none of the datasets carries such a tag; "
                'unknown "x"; known: languages, math',
            ],
        ),
        (MATH, ["models[2]: ", "datasets[2]: "]),
        ("[[combinations]]\nmodels = []\n", ["combinations[0].models: expected an array"]),
    ],
)
def test_what_matches_nothing_is_refused(folder: Path, more: str, problems: list[str]) -> None:
    """A glob, and a model or a dataset that would be in no pair, by name."""
    found = refused(folder, more)
    for problem in problems:
        assert any(one.startswith(problem) for one in found), (problem, found)
    if more == MATH:
        assert 'models[2]: "llama" is in no pair: name it in one of the combinations, or take it out' in found
        assert 'datasets[2]: "mmlu" is in no pair: name it in one of the combinations, or take it out' in found


SELECTIONS = [
    (SelectConfig(models=("qwen-*",)), lambda m, d: m != "llama"),
    (SelectConfig(datasets=("mmlu", "g*")), lambda m, d: d != "mgsm"),
    (SelectConfig(models=("tag:big",), datasets=("tag:math",)), lambda m, d: m != "qwen-1" and d != "mmlu"),
    (SelectConfig(tags=("math",)), lambda m, d: d != "mmlu"),
    (SelectConfig(tags=("big",)), lambda m, d: m != "qwen-1"),
    (SelectConfig(tags=("big", "lang*")), lambda m, d: m != "qwen-1" and d == "mgsm"),
    (SelectConfig(models=("llama",), tags=("math",)), lambda m, d: m == "llama" and d != "mmlu"),
]


@pytest.mark.parametrize(("select", "takes"), SELECTIONS, ids=[str(select) for select, _ in SELECTIONS])
def test_a_part_is_selected(folder: Path, select: SelectConfig, takes: object) -> None:
    """By names, by tags, of models, of datasets, of both; also of what combinations leave."""
    assert callable(takes)
    assert pairs(folder, select=select) == [pair for pair in ALL if takes(*pair)]
    left = [pair for pair in ALL if (pair[0] == "llama" or pair[1] != "mmlu") and takes(*pair)]
    if select.datasets != ("mmlu", "g*"):
        assert pairs(folder, MATH + LLAMA, select) == left


def test_what_is_chosen_and_meets_nothing_is_told(folder: Path) -> None:
    """Of what isn't chosen by name nothing is said: it isn't meant."""
    assert refused(folder, select=SelectConfig(models=("gpt*",), tags=("huge",))) == [
        'select.models[0]: matches none of the models; unknown "gpt*"; known: llama, qwen-1, qwen-2',
        'select.tags[0]: no model or dataset carries such a tag; unknown "huge"; '
        "known: big, chat, languages, math, small",
    ]
    only = SelectConfig(models=("qwen-1", "llama"), datasets=("mmlu",))
    assert refused(folder, MATH + LLAMA, only) == [
        'select.models: "qwen-1": chosen, but in no pair with what else is chosen'
    ]
    assert refused(folder, MATH + LLAMA, SelectConfig(models=("qwen-1",), datasets=("mmlu",))) == [
        "select: chooses no pair: what it takes of models and datasets meets nowhere"
    ]
    assert pairs(folder, MATH + LLAMA, SelectConfig(datasets=("mmlu",))) == [("llama", "mmlu")]
    assert refused(folder, "[select]\n", SelectConfig(tags=("math",))) == [
        "select: the suite has this table already: change it there"
    ]


def test_the_selection_is_frozen(folder: Path) -> None:
    """Into the work_dir's suite, so that an inferd that has to plan anew plans the same; groups that lack a dataset
    aren't part of it; without a selection all is planned again.
    """
    work = WorkDir(folder / "work")
    select = SelectConfig(models=("tag:chat",), datasets=("gsm8k", "mm*"))
    plan = submit(folder / "suite.toml", work, None, select)
    assert [(pair.model, pair.dataset) for pair in plan.pairs] == [pair for pair in ALL[:6] if pair[1] != "mgsm"]
    assert plan.groups == ()
    work.plan.unlink()
    log = configure("inferd", work.log("inferd", "here"), verbose=False)
    suite, again = planned(work, ManualClock(), lambda: None, log)
    assert again.pairs == plan.pairs
    assert [model.abbr for model in suite.models] == ["qwen-1", "qwen-2"]
    assert len(submit(folder / "suite.toml", work).pairs) == len(ALL)


def test_the_estimate_counts_the_pairs_that_are_asked(folder: Path) -> None:
    """And no others: of combinations, and of a selection."""
    (folder / "suite.toml").write_text(SUITE + MATH + LLAMA)
    told = estimate(check(folder / "suite.toml")[0])
    assert (told.models, told.datasets, told.pairs, told.docs, told.requests) == (3, 3, 7, 7, 2 + 2 + 2 + 3)
    assert next(told.lines()) == "some of 3 models x 3 datasets = 7 pairs"
    told = estimate(check(folder / "suite.toml", None, SelectConfig(datasets=("mmlu",)))[0])
    assert (told.models, told.datasets, told.pairs, told.docs, told.requests) == (1, 1, 1, 1, 3)


def test_models_that_meet_other_datasets_have_no_rank(folder: Path) -> None:
    """Their means are over other datasets: they are shown, and not held against those of the others."""
    (folder / "suite.toml").write_text(SUITE + MATH + LLAMA)
    work = WorkDir(folder / "work")
    submit(folder / "suite.toml", work)
    report = read_report(work)
    assert {one.model: one.not_met for one in report.leaderboard} == {"qwen-1": 1, "qwen-2": 1, "llama": 0}
    assert read_plan(work) is not None
    text = markdown(report)
    assert "qwen-1: no rank: by the plan it meets 2 of 3 datasets, and its mean is over those" in text
    assert "7 pairs scored" in text


names = st.text("ab*[]?", min_size=1, max_size=3)


@given(st.sets(names, min_size=1, max_size=4), st.data())
def test_a_name_matches_itself(known: set[str], data: st.DataObject) -> None:
    """Spelled out, whatever characters a pattern would take for its own; and what is left is in the suite's order."""
    ordered = sorted(known)
    models = tuple(ModelConfig(abbr=name, type="rule") for name in ordered)
    datasets = (DatasetConfig(abbr="d", path="d.jsonl"),)
    chosen = data.draw(st.lists(st.sampled_from(ordered), min_size=1, max_size=3))
    tables = tuple(CombinationConfig(models=(name,)) for name in chosen)
    found = [model for model, _ in pairs_of(Suite(models=models, datasets=datasets, combinations=tables))]
    assert set(chosen) <= set(found)
    assert found == [name for name in ordered if name in found]
    suite = selected(Suite(models=models, datasets=datasets, select=SelectConfig(models=tuple(chosen))))
    assert [model.abbr for model in suite.models] == found


def test_tags_are_checked(folder: Path) -> None:
    """An empty tag is none."""
    with pytest.raises(SuiteError, match=r"models\[0\]\.tags"):
        parse_suite(SUITE.replace('"small"', '""'), "s", folder)
