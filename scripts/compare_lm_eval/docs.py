"""The docs of the comparison: the same for both sides, and the same in each run. What the words mean is of no account;
they differ in length, and in bytes from characters, so that no two metrics come out equal by nature.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

CHOICES = 100
SHOT_CHOICES = 40
TARGETS = 60
TEXTS = 20
_WORDS = (
    *(
        "a",
        "the",
        "is",
        "of",
        "and",
        "x",
        "3",
        "1984",
        "river",
        "stone",
        "winter",
        "seven",
        "blue",
        "lantern",
        "copper",
    ),
    *(
        "quietly",
        "beneath",
        "orchard",
        "harbour",
        "Käse",
        "Straße",
        "naïve",
        "façade",
        "Ελλάδα",
        "вода",
        "数学",
        "東京",
    ),
)
LOG_PROBABILITIES = {
    # Some words are a position's best one, so that some targets are greedy; some are likelier behind the prompt than
    # without one.
    **{f" {word}": -0.3 for word in _WORDS[::3]},
    **{f"Answer: {word}": -(1 + number % 9) / 7 for number, word in enumerate(_WORDS[::2])},
}
"""The server's table; what isn't in it, it makes up (tests/likelihood_server.py)."""
SHOTS = (
    {"question": "Question: which river?\nAnswer:", "choices": ["the blue one", "seven", "x", "stone"], "answer": 0},
    {"question": "Question: 3 of what?\nAnswer:", "choices": ["Käse", "winter", "a lantern", "東京"], "answer": 2},
)
_MARKS = (",", ".", ";", "?", " -")


def write(folder: Path) -> dict[str, Path]:
    """JSON lines for each task: `choices`, `shots` (choices behind SHOTS), `targets`, `texts`."""
    draw = random.Random(20)
    rows: dict[str, list[dict[str, Any]]] = {
        "choices": [_choices(draw) for _ in range(CHOICES)],
        "shots": [_choices(draw) for _ in range(SHOT_CHOICES)],
        "targets": [_target(draw, number) for number in range(TARGETS)],
        "texts": [{"text": _text(draw)} for _ in range(TEXTS)],
    }
    paths = {}
    for name, lines in rows.items():
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    return paths


def _choices(draw: random.Random) -> dict[str, Any]:
    choices: list[str] = []
    while len(choices) < 4:
        if (text := _words(draw, draw.randint(1, 6))) not in choices:
            choices.append(text)
    question = f"Question: {_words(draw, draw.randint(3, 12))}?\nAnswer:"
    return {"question": question, "choices": choices, "answer": draw.randrange(4)}


def _target(draw: random.Random, number: int) -> dict[str, Any]:
    """White space between a prompt and its target stands on either side."""
    prompt, target = _words(draw, draw.randint(2, 9)), _words(draw, draw.randint(1, 3))
    return {"prompt": f"{prompt} ", "target": target} if number % 2 else {"prompt": prompt, "target": f" {target}"}


def _text(draw: random.Random) -> str:
    """Paragraphs; some begin or end with white space, which counts as a word."""
    text = "\n\n".join(_words(draw, draw.randint(5, 40)) for _ in range(draw.randint(1, 4)))
    return draw.choice(("", "\n")) + text + draw.choice(("", "\n", "."))


def _words(draw: random.Random, count: int) -> str:
    words = [draw.choice(_WORDS) for _ in range(count)]
    return " ".join(word + draw.choice(_MARKS) if draw.random() < 0.1 else word for word in words[:-1]) + (
        " " * (count > 1) + words[-1]
    )
