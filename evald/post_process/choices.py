"""The letter of a multiple-choice answer; yes or no."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from evald.post_process.characters import lines as lines_of
from evald.post_process.characters import plain as plain_form
from evald.post_process.latex import boxes

_WRAP = r"(?:[\s*_`\"'“‘(\[{$<【]|\\[a-z]{2,10}\{){0,8}"
_END = r"(?![A-Za-z0-9'’À-ɏ]|-[A-Za-z])"  # "Let's", "A's" and "A-level" hold no choice
_NO_WORD = r"(?!(?<=[AI])\s(?!(?:because|since|as|and|for|with|due|which|based|in|is)\b)[a-z])"
_START = r"(?<![A-Za-z0-9À-ɏ'’.])"
_EDGE = r"[\s*_`\"'“”‘’()\[\]{}$<>【】.,:;!。、]"
_IS = r"(?:应该|應該|应|應)?(?:是|为|為|选|選|:)"


class _Patterns:
    """For the letters that are options; any other is none, whatever stands around it."""

    def __init__(self, options: str) -> None:
        large, small = f"[{options}]", f"[{options.lower()}]"
        letter = (
            rf"(?:(?:(?i:option|choice|letter|answer)\s{{1,3}}|选项|選項){_WRAP}(?P<option>{large}){_END}"
            rf"|{_WRAP}(?:(?P<letter>{large}){_END}{_NO_WORD}|(?P<small>{small})(?:\)|[.*]{{0,3}}\s{{0,3}}\Z)))"
        )
        # One example of each is in tests/unit/test_post_process.py, in this order.
        self.said = tuple(
            re.compile(pattern)
            for pattern in (
                r"(?i:\banswer(?:\s(?:option|choice))?[\s*_]{0,4}"
                rf"(?:(?:is|would\sbe|should\sbe|must\sbe)\s?:?|:|=))\s{{0,3}}{letter}",
                rf"(?<!not\s)(?<!n['’]t\s)(?i:\b(?:choose|chose|pick|select|go\swith))\s{{1,3}}{letter}",
                r"(?i:\b(?:correct|right|best)\s(?:option|choice|one)[\s*_]{0,4}"
                rf"(?:(?:is|would\sbe|should\sbe|must\sbe)\s?:?|:))\s{{0,3}}{letter}",
                rf"{_START}(?P<letter>{large}){_END}[)\]}}*_.]{{0,4}}\s{{1,3}}"
                r"(?i:is\s(?:the\s)?(?:correct|right|best|answer)\b)",
                rf"答案\s{{0,2}}{_IS}\s{{0,2}}:?\s{{0,2}}{letter}",
                rf"(?:正确|正確)的?(?:选项|選項)\s{{0,2}}{_IS}\s{{0,2}}:?\s{{0,2}}{letter}",
                rf"(?<!不)(?<!不[应應能要可])(?:故选|故選|应选|應選|选择|選擇|选|選)\s{{0,2}}:?{letter}",
                rf"{_START}(?P<letter>{large}){_END}[)）\]}}】]?\s{{0,2}}(?:选项|選項|项|項)?(?:才)?是?(?:对|對|正确|正確)",
                rf"(?:正解|正答|答え|解答)\s{{0,2}}(?:は|:){letter}",
            )
        )
        self.alone = re.compile(rf"{_EDGE}{{0,12}}(?P<letter>{large}|{small}){_EDGE}*")
        self.at_line_start = re.compile(
            rf"^[\s*_`\"'(\[【]{{0,8}}(?P<letter>{large})(?:[)\]】:、]|\*\*|[.,](?=\s|\Z))(?!\s[A-Z]\.)", re.MULTILINE
        )
        self.marked = re.compile(
            rf"(?:(?i:\b(?:option|choice))\s{{1,3}}|选项|選項)[(\[*]{{0,3}}(?P<letter>{large}){_END}"
            rf"|\((?P<round>{large})\)|\*\*\(?(?P<bold>{large})[).]?\*\*"
        )
        self.boxed = re.compile(rf"{_WRAP}(?P<letter>{large}|{small}){_END}(?:\s{{0,3}}\Z|\s{{0,3}}[.,:;)\]}}*、。])")
        self.another = re.compile(
            r"[)）\]}】*_`.]{0,4}\s{0,3}(?:[,/&+、]|和|或|及|以及|与|,?\s{0,3}\b(?i:and|or)\b)\s{0,3}(?:(?i:option|choice)\s{1,3})?"
            rf"[(\[{{（【*_`]{{0,4}}{large}{_END}[)）\]}}】*_`]{{0,4}}(?:\s{{0,3}}\Z|\n|[,.;。，；、/&+]|\s(?:and|or|are)\b|和|或)"
        )

    def find(self, text: str) -> str | None:
        plain = plain_form(text)
        for box in reversed(boxes(plain)):
            if found := self.boxed.match(plain[box.start : min(box.end, box.start + _LONGEST_BOX)]):
                return self._only(found)
        said = [found for pattern in self.said for found in pattern.finditer(plain)]
        if said:
            last = max(said, key=lambda found: found.end())
            return self._only(last)
        lines = lines_of(plain)
        for line in (*lines[-1:], *lines[:1]):
            if found := self.alone.fullmatch(line):
                return found["letter"].upper()
        for pattern in (self.at_line_start, self.marked):
            letters = {self._only(found) for found in pattern.finditer(plain)}
            if letters:
                return letters.pop() if len(letters) == 1 else None
        return None

    def _only(self, found: re.Match[str]) -> str | None:
        """The letter of a match; None where another one is named beside it."""
        group = found.lastgroup or 0
        return None if self.another.match(found.string, found.end(group)) else found[group].upper()


_LONGEST_BOX = 200  # characters of it that are looked at: a letter stands at its beginning


@lru_cache(maxsize=64)
def choice_letter(options: str) -> Callable[[str], str | None]:
    """The step for these options. By how plainly it is said: the last box that holds one; the last "the answer is B"; a
    first or last line of a letter alone; the one option that lines start with; the one that is marked as an option.
    Several such options are no answer, neither are those that are said in one breath ("A, B", "B or C")."""
    return _Patterns(options).find


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
