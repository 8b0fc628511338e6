"""Files of plain rows made into tasks: which field holds what (`fields`), and prompts from Jinja templates.

Templates run in Jinja's sandbox, see nothing but the row, and always give the same text for the same row: a missing or
null field is an error instead of an empty spot, and what is random isn't there.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from shared.config import DatasetConfig, FieldMapping
from shared.errors import Problem
from shared.records import Message, TaskSpec
from shared.tables import close_match, show
from shared.tasks.limits import ALL, Wanted
from shared.tasks.native import default_filters, default_metric, default_post_process, task_faults
from shared.tasks.rows import format_of, read_rows

MAX_RENDERED = 4_000_000
"""Characters that one template may give; more is taken for a loop gone wrong."""

Row = dict[str, Any]


class RowError(Exception):
    """Why a row gives no task."""


def is_mapped(dataset: DatasetConfig) -> bool:
    """Does the dataset's file hold plain rows, instead of TaskSpec lines?"""
    return dataset.fields is not None or dataset.prompt is not None or dataset.messages is not None


def compile_template(source: str) -> Callable[[Row], str]:
    """The template as a function from a row to its text.

    Raises jinja2.TemplateSyntaxError; the function raises RowError. A row's fields are the template's variables; `row`
    is the row itself, for names that are no identifiers: `{{ row["Correct Answer"] }}`.
    """
    template = _environment().from_string(source)

    def render(row: Row) -> str:
        parts, length = [], 0
        try:
            for part in template.generate({"row": row, **row}):
                parts.append(part)
                length += len(part)
                if length > MAX_RENDERED:
                    raise RowError(f"the template gives more than {MAX_RENDERED:,} characters")
        except jinja2.UndefinedError as error:
            raise RowError(f"{error.message}; the row has {_names(row)}") from None
        except RowError:
            raise
        except Exception as error:  # noqa: BLE001  # a template is the user's code: whatever it raises is a fault of the row
            raise RowError(f"the template failed: {type(error).__name__}: {error}") from None
        return "".join(parts)

    return render


def mapped_rows(
    dataset: DatasetConfig, path: Path, wanted: Wanted = ALL
) -> Iterator[tuple[int, Row, TaskSpec | list[Problem]]]:
    """(number of its line, row, the task made of it or what is wrong with it) of each wanted row of a file."""
    build = _builder(dataset)
    kind = format_of(dataset)
    assert kind is not None, "the suite's check refuses a dataset without a format"
    for place, (number, row) in wanted.of(read_rows(path, kind, dataset.columns)):
        if isinstance(row, Problem):
            yield number, {}, [row]
            continue
        task, faults = build(place, row)
        if task is not None and not faults:
            faults = [f"task {task.task_id}: {fault}" for fault in task_faults(task)]
        if task is None or faults:
            yield number, row, [Problem(f"{path}:{number}", fault) for fault in faults]
        else:
            yield number, row, task


def text_of(value: Any) -> str:
    """A field's value as text, in one form: true, 18, 0.5, and 18 for 18.0 too. Raises RowError when it is no single
    value.
    """
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case Decimal() if value.is_finite():
            return format(value.normalize(), "f")
        case float() | Decimal():
            raise RowError(f"expected a finite number, got {value}")
        case _:
            raise RowError(f"expected a string, number or boolean, got {show(value)}")


def _builder(dataset: DatasetConfig) -> Callable[[int, Row], tuple[TaskSpec | None, list[str]]]:
    """What makes one row a task, or says why it can't: (task, []) or (None, faults)."""
    fields = dataset.fields or FieldMapping()
    prompt = compile_template(dataset.prompt) if dataset.prompt is not None else None
    turns = [(message.role, compile_template(message.content)) for message in dataset.messages or ()]
    choices = [compile_template(choice) for choice in dataset.choices or ()]
    pattern = re.compile(dataset.target_regex) if dataset.target_regex is not None else None
    metric, post_process = default_metric(dataset), default_post_process(dataset)
    lettered = dataset.request_type == "generate_until" and fields.gold is not None

    def make_prompt(row: Row) -> str | None:
        if prompt is not None:
            return prompt(row)
        return None if turns else text_of(_field(row, fields.prompt or ""))

    def build(doc_id: int, row: Row) -> tuple[TaskSpec | None, list[str]]:
        faults: list[str] = []

        def part(name: str, make: Callable[[], Any], default: Any) -> Any:
            try:
                return make()
            except RowError as error:
                faults.append(f"{name}: {error}")
                return default

        task_id = f"{dataset.abbr}-{doc_id}"
        if fields.task_id is not None:
            task_id = part("fields.task_id", lambda: text_of(_field(row, fields.task_id or "")), task_id)
        category = dataset.category
        if fields.category is not None:
            category = part("fields.category", lambda: _category(row, fields.category or "", category), category)
        task = TaskSpec(
            task_id=task_id,
            prompt=part("prompt", lambda: make_prompt(row), None),
            messages=part("messages", lambda: tuple(Message(role, make(row)) for role, make in turns) or None, None),
            targets=part("target", lambda: _targets(row, fields.target, pattern), ())
            if fields.target is not None or not lettered
            else part("fields.gold", lambda: _letters(_gold(row, fields.gold)), ()),
            metric_name=metric,
            post_process=post_process,
            filters=default_filters(dataset),
            category=category,
            few_shot=dataset.few_shot,
            cluster=part("fields.cluster", lambda: text_of(_field(row, fields.cluster or "")), "")
            if fields.cluster
            else "",
            metadata=part("fields.metadata", lambda: {name: _field(row, name) for name in fields.metadata}, {}),
            generation=dataset.generation,
            request_type=dataset.request_type,
            choices=part("choices", lambda: tuple(make(row) for make in choices), ())
            if choices
            else part("fields.choices", lambda: _choices(row, fields.choices), ()),
            gold=part("fields.gold", lambda: _gold(row, fields.gold), ()) if not lettered else (),
            target_delimiter=dataset.target_delimiter,
            chat_mode=dataset.chat_mode,
            turn_targets=part("fields.turn_targets", lambda: _turn_targets(row, fields.turn_targets), ()),
            system=dataset.system,
            few_shot_format=dataset.few_shot_format,
        )
        return (None, [f"task {task_id}: {fault}" for fault in faults]) if faults else (task, [])

    return build


