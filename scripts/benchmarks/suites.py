"""A load as what is asked: a suite on disk for inferd, ready-made bodies for the bare loop. Both ask the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks.loads import Load

MODEL = "m"


def write_suite(folder: Path, load: Load, url: str, model_lines: tuple[str, ...] = ()) -> Path:
    """A suite whose settings are the defaults, but for the number of workers. model_lines: more lines of TOML for the
    model's table.
    """
    folder.mkdir(parents=True)
    lines = [
        "[[models]]",
        f'abbr = "{MODEL}"',
        f'base_url = "{url}"',
        f"max_workers = {load.workers}",
        *model_lines,
    ]
    for dataset in range(load.datasets):
        abbr = load.abbr(dataset)
        with (folder / f"{abbr}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(task_lines(load, dataset))
        lines += ["", "[[datasets]]", f'abbr = "{abbr}"', f'path = "{abbr}.jsonl"']
        if settings := load.settings(dataset):
            lines.append(f"generation = {{ {', '.join(f'{name} = {value}' for name, value in settings.items())} }}")
    suite = folder / "suite.toml"
    suite.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return suite


def task_lines(load: Load, dataset: int) -> Iterator[str]:
    for number, prompt in enumerate(load.prompts(dataset)):
        task = {
            "task_id": load.task_id(dataset, number),
            "prompt": prompt,
            "targets": ["4"],
            "metric_name": "exact_match",
            "post_process": "strip",
        }
        yield json.dumps(task) + "\n"


def bodies(load: Load) -> Iterator[bytes]:
    """The requests as they go out, the datasets by turns, as inferd shares them out."""
    for prompts in zip(*(load.prompts(dataset) for dataset in range(load.datasets)), strict=True):
        for dataset, prompt in enumerate(prompts):
            body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **load.settings(dataset)}
            yield json.dumps(body, separators=(",", ":")).encode()
