r"""The first or last number of a text, in one canonical form.

Digits of any script count. Commas and no-break or thin spaces group thousands ("1,234", also "1,00,000");
dots do so only where they can't be a decimal point ("1.234.567", "1.234,50"), apostrophes only before three digits
each ("1'234"). A power of ten is a part of its number ("1.5 \times 10^{3}" is 1500). A minus counts when it isn't
between two things ("2-3", "x-3"), before or after a currency sign. Currency, percent and units are ignored, so "20%"
is 20 and not 0.2. Digits that belong to a word ("x42", "42abc", "3rd"), to a power or an index ("10^9", "x_2") are no
numbers. A single comma with other than three digits behind it is a decimal one ("0,5", "€5,00"), unless it parts
coordinates, in brackets ("(1,2)", "[0,5]") and without a unit ("(12,5 %)"). A fraction "3/4" is two numbers to the
steps, and one to `last_value`, as is the mixed number "1 3/4".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from evald.post_process.characters import plain

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
_STROKE = re.compile(r"[ \u00a0]{0,2}[/\u2044\u2215][ \u00a0]{0,2}-?(?:\\?[$€£])?")
_FRACTION = re.compile(
    r"(?:(?<![0-9.,])(?P<whole>[0-9]{1,400})[ ]?)?\\[dtc]?frac"
    r"(?:[ ]?\{[ ]?(?P<above>-?[0-9]{1,400})[ ]?\}[ ]?\{[ ]?(?P<below>-?[0-9]{1,400})[ ]?\}"
    r"|[ ]?(?P<one>[0-9])(?P<two>[0-9]))"
)
_DECIMAL_COMMA = re.compile(r"(?:[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})|0,[0-9]{3})(?:[eE][+-]?[0-9]+)?")
_GAP = re.compile(r"[ \u00a0]{1,2}")
_ONE_CHARACTER = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_UNIT_AFTER = re.compile(r"[ \u00a0]?(?:\\?[%‰°$€£¥￥₩₹]|(?P<word>[^\W\d_]{1,5})(?!\w))")
_BRACKET_BEFORE = re.compile(r"(?:[(\[<]|\\\{)\Z")
_PART_OF_QUOTIENT = re.compile(
    r"(?:[\w)\]}][ \u00a0]{0,2}[/\u2044\u2215][ \u00a0]{0,2}|\}[ ]?\{[ ]?|frac[ ]?\{[ ]?)-?(?:\\?[$€£])?\Z"
)


class Value(NamedTuple):
    """A number, exact. behind: the text after it, its beginning."""

    number: Fraction
    behind: str


def first_number(text: str) -> str | None:
    return _first_from(_for_numbers(text), 0)


def last_number(text: str) -> str | None:
    return _last_of(_for_numbers(text))


def last_value(text: str) -> Value | None:
    """The last number, a fraction being one: 3/4, \\frac{3}{4}, 2\\frac{1}{2}, 2 1/2, 2½. None where that is divided by
    0, or is a part of a quotient whose other part is no number (\\pi/4): half of a fraction is no answer.
    """
    text = _FRACTION.sub(_on_one_line, _for_numbers(_ONE_CHARACTER.sub(_spelt, text)))
    runs = list(_RUN.finditer(text))
    for at in range(len(runs) - 1, -1, -1):
        run = runs[at]
        if not (numbers := _numbers(text, run)):
            continue
        number, behind = Fraction(numbers[-1]), text[run.end() : run.end() + 40]
        match [_is_below(text, *pair) for pair in pairwise(runs[max(0, at - 2) : at + 1])]:
            case [True] | [False, True]:
                above = _numbers(text, runs[at - 1])
                if not above or not number:
                    return None
                return Value(_with_whole(text, runs[:at], Fraction(above[-1]) / number), behind)
            case [True, True]:  # of several in a row, as in 3/4/2024, none is a fraction
                return Value(number, behind)
        return None if _PART_OF_QUOTIENT.search(text[max(0, run.start() - 12) : run.start()]) else Value(number, behind)
    return None


def _with_whole(text: str, runs: list[re.Match[str]], fraction: Fraction) -> Fraction:
    """runs: up to the numerator's. With the whole number that stands before it, one or two spaces away: 1 3/4 is 1.75.
    A proper fraction alone belongs to one.
    """
    if len(runs) < 2 or not 0 < fraction < 1 or _GAP.fullmatch(text, runs[-2].end(), runs[-1].start()) is None:
        return fraction
    whole = _numbers(text, runs[-2])
    if not whole or not runs[-2][0].isdigit() or (len(runs) > 2 and _is_below(text, runs[-3], runs[-2])):
        return fraction
    return Fraction(whole[0]) + (-fraction if whole[0].startswith("-") else fraction)


def _spelt(found: re.Match[str]) -> str:
    """½ as a fraction of two numbers; with what stands before it a mixed one."""
    return f" {unicodedata.normalize('NFKC', found[0])} "


def _on_one_line(fraction: re.Match[str]) -> str:
    above, below = fraction["above"] or fraction["one"], fraction["below"] or fraction["two"]
    if fraction["whole"]:
        above = str(int(fraction["whole"]) * int(below) + int(above))
    before = fraction.string[fraction.start() - 1 : fraction.start()]
    return f"{' ' if before.isalnum() else ''}{above}/{below} "


def _is_below(text: str, above: re.Match[str], below: re.Match[str]) -> bool:
    """Whether nothing but a fraction's stroke is between two numbers."""
    return _STROKE.fullmatch(text, above.end(), below.start()) is not None


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
    bracketed = _BRACKET_BEFORE.search(plain[max(0, run.start() - 2) : run.start()]) is not None
    bracketed = bracketed and not _is_amount(plain, run.end())
    first, *others = [_canonical(literal) for literal in _literals(run[0], bracketed)] or [None]
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


