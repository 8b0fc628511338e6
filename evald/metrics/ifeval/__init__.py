"""ifeval: whether an answer does what verifiable instructions ask for (Zhou et al., "Instruction-Following Evaluation
for Large Language Models", 2023).

Which instructions there are, and what each is told, says `shared.instructions`; this folder says how each is checked,
one file a group. A check gives True or False for any text, in time linear in it. An empty answer follows none.

- level `prompt`: 1.0 when all of a task's instructions are followed, else 0.0. level `instruction`: their share; the
  dataset's value, followed over asked for, is in `corpus`, since tasks with more instructions weigh more there.
- mode `strict`: of the answer as it is. mode `loose`: an instruction is followed when any of eight forms of the answer
  does: without its first line, its last, both or neither, each with and without its asterisks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from evald.metrics.ifeval import affixes, cases, formats, keywords, language, lengths
from evald.metrics.scorer import Sample, SampleCorpus, Scorer
from shared.instructions import Instructions, Told
from shared.vocabulary import IfevalParameters

VERSION = f"1+py3langid{language.version()}"

Mode = Literal["strict", "loose"]

CHECKS: Mapping[str, Callable[[str, Any], bool]] = {
    "keywords:existence": keywords.existence,
    "keywords:frequency": keywords.frequency,
    "keywords:forbidden_words": keywords.forbidden_words,
    "keywords:letter_frequency": keywords.letter_frequency,
    "language:response_language": language.response_language,
    "length_constraints:number_sentences": lengths.number_sentences,
    "length_constraints:number_paragraphs": lengths.number_paragraphs,
    "length_constraints:number_words": lengths.number_words,
    "length_constraints:nth_paragraph_first_word": lengths.nth_paragraph_first_word,
    "detectable_content:number_placeholders": formats.number_placeholders,
    "detectable_content:postscript": affixes.postscript,
    "detectable_format:number_bullet_lists": formats.number_bullet_lists,
    "detectable_format:constrained_response": formats.constrained_response,
    "detectable_format:number_highlighted_sections": formats.number_highlighted_sections,
    "detectable_format:multiple_sections": formats.multiple_sections,
    "detectable_format:json_format": formats.json_format,
    "detectable_format:title": formats.title,
    "combination:two_responses": formats.two_responses,
    "combination:repeat_prompt": affixes.repeat_prompt,
    "startend:end_checker": affixes.end_checker,
    "startend:quotation": affixes.quotation,
    "change_case:capital_word_frequency": cases.capital_word_frequency,
    "change_case:english_capital": cases.english_capital,
    "change_case:english_lowercase": cases.english_lowercase,
    "punctuation:no_comma": cases.no_comma,
}


def make(parameters: IfevalParameters) -> Scorer:
    mode = parameters.mode

    def score(sample: Sample) -> float:
        found = verdicts_of(sample, mode)
        return float(all(found)) if parameters.level == "prompt" else sum(found) / len(found)

    def corpus() -> SampleCorpus | None:
        return InstructionLevel(mode) if parameters.level == "instruction" else None

    told = {"level": parameters.level, "mode": mode, "languages": language.detector()}
    return Scorer(score, 1.0, told, corpus)


class InstructionLevel:
    """Over a dataset: instructions followed, of those that were asked for. Repeats are counted apart. last: what the
    sample added last added to both.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode: Mode = mode
        self._followed = self._asked = 0
        self.last: tuple[float, ...] = ()

    def add_sample(self, sample: Sample) -> None:
        found = verdicts_of(sample, self._mode)
        self._followed += sum(found)
        self._asked += len(found)
        self.last = (sum(found), len(found))

    def values(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of sums of shape (n, 2), such as those of resamples: shape (n,)."""
        return np.asarray(sums[:, 0] / sums[:, 1])

    def result(self) -> dict[str, Any]:
        value = self._followed / self._asked if self._asked else None
        return {"value": value, "followed": self._followed, "instructions": self._asked}


def verdicts_of(sample: Sample, mode: Mode) -> list[bool]:
    """Raises msgspec.ValidationError for metadata that a task which was read can't have."""
    return verdicts(sample.answer or "", msgspec.convert(sample.task.metadata, Instructions), mode)


def verdicts(text: str, instructions: Instructions, mode: Mode) -> list[bool]:
    """Whether each instruction is followed, in their order."""
    return [_follows(text, name, told, mode) for name, told in instructions.told()]


def _follows(text: str, name: str, told: Told, mode: Mode) -> bool:
    forms = loose_forms(text) if mode == "loose" else iter((text,))
    return any(form.strip() and CHECKS[name](form, told) for form in forms)


def loose_forms(text: str) -> Iterator[str]:
    """The answer as it is first, so that what is followed strictly costs no more."""
    lines = text.split("\n")
    shapes = (text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])))
    yield from shapes
    yield from (shape.replace("*", "") for shape in shapes)
