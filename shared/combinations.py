"""Which models meet which datasets: the suite's `[[combinations]]`, and of those the part that `[select]` takes.

A glob is a name, a shell pattern over names (`qwen-*`), or `tag:` and a pattern over tags. A name that is spelled out
matches itself, whatever its characters. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from msgspec.structs import replace

from shared.config import DatasetConfig, GroupConfig, ModelConfig, SelectConfig, Suite
from shared.errors import Problem
from shared.tables import show, unknown_word

TAG = "tag:"
SHOWN = 5  # names in a message

One = ModelConfig | DatasetConfig
Kind = TypeVar("Kind", ModelConfig, DatasetConfig)
Pair = tuple[str, str]  # (model, dataset)


def matches(glob: str, one: One) -> bool:
    if glob == one.abbr:
        return True
    if glob.startswith(TAG):
        return _tagged(glob.removeprefix(TAG), one)
    return fnmatchcase(one.abbr, glob)


def pairs_of(suite: Suite) -> list[Pair]:
    """The pairs that are run, in the suite's order: models first, in each its datasets."""
    meeting = _meeting(suite)
    models = {model.abbr for model in _selected(suite.models, suite.select.models, suite.select.tags)}
    datasets = {dataset.abbr for dataset in _selected(suite.datasets, suite.select.datasets, suite.select.tags)}
    return [(model, dataset) for model, dataset in meeting if model in models and dataset in datasets]


def selected(suite: Suite) -> Suite:
    """The suite with nothing in it but what takes part in a pair that is selected. A group of which a dataset isn't
    there goes as a whole: its mean over fewer would be another number.
    """
    pairs = pairs_of(suite)
    models = {model for model, _ in pairs}
    datasets = {dataset for _, dataset in pairs}
    groups: Iterable[GroupConfig] = suite.groups
    return replace(
        suite,
        models=tuple(model for model in suite.models if model.abbr in models),
        datasets=tuple(dataset for dataset in suite.datasets if dataset.abbr in datasets),
        groups=tuple(group for group in groups if datasets.issuperset(group.datasets)),
    )


def combination_faults(suite: Suite) -> Iterator[Problem]:
    """Globs that match nothing; models and datasets that no combination names."""
    for index, table in enumerate(suite.combinations):
        sides: tuple[tuple[str, tuple[str, ...], Sequence[One]], ...] = (
            ("models", table.models, suite.models),
            ("datasets", table.datasets, suite.datasets),
        )
        for kind, globs, known in sides:
            for place, glob in enumerate(globs):
                if not any(matches(glob, one) for one in known):
                    yield Problem(f"combinations[{index}].{kind}[{place}]", _nothing(glob, kind, known))
    meeting = _meeting(suite)
    met = {("models", model) for model, _ in meeting} | {("datasets", dataset) for _, dataset in meeting}
    every: dict[str, Sequence[One]] = {"models": suite.models, "datasets": suite.datasets}
    for kind, known in every.items():
        for index, one in enumerate(known):
            if (kind, one.abbr) not in met:
                text = f"{show(one.abbr)} is in no pair: name it in one of the combinations, or take it out"
                yield Problem(f"{kind}[{index}]", text)


def select_faults(suite: Suite) -> Iterator[Problem]:
    """Globs that match nothing; models and datasets that were chosen and meet nothing that was."""
    select = suite.select
    sides: tuple[tuple[str, tuple[str, ...], Sequence[One]], ...] = (
        ("models", select.models, suite.models),
        ("datasets", select.datasets, suite.datasets),
    )
    wrong = False
    for kind, globs, known in sides:
        for place, glob in enumerate(globs):
            if not any(matches(glob, one) for one in known):
                wrong = True
                yield Problem(f"select.{kind}[{place}]", _nothing(glob, kind, known))
    every: Sequence[One] = (*suite.models, *suite.datasets)
    tags = {tag for one in every for tag in one.tags}
    for place, glob in enumerate(select.tags):
        if not any(fnmatchcase(tag, glob) for tag in tags):
            wrong = True
            yield Problem(f"select.tags[{place}]", f"no model or dataset carries such a tag; {_word(glob, tags)}")
    if wrong or select == SelectConfig():
        return
    pairs = pairs_of(suite)
    if not pairs:
        yield Problem("select", "chooses no pair: what it takes of models and datasets meets nowhere")
        return
    met = {model for model, _ in pairs}, {dataset for _, dataset in pairs}
    for (kind, globs, known), there in zip(sides, met, strict=True):
        alone = [one.abbr for one in known if one.abbr not in there and any(matches(glob, one) for glob in globs)]
        if alone:
            more = f" and {len(alone) - SHOWN} more" if len(alone) > SHOWN else ""
            names = ", ".join(show(name) for name in alone[:SHOWN])
            yield Problem(f"select.{kind}", f"{names}{more}: chosen, but in no pair with what else is chosen")


def _meeting(suite: Suite) -> list[Pair]:
    """The pairs of all combinations; of all models and datasets where there is none."""
    if not suite.combinations:
        return [(model.abbr, dataset.abbr) for model in suite.models for dataset in suite.datasets]
    meeting: dict[str, set[str]] = {model.abbr: set() for model in suite.models}
    for table in suite.combinations:
        datasets = {d.abbr for d in suite.datasets if any(matches(glob, d) for glob in table.datasets)}
        for model in suite.models:
            if any(matches(glob, model) for glob in table.models):
                meeting[model.abbr] |= datasets
    return [(m.abbr, d.abbr) for m in suite.models for d in suite.datasets if d.abbr in meeting[m.abbr]]


def _selected(known: Sequence[Kind], globs: Sequence[str], tags: Sequence[str]) -> list[Kind]:
    """tags: narrow down only the side that carries one of them."""
    found = [one for one in known if not globs or any(matches(glob, one) for glob in globs)]
    if any(_tagged(tag, one) for tag in tags for one in known):
        found = [one for one in found if any(_tagged(tag, one) for tag in tags)]
    return found


def _tagged(glob: str, one: One) -> bool:
    return any(fnmatchcase(tag, glob) for tag in one.tags)


def _nothing(glob: str, kind: str, known: Sequence[One]) -> str:
    if glob.startswith(TAG):
        tags = {tag for one in known for tag in one.tags}
        return f"none of the {kind} carries such a tag; {_word(glob.removeprefix(TAG), tags)}"
    return f"matches none of the {kind}; {_word(glob, {one.abbr for one in known})}"


def _word(glob: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "there are none"
    if len(names) > 3 * SHOWN:
        names = [*names[:SHOWN], f"... ({len(names)} in all)"]
    return unknown_word(glob, names)
