"""Runs in lm-evaluation-harness's own environment: its `local-completions` model over tasks in files of YAML. Prints a
line of JSON, {task: {metric: value}}.

drive.py FOLDER URL: FOLDER holds the tasks' files; URL is that of the completions.
"""

import json
import sys

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

folder, url = sys.argv[1:]
# `remote`: it asks the server for its tokenizer, as vLLM has it; without any, it can't tell prompt from continuation.
arguments = {"model": "m", "base_url": url, "tokenizer_backend": "remote", "num_concurrent": 8}
manager = TaskManager(include_path=folder, include_defaults=False)
found = simple_evaluate(
    model="local-completions",
    model_args=arguments,
    tasks=["choices", "shots", "targets", "texts"],
    task_manager=manager,
    bootstrap_iters=0,
)
told = {
    task: {name.partition(",")[0]: value for name, value in values.items() if isinstance(value, float)}
    for task, values in found["results"].items()
}
print(json.dumps(told))
