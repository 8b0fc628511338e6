"""The verifiable instructions of IFEval, as a task's `metadata` names them: which there are, and what each can be told.

    {"instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
     "kwargs": [{}, {"relation": "at least", "num_words": 300}]}

Ids, names and meanings are those of Zhou et al., "Instruction-Following Evaluation for Large Language Models" (2023),
and of its published data, so that its rows can be used as they are; a null counts as not told, as some copies of the
data have it. How each is checked lives in `evald.metrics.ifeval`; a test holds that both sides name the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from shared.tables import convert_table, unknown_word

Relation = Literal["at least", "less than"]
Number = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]


class Told(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an instruction is told beside its id; here nothing."""


class Keywords(Told, frozen=True, kw_only=True):
    keywords: Annotated[tuple[Text, ...], Meta(min_length=1)]


class KeywordFrequency(Told, frozen=True, kw_only=True):
    keyword: Text
    frequency: Number
    relation: Relation


class ForbiddenWords(Told, frozen=True, kw_only=True):
    forbidden_words: Annotated[tuple[Text, ...], Meta(min_length=1)]


class LetterFrequency(Told, frozen=True, kw_only=True):
    letter: Annotated[str, Meta(min_length=1, max_length=1)]
    let_frequency: Number
    let_relation: Relation


class Language(Told, frozen=True, kw_only=True):
    """language: its code of ISO 639-1."""

    language: Annotated[str, Meta(pattern="^[a-z]{2}(-[a-z]+)?$")]


class Sentences(Told, frozen=True, kw_only=True):
    num_sentences: Number
    relation: Relation


class Paragraphs(Told, frozen=True, kw_only=True):
    num_paragraphs: Number


class Words(Told, frozen=True, kw_only=True):
    num_words: Number
    relation: Relation


class FirstWord(Told, frozen=True, kw_only=True):
    num_paragraphs: Number
    nth_paragraph: Annotated[int, Meta(ge=1)]
    first_word: Text


class Placeholders(Told, frozen=True, kw_only=True):
    num_placeholders: Number


class Postscript(Told, frozen=True, kw_only=True):
    postscript_marker: Text


class Bullets(Told, frozen=True, kw_only=True):
    num_bullets: Number


class Highlights(Told, frozen=True, kw_only=True):
    num_highlights: Number


class Sections(Told, frozen=True, kw_only=True):
    """section_spliter: as the data spell it."""

    section_spliter: Text
    num_sections: Number


class PromptToRepeat(Told, frozen=True, kw_only=True):
    prompt_to_repeat: Text


class EndPhrase(Told, frozen=True, kw_only=True):
    end_phrase: Text


class CapitalWords(Told, frozen=True, kw_only=True):
    capital_frequency: Number
    capital_relation: Relation


INSTRUCTIONS: Mapping[str, type[Told]] = {
    "keywords:existence": Keywords,
    "keywords:frequency": KeywordFrequency,
    "keywords:forbidden_words": ForbiddenWords,
    "keywords:letter_frequency": LetterFrequency,
    "language:response_language": Language,
    "length_constraints:number_sentences": Sentences,
    "length_constraints:number_paragraphs": Paragraphs,
    "length_constraints:number_words": Words,
    "length_constraints:nth_paragraph_first_word": FirstWord,
    "detectable_content:number_placeholders": Placeholders,
    "detectable_content:postscript": Postscript,
    "detectable_format:number_bullet_lists": Bullets,
    "detectable_format:constrained_response": Told,
    "detectable_format:number_highlighted_sections": Highlights,
    "detectable_format:multiple_sections": Sections,
    "detectable_format:json_format": Told,
    "detectable_format:title": Told,
    "combination:two_responses": Told,
    "combination:repeat_prompt": PromptToRepeat,
    "startend:end_checker": EndPhrase,
    "startend:quotation": Told,
    "change_case:capital_word_frequency": CapitalWords,
    "change_case:english_capital": Told,
    "change_case:english_lowercase": Told,
    "punctuation:no_comma": Told,
}


class Instructions(Struct, frozen=True, kw_only=True):
    """A task's metadata under the metric `ifeval`. kwargs: one table an instruction, in their order."""

    instruction_id_list: Annotated[tuple[str, ...], Meta(min_length=1)]
    kwargs: tuple[dict[str, Any], ...]

    def __post_init__(self) -> None:
        """Raises ValueError with all that is wrong with the instructions."""
        faults = []
        if len(self.instruction_id_list) != len(self.kwargs):
            faults.append(
                f"{len(self.instruction_id_list)} in instruction_id_list and {len(self.kwargs)} in kwargs: "
                "expected one table for each instruction"
            )
        for name, told in zip(self.instruction_id_list, self.kwargs, strict=False):
            kind = INSTRUCTIONS.get(name)
            if kind is None:
                faults.append(unknown_word(name, INSTRUCTIONS))
            else:
                faults += [str(problem) for problem in convert_table(_known(told), kind, name)[1]]
        if faults:
            raise ValueError("; ".join(faults))

    def told(self) -> list[tuple[str, Told]]:
        """(id, what it is told) of each instruction."""
        return [
            (name, msgspec.convert(_known(told), INSTRUCTIONS[name]))
            for name, told in zip(self.instruction_id_list, self.kwargs, strict=True)
        ]


def _known(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if value is not None}
