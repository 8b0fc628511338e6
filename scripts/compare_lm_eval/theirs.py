"""lm-evaluation-harness's side: its tasks, and what it makes of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from scripts.benchmarks.peers.environments import Peer, python_of, read_pins
from scripts.compare_lm_eval.docs import SHOTS

DRIVER = Path(__file__).with_name("drive.py")
METRICS = {
    "choices": ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "brier_score"),
    "shots": ("acc", "acc_norm", "brier_score"),
    "targets": ("acc", "perplexity"),
    "texts": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
}
_CHOICES = "output_type: multiple_choice\ndoc_to_text: question\ndoc_to_choice: choices\ndoc_to_target: answer\n"
_ASKED = {
    "choices": f"{_CHOICES}num_fewshot: 0\n",
    "shots": f"{_CHOICES}num_fewshot: {len(SHOTS)}\n"
    f"fewshot_config:\n  sampler: first_n\n  samples: {json.dumps(SHOTS, ensure_ascii=False)}\n",
    # It puts no delimiter in front of a single target.
    "targets": "num_fewshot: 0\noutput_type: loglikelihood\ndoc_to_text: prompt\ndoc_to_target: target\n",
    "texts": 'num_fewshot: 0\noutput_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: text\n',
}


Values = dict[str, dict[str, float]]
"""task -> metric -> value."""


class Failed(Exception):
    """It ended with an error; the text is the end of what it said."""


def peer() -> Peer:
    return read_pins()["lm-eval"]


def label() -> str:
    return f"lm-eval {peer().packages[0].partition('==')[2]}"


def run(folder: Path, docs: dict[str, Path], base_url: str) -> Values:
    """Raises Failed, or NotInstalled. folder: an empty one of its own."""
    for name, path in docs.items():
        metrics = "".join(f"  - metric: {metric}\n" for metric in METRICS[name])
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {path}\ntest_split: test\n"
            f"{_ASKED[name]}metric_list:\n{metrics}",
            "utf-8",
        )
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none", "HOME": str(folder)}
    done = subprocess.run(
        [str(python_of(peer())), str(DRIVER), str(folder), f"{base_url}/completions"],
        cwd=folder,
        env=os.environ | offline,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(done.stderr[-3000:])
    found: Values = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found
