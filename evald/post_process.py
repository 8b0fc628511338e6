r"""What counts as the answer in a model's text, and the same form for a target, so that both can be compared.

`answer` gives None when the text holds no such thing: that is the outcome "unextracted", scored 0 and counted apart
from wrong. `target` never fails: what holds no such thing is only stripped, and then equals no answer.

The text is hostile. Every pattern is linear: no quantifier stands next to one that can match the same characters, and
what may repeat in front of a match is bounded. No number is computed from an exponent before its size is known.

Numbers. Digits of any script count. Commas and no-break or thin spaces group thousands ("1,234", also "1,00,000");
dots do so only where they can't be a decimal point ("1.234.567", "1.234,50"). A minus counts when it isn't between
two things ("2-3", "x-3"), before or after a currency sign. Currency, percent and units are ignored, so "20%" is 20
and not 0.2. Digits that belong to a word ("x42", "42abc", "3rd"), to a power or an index ("10^9", "x_2") are no
numbers. A fraction "3/4" is two numbers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from shared.records import TaskSpec


@dataclass(frozen=True)
class PostProcess:
    """extract: from an answer's text. canonical: from a target's; by default what extract finds in it, else it
    stripped.

    version: changes when any text gets another result; results are keyed by it.
    """

    name: str
    version: str
    extract: Callable[[str], str | None]
    canonical: Callable[[str], str | None] | None = None

    def answer(self, text: str) -> str | None:
        return self.extract(text)

    def target(self, text: str) -> str:
        found = (self.canonical or self.extract)(text)
        return text.strip() if found is None else found

    def suits(self, text: str) -> bool:
        """Whether an answer could ever be found that equals this target."""
        return (self.canonical or self.extract)(text) is not None


# --- characters -----------------------------------------------------------------------------------------------------


class _Plain(dict[int, str]):
    """For str.translate: digits of any script and look-alikes of ASCII ("４", "Ｂ", "𝟒") become ASCII, dashes that
    serve as a minus become "-", and the spaces that group digits one no-break space. All else stays, superscripts
    too: 10² is not 102."""

    def __missing__(self, code: int) -> str:
        result = self._replacement(chr(code))
        if code <= 0xFFFF:  # no text, however hostile, makes it grow beyond that
            self[code] = result
        return result

    def _replacement(self, char: str) -> str:
        if char in "\u2212\u2010\u2011\u2012\u2013\ufe63":
            return "-"
        if char in "\u00a0\u2007\u2009\u202f":
            return "\u00a0"
        if char in "\u066c\u066b":  # the Arabic thousands and decimal separators
            return "," if char == "\u066c" else "."
        if (digit := unicodedata.decimal(char, None)) is not None:
            return str(digit)
        form = unicodedata.normalize("NFKC", char)
        return form if len(form) == 1 and form.isascii() and unicodedata.category(char) != "No" else char


_PLAIN = _Plain()


def _plain(text: str) -> str:
    return text if text.isascii() else text.translate(_PLAIN)


# --- lines ----------------------------------------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    return [stripped for line in text.split("\n") if (stripped := line.strip())]


def _first_line(text: str) -> str | None:
    return next(iter(_lines(text)), None)


def _last_line(text: str) -> str | None:
    return next(reversed(_lines(text)), None)


# --- numbers --------------------------------------------------------------------------------------------------------

_LONGEST = 400  # digits. No target has more; a longer one is noise or an attack
_CURRENCY = r"(?:[A-Z]{0,3}\\?[$€£¥￥₩₹₽₺₫₴₪₦฿¢][ \u00a0]?)"
# What may stand right after the digits, in this case only: 5g is a weight, 5G isn't.
_LENGTHS = {"km", "m", "cm", "mm", "mi", "ft", "in", "yd", "km²", "m²", "cm²"}
_AMOUNTS = {"kg", "g", "mg", "lb", "lbs", "oz", "l", "L", "ml", "mL", "cl", "gal", "kcal", "cal"}
_BYTES = {"kB", "KB", "MB", "GB", "TB"}
_TIMES = {"h", "hr", "hrs", "min", "mins", "s", "sec", "secs", "ms", "am", "pm", "AM", "PM"}
_RATES = {"mph", "kph", "kW", "kWh", "Hz", "kHz", "MHz", "GHz"}
_MONEY = {"USD", "EUR", "GBP", "CNY", "RMB", "JPY"}
_UNITS = _LENGTHS | _AMOUNTS | _BYTES | _TIMES | _RATES | _MONEY

_RUN = re.compile(r"(?:(?<![\w.)])\.)?[0-9]+(?:[,.\u00a0][0-9]+)*(?:[eE][+-]?[0-9]+)?")
_BOUND_BEFORE = re.compile(r"(?:\^|[^\W_]_)[{(]?-?\Z")  # a power, an index
_MINUS = re.compile(rf"(?:(?P<tight>-)|(?<=[=:($])[ ]?- ){_CURRENCY}?\Z|(?P<after>{_CURRENCY})-\Z")
_WORD_AFTER = re.compile(r"[^\W_]{1,8}")
_SIMPLE = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_GROUPED = re.compile(
    r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?"
    r"|[1-9][0-9]{0,2}(?:\u00a0[0-9]{3})+(?:[.,][0-9]+)?"
    r"|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?"  # Indian
)
_DOTTED = re.compile(r"[1-9][0-9]{0,2}(?:(?:\.[0-9]{3})+,[0-9]{1,2}|(?:\.[0-9]{3}){2,})")  # continental European


def _first_number(text: str) -> str | None:
    return _first_from(_for_numbers(text), 0)


def _last_number(text: str) -> str | None:
    return _last_of(_for_numbers(text))


def _first_from(plain: str, position: int) -> str | None:
    for run in _RUN.finditer(plain, position):
        if numbers := _numbers(plain, run):
            return numbers[0]
    return None


def _last_of(plain: str) -> str | None:
    for run in reversed(list(_RUN.finditer(plain))):
        if numbers := _numbers(plain, run):
            return numbers[-1]
    return None


def _numbers(plain: str, run: re.Match[str]) -> list[str]:
    """The canonical forms of the numbers in a run of digits and separators; none where it is part of something else."""
    if _is_bound(plain, run.start(), run.end()):
        return []
    first, *others = [_canonical(literal) for literal in _literals(run[0])] or [None]
    if first and first != "0" and _is_negative(plain, run.start()):
        first = "-" + first
    return [number for number in (first, *others) if number is not None]


def _is_bound(text: str, start: int, end: int) -> bool:
    """Whether the digits belong to a word, a power or an index."""
    before, after = text[max(0, start - 4) : start], text[end : end + 1]
    if _BOUND_BEFORE.search(before) or _is_letter(before[-1:]) or (before[-1:] == "-" and _is_letter(before[-2:-1])):
        return True
    if after in ("^", "⁻") or (after == "_" and text[end + 1 : end + 2].isalnum()):
        return True
    word = _WORD_AFTER.match(text, end)
    return word is not None and _is_letter(after) and word[0] not in _UNITS


def _is_letter(char: str) -> bool:
    """Of a script that has cases, or a superscript digit. Other letters (Han, kana, Thai ...) stand right beside
    numbers."""
    return bool(char) and unicodedata.category(char) in ("Lu", "Ll", "Lt", "No")


def _is_negative(text: str, start: int) -> bool:
    """Whether the minus in front, if there is one, is a sign: it isn't when it stands between two things."""
    window = text[max(0, start - 12) : start]
    minus = _MINUS.search(window)
    if minus is None:
        return False
    before = window[: minus.start()][-1:]
    if minus["after"]:  # "$-3", but "5$-3"
        return not before.isdigit()
    return not (_is_letter(before) or before.isdigit() or (before and before in ")]}%-_"))


