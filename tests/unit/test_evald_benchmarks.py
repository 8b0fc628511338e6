"""scripts/bench --evald: what it lays out is what evald scores. The figures themselves are no test's business."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NoReturn

import pytest

from evald.results import PairResult
from evald.sandbox.contract import SandboxUnavailable
from evald.score import ScoreJob, score_pair
from evald.watch import Watch
from scripts.benchmarks import evald, evald_child
from scripts.benchmarks.evald_work import CHARACTERS, answer, other, plan, same, status, text
from shared.layout import WorkDir
from tests.harness import read


def test_texts_are_as_long_as_promised() -> None:
    """Targets fill the 200 characters that the goals speak of, but for a space at the cut."""
    chance = random.Random(1)
    lengths = [len(text(chance)) for _ in range(200)]
    assert CHARACTERS - 1 <= min(lengths) <= max(lengths) == CHARACTERS


def test_a_pair_is_scored_whole(tmp_path: Path) -> None:
    """Every task of a laid-out pair gets a score; some answers are right and some not, so both ways are measured."""
    for metric, how in (("exact_match", same), ("rouge_l", other)):
        root = tmp_path / metric
        made = plan(root, ["m"], ["d"], 50, metric)
        digest = answer(root, made.pairs[0], how)
        score_pair(ScoreJob(str(root), made.pairs[0], made.datasets[0], (digest,), 10))
        result: PairResult = read(WorkDir(root).result("m", "d"), PairResult)
        assert result.n_scored == 50
        assert result.mean is not None
        assert 0.2 < result.mean < 0.9


def test_only_what_is_done_is_ready(tmp_path: Path) -> None:
    """Of the pairs laid out for the scan, those that are answered are found, and the running ones aren't."""
    root = tmp_path / "work"
    made = plan(root, ["a", "b"], ["c", "d"], 1, "exact_match")
    for number, pair in enumerate(made.pairs):
        if number < 3:
            answer(root, pair, same)
        else:
            status(root, pair, "running")
    assert len(list(Watch(WorkDir(root), made).scan())) == 3
    assert len(list(Watch(WorkDir(root), made).sweep())) == 3


def test_each_goal_has_its_row() -> None:
    """No goal is left unmeasured because its row isn't there."""
    assert {goal.row for goal in evald.GOALS} == set(evald.ROWS)


def test_programs_are_judged_or_it_is_said_why_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The row runs right programs; without a sandbox it is skipped with the reason, and nothing counts as measured."""
    found = evald_child.programs(2)
    assert found.get("count") == 2 or "sandbox" in str(found["skipped"])

    def none() -> NoReturn:
        raise SandboxUnavailable("no sandbox works here")

    monkeypatch.setattr(evald_child.choice, "chosen", none)
    assert evald_child.programs(2) == {"skipped": "no sandbox works here"}
    monkeypatch.setattr(evald, "_told", lambda *_: ({"skipped": "no sandbox works here"}, None))
    with pytest.raises(evald.Skipped, match="no sandbox works here"):
        evald._programs(tmp_path)
    found_all = {"exact": {"wall_rate": 1.0}, "rouge": {"wall_rate": 1.0}, "scan": {"wall": 1.0, "sweep": 1.0}}
    rows = {name: lambda _, figures=figures: figures for name, figures in found_all.items()}
    rows |= {"memory": lambda _: {"small_mb": 1.0, "large_mb": 2.0}, "programs": evald._programs}
    monkeypatch.setattr(evald, "ROWS", rows)
    lines = list(evald.measure(lambda _: None))
    assert lines[-1] == "Not measured: programs, since no sandbox works here"
    assert any("code_exec" in line and "not measured" in line for line in lines)
