"""lm-eval's command line on a task of its own over local files; concurrency by num_concurrent. Chat completions need
no tokenizer.
"""

import os
import sys
from pathlib import Path

prompts, url, workers, folder = sys.argv[1:]
tasks = Path(folder, "tasks")
tasks.mkdir()
(tasks / "prompts.yaml").write_text(
    f"""task: prompts
dataset_path: json
dataset_kwargs:
  data_files:
    test: {prompts}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{target}}}}"
generation_kwargs:
  until: []
metric_list:
  - metric: exact_match
""",
    "utf-8",
)
arguments = f"model=m,base_url={url}/chat/completions,num_concurrent={workers}"
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}
program = str(Path(sys.executable).with_name("lm_eval"))
options = ["--model", "local-chat-completions", "--model_args", arguments, "--apply_chat_template"]
os.execv(program, [program, "run", *options, "--tasks", "prompts", "--include_path", str(tasks)])