def _literals(run: str) -> Iterator[str]:
    """The numbers in a run of digits and separators, as Decimal reads them."""
    if _SIMPLE.fullmatch(run):
        yield run
    elif _GROUPED.fullmatch(run):
        yield run.replace("\u00a0", "").replace(",", ".") if "\u00a0" in run else run.replace(",", "")
    elif _DOTTED.fullmatch(run):
        yield run.replace(".", "").replace(",", ".")
    else:  # a list such as "1,2,3"; a version such as "1.2.3" is no number
        yield from (part for part in re.split("[,\u00a0]", run) if _SIMPLE.fullmatch(part))


def _canonical(literal: str) -> str | None:
    """Without needless zeros and exponent; None when that would take more than 400 digits."""
    mantissa, _, exponent = literal.lower().partition("e")
    if len(mantissa) > _LONGEST or len(exponent) > 5 or abs(int(exponent or "0")) > _LONGEST:
        return None
    number = Decimal(literal)  # exact, whatever the context's precision
    digits = format(number, "f") if number else "0"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _for_numbers(text: str) -> str:
    r"""Plain, and with LaTeX's ways of grouping thousands (1{,}234, 1\,234, 1,\!234) undone."""
    return _plain(text).replace("{,}", ",").replace("\\!", "").replace("\\,", "\u00a0")


