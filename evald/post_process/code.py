"""The code of an answer: what stands between fences, also where the last fence was never closed; without any fence, the
text where it is nothing but code. Nothing of it is run or parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shared.vocabulary import CodeParameters

_LANGUAGES = {
    "py": "python", "python3": "python", "python2": "python", "py3": "python", "ipython": "python",
    "js": "javascript", "node": "javascript", "jsx": "javascript", "ts": "typescript", "tsx": "typescript",
    "c++": "cpp", "cc": "cpp", "cxx": "cpp", "c#": "csharp", "cs": "csharp", "golang": "go", "rs": "rust", "rb": "ruby",
    "sh": "bash", "shell": "bash", "zsh": "bash", "kt": "kotlin", "ps1": "powershell", "hs": "haskell",
    "postgresql": "sql", "mysql": "sql", "sqlite": "sql",
}  # fmt: skip

# A fence may stand behind text on its line ("Here it is: ```python"), in a list, or in a quote.
_OPENING = re.compile(
    r"(?P<before>[^`~]*+)(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?:\{[ \t]*+)?+\.?+(?P<language>[\w+#-]{0,20}+)(?P<rest>[^`]*+)"
)
# How a line that isn't indented begins, or ends, where it is code.
_CODE_LINE = re.compile(
    r"(?:async|await|def|class|import|from|if|elif|else|for|while|return|try|except|finally|with|print|assert|raise|pass"
    r"|break|continue|global|nonlocal|del|yield|lambda|var|let|const|function|export|public|private|protected|static"
    r"|package|using|namespace|struct|enum|interface|type|fn|func|impl|use|mod|pub|int|long|void|double|float|char|bool"
    r"|auto|template|SELECT|INSERT|UPDATE|DELETE|CREATE|WITH|FROM|WHERE|GROUP|ORDER|JOIN|LEFT|INNER|HAVING|LIMIT|UNION"
    r"|select)\b(?!['’,.])"
    r"|[\w.]{1,100}(?:\[[^\]\n]{0,100}\])?[ \t]{0,8}(?::[^=\n]{1,100})?[-+*/%|&^]?=(?!=)"  # x = 1, x: int = 1, x += 1
    r"|[A-Za-z_][\w.]{0,100}\("  # f(x)
    r"|[@#}\])]|//|/\*|--|\"\"\"|'''"
)


class Block(NamedTuple):
    """A fenced block. language: its info's first word, in lower case and in one name a language; "" if none."""

    language: str
    code: str


def code_block(parameters: CodeParameters) -> Callable[[str], str | None]:
    wanted = _named(parameters.language) if parameters.language else None

    def extract(text: str) -> str | None:
        """Of blocks of the same length, the last is the longest. Blocks in other languages than the wanted one aren't
        the answer; those that name none may be."""
        found = list(blocks(text))
        if not found:
            return text.strip("\r\n") if is_code(text) else None
        if wanted is not None:
            found = [block for block in found if block.language == wanted] or [b for b in found if not b.language]
        codes = [block.code for block in found if block.code.strip()]
        if not codes:
            return None
        match parameters.take:
            case "first":
                return codes[0]
            case "last":
                return codes[-1]
            case "longest":
                return max(reversed(codes), key=len)

    return extract


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks in their order; the last one may have no end. Their lines end in LF alone, and lose the
    indentation that their fence has."""
    opened: re.Match[str] | None = None
    kept: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if opened is None:
            opened = _opening(line)
            continue
        closed = _closing(line, opened["fence"])
        if closed is None:
            kept.append(_dedented(line, opened["before"]))
            continue
        if closed:
            kept.append(_dedented(closed, opened["before"]))
        yield _block(opened, kept)
        opened, kept = None, []
    if opened is not None:
        yield _block(opened, kept)


def is_code(text: str) -> bool:
    """Whether each line is indented, blank, or begins as lines of code do. A sentence before or after the code isn't,
    and then the code's end isn't told: nothing is taken."""
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    return bool(lines) and all(line[0] in " \t" or _CODE_LINE.match(line) is not None for line in lines)


def _opening(line: str) -> re.Match[str] | None:
    found = _OPENING.fullmatch(line)
    if found is None or (found["before"].strip(" \t>-*+0123456789.)") and found["rest"].strip()):
        return None  # amid a sentence
    return found


def _closing(line: str, fence: str) -> str | None:
    """The code that stands on the line before the fence that ends the block; None where none ends it."""
    line = line.rstrip(" \t")
    code = line.rstrip(fence[0])
    if len(line) - len(code) < len(fence) or fence in code:
        return None
    return code.rstrip() if code.strip(" \t>") else ""


def _dedented(line: str, before: str) -> str:
    indent = len(before) if not before.strip(" \t") else 0
    return line[min(indent, len(line) - len(line.lstrip(" \t"))) :]


def _block(opened: re.Match[str], lines: list[str]) -> Block:
    return Block(_named(opened["language"]), "\n".join(lines))


def _named(language: str) -> str:
    return _LANGUAGES.get(language.lower(), language.lower())
