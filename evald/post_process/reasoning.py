"""The answer without the trace of reasoning that came with it, between tags such as <think> and </think>.

A trace that isn't closed was cut, and then there is no answer: what the model was still thinking is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable


def without(tags: tuple[str, ...]) -> Callable[[str], str | None]:
    """The step for tags of these names, in any case, as <think>, [THINK] or ◁think▷."""
    names = "|".join(sorted(map(re.escape, tags), key=len, reverse=True))
    tag = re.compile(rf"(?P<open>[<\[◁])(?P<close>/?)(?:{names})(?:[ \t][^<>\[\]\n]{{0,100}})?[>\]▷]", re.IGNORECASE)

    def extract(text: str) -> str | None:
        """A closing tag alone ends a trace whose opening tag was part of the prompt. Tags don't nest: a trace may speak
        of its own tag."""
        kept: list[str] = []
        position, thinking = 0, False
        for found in tag.finditer(text):
            if found["close"]:
                if not thinking:
                    kept.clear()
                thinking, position = False, found.end()
            elif not thinking:
                kept.append(text[position : found.start()])
                thinking = True
        if thinking:
            return None
        kept.append(text[position:])
        return "".join(kept).strip() or None

    return extract
