r"""What counts as the answer in a model's text, and the same form for a target, so that both can be compared.

`answer` gives None when the text holds no such thing: that is the outcome "unextracted", scored 0 and counted apart
from wrong. `target` never fails: what holds no such thing is only stripped, and then equals no answer.

The text is hostile. Every pattern is linear: no quantifier stands next to one that can match the same characters, and
what may repeat in front of a match is bounded. No number is computed from an exponent before its size is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec

from evald import text as texts
from evald.post_process import characters, choices, code, labels, latex, lenient, marker, numbers, patterns, reasoning
from shared.records import TaskSpec
from shared.scoring import Spec, steps_of
from shared.vocabulary import Parameters, ReplaceParameters


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
class PostProcess:
    """A step by name. version: changes when any text gets another result; results are keyed by it."""

    name: str
    version: str
    make: Callable[[Any], Reader]


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


def _replacing(parameters: ReplaceParameters) -> Reader:
    return Reader(lambda text: text.replace(parameters.old, parameters.new))


POST_PROCESS: Mapping[str, PostProcess] = {
    process.name: process
    for process in (
        _simple("none", "1", as_it_is, as_it_is),
        _simple("strip", "1", str.strip),
        _simple("lower", "1", lambda text: text.strip().lower()),
        _simple("squad", f"1.{texts.VERSION}", characters.squad),
        PostProcess("replace", "1", _replacing),
        _simple("first_line", "1", characters.first_line),
        _simple("last_line", "1", characters.last_line),
        _simple("first_number", "3", numbers.first_number),
        _simple("last_number", "3", numbers.last_number),
        _simple("gsm8k", "3", numbers.gsm8k),
        PostProcess("choice_letter", "3", lambda parameters: Reader(choices.choice_letter(parameters.options))),
        _simple("yes_no", "1", choices.yes_no),
        PostProcess("one_of", "1", lambda parameters: Reader(labels.label_in(parameters))),
        _cutting("regex", "1", patterns.matching),
        PostProcess("marker", "1", lambda parameters: Reader(marker.after(parameters.markers), marker.trimmed)),
        _simple("boxed", "1", latex.boxed, latex.boxed_target),
        _cutting("strip_reasoning", "1", lambda parameters: reasoning.without(parameters.tags)),
        _cutting("json_field", "2", lambda parameters: partial(lenient.field, parameters.path)),
        _cutting("code_block", "1", code.code_block),
    )
}


class Extracted(NamedTuple):
    """What counts as the answer, or the step that found nothing."""

    answer: str | None
    failed_at: str | None = None


class Pipeline:
    """The steps of a task, one after the other."""

    def __init__(self, steps: tuple[tuple[str, Parameters], ...]) -> None:
        names = [name for name, _ in steps]
        # One that comes twice has its place beside its name, as in a message on the task: regex[2].
        self.names = [f"{name}[{at}]" if names.count(name) > 1 else name for at, name in enumerate(names)]
        self._readers = [POST_PROCESS[name].make(parameters) for name, parameters in steps]

    def answer(self, text: str) -> str | None:
        """What counts as the answer; None when a step finds nothing."""
        return self.read(text).answer

    def read(self, text: str) -> Extracted:
        """The same, with the step that finds nothing."""
        for name, reader in zip(self.names, self._readers, strict=True):
            found = reader.extract(text)
            if found is None:
                return Extracted(None, name)
            text = found
        return Extracted(text)

    def target(self, text: str) -> str:
        """A target in the form that answers come in; what a step finds nothing in is only stripped by it."""
        for reader in self._readers:
            found = reader.target(text)
            text = text.strip() if found is None else found
        return text

    def fault(self, target: str) -> str | None:
        """The name of the step that finds nothing in the target, or leaves nothing of it: then no answer could ever
        equal it, or an empty one would.
        """
        for name, reader in zip(self.names, self._readers, strict=True):
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
    """Why no answer could ever be right, in words: a target in which the task's post-process finds nothing itself."""
    pipeline = pipeline_of(task.post_process)
    for target in task.targets:
        if (name := pipeline.fault(target)) is not None:
            shown = target if len(target) <= 80 else target[:80] + "..."
            return f"no answer can match the target {shown!r}: post_process {name} finds nothing in it"
    return None
