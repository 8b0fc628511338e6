"""Adapters that answer what they are told; named in suites as `tests.daemons.told:Class`."""

from __future__ import annotations

import json
from pathlib import Path

from shared.errors import Permanent
from shared.records import Generation, Prompt, TaskSpec

ESCAPES = "\x1b[31mred\x1b]0;title\x07 [bold]x[/bold] | <script>alert(1)</script> \u202etxt\r\n=1+1"


class Stored:
    """Answers task n with the stored solution of `model` on line n of a JSON lines file."""

    def __init__(self, model_id: str, path: str, model: str) -> None:
        self.model_id = model_id
        lines = Path(path).read_text(encoding="utf-8").split("\n")
        self._solutions = [json.loads(line)[model]["solution"] for line in lines if line]

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        return Generation(text=self._solutions[int(task.task_id)], finish_reason="stop")


class Hostile:
    """Fails each request with a text that would colour a terminal, mark up a table, and begin a formula."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        raise Permanent("bad_request", ESCAPES)
