"""Published answers of four models to GSM8K's whole test set, through both daemons, to the published counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evald.results import PairResult
from shared.layout import WorkDir
from tests.harness import evalctl, evald, inferd, read, report, write_suite

CORRECT = {"6b_finetuning": 286, "6b_verification": 515, "175b_finetuning": 458, "175b_verification": 742}


def test_gsm8k(tmp_path: Path, evaldata: Path) -> None:
    """4 models x 1319 tasks: post_process gsm8k and exact_match come to exactly the counts of the authors' own flags,
    and rank the models by them.
    """
    data = evaldata / "gsm8k" / "example_model_solutions.jsonl"
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").split("\n") if line]
    tasks = [
        {
            "task_id": str(n),
            "prompt": row["question"],
            "targets": [row["ground_truth"].rpartition("A: ")[2]],
            "metric_name": "exact_match",
            "post_process": "gsm8k",
        }
        for n, row in enumerate(rows)
    ]
    models = [
        {"abbr": name, "type": "tests.daemons.told:Stored", "options": {"path": str(data), "model": name}}
        for name in CORRECT
    ]
    work = WorkDir(tmp_path / "work")
    suite = write_suite(tmp_path / "suite", models, {"gsm8k": tasks}, eval={"heartbeat_timeout": 60.0})
    assert evalctl("submit", suite, "-w", work.root).wait() == 0
    asks, scores = inferd(work), evald(work)
    assert asks.wait(120) == 0, asks.err
    assert scores.wait(120) == 0, scores.err
    for name, correct in CORRECT.items():
        result: PairResult = read(work.result(name, "gsm8k"), PairResult)
        assert (result.n_docs, result.n_scored) == (1319, 1319)
        assert result.metrics[0].correct == correct
        assert result.mean == correct / 1319
    board = report(work)["leaderboard"]
    assert [(row["rank"], row["model"]) for row in board] == [
        (1, "175b_verification"), (2, "6b_verification"), (3, "175b_finetuning"), (4, "6b_finetuning"),
    ]  # fmt: skip
    pairwise = {(row["first"], row["second"]): row for row in report(work)["pairwise"]}
    assert pairwise["6b_finetuning", "175b_verification"]["separable"] is True
    assert pairwise["6b_finetuning", "175b_verification"]["difference"] == pytest.approx((286 - 742) / 1319)
