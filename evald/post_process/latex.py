r"""What a LaTeX box holds: `\boxed{...}` with braces nested as they may be, `\fbox{...}`, and `\boxed 5`."""

from __future__ import annotations

import re
from typing import NamedTuple

# One or two backslashes: an answer that was escaped once too often. `\{` and `\\` are no braces, and lead to none.
_TOKEN = re.compile(r"\\{1,2}(?:boxed|fbox)[ \t]*\{|\\{1,2}boxed[ \t]+(?P<bare>[^\s{}$\\]+)|\\.|[{}]", re.DOTALL)
_LOOK = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox)[ \t]*\{")


class Span(NamedTuple):
    """Of what a box holds, its braces left out."""

    start: int
    end: int


def boxes(text: str) -> list[Span]:
    """The boxes whose braces are balanced, in the order in which they begin. One pass, whatever is nested in what."""
    found: list[Span] = []
    opened: list[int | None] = []  # where the content of each open brace's box begins; None of other braces
    for token in _TOKEN.finditer(text):
        if token["bare"] is not None:
            found.append(Span(*token.span("bare")))
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}":
            if opened and (start := opened.pop()) is not None:
                found.append(Span(start, token.start()))
        elif token[0].endswith("{") and len(token[0]) > 2:
            opened.append(token.end())
    return sorted(found)


def boxed(text: str) -> str | None:
    r"""What the last box holds, without `\text{}` around all of it; None where there is no box, or nothing in it."""
    spans = boxes(text)
    if not spans:
        return None
    last = spans[-1]
    content = text[last.start : last.end].strip()
    if text[last.end : last.end + 1] != "}":  # a bare one takes the end of its sentence along
        content = content.rstrip(".,;:")
    return _plain(content) or None


def boxed_target(text: str) -> str:
    """A target may be a box, or what it holds."""
    return boxed(text) or _plain(text.strip())


def _plain(content: str) -> str:
    r"""Without `\text{...}`, `\mathrm{...}` and the like where that is all there is."""
    for _ in range(3):
        opening = _LOOK.match(content)
        if opening is None or not _closes_at_end(content, opening.end()):
            break
        content = content[opening.end() : -1].strip()
    return content


def _closes_at_end(content: str, start: int) -> bool:
    """Whether the brace that was opened before `start` is closed by the last character."""
    depth = 1
    for token in _TOKEN.finditer(content, start):
        if token[0].endswith("{") and token[0] != "\\{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if not depth:
                return token.end() == len(content)
    return False