def _is_amount(text: str, end: int) -> bool:
    """Whether a unit stands behind the digits."""
    unit = _UNIT_AFTER.match(text, end)
    return unit is not None and (unit["word"] is None or unit["word"] in _UNITS)


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


def _literals(run: str, bracketed: bool) -> Iterator[str]:
    """The numbers in a run of digits and separators, as Decimal reads them. bracketed: it stands in brackets."""
    if _SIMPLE.fullmatch(run):
        yield run
    elif _GROUPED.fullmatch(run):
        yield run.replace("\u00a0", "").replace(",", ".") if "\u00a0" in run else run.replace(",", "")
    elif _DOTTED.fullmatch(run):
        yield run.replace(".", "").replace(",", ".")
    elif _DECIMAL_COMMA.fullmatch(run) and not bracketed:
        yield run.replace(",", ".")
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


_APOSTROPHES = re.compile(r"(?<![0-9.,'’])[1-9][0-9]{0,2}(?:['’][0-9]{3})+(?![0-9'’])")
_POWER_OF_TEN = re.compile(
    r"(?<=[0-9])[ \u00a0]{0,2}(?:×|\\times|\\cdot|·|\*|x)[ \u00a0]{0,2}10"
    r"(?:\^\{?[ ]?(?P<power>-?[0-9]{1,4})[ ]?\}?|(?P<raised>⁻?[⁰¹²³⁴-⁹]{1,4}))"
)
_LISTING_COMMA = re.compile(r"，(?!\d{3}(?!\d))")  # the full-width one is nobody's decimal comma
_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def _for_numbers(text: str) -> str:
    r"""Plain, and with what is written apart put together: LaTeX's ways of grouping thousands (1{,}234, 1\,234,
    1,\!234), Swiss ones (1'234), powers of ten (1.5 × 10³)."""
    text = plain(_LISTING_COMMA.sub(", ", text)).replace("{,}", ",").replace("\\!", "").replace("\\,", "\u00a0")
    text = _APOSTROPHES.sub(lambda found: found[0].replace("'", "").replace("’", ""), text)
    return _POWER_OF_TEN.sub(lambda found: f"e{found['power'] or found['raised'].translate(_RAISED)}", text)


_ANSWER_MARK = re.compile(
    r"####(?=[^\n0-9]{0,20}[0-9])"  # with a number on its line: it is a heading of Markdown otherwise
    r"|^[ \t*_]{0,8}A[ \t*_]{0,4}:"
    r"|\banswer[ \t*_]{0,4}(?:is\b|:|=)"
    r"|\\boxed\{"
    r"|答案\s{0,2}(?:是|为|為|:)",
    re.IGNORECASE | re.MULTILINE,
)


def gsm8k(text: str) -> str | None:
    """The first number after the last mark. A mark with no number after it is an answer that was left out: None."""
    plain = _for_numbers(text)
    marks = [mark.end() for mark in _ANSWER_MARK.finditer(plain)]
    return _first_from(plain, marks[-1]) if marks else _last_of(plain)
