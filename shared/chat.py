"""A chat's turns: which of them are asked, what stands before each, what counts as right, and a chat as plain text.

A task's `messages` hold user turns and, between them, assistant turns: the gold answers. `chat_mode` says what is asked
of them. Pure; what goes out is a function of the task and of the answers before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec.structs import replace

from shared.journal import MAX_IDX
from shared.records import Message, TaskSpec

BLANK_LINE = "\n\n"
"""Between few-shot examples, and between turns, where they are plain text, as in lm-evaluation-harness."""


def asked_turns(task: TaskSpec) -> tuple[int, ...]:
    """Where in `messages` the turns stand that are asked, of a task that asks every one: the user's."""
    return tuple(place for place, message in enumerate(task.messages or ()) if message.role == "user")


def turns_of(task: TaskSpec, system: str = "", upto: int | None = None) -> tuple[Message, ...]:
    """The chat as it goes out, examples included.

    system: the model's own text; a system turn of the task's own wins over what its dataset says, that over the
    model's. upto: only so many of the task's messages.
    """
    own = (Message("user", task.prompt or ""),) if task.messages is None else task.messages[:upto]
    # A system turn stays first: the examples go between it and the conversation.
    leading = own[:1] if own and own[0].role == "system" else ()
    own = own[len(leading) :]
    if not leading and (text := task.system or system):
        leading = (Message("system", text),)
    if not task.few_shot:
        return leading + own
    if task.few_shot_format == "turns":
        return (*leading, *_shots(task), *own)
    first = next((place for place, message in enumerate(own) if message.role == "user"), len(own))
    return (*leading, *own[:first], *_with_shots(task, own[first : first + 1]), *own[first + 1 :])


def next_turns(task: TaskSpec, turn: int, asked: tuple[Message, ...], answer: Message) -> tuple[Message, ...]:
    """What is asked after turn number `turn`, for which `asked` was sent and `answer` came: the gold turns are left
    out.
    """
    assert task.messages is not None
    places = asked_turns(task)
    between = task.messages[places[turn] + 1 : places[turn + 1] + 1]
    return (*asked, answer, *(message for message in between if message.role != "assistant"))


def targets_of_turns(task: TaskSpec) -> tuple[tuple[str, ...] | None, ...]:
    """Of each turn that is asked what counts as right, None where it isn't scored.

    `turn_targets` says it of each turn, `targets` of the last alone; where the task has neither, the gold turns do. A
    task without any of these (its metric looks at something else) has all turns scored, against no target.
    """
    if task.chat_mode == "last":
        return (task.targets,)
    count = len(asked_turns(task))
    if task.turn_targets:
        return tuple(targets or None for targets in task.turn_targets)
    if task.targets:
        return (*(None,) * (count - 1), task.targets)
    golds = _golds(task)
    return golds if any(golds) else ((),) * count


def of_turn(task: TaskSpec, asked: tuple[Message, ...]) -> TaskSpec:
    """The task with the targets of the turn that `asked` is sent for."""
    if task.chat_mode == "last":
        return task
    examples = len(task.few_shot) if task.few_shot_format == "turns" else 0
    turn = sum(message.role == "user" for message in asked) - examples - 1
    return replace(task, targets=targets_of_turns(task)[turn] or ())


def placed_targets(task: TaskSpec) -> Iterator[tuple[str, str]]:
    """All that counts as right in the task, each with its place there."""
    if task.chat_mode == "last" or task.targets:
        yield from ((f"targets[{index}]", target) for index, target in enumerate(task.targets))
    elif task.turn_targets:
        for turn, targets in enumerate(task.turn_targets):
            yield from ((f"turn_targets[{turn}][{index}]", target) for index, target in enumerate(targets))
    else:
        for place, gold in zip(asked_turns(task), _golds(task), strict=True):
            if gold is not None:
                yield f"messages[{place + 1}]", gold[0]


def chat_faults(task: TaskSpec) -> Iterator[str]:
    """What is wrong with a task as a chat, in words."""
    messages = task.messages or ()
    if task.few_shot_format == "text" and task.few_shot and task.messages and not asked_turns(task):
        yield "few_shot_format: examples as text go into the user's turn, and there is none"
    if task.chat_mode == "last":
        if task.turn_targets:
            yield "turn_targets: are for chat_mode every and every_with_gt: put what is right at the end into targets"
        return
    if task.request_type != "generate_until":
        yield f"chat_mode: {task.chat_mode} is for request_type generate_until, this one is {task.request_type}"
    places = asked_turns(task)
    if not places:
        yield f"messages: chat_mode {task.chat_mode} asks the user's turns, and there is none"
        return
    if len(places) > MAX_IDX:
        yield f"messages: at most {MAX_IDX} turns can be asked, got {len(places)}"
    if task.chat_mode == "every_with_gt":
        for place, following in pairwise(places):
            if all(message.role != "assistant" for message in messages[place + 1 : following]):
                yield f"messages[{following}]: chat_mode every_with_gt needs a gold answer (assistant) before it"
    if task.turn_targets and task.targets:
        yield "targets: are the last turn's alone, and turn_targets tells them of each: leave one of both out"
    if task.turn_targets and len(task.turn_targets) != len(places):
        yield f"turn_targets: expected one list a user turn, {len(places)}, got {len(task.turn_targets)}"
    if task.turn_targets and not any(task.turn_targets):
        yield "turn_targets: no turn has any"


def text_of(turns: Iterable[Message], delimiter: str) -> str:
    """A chat as text for a model that knows no chat: turns apart by a blank line, an answer behind its question."""
    text = ""
    for turn in turns:
        text += (delimiter if turn.role == "assistant" else BLANK_LINE if text else "") + turn.content
    return text


def chatml(turns: Iterable[Message]) -> str:
    """A chat as ChatML, up to where the assistant is to speak.

    Source: https://github.com/openai/openai-python/blob/v0.27.1/chatml.md
    """
    said = "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns)
    return f"{said}<|im_start|>assistant\n"


def _golds(task: TaskSpec) -> tuple[tuple[str, ...] | None, ...]:
    """Of each turn that is asked the gold answer behind it."""
    messages = task.messages or ()
    behind = [messages[place + 1 : place + 2] for place in asked_turns(task)]
    return tuple((gold[0].content,) if gold and gold[0].role == "assistant" else None for gold in behind)


def _shots(task: TaskSpec) -> list[Message]:
    turns: list[Message] = []
    for example in task.few_shot:
        turns += (Message("user", example.prompt), Message("assistant", example.target))
    return turns


def _with_shots(task: TaskSpec, asked: tuple[Message, ...]) -> tuple[Message, ...]:
    """The user's turn with the examples as text in front of it."""
    return (Message("user", text_of((*_shots(task), *asked), task.target_delimiter)),)
