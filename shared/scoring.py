"""How a task says it is to be scored: `post_process`, `filters` and `metric_name`, read into names with typed
parameters.

    "last_number"                                                   one step
    ["strip_reasoning", {"step": "regex", "pattern": "= (\\d+)"}]   a pipeline
    {"strict": "gsm8k", "vote": ["last_number", "majority_vote"]}   filters: pipelines by name
    "exact_match", ["f1", {"metric": "numeric", "tolerance": 0.01}] one metric, several; the first is the headline

A filter is a pipeline over all responses of a doc, from what the model said on. `post_process` is the one named `none`.
A metric is computed under each of the filters that it names; by default under all named ones, where there are none
under `none`.

Everything that is wrong with one is told at once, when the task is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

import msgspec

from shared import plugins
from shared.records import Named, TaskSpec, TaskType
from shared.tables import convert_table, join_place, show, unknown_word
from shared.vocabulary import (
    LIKELIHOOD,
    METRICS,
    SELECTING,
    STEPS,
    CustomParameters,
    MetricParameters,
    Parameters,
    TakeParameters,
)

Spec = Named | tuple[Named, ...]

UNNAMED = "none"
"""The filter that `post_process` is, by the name that lm-evaluation-harness gives its own default."""

GROUP = "tandem.metrics"
"""The group of entry points under which a package names its metrics."""


class Step(NamedTuple):
    """One step of a pipeline."""

    name: str
    parameters: Parameters

    @property
    def keeps(self) -> int | None:
        """How many of a doc's responses it keeps at most; None where it keeps all."""
        if self.name not in SELECTING:
            return None
        return self.parameters.k if isinstance(self.parameters, TakeParameters) else 1


class Measure(NamedTuple):
    """One metric of a task under one of its filters. label: what its scores are called; unlike any other of the task.
    Behind it stands the filter, where it has a name: `exact_match,strict`.
    """

    name: str
    label: str
    parameters: MetricParameters
    filter: str = UNNAMED


class SpecError(ValueError):
    """All that is wrong with a spec."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def steps_of(spec: Spec) -> tuple[Step, ...]:
    """The steps of `post_process`, in their order. Raises SpecError."""
    return _steps(_ENCODE(spec))


def measures_of(spec: Spec, filters: Iterable[str] | None = None) -> tuple[Measure, ...]:
    """The metrics of `metric_name`, each under its filters; the first is the headline. filters: the names of the
    task's; None where they aren't known yet, and then every metric stands here once.

    Raises SpecError.
    """
    return _measures(_ENCODE(spec), None if filters is None else tuple(filters))


def pipelines_of(task: TaskSpec) -> dict[str, Spec]:
    """The pipelines that the task's metrics are computed under, by name. The task has passed its checks."""
    if not task.filters:
        return {UNNAMED: task.post_process}
    known: dict[str, Spec] = {UNNAMED: task.post_process, **task.filters}
    return {name: known[name] for name in dict.fromkeys(m.filter for m in measures_of(task.metric_name, task.filters))}


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


def filter_faults(filters: Mapping[str, Spec]) -> list[str]:
    """What is wrong with the filters by themselves: `filters.strict[0].pattern: ...`."""
    faults: list[str] = []
    for name, spec in filters.items():
        place = join_place("filters", name)
        if name == UNNAMED:
            faults.append(f"{place}: is the name of post_process: give the filter another")
        elif not _FILTER_NAME.fullmatch(name):
            faults.append(f"{place}: expected a name of letters, digits, `_`, `-` and `.`, got {show(name)}")
        faults += spec_faults(steps_of, spec, place)
    return faults


