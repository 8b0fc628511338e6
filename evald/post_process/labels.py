"""Which of a task's labels a text names."""

from __future__ import annotations

import re
from collections.abc import Callable

from evald.post_process.characters import plain
from shared.vocabulary import LabelParameters

_LETTER = "[A-Za-z0-9À-ӿ]"  # scripts that put spaces between words; a Chinese label stands amid its sentence


def label_in(parameters: LabelParameters) -> Callable[[str], str | None]:
    """The label as the task writes it. Of labels that lie in one another ("not valid", "valid") the longest counts."""
    known = {_key(label, parameters.ignore_case): label for label in reversed(parameters.labels)}
    pattern = re.compile(
        "|".join(_word(plain(label)) for label in sorted(parameters.labels, key=len, reverse=True)),
        re.IGNORECASE if parameters.ignore_case else 0,
    )

    def extract(text: str) -> str | None:
        keys = (_key(found[0], parameters.ignore_case) for found in pattern.finditer(plain(text)))
        found = [known[key] for key in keys if key in known]
        if not found or (parameters.take == "only" and len(set(found)) > 1):
            return None
        return found[-1] if parameters.take == "last" else found[0]

    return extract


def _key(label: str, ignore_case: bool) -> str:
    return plain(label).lower() if ignore_case else plain(label)


def _word(label: str) -> str:
    before = rf"(?<!{_LETTER})" if re.match(_LETTER, label) else ""
    behind = rf"(?!{_LETTER})" if re.match(_LETTER, label[-1]) else ""
    return before + re.escape(label) + behind
