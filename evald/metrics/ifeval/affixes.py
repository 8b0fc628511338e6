"""How an answer must begin and end. Letter case doesn't matter."""

from __future__ import annotations

import re

from shared.instructions import EndPhrase, Postscript, PromptToRepeat, Told

# A model may put a space after each full stop.
_POSTSCRIPTS = {"P.S.": re.compile(r"p\.\s?s\."), "P.P.S": re.compile(r"p\.\s?p\.\s?s")}


def postscript(text: str, told: Postscript) -> bool:
    """The mark occurs, wherever."""
    marker, text = told.postscript_marker, text.lower()
    pattern = _POSTSCRIPTS.get(marker)
    return bool(pattern.search(text)) if pattern is not None else marker.lower() in text


def repeat_prompt(text: str, told: PromptToRepeat) -> bool:
    """It begins with the request, word for word."""
    return text.strip().lower().startswith(told.prompt_to_repeat.strip().lower())


def end_checker(text: str, told: EndPhrase) -> bool:
    """It ends with the phrase, be it inside quotation marks."""
    return text.strip().strip('"').lower().endswith(told.end_phrase.strip().lower())


def quotation(text: str, told: Told) -> bool:
    """All of it stands in double quotation marks."""
    text = text.strip()
    return len(text) > 1 and text.startswith('"') and text.endswith('"')
