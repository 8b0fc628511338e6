r"""What counts as the answer in a model's texts, and the same form for a target, so that both can be compared.

Where a text holds no such thing there is no answer: that is the outcome "unextracted", scored 0 and counted apart from
wrong. `target` never fails: what holds no such thing is only stripped, and then equals no answer.

The text is hostile. Every pattern is linear: no quantifier stands next to one that can match the same characters, and
what may repeat in front of a match is bounded. No number is computed from an exponent before its size is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec

from evald import text as texts
from evald.post_process import (
    characters,
    choices,
    code,
    labels,
    latex,
    lenient,
    marker,
    numbers,
    patterns,
    reasoning,
    replacing,
    selecting,
)
from shared.chat import placed_targets
from shared.records import TaskSpec
from shared.scoring import Spec, pipelines_of, place_of, steps_of
from shared.vocabulary import MapParameters, Parameters, ReplaceParameters, TakeParameters


@dataclass(frozen=True)
class Reader:
    """A step with its parameters. extract: from an answer's text. canonical: the same form of a target; by default what
    extract finds in it, else it stripped. A step that only cuts the answer out of what is around it leaves targets
    as they are: its canonical is `as_it_is`.
    """

    extract: Callable[[str], str | None]
    canonical: Callable[[str], str | None] | None = None

    def target(self, text: str) -> str | None:
        return (self.canonical or self.extract)(text)


@dataclass(frozen=True)
class Selector:
    """A step over all responses of a doc, with its parameters. select: the positions of those that are kept, of the
    answers so far; of one or more it keeps at least one.
    """

    select: Callable[[Sequence[str | None]], Sequence[int]]


@dataclass(frozen=True)
class PostProcess:
    """A step by name. version: changes when any text gets another result; results are keyed by it."""

    name: str
    version: str
    make: Callable[[Any], Reader | Selector]


def as_it_is(text: str) -> str:
    return text


def _simple(
    name: str, version: str, extract: Callable[[str], str | None], canonical: Callable[[str], str | None] | None = None
) -> PostProcess:
    """A step without parameters."""
    reader = Reader(extract, canonical)
    return PostProcess(name, version, lambda _: reader)


def _cutting(name: str, version: str, make: Callable[[Any], Callable[[str], str | None]]) -> PostProcess:
    """A step that only cuts the answer out: targets are written without what is around it."""
    return PostProcess(name, version, lambda parameters: Reader(make(parameters), as_it_is))


def _selecting(name: str, version: str, select: Callable[[Sequence[str | None]], Sequence[int]]) -> PostProcess:
    """A step over all responses, without parameters."""
    return PostProcess(name, version, lambda _: Selector(select))


def _replacing(parameters: ReplaceParameters) -> Reader:
    return Reader(lambda text: text.replace(parameters.old, parameters.new))


def _mapping(parameters: MapParameters) -> Reader:
    return Reader(partial(replacing.mapped, parameters), partial(replacing.mapped_target, parameters))


def _first_k(parameters: TakeParameters) -> Selector:
    return Selector(partial(selecting.first_k, parameters.k))


POST_PROCESS: Mapping[str, PostProcess] = {
    process.name: process
    for process in (
        _simple("none", "1", as_it_is, as_it_is),
        _simple("strip", "1", str.strip),
        _simple("remove_whitespace", "1", str.lstrip, as_it_is),
        _simple("lower", "1", lambda text: text.strip().lower()),
        _simple("upper", "1", lambda text: text.strip().upper()),
        _simple("squad", f"1.{texts.VERSION}", characters.squad),
        PostProcess("replace", "1", _replacing),
        PostProcess("map", "1", _mapping),
        _simple("first_line", "1", characters.first_line),
        _simple("last_line", "1", characters.last_line),
        _simple("first_number", "4", numbers.first_number),
        _simple("last_number", "4", numbers.last_number),
        _simple("gsm8k", "4", numbers.gsm8k),
        PostProcess("choice_letter", "3", lambda parameters: Reader(choices.choice_letter(parameters.options))),
        _simple("yes_no", "1", choices.yes_no),
        PostProcess("one_of", "1", lambda parameters: Reader(labels.label_in(parameters))),
        _cutting("regex", "1", patterns.matching),
        PostProcess("marker", "1", lambda parameters: Reader(marker.after(parameters.markers), marker.trimmed)),
        _simple("boxed", "1", latex.boxed, latex.boxed_target),
        _cutting("strip_reasoning", "1", lambda parameters: reasoning.without(parameters.tags)),
        _cutting("json_field", "2", lambda parameters: partial(lenient.field, parameters.path)),
        _cutting("code_block", "1", code.code_block),
        _selecting("take_first", "1", selecting.first),
        PostProcess("take_first_k", "1", _first_k),
        _selecting("majority_vote", "1", selecting.majority_vote),
    )
}


class Extracted(NamedTuple):
    """What counts as the answer, or the step that found nothing."""

    answer: str | None
    failed_at: str | None = None


class Response(NamedTuple):
    """One that a pipeline left. at: its position among those that it was given."""

    at: int
    answer: str | None


class Filtered(NamedTuple):
    """What a pipeline left of a doc's responses. failed_at: the step that found nothing, of each response where one
    did, also of those that were not kept.
    """

    responses: list[Response]
    failed_at: list[str]


class Pipeline:
    """The steps of a filter, one after the other."""

    def __init__(self, steps: tuple[tuple[str, Parameters], ...]) -> None:
        names = [name for name, _ in steps]
        # One that comes twice has its place beside its name, as in a message on the task: regex[2].
        self.names = [f"{name}[{at}]" if names.count(name) > 1 else name for at, name in enumerate(names)]
        self._steps = [POST_PROCESS[name].make(parameters) for name, parameters in steps]
        self._readers = [(n, step) for n, step in zip(self.names, self._steps, strict=True) if isinstance(step, Reader)]
        self.selects = len(self._readers) < len(self._steps)

    def answer(self, text: str) -> str | None:
        """What counts as the answer of a doc's only response; None when a step finds nothing."""
        return self.read(text).answer

    def read(self, text: str) -> Extracted:
        """The same, with the step that finds nothing."""
        [response], failed_at = self.filter([text])
        return Extracted(response.answer, failed_at[0] if failed_at else None)

    def filter(self, texts: Sequence[str]) -> Filtered:
        """What is left of all responses of a doc, of which there is at least one. Raises ValueError where a step needs
        more of them.
        """
        left = [Response(at, text) for at, text in enumerate(texts)]
        failed_at: list[str] = []
        for name, step in zip(self.names, self._steps, strict=True):
            if isinstance(step, Selector):
                left = [left[position] for position in step.select([response.answer for response in left])]
                continue
            for position, (at, answer) in enumerate(left):
                if answer is not None:
                    left[position] = found = Response(at, step.extract(answer))
                    if found.answer is None:
                        failed_at.append(name)
        return Filtered(left, failed_at)

    def target(self, text: str) -> str:
        """A target in the form that answers come in; what a step finds nothing in is only stripped by it."""
        for _, reader in self._readers:
            found = reader.target(text)
            text = text.strip() if found is None else found
        return text

    def fault(self, target: str) -> str | None:
        """The name of the step that finds nothing in the target, or leaves nothing of it: then no answer could ever
        equal it, or an empty one would.
        """
        for name, reader in self._readers:
            found = reader.target(target)
            if found is None or (not found.strip() and target.strip()):
                return name
            target = found
        return None


def pipeline_of(spec: Spec) -> Pipeline:
    """Raises shared.scoring.SpecError."""
    return _pipeline(msgspec.json.encode(spec))


@lru_cache(maxsize=256)
def _pipeline(spec: bytes) -> Pipeline:
    return Pipeline(steps_of(msgspec.json.decode(spec, type=Spec)))


def target_fault(task: TaskSpec) -> str | None:
    """Why no answer could ever be right, in words: a target in which one of the task's pipelines finds nothing."""
    for filter_name, spec in pipelines_of(task).items():
        pipeline = pipeline_of(spec)
        for _, target in placed_targets(task):
            if (name := pipeline.fault(target)) is not None:
                shown = target if len(target) <= 80 else target[:80] + "..."
                return f"no answer can match the target {shown!r}: {place_of(filter_name)} {name} finds nothing in it"
    return None
