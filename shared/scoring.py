"""How a task says it is to be scored: `post_process` and `metric_name`, read into names with typed parameters.

    "last_number"                                                   one step
    ["strip_reasoning", {"step": "regex", "pattern": "= (\\d+)"}]   a pipeline
    "exact_match", ["f1", {"metric": "numeric", "tolerance": 0.01}] one metric, several; the first is the headline

Everything that is wrong with one is told at once, when the task is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

import msgspec

from shared import plugins
from shared.records import Named
from shared.tables import convert_table, join_place, unknown_word
from shared.vocabulary import METRICS, STEPS, CustomParameters, MetricParameters, Parameters

Spec = Named | tuple[Named, ...]

GROUP = "tandem.metrics"
"""The group of entry points under which a package names its metrics."""


class Step(NamedTuple):
    """One step of a pipeline."""

    name: str
    parameters: Parameters


class Measure(NamedTuple):
    """One metric of a task. label: what its scores are called; unlike any other of the task."""

    name: str
    label: str
    parameters: MetricParameters


class SpecError(ValueError):
    """All that is wrong with a spec."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def steps_of(spec: Spec) -> tuple[Step, ...]:
    """The steps of `post_process`, in their order. Raises SpecError."""
    return _steps(_ENCODE(spec))


def measures_of(spec: Spec) -> tuple[Measure, ...]:
    """The metrics of `metric_name`; the first is the headline. Raises SpecError."""
    return _measures(_ENCODE(spec))


def is_custom(name: str) -> bool:
    """Whether the metric is a user's own: `module:function`, or an entry point. A built-in name is never taken over."""
    return name not in METRICS and (":" in name or name in plugins.installed(GROUP))


def spec_faults(read: Callable[[Spec], object], spec: Spec, key: str) -> list[str]:
    """What is wrong with the spec that stands under `key`: `metric_name[1].tolerance: ...`."""
    try:
        read(spec)
    except SpecError as error:
        return [f"{key}{fault}" if fault.startswith(("[", ":")) else f"{key}.{fault}" for fault in error.faults]
    return []


# Tasks of a dataset mostly share one spec: each is read once.
@lru_cache(maxsize=256)
def _steps(spec: bytes) -> tuple[Step, ...]:
    found, faults = _read(spec, "step", STEPS, None)
    if faults:
        raise SpecError(faults)
    return tuple(Step(name, parameters) for _, name, parameters in found)


@lru_cache(maxsize=256)
def _measures(spec: bytes) -> tuple[Measure, ...]:
    found, faults = _read(spec, "metric", METRICS, CustomParameters)
    measures = [Measure(name, _label(name, parameters), parameters) for _, name, parameters in found]
    labels: set[str] = set()
    for at, name, parameters in found:
        label = _label(name, parameters)
        if label in labels:
            faults.append(f"{at}: {label} is named twice: give one of them a `label`")
        labels.add(label)
        if parameters.reduce in ("pass_at_k", "pass_hat_k") and parameters.k is None:
            faults.append(f"{at}: reduce {parameters.reduce} needs k, of how many repeats")
    if faults:
        raise SpecError(faults)
    return tuple(measures)


def _label(name: str, parameters: MetricParameters) -> str:
    if parameters.label is not None:
        return parameters.label
    k = f"@{parameters.k}" if parameters.k is not None else ""
    match parameters.reduce:
        case "mean":
            return f"{name}{k and ' mean' + k}"
        case "pass_at_k":
            return f"{name} pass{k}"
        case "pass_hat_k":
            return f"{name} pass^{parameters.k}"
        case reduce:
            return f"{name} {reduce}{k}"


P = TypeVar("P", bound=Parameters)


def _read(
    spec: bytes, word: str, known: Mapping[str, type[P]], custom: type[P] | None
) -> tuple[list[tuple[str, str, P]], list[str]]:
    """(place, name, parameters) of each entry that is sound, and what is wrong with the others."""
    given = msgspec.json.decode(spec)
    entries = given if isinstance(given, list) else [given]
    faults: list[str] = []
    found: list[tuple[str, str, P]] = []
    if not entries:
        faults.append(": expected at least one, got none")
    for number, entry in enumerate(entries):
        at = f"[{number}]" if isinstance(given, list) else ""
        table = {word: entry} if isinstance(entry, str) else entry
        name = table.get(word)
        if not isinstance(name, str):
            faults.append(f"{at}: expected a name, or a table with `{word} = ...`")
            continue
        kind = known.get(name, custom if custom is not None and is_custom(name) else None)
        if kind is None:
            faults.append(f"{at}: {unknown_word(name, {*known, *(plugins.installed(GROUP) if custom else ())})}")
            continue
        parameters, problems = convert_table({key: value for key, value in table.items() if key != word}, kind, "")
        faults += [f"{join_place(at, problem.place) if problem.place else at}: {problem.text}" for problem in problems]
        if parameters is not None and (fault := parameters.fault()) is not None:
            faults.append(f"{at}: {fault}")
        elif parameters is not None:
            found.append((at, name, parameters))
    return found, faults


_ENCODE = msgspec.json.Encoder(order="sorted").encode