def _field(row: Row, name: str) -> Any:
    """The row's field `name`; where there is none of just that name, its dots lead into nested objects."""
    if name in row:
        return row[name]
    value: Any = row
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            meant = close_match(name, row)
            hint = f"did you mean {meant}?" if meant else f"the row has {_names(row)}"
            raise RowError(f"no field {show(name)}; {hint}")
        value = value[key]
    return value


def _names(row: Row) -> str:
    names = list(row)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _category(row: Row, name: str, default: str) -> str:
    value = _field(row, name)
    return default if value is None else text_of(value)


def _targets(row: Row, name: str | None, pattern: re.Pattern[str] | None) -> tuple[str, ...]:
    if name is None:
        return ()
    value = _field(row, name)
    targets = tuple(text_of(item) for item in (value if isinstance(value, list) else [value]))
    return tuple(_last_match(pattern, target) for target in targets) if pattern else targets


def _turn_targets(row: Row, name: str | None) -> tuple[tuple[str, ...], ...]:
    """Of each turn a value, several, or null for none."""
    if name is None:
        return ()
    value = _field(row, name)
    if not isinstance(value, list):
        raise RowError(f"expected an array, one a user turn, got {show(value)}")
    turns = [item if isinstance(item, list) else [] if item is None else [item] for item in value]
    return tuple(tuple(map(text_of, turn)) for turn in turns)


def _choices(row: Row, name: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """name: of one field, or of one each."""
    if name is None:
        return ()
    value = _field(row, name) if isinstance(name, str) else [_field(row, each) for each in name]
    if not isinstance(value, list):
        raise RowError(f"expected an array of choices, got {show(value)}")
    return tuple(text_of(item) for item in value)


def _gold(row: Row, name: str | None) -> tuple[int, ...]:
    """Positions from 0: 1, "1" and "B" are the second choice."""
    if name is None:
        return ()
    value = _field(row, name)
    return tuple(_position(item) for item in (value if isinstance(value, list) else [value]))


def _letters(places: tuple[int, ...]) -> tuple[str, ...]:
    """As a prompt names its options."""
    if max(places, default=0) >= 26:
        raise RowError(f"position {max(places)} has no letter: there are 26")
    return tuple(chr(ord("A") + place) for place in places)


def _position(value: Any) -> int:
    text = text_of(value).strip()
    if len(text) == 1 and "A" <= text.upper() <= "Z":
        return ord(text.upper()) - ord("A")
    if text.isascii() and text.isdigit():
        return int(text[:9])
    raise RowError(f"expected a position from 0 or a letter, got {show(value)}")


def _last_match(pattern: re.Pattern[str], text: str) -> str:
    last = deque(pattern.finditer(text), maxlen=1)
    found = last[0][1 if pattern.groups else 0] if last else None
    if found is None or not found.strip():
        raise RowError(f"no match for target_regex {pattern.pattern!r} in {show(text)}")
    return found.strip()


@lru_cache(maxsize=1)
def _environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False, finalize=_not_null
    )
    # A misspelt field must not find a global, and one row must always give one prompt.
    environment.globals = {name: environment.globals[name] for name in ("range", "namespace")}
    del environment.filters["random"]
    return environment


def _not_null(value: Any) -> Any:
    if value is None:
        raise RowError("a value of the template is null: give it a default, as in {{ field or '-' }}")
    return value
