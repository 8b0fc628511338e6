"""evalscope's command line with general_qa over a local file; concurrency by --eval-batch-size. Of its two metrics the
cheaper one alone.
"""

import json
import os
import sys
from pathlib import Path

prompts, url, workers, folder = sys.argv[1:]
data = Path(folder, "data")
data.mkdir()
with (data / "prompts.jsonl").open("w", encoding="utf-8") as file:
    for line in Path(prompts).read_text("utf-8").splitlines():
        row = json.loads(line)
        file.write(json.dumps({"query": row["prompt"], "response": row["target"]}) + "\n")
dataset = {
    "dataset_id": str(data),
    "subset_list": ["prompts"],
    "prompt_template": "{question}",
    "metric_list": ["Rouge"],
}
program = str(Path(sys.executable).with_name("evalscope"))
model = ["--model", "m", "--eval-type", "openai_api", "--api-url", url, "--api-key", "none"]
options = ["--datasets", "general_qa", "--dataset-args", json.dumps({"general_qa": dataset})]
os.execv(program, [program, "eval", *model, *options, "--eval-batch-size", workers, "--work-dir", f"{folder}/out"])
