"""inspect-ai's command line with its provider for OpenAI-compatible endpoints; concurrency by --max-connections."""

import os
import sys
from pathlib import Path

prompts, url, workers, folder = sys.argv[1:]
task = Path(folder, "prompts_task.py")
task.write_text(
    f"""from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def prompts():
    dataset = json_dataset({prompts!r}, FieldSpec(input="prompt", target="target"))
    return Task(dataset=dataset, solver=generate(), scorer=match())
""",
    "utf-8",
)
os.chdir(folder)  # it takes a task by a relative path alone
os.environ |= {"BENCH_API_KEY": "none", "BENCH_BASE_URL": url}
program = str(Path(sys.executable).with_name("inspect"))
options = ["--model", "openai-api/bench/m", "--max-connections", workers, "--max-samples", workers]
os.execv(program, [program, "eval", task.name, *options, "--display", "none", "--log-dir", f"{folder}/logs"])
