"""The form that an answer must have: placeholders, lists, highlights, sections, JSON, titles, two answers."""

from __future__ import annotations

import json
import re
from typing import NoReturn

from shared.instructions import Bullets, Highlights, Placeholders, Sections, Told

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
FENCES = ("```json", "```Json", "```JSON", "```")
RULE = "******"

_HIGHLIGHTS = (re.compile(r"\*([^*\n]*)\*"), re.compile(r"\*\*([^*\n]*)\*\*"))


def number_placeholders(text: str, told: Placeholders) -> bool:
    """At least so many times something in square brackets, each within one line."""
    return sum(map(_brackets, text.split("\n"))) >= told.num_placeholders


def number_bullet_lists(text: str, told: Bullets) -> bool:
    """Exactly so many lines that begin with a single `*` or with `-`."""
    return sum(_is_bullet(line.lstrip()) for line in text.split("\n")) == told.num_bullets


def constrained_response(text: str, told: Told) -> bool:
    """One of the three answers that the benchmark's prompts offer stands in it."""
    return any(option in text for option in OPTIONS)


def number_highlighted_sections(text: str, told: Highlights) -> bool:
    """At least so many times `*something*` or `**something**`, each within one line."""
    found = sum(bool(match[1].strip()) for pattern in _HIGHLIGHTS for match in pattern.finditer(text))
    return found >= told.num_highlights


def multiple_sections(text: str, told: Sections) -> bool:
    """At least so many times the section's mark with a number after it."""
    marks = re.finditer(rf"{re.escape(told.section_spliter)}\s?\d+", text)
    return sum(1 for _ in marks) >= told.num_sections


def json_format(text: str, told: Told) -> bool:
    """All of it is JSON, in a fence or not. Any JSON value will do."""
    text = text.strip()
    fence = next((fence for fence in FENCES if text.startswith(fence)), "")
    text = text.removeprefix(fence).removesuffix("```").strip()
    try:
        # Numbers are kept as text: one of a million digits is JSON too, and costs nothing.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str, told: Told) -> bool:
    """Something in double angle brackets, within one line."""
    return any(map(_has_title, text.split("\n")))


def two_responses(text: str, told: Told) -> bool:
    """Two answers that differ, with six asterisks between them. Six more at the start or end are no matter."""
    parts = [part.strip() for part in text.split(RULE)]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


def _brackets(line: str) -> int:
    count, end = 0, -1
    while (start := line.find("[", end + 1)) >= 0 and (end := line.find("]", start)) >= 0:
        count += 1
    return count


def _is_bullet(line: str) -> bool:
    return line.startswith("-") or (line.startswith("*") and len(line) > 1 and line[1] != "*")


def _has_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return start >= 0 and bool(line[start:end].lstrip("<").rstrip(">").strip())


def _no_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
