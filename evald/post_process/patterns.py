"""What a user's pattern takes from a text."""

from __future__ import annotations

from collections.abc import Callable

from shared.patterns import Found, compiled
from shared.vocabulary import RegexParameters


def matching(parameters: RegexParameters) -> Callable[[str], str | None]:
    """The step for a pattern. What a match gives is stripped; a match that then gives nothing is passed over."""
    pattern = compiled(parameters.pattern, ignore_case=parameters.ignore_case)
    group, first = parameters.group, parameters.take == "first"

    def taken(match: Found) -> str:
        if group is not None:
            return ((match.text, *match.groups)[group] or "").strip()
        parts = match.groups or (match.text,)
        return next((stripped for part in parts if part and (stripped := part.strip())), "")

    def find(text: str) -> str | None:
        if first:
            match = pattern.search(text)  # of the whole text, which finding all isn't
            if match is None or (found := taken(match)):
                return found if match is not None else None
        last = None
        for match in pattern.finditer(text):
            if found := taken(match):
                if first:
                    return found
                last = found
        return last

    def extract(text: str) -> str | None:
        """Answers mostly end with a line feed, in front of which `$` doesn't match in RE2."""
        found = find(text)
        return find(text.rstrip()) if found is None and text[-1:].isspace() else found

    return extract
