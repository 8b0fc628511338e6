"""The options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shared.config import SelectConfig

WORK_DIR = click.option("-w", "--work-dir", required=True, type=click.Path(path_type=Path), help="The run's folder.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of a table.")


def _paths(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Path]:
    """ABBR=FILE, as often as it is given."""
    paths = {}
    for text in given:
        abbr, equals, file = text.partition("=")
        if not (abbr and equals and file):
            raise click.BadParameter(f"expected ABBR=FILE, got {text!r}")
        paths[abbr] = Path(file)
    return paths


PATHS = click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="ABBR=FILE",
    callback=_paths,
    help="Read dataset ABBR from FILE instead of the path in the suite. May be repeated.",
)

_SELECT_HELP = {
    "models": "Only models whose name matches GLOB (`tag:GLOB`: that carry such a tag).",
    "datasets": "Only datasets whose name matches GLOB (`tag:GLOB`: that carry such a tag).",
    "tags": "Only models and datasets that carry a tag matching GLOB, where some do.",
}


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command these options, each as often as it is wanted, and what they say as its argument `select`."""

    @functools.wraps(command)
    def called(
        *args: Any, models: tuple[str, ...], datasets: tuple[str, ...], tags: tuple[str, ...], **rest: Any
    ) -> Any:
        return command(*args, select=SelectConfig(models=models, datasets=datasets, tags=tags), **rest)

    for name, text in reversed(_SELECT_HELP.items()):
        called = click.option(f"--{name}", multiple=True, metavar="GLOB", help=f"{text} May be repeated.")(called)
    return called
