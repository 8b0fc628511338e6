"""The official openai client as its documentation shows it: one client, shared by a pool of threads."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import OpenAI

prompts, url, workers, _ = sys.argv[1:]
client = OpenAI(base_url=url, api_key="none")


def ask(line: str) -> bool:
    prompt = json.loads(line)["prompt"]
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])
    return bool(answer.choices[0].message.content)


with ThreadPoolExecutor(int(workers)) as pool:
    print(sum(pool.map(ask, Path(prompts).read_text("utf-8").splitlines())))
