"""The letter of a multiple-choice answer; yes or no."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evald.post_process.characters import lines as lines_of
from evald.post_process.characters import plain as plain_form

_WRAP = r"(?:[\s*_`\"'“‘(\[{$<【]|\\[a-z]{2,10}\{){0,8}"
_END = r"(?![A-Za-z0-9'’À-ɏ]|-[A-Za-z])"  # "Let's", "A's" and "A-level" hold no choice
_NO_WORD = r"(?!(?<=[AI])\s(?!(?:because|since|as|and|for|with|due|which|based|in|is)\b)[a-z])"
_LETTER = (
    rf"(?:(?:(?i:option|choice|letter|answer)\s{{1,3}}|选项|選項){_WRAP}(?P<option>[A-Z]){_END}"
    rf"|{_WRAP}(?:(?P<letter>[A-Z]){_END}{_NO_WORD}|(?P<small>[a-z])(?:\)|[.*]{{0,3}}\s{{0,3}}\Z)))"
)
_START = r"(?<![A-Za-z0-9À-ɏ'’.])"

# One example of each pattern is in tests/unit/test_post_process.py, in this order.
_SAID = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?i:\banswer(?:\s(?:option|choice))?[\s*_]{{0,4}}(?:(?:is|would\sbe|should\sbe)\s?:?|:|=))\s{{0,3}}{_LETTER}",
        rf"(?<!not\s)(?<!n['’]t\s)(?i:\b(?:choose|chose|pick|select|go\swith))\s{{1,3}}{_LETTER}",
        rf"(?i:\b(?:correct|right|best)\s(?:option|choice|one)\s?(?:is\s?:?|:))\s{{0,3}}{_LETTER}",
        rf"{_START}(?P<letter>[A-Z]){_END}[)\]}}*_.]{{0,4}}\s{{1,3}}(?i:is\s(?:the\s)?(?:correct|right|best|answer)\b)",
        rf"答案\s{{0,2}}(?:应该|應該|应|應)?(?:是|为|為|选|選|:)\s{{0,2}}{_LETTER}",
        rf"(?<!不)(?<!不[应應能要可])(?:故选|故選|应选|應選|选择|選擇|选|選)\s{{0,2}}:?{_LETTER}",
        rf"{_START}(?P<letter>[A-Z]){_END}[)）\]}}】]?\s{{0,2}}(?:选项|選項)?(?:才)?是?(?:对|對|正确|正確)",
        rf"(?:正解|正答|答え|解答)\s{{0,2}}(?:は|:){_LETTER}",
    )
)
_EDGE = r"[\s*_`\"'“”‘’()\[\]{}$<>【】.,:;!。、]"
_ALONE = re.compile(rf"{_EDGE}{{0,12}}(?P<letter>[A-Za-z]){_EDGE}*")
_AT_LINE_START = re.compile(
    r"^[\s*_`\"'(\[【]{0,8}(?P<letter>[A-Z])(?:[)\]】:、]|\*\*|[.,](?=\s|\Z))(?!\s[A-Z]\.)", re.MULTILINE
)
_MARKED = re.compile(
    rf"(?:(?i:\b(?:option|choice))\s{{1,3}}|选项|選項)[(\[*]{{0,3}}(?P<letter>[A-Z]){_END}"
    r"|\((?P<round>[A-Z])\)|\*\*\(?(?P<bold>[A-Z])[).]?\*\*"
)
_BOX = "\\boxed{"
_BOXED_LETTER = re.compile(rf"{_WRAP}(?P<letter>[A-Za-z]){_END}(?:\s{{0,3}}\Z|\s{{0,3}}[.,:;)\]}}*、。])")


def choice_letter(text: str) -> str | None:
    """By how plainly it is said: the last box that holds one; the last "the answer is B"; a first or last line of a
    letter alone; the one option that lines start with; the one that is marked as an option. Several such options are
    no answer."""
    plain = plain_form(text)
    for content in boxes(plain):
        if found := _BOXED_LETTER.match(content):
            return found["letter"].upper()
    said = [found for pattern in _SAID for found in pattern.finditer(plain)]
    if said:
        last = max(said, key=lambda found: found.end())
        return str(last[last.lastgroup or 0]).upper()
    lines = lines_of(plain)
    for line in (*lines[-1:], *lines[:1]):
        if found := _ALONE.fullmatch(line):
            return found["letter"].upper()
    for pattern in (_AT_LINE_START, _MARKED):
        letters = {letter for found in pattern.finditer(plain) for letter in found.groups() if letter}
        if letters:
            return letters.pop() if len(letters) == 1 else None
    return None


def boxes(text: str) -> Iterator[str]:
    r"""What the balanced `\boxed{...}` of the text hold, the last first. Of the last 100, and those of up to 200
    characters: no choice is longer, and nested boxes without an end would take the square of their number."""
    start = len(text)
    for _ in range(100):
        start = text.rfind(_BOX, 0, start)
        if start < 0:
            return
        depth = 1
        for offset, char in enumerate(text[start + len(_BOX) : start + len(_BOX) + 200]):
            depth += {"{": 1, "}": -1}.get(char, 0)
            if not depth:
                yield text[start + len(_BOX) : start + len(_BOX) + offset]
                break


# --- yes or no ------------------------------------------------------------------------------------------------------

_SAID_YES_NO = re.compile(
    r"\banswer[\s*_]{0,4}(?:(?:is|would\sbe|should\sbe)\s?:?|:|=)[\s*_`\"'“]{0,6}(yes|no)\b", re.IGNORECASE
)
_FIRST_YES_NO = re.compile(r"[^\w]{0,12}(yes|no)\b(?!-)", re.IGNORECASE)
_LAST_YES_NO = re.compile(r"\b(yes|no)[^\w]{0,12}\Z", re.IGNORECASE)


def yes_no(text: str) -> str | None:
    """The last "the answer is yes"; else the first word; else the last word. A "no" elsewhere ("there is no ...")
    isn't one."""
    plain = plain_form(text).strip()
    if said := _SAID_YES_NO.findall(plain):
        return str(said[-1]).lower()
    found = _FIRST_YES_NO.match(plain) or _LAST_YES_NO.search(plain[-20:])
    return found[1].lower() if found else None
