"""Adapters that need no model: they know the targets and are wrong as often as they say. For tests, demonstrations
and the calibration of everything that comes after them.

    rule     right on all but about 2 % of the tasks, and rightly sure of it
    noisy    wrong on about 60 %, and sure all the same
    biased   right on about 95 % in some categories, on about 20 % in the others

Deterministic: every draw is SHA-256 of what it may depend on, so the same suite gives the same answers on every host.
A wrong answer is wrong under every metric: another number, another letter, the other of yes and no, or words that no
target holds.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation

import msgspec
from msgspec import UNSET

from inferd.adapters.builtin_likelihood import Likelihoods
from shared.chat import of_turn
from shared.programs import ProgramTests
from shared.records import Generation, Prompt, TaskSpec, Usage
from shared.scoring import measures_of, pipelines_of, steps_of
from shared.vocabulary import NUMERIC

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"[A-Za-z]")
_LONE_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_NOT_LATIN = re.compile(r"[\u0370-\uffff\U00010000-\U0010ffff]")
_WORDS = (
    "umbrella",
    "kayak",
    "velvet",
    "glacier",
    "hickory",
    "tundra",
    "jigsaw",
    "pumpkin",
    "quartz",
    "oboe",
    "yodel",
    "fjord",
)


class RuleAdapter(Likelihoods):
    """Right on all but about 2 % of the tasks, chosen by SHA-256 of the task_id; confidence 0.9 to 0.99."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        return _generation(self.model_id, prompt, task, *self.judge(prompt, task))

    def judge(self, prompt: Prompt, task: TaskSpec) -> tuple[bool, float]:
        return _share("rule", task.task_id) >= 0.02, 0.9 + 0.09 * _share("sure", task.task_id)


class NoisyAdapter(Likelihoods):
    """Wrong on about `error_rate` of the samples, by task, repeat and seed; confidence about 0.95 regardless."""

    def __init__(self, model_id: str, error_rate: float = 0.6) -> None:
        self.model_id = model_id
        self.version = f"error_rate {error_rate:g}"  # for whoever gives the object itself (evalctl.api)
        self._error_rate = error_rate

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        return _generation(self.model_id, prompt, task, *self.judge(prompt, task))

    def judge(self, prompt: Prompt, task: TaskSpec) -> tuple[bool, float]:
        sample = _sample(self.model_id, prompt, task)
        return _share("noisy", *sample) >= self._error_rate, 0.93 + 0.04 * _share("sure", *sample)


class BiasedAdapter(Likelihoods):
    """Right on about 95 % in good categories and 20 % in bad ones; confidence about 0.85 in both.

    good: the good categories. By default half of all names are, by SHA-256 of the name.
    """

    def __init__(self, model_id: str, good: Sequence[str] | None = None) -> None:
        self.model_id = model_id
        self.version = "" if good is None else f"good {sorted(good)}"  # as above
        self._good = None if good is None else frozenset(good)

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        return _generation(self.model_id, prompt, task, *self.judge(prompt, task))

    def judge(self, prompt: Prompt, task: TaskSpec) -> tuple[bool, float]:
        sample = _sample(self.model_id, prompt, task)
        right = _share("biased", *sample) < (0.95 if self._is_good(task.category) else 0.2)
        return right, 0.82 + 0.06 * _share("sure", *sample)

    def _is_good(self, category: str) -> bool:
        return category in self._good if self._good is not None else _share("category", category) < 0.5


def _generation(model_id: str, prompt: Prompt, task: TaskSpec, right: bool, confidence: float) -> Generation:
    asked = of_turn(task, prompt.messages)
    text = right_answer(asked) if right else wrong_answer(asked, _hash("wrong", *_sample(model_id, prompt, task)))
    count = _tokens(text)
    return Generation(
        text=text,
        confidence=confidence,
        token_nll=-math.log(confidence) * count,
        token_count=count,
        finish_reason="stop",
        usage=Usage(prompt_tokens=sum(_tokens(turn.content) for turn in prompt.messages), completion_tokens=count),
        served_model=model_id,
    )


def right_answer(task: TaskSpec) -> str:
    """An answer that the task's post-process and metric take as right: its first target, numbers in a sentence; the
    solution that the metadata of a task of programs holds.
    """
    if (tests := _tests(task)) is not None:
        return tests.right
    target = task.targets[0] if task.targets else ""
    return f"The answer is {target}" if _form(task) in NUMERIC else target


def _tests(task: TaskSpec) -> ProgramTests | None:
    if measures_of(task.metric_name)[0].name != "code_exec":
        return None
    return msgspec.convert(task.metadata, ProgramTests)


def _form(task: TaskSpec) -> str:
    """The step that decides which form an answer takes."""
    names = [step.name for spec in pipelines_of(task).values() for step in steps_of(spec)]
    return next((name for name in names if name in NUMERIC or name in ("choice_letter", "yes_no")), names[-1])