def use_faults(metric: Spec, post_process: Spec, filters: Mapping[str, Spec]) -> list[str]:
    """What is wrong with how a task's metrics use its pipelines, of which each is sound."""
    measures = measures_of(metric, filters)
    used = {measure.filter for measure in measures}
    faults = [
        f"{join_place('filters', name)}: no metric uses it: name it in a metric's `filters`, or take it out"
        for name in filters
        if name not in used
    ]
    if UNNAMED not in used and post_process != UNNAMED:
        remedy = f'add "{UNNAMED}" to a metric\'s `filters`, or take it out'
        faults.append(f"post_process: no metric uses it beside the filters: {remedy}")
    pipelines = {UNNAMED: post_process, **filters}
    for measure in measures:
        left, k = _left(steps_of(pipelines[measure.filter])), measure.parameters.k
        if left is not None and k is not None and k > left:
            place = place_of(measure.filter)
            faults.append(f"metric_name: {measure.label} needs {k} responses, and {place} leaves {left}")
    return faults


def type_faults(request_type: TaskType, measures: Iterable[Measure]) -> Iterator[str]:
    """Metrics that don't score tasks of this type."""
    for measure in measures:
        fit = LIKELIHOOD.get(measure.name, frozenset({"generate_until"}))
        if request_type not in fit:
            yield f"metric_name: {measure.name} scores {' and '.join(sorted(fit))} tasks, not {request_type}"


def repeats_fault(task: TaskSpec, repeats: int) -> str | None:
    """Why so few repeats leave the task without a score, in words: of its headline, since other metrics that need more
    say so beside it. The task has passed its checks.
    """
    headline = measures_of(task.metric_name, task.filters)[0]
    if task.request_type == "generate_until":
        for step in steps_of(pipelines_of(task)[headline.filter]):
            if step.keeps is not None and step.keeps > repeats:
                return f"{place_of(headline.filter)}: {step.name} needs {step.keeps} repeats, and there are {repeats}"
    k = headline.parameters.k
    return f"metric_name: {headline.label} needs {k} repeats, and there are {repeats}" if (k or 0) > repeats else None


def place_of(name: str) -> str:
    """The key that the pipeline of that name stands under."""
    return "post_process" if name == UNNAMED else join_place("filters", name)


def _left(steps: Iterable[Step]) -> int | None:
    """How many responses the steps leave at most; None where they leave all."""
    return min((step.keeps for step in steps if step.keeps is not None), default=None)


# Tasks of a dataset mostly share one spec: each is read once.
@lru_cache(maxsize=256)
def _steps(spec: bytes) -> tuple[Step, ...]:
    found, faults = _read(spec, "step", STEPS, None)
    steps = tuple(Step(name, parameters) for _, name, parameters in found)
    for number, step in enumerate(steps):
        left = _left(steps[:number])
        if left is None or step.keeps is None or step.name == "take_first":
            continue
        if left == 1:
            faults.append(f"{found[number][0]}: {step.name} has nothing to choose from: what is before it leaves one")
        elif step.keeps > left:
            faults.append(f"{found[number][0]}: {step.name} needs {step.keeps}, and what is before it leaves {left}")
    if faults:
        raise SpecError(faults)
    return steps


@lru_cache(maxsize=256)
def _measures(spec: bytes, filters: tuple[str, ...] | None) -> tuple[Measure, ...]:
    found, faults = _read(spec, "metric", METRICS, CustomParameters)
    measures: list[Measure] = []
    labels: set[str] = set()
    for at, name, parameters in found:
        for under in _under(parameters, filters):
            if filters is not None and under not in (UNNAMED, *filters):
                faults.append(f"{at}: filters: {unknown_word(under, (UNNAMED, *filters))}")
                continue
            label = _label(name, parameters) + (f",{under}" if under != UNNAMED else "")
            if label in labels:
                faults.append(f"{at}: {label} is named twice: give one of them a `label`")
            labels.add(label)
            measures.append(Measure(name, label, parameters, under))
        if parameters.reduce in ("pass_at_k", "pass_hat_k") and parameters.k is None:
            faults.append(f"{at}: reduce {parameters.reduce} needs k, of how many repeats")
    if faults:
        raise SpecError(faults)
    return tuple(measures)


def _under(parameters: MetricParameters, filters: tuple[str, ...] | None) -> Iterable[str]:
    if filters is None:
        return (UNNAMED,)
    return parameters.filters if parameters.filters is not None else filters or (UNNAMED,)


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
_FILTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
