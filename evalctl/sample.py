"""`evalctl sample`: one doc out of the sample log, for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from msgspec import UNSET

from evalctl.options import AS_JSON, WORK_DIR
from evalctl.tables import clean
from evald.samples import SampleLine, find_sample
from shared.layout import WorkDir
from shared.records import Prediction, Prompt, encode_record


@click.command("sample")
@WORK_DIR
@click.option("--model", required=True, metavar="ABBR", help="Whose answers.")
@click.option("--dataset", required=True, metavar="ABBR", help="The task's dataset.")
@click.argument("task_id")
@AS_JSON
def sample_command(work_dir: Path, model: str, dataset: str, task_id: str, as_json: bool) -> None:
    """Show what one task was asked, answered, and scored, where the suite's [eval] has sample_log = true.

    \b
    Examples:
      evalctl sample -w runs/first --model m --dataset gsm8k gsm8k-7
      evalctl sample -w runs/first --model m --dataset gsm8k gsm8k-7 --json | jq .filtered_resps
    """
    found = find_sample(WorkDir(work_dir), model, dataset, task_id)
    if as_json:
        click.echo(encode_record(found).decode())
        return
    for line in _lines(found):
        click.echo(line)


def _lines(sample: SampleLine) -> Iterator[str]:
    yield clean(f"task {sample.task_id}, doc {sample.doc_id}")
    for target in sample.target:
        yield from _said("target", target)
    for prompts, rows in zip(sample.arguments, sample.resps, strict=True):
        for prompt, row in zip(prompts, rows, strict=True):
            yield ""
            yield f"instance {row.idx}, repeat {row.repeat}: {row.outcome}, attempts {row.attempts}"
            if prompt is not None:
                yield from _asked(prompt)
            yield from _answered(row)
    yield ""
    for name, answers in sample.filtered_resps.items():
        yield from _said(f"filter {name}", "\n".join("(nothing)" if answer is None else answer for answer in answers))
    for label, score in sample.metrics.items():
        yield clean(f"{label}: {sample.errors.get(label, 'no score') if score is None else f'{score:g}'}")


def _asked(prompt: Prompt) -> Iterator[str]:
    for message in prompt.messages:
        yield from _said(message.role, message.content)
    if prompt.text is not UNSET:
        yield from _said("text", prompt.text)
    if prompt.continuation is not UNSET:
        yield from _said("continuation", prompt.continuation)


def _answered(row: Prediction) -> Iterator[str]:
    if (generation := row.generation) is None:
        yield from _said("error", f"{row.error or row.outcome}: {row.message or ''}")
    elif generation.loglikelihood is not None:
        greedy = ", greedy" if generation.is_greedy else ""
        yield f"  log-likelihood: {generation.loglikelihood:.6g}{greedy}"
    else:
        if generation.reasoning:
            yield from _said("reasoning", generation.reasoning)
        yield from _said("answer", generation.text)


def _said(by: str, text: str) -> Iterator[str]:
    """The text under the name of whoever said it, with nothing in it that a terminal would act on."""
    yield clean(f"  {by}:")
    yield from (f"    {clean(line)}" for line in text.splitlines())
