"""What `evalctl validate` says before anything is asked: the counts are those of the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evalctl.estimate import ANSWER_TOKENS, estimate
from shared.clock import ManualClock
from shared.config import DatasetConfig, ModelConfig, Price, Suite
from shared.errors import SuiteError
from shared.layout import WorkDir
from shared.plan import make_plan
from shared.records import GenerationSettings


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def row(number: int, prompt: str = "abcd", **more: Any) -> dict[str, Any]:
    return {"task_id": f"t{number}", "prompt": prompt, "targets": ["1"], **more}


def suite_of(tmp_path: Path, models: list[ModelConfig], **repeats: int) -> Suite:
    datasets = [
        DatasetConfig(abbr=name, path=write(tmp_path / f"{name}.jsonl", *map(row, range(size))), repeats=size)
        for name, size in repeats.items()
    ]
    return Suite(base_dir=str(tmp_path), models=tuple(models), datasets=tuple(datasets))


def test_the_counts_are_the_plans(tmp_path: Path) -> None:
    """Docs, instances and requests over all pairs, by the same reading of the same files."""
    suite = suite_of(tmp_path, [ModelConfig(abbr="a", type="rule"), ModelConfig(abbr="b", type="rule")], x=2, y=3)
    told = estimate(suite)
    made = make_plan(WorkDir(tmp_path / "work"), suite, b"", ManualClock())
    assert (told.models, told.datasets, told.pairs) == (2, 2, len(made.pairs))
    assert told.docs == sum(pair.docs for pair in made.pairs) == 10
    assert told.instances == sum(pair.instances for pair in made.pairs) == 10
    assert told.requests == sum(pair.requests for pair in made.pairs) == 2 * (2 * 2 + 3 * 3)
    assert told.per_dataset == {"x": 2, "y": 3}


def test_tokens_and_dollars(tmp_path: Path) -> None:
    """Four ASCII characters a token, few-shot turns counted; max_tokens where one is told, else an assumption; each
    model at its own price, times the repeats.
    """
    path = write(
        tmp_path / "d.jsonl",
        row(0, "x" * 400, generation={"max_tokens": 100}),
        row(1, "y" * 360, few_shot=[{"prompt": "p" * 20, "target": "t" * 20}]),
    )
    models = (
        ModelConfig(abbr="a", type="rule", price=Price(input=1.0, output=2.0)),
        ModelConfig(abbr="b", type="rule", generation=GenerationSettings(max_tokens=7)),
    )
    suite = Suite(base_dir=str(tmp_path), models=models, datasets=(DatasetConfig(abbr="d", path=path, repeats=3),))
    told = estimate(suite)
    assert told.prompt_tokens == 2 * 3 * 200
    first, second = 3 * (100 + ANSWER_TOKENS), 3 * (100 + 7)
    assert told.completion_tokens == first + second
    assert told.cost == pytest.approx((600 * 1.0 + first * 2.0) / 1e6)


def test_other_scripts_have_more_tokens(tmp_path: Path) -> None:
    """A Chinese character is about a token, not a quarter of one."""
    models = (ModelConfig(abbr="a", type="rule"),)
    counts = []
    for text in ("a" * 100, "字" * 100):
        path = write(tmp_path / "d.jsonl", row(0, text))
        suite = Suite(base_dir=str(tmp_path), models=models, datasets=(DatasetConfig(abbr="d", path=path),))
        counts.append(estimate(suite).prompt_tokens)
    assert counts == [25, 80]


def test_the_lines_for_people(tmp_path: Path) -> None:
    """All counts, and whether there is a price."""
    free = list(estimate(suite_of(tmp_path, [ModelConfig(abbr="a", type="rule")], x=2)).lines())
    assert free[:2] == ["1 models x 1 datasets = 1 pairs", "docs 2, instances 2, requests 4"]
    assert free[2].endswith("no price given")
    assert free[3] == "  x: 2 docs"
    priced = ModelConfig(abbr="a", type="rule", price=Price(output=1000.0))
    assert list(estimate(suite_of(tmp_path, [priced], x=2)).lines())[2].endswith("up to about 1.02 USD")


def test_the_problems_of_all_files_at_once(tmp_path: Path) -> None:
    """Not only of the first one."""
    suite = suite_of(tmp_path, [ModelConfig(abbr="a", type="rule")], x=1, y=1, z=1)
    (tmp_path / "x.jsonl").write_text("{}\n")
    (tmp_path / "z.jsonl").write_text("")
    with pytest.raises(SuiteError) as caught:
        estimate(suite)
    places = " ".join(problem.place for problem in caught.value.problems)
    assert "x.jsonl" in places
    assert "z.jsonl" in places
    assert "y.jsonl" not in places


def test_a_model_that_cannot_be_asked_so(tmp_path: Path) -> None:
    """Is told here too, not only when the suite is submitted; and only where it meets such a dataset."""
    chat = ModelConfig(abbr="chat", base_url="http://127.0.0.1:9/v1")
    sure = write(tmp_path / "sure.jsonl", row(0, request_type="loglikelihood"))
    suite = suite_of(tmp_path, [chat, ModelConfig(abbr="rule", type="rule")], free=1)
    suite = replace(suite, datasets=(*suite.datasets, DatasetConfig(abbr="sure", path=sure)))
    with pytest.raises(SuiteError) as caught:
        estimate(suite)
    assert [problem.place for problem in caught.value.problems] == ["chat x sure"]
    assert estimate(replace(suite, models=suite.models[1:])).requests == 2
