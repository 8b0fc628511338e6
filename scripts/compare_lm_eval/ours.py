"""Tandem's side: the same docs as a suite, through both daemons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from scripts.compare_lm_eval.docs import SHOTS
from scripts.compare_lm_eval.theirs import METRICS, Failed, Values
from shared.layout import WorkDir

ROOT = Path(__file__).parents[2]
NAMES = {"brier_score": "brier"}
"""What we call a metric by another name."""
WAYS = ("echo", "echo_tokens")
"""Of asking an endpoint for likelihoods: texts, and token ids as lm-evaluation-harness sends them."""
_CHOICES = """request_type = "multiple_choice"
fields = { prompt = "question", choices = "choices", gold = "answer" }"""
_SHOTS = ", ".join(
    f"{{ prompt = {json.dumps(shot['question'])}, target = {json.dumps(shot['choices'][shot['answer']])} }}"
    for shot in SHOTS
)
_ASKED = {
    "choices": _CHOICES,
    "shots": f"{_CHOICES}\nfew_shot = [{_SHOTS}]",
    "targets": """request_type = "loglikelihood"
target_delimiter = ""
fields = { prompt = "prompt", target = "target" }""",
    "texts": """request_type = "loglikelihood_rolling"
fields = { prompt = "text" }""",
}


def run(folder: Path, docs: dict[str, Path], base_url: str, bos: str) -> dict[str, Values]:
    """By way. Raises Failed. folder: an empty one of its own."""
    lines = ["[infer]", "poll_interval = 0.2"]
    for way in WAYS:
        lines += ["[[models]]", f'abbr = "{way}"', f'base_url = "{base_url}"', f'loglikelihood = "{way}"']
        lines += [f'bos = "{bos}"']
    for name, path in docs.items():
        metrics = [NAMES.get(metric, metric) for metric in METRICS[name]]
        lines += ["[[datasets]]", f'abbr = "{name}"', f'path = "{path}"', f"metric = {json.dumps(metrics)}"]
        lines += [_ASKED[name]]
    suite, work = folder / "suite.toml", folder / "work"
    suite.write_text("\n".join(lines) + "\n", "utf-8")
    for command in (("evalctl", "submit", str(suite)), ("inferd",), ("evald",)):
        done = subprocess.run(
            [sys.executable, "-m", *command, "-w", str(work)],
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{command[0]}: {(done.stderr or done.stdout)[-3000:]}")
    return {way: {name: _values(WorkDir(work), way, name) for name in docs} for way in WAYS}


def _values(work: WorkDir, model: str, dataset: str) -> dict[str, float]:
    result = json.loads(work.result(model, dataset).read_bytes())
    found = {metric["name"]: metric for metric in result["metrics"]}
    told = {}
    for name in METRICS[dataset]:
        metric = found[NAMES.get(name, name)]
        told[name] = metric["corpus"]["value"] if metric["corpus"] is not None else metric["mean"]
    return told