def wrong_answer(task: TaskSpec, pick: int) -> str:
    """An answer of the right kind that is wrong under every metric. pick: which of the many."""
    if (tests := _tests(task)) is not None:
        name = tests.entry_point or "answer"
        return f"def {name}(*arguments):\n    raise NotImplementedError({pick})\n"
    targets = task.targets
    form = _form(task)
    if form in NUMERIC:
        return f"The answer is {_other_number(targets, pick)}"
    if form == "choice_letter":
        return _other_letter(targets, pick)
    if form == "yes_no":
        return _other_of_yes_and_no(targets)
    plain = [target.strip() for target in targets]
    if plain and all(_NUMBER.fullmatch(target) for target in plain):
        return str(_other_number(targets, pick))
    if plain and all(target in ("A", "B", "C", "D", "E") for target in plain):
        return _other_letter(targets, pick)
    if plain and all(target.lower() in ("yes", "no") for target in plain) and len({t.lower() for t in plain}) == 1:
        return _other_of_yes_and_no(targets)
    return _other_words(targets, pick)


def _other_number(targets: Iterable[str], pick: int) -> int:
    """A whole number near the targets' that is none of them, nor one of them in per cent."""
    taken: set[Decimal] = set()
    first: int | None = None
    for text in targets:
        for found in _NUMBER.findall(text):
            try:
                value = Decimal(found.replace(",", ""))
            except InvalidOperation:
                continue
            if abs(value.adjusted()) < 30:  # else no number near it could be mistaken for it
                taken |= {value, -value, value * 100, value / 100}
                if first is None and value.adjusted() < 8:  # a neighbour of a larger one might pass as equal
                    first = int(value)
    number = (first or 0) + 1 + pick % 9
    while Decimal(number) in taken:
        number += 1
    return number


def _other_letter(targets: Iterable[str], pick: int) -> str:
    taken: set[str] = set()
    for target in targets:
        found = _LONE_LETTER.search(target) or _LETTER.search(target)
        if found:
            taken.add(found[0].upper())
    last = max(taken | {"D"})
    free = [letter for letter in _letters("A", last) if letter not in taken] or [
        letter for letter in _letters("A", "Z") if letter not in taken
    ]
    return free[pick % len(free)] if free else "none of these"


def _letters(first: str, last: str) -> list[str]:
    return [chr(code) for code in range(ord(first), ord(last) + 1)]


def _other_of_yes_and_no(targets: Iterable[str]) -> str:
    said = {target.strip().lower()[:1] for target in targets}
    yes, no = bool(said & {"y", "t"}), bool(said & {"n", "f"})
    if yes and no:
        return "perhaps"
    return "yes" if no else "no"


def _other_words(targets: Sequence[str], pick: int) -> str:
    """Two words, or five characters in scripts written without spaces, of which no target holds any."""
    whole = "\n".join(targets).casefold()
    if _NOT_LATIN.search(whole):
        start = 0x4E00 + pick % 0x5000
        free = (chr(0x4E00 + (start - 0x4E00 + step * 97) % 0x5000) for step in range(0x5000))
        return "".join(character for character, _ in zip((c for c in free if c not in whole), range(5), strict=False))
    taken = {word[:4] for word in _WORD.findall(whole)}
    parts = [part for target in targets if (part := target.strip().casefold())]
    words = [word for word in _WORDS if word[:4] not in taken and not any(part in word for part in parts)]
    if len(words) < 2:
        words = _made_up_words(whole, taken, parts)
    first = pick % len(words)
    return f"{words[first]} {words[(first + 1 + pick // len(words) % (len(words) - 1)) % len(words)]}"


def _made_up_words(whole: str, taken: set[str], parts: Sequence[str]) -> list[str]:
    free = [letter for letter in "zxqjkvbpygfwmucldrhsniotae" if letter not in whole]
    if len(free) >= 2:
        return [free[0] * 4 + free[1], free[1] * 4 + free[0]]
    made: list[str] = []
    number = 0
    while len(made) < 2:
        word = "zq" + hashlib.sha256(str(number).encode()).hexdigest()[:6]
        if word[:4] not in taken and not any(part in word for part in parts):
            made.append(word)
        number += 1
        if number > 100_000:  # the targets hold every letter as an answer of its own
            return ["∅∅∅", "∄∄∄"]
    return made


def _sample(model_id: str, prompt: Prompt, task: TaskSpec) -> tuple[str, str, str, str]:
    seed = prompt.generation.seed
    return model_id, task.task_id, str(prompt.repeat), "" if seed is UNSET else str(seed)


def _hash(*parts: str) -> int:
    """64 bits of SHA-256 over the parts, each with its length before it."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(data), data))
    return int.from_bytes(digest.digest()[:8], "big")


def _share(*parts: str) -> float:
    """A number in [0, 1), evenly spread over all parts."""
    return (_hash(*parts) >> 11) * 2.0**-53


def _tokens(text: str) -> int:
    """About how many tokens a text has: four letters each, or one character of a script without spaces."""
    wide = len(_NOT_LATIN.findall(text))
    return max(1, wide + (len(text) - wide + 3) // 4)
