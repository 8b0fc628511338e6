"""Endpoints that tell likelihoods, through both daemons: the scores are those worked out from the server's table."""

from __future__ import annotations

from pathlib import Path

from evald.results import PairResult
from shared.layout import WorkDir
from tests.harness import evalctl, evald, infer_status, inferd, openai, predictions, read, submit, write_suite
from tests.likelihood_server import BOS, LikelihoodServer, default_logprob, split

TABLE = {" alpha": -1.2, " beta": -0.4, " gamma": -2.1, " delta": -3.0}
CHOICES = ["alpha", "beta", "gamma", "delta"]


def test_both_ways_give_the_scores_of_the_table(tmp_path: Path) -> None:
    """Choice B is the likeliest everywhere, so a doc is right where B is gold: 2 of 8. A server that echoes nothing
    fails its pair instead of giving each choice 0.0.
    """
    tasks = [
        {"task_id": f"t{n}", "prompt": f"Which? {n}", "choices": CHOICES, "gold": [(n * 3) % 4], "category": "c"}
        for n in range(8)
    ]
    right = sum(task["gold"] == [1] for task in tasks)
    text = "It was a dark and stormy night."
    work = WorkDir(tmp_path / "work")
    with LikelihoodServer(TABLE) as server:
        models = [
            openai(server.url(), "echo", loglikelihood="echo", bos=BOS, transport="engine"),
            openai(server.url("llama"), "forced", loglikelihood="logit_bias", bos=BOS),
            openai(server.url("no-echo"), "deaf", loglikelihood="echo", bos=BOS),
        ]
        choices = [{**task, "request_type": "multiple_choice"} for task in tasks]
        rolling = [{"task_id": "r", "prompt": text, "targets": [], "request_type": "loglikelihood_rolling"}]
        submit(write_suite(tmp_path / "s", models, {"choice": choices, "rolling": rolling}), work)
        asking = inferd(work)
        assert asking.wait() == 3, asking.err
        assert not [body for name, body in server.bodies if name == "chat"]
    scoring = evald(work)
    assert scoring.wait() == 3, scoring.err
    for model in ("echo", "forced"):
        result = read(work.result(model, "choice"), PairResult)
        assert (result.metric, result.mean, result.n_docs, result.requests) == ("acc", right / 8, 8, 32)
        told = [row.generation.loglikelihood for row in predictions(work, model, "choice") if row.generation]
        assert told == [TABLE[f" {choice}"] for choice in CHOICES] * 8
        (row,) = predictions(work, model, "rolling")
        assert row.generation is not None
        assert row.generation.loglikelihood == sum(map(default_logprob, split(text)))
    status = infer_status(work, "deaf", "choice")
    assert status is not None
    assert (status.state, status.outcomes) == ("fail", {})
    assert set(status.errors) == {"unsupported"}
    assert "unsupported" in status.reason
    assert not work.result("deaf", "choice").exists()


def test_a_model_that_tells_none_is_refused_when_it_is_planned(tmp_path: Path) -> None:
    """With the pair and the remedy, before anything is asked."""
    task = {"task_id": "t", "prompt": "?", "choices": CHOICES, "gold": [0], "request_type": "multiple_choice"}
    suite = write_suite(tmp_path / "s", [openai("http://127.0.0.1:9/v1")], {"d": [task]})
    process = evalctl("submit", suite, "-w", tmp_path / "work")
    assert process.wait() == 2
    assert "m x d: loglikelihood" in process.err
    assert 'loglikelihood = "echo"' in process.err
