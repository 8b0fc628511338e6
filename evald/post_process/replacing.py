"""Texts put in the place of others."""

from __future__ import annotations

from shared.vocabulary import MapParameters


def mapped(parameters: MapParameters, text: str) -> str | None:
    """What the table has for exactly this text; None where it has nothing. As lm-evaluation-harness's `map`."""
    return parameters.replacements.get(text, parameters.default)


def mapped_target(parameters: MapParameters, text: str) -> str | None:
    """A target that the table's answers can equal stays as it is. The default is for answers alone: in a target's place
    it would make all that is unknown right.
    """
    if text == parameters.default or text in parameters.replacements.values():
        return text
    return parameters.replacements.get(text)