_ANSWER_MARK = re.compile(
    r"####(?=[^\n0-9]{0,20}[0-9])"  # with a number on its line: it is a heading of Markdown otherwise
    r"|^[ \t*_]{0,8}A[ \t*_]{0,4}:"
    r"|\banswer[ \t*_]{0,4}(?:is\b|:|=)"
    r"|\\boxed\{"
    r"|答案\s{0,2}(?:是|为|為|:)",
    re.IGNORECASE | re.MULTILINE,
)


def _gsm8k(text: str) -> str | None:
    """The first number after the last mark. A mark with no number after it is an answer that was left out: None."""
    plain = _for_numbers(text)
    marks = [mark.end() for mark in _ANSWER_MARK.finditer(plain)]
    return _first_from(plain, marks[-1]) if marks else _last_of(plain)


# --- choices --------------------------------------------------------------------------------------------------------

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


def _choice_letter(text: str) -> str | None:
    """By how plainly it is said: the last box that holds one; the last "the answer is B"; a first or last line of a
    letter alone; the one option that lines start with; the one that is marked as an option. Several such options are
    no answer."""
    plain = _plain(text)
    for content in _boxes(plain):
        if found := _BOXED_LETTER.match(content):
            return found["letter"].upper()
    said = [found for pattern in _SAID for found in pattern.finditer(plain)]
    if said:
        last = max(said, key=lambda found: found.end())
        return str(last[last.lastgroup or 0]).upper()
    lines = _lines(plain)
    for line in (*lines[-1:], *lines[:1]):
        if found := _ALONE.fullmatch(line):
            return found["letter"].upper()
    for pattern in (_AT_LINE_START, _MARKED):
        letters = {letter for found in pattern.finditer(plain) for letter in found.groups() if letter}
        if letters:
            return letters.pop() if len(letters) == 1 else None
    return None


def _boxes(text: str) -> Iterator[str]:
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


def _yes_no(text: str) -> str | None:
    """The last "the answer is yes"; else the first word; else the last word. A "no" elsewhere ("there is no ...")
    isn't one."""
    plain = _plain(text).strip()
    if said := _SAID_YES_NO.findall(plain):
        return str(said[-1]).lower()
    found = _FIRST_YES_NO.match(plain) or _LAST_YES_NO.search(plain[-20:])
    return found[1].lower() if found else None


POST_PROCESS: Mapping[str, PostProcess] = {
    process.name: process
    for process in (
        PostProcess("none", "1", lambda text: text, lambda text: text),
        PostProcess("strip", "1", str.strip),
        PostProcess("lower", "1", lambda text: text.strip().lower()),
        PostProcess("first_line", "1", _first_line),
        PostProcess("last_line", "1", _last_line),
        PostProcess("first_number", "1", _first_number),
        PostProcess("last_number", "1", _last_number),
        PostProcess("gsm8k", "1", _gsm8k),
        PostProcess("choice_letter", "1", _choice_letter),
        PostProcess("yes_no", "1", _yes_no),
    )
}


def target_fault(task: TaskSpec) -> str | None:
    """Why no answer could ever be right, in words: a target in which the task's post-process finds nothing itself."""
    step = POST_PROCESS[task.post_process]
    wrong = next((target for target in task.targets if not step.suits(target)), None)
    if wrong is None:
        return None
    shown = wrong if len(wrong) <= 80 else wrong[:80] + "..."
    return f"no answer can match the target {shown!r}: post_process {step.name} finds nothing in it"
