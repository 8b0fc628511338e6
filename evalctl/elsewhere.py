"""Reads answers that were made elsewhere. Three forms of files, told apart by what stands in them:

    plain        JSON lines (or an array): {"task_id": "t1", "text": "12"} or {"doc_id": 0, "text": "12"}
    opencompass  one JSON object: {"0": {"origin_prompt": ..., "prediction": "12", "gold": "12"}, "1": ...}
    lm-eval      samples_*.jsonl: {"doc_id": 0, "target": "12", "resps": [["12"]], "filter": ..., ...}

A row is taken for what it says or refused with its place; nothing is skipped. What a file's own program made of its
answers (filtered_resps, a verdict) isn't looked at: they are scored here as any others. Holds all answers in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct

from shared.errors import Problem, SuiteError
from shared.records import Generation
from shared.tables import convert_table, show
from shared.tasks import MAX_PROBLEMS, read_lines, read_rows

FileFormat = Literal["plain", "opencompass", "lm-eval"]
FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)

TEXT_KEYS = ("text", "completion", "prediction", "response", "output")
"""What plain rows call the answer; exactly one of them."""

_OPENS = re.compile(rb'\s*\{\s*("\d+"|$)')  # the first line of an object over several lines that is keyed by position


class Row(Struct, frozen=True, kw_only=True):
    """One answer. place: where it stands. task_id, doc_id: whose it is; at least one. repeat: which sample of it, where
    the file says. generation: None where the file says that there was no answer. gold: what the file holds to be right.
    """

    place: str
    task_id: str | None = None
    doc_id: int | None = None
    repeat: int | None = None
    generation: Generation | None
    gold: str | None = None


class _Told(Struct, frozen=True, kw_only=True):
    """What plain rows may say of an answer beside its text."""

    confidence: float | None = None
    token_nll: float | None = None
    token_count: int | None = None
    finish_reason: str | None = None
    reasoning: str | None = None


class RowFault(Exception):
    """Why a row isn't taken."""


def read_answers(path: Path, form: FileFormat | None = None) -> tuple[FileFormat, list[Row]]:
    """The answers in the file, and its form (`form`, or what it looks like).

    Raises SuiteError with the first problems of the file; one without answers is one.
    """
    form = form or form_of(path)
    rows: list[Row] = []
    problems: list[Problem] = []
    for found in _READERS[form](path):
        if isinstance(found, Problem):
            problems.append(found)
        else:
            rows.append(found)
    if not rows and not problems:
        problems.append(Problem(str(path), "holds no answers"))
    raise_problems(path, problems)
    return form, rows


def form_of(path: Path) -> FileFormat:
    """By the first row. What can't be read counts as plain: then reading it says why."""
    first = next(read_lines(path), None)
    try:
        value = json.loads(first[1]) if first is not None else None
    except (ValueError, RecursionError):
        return "opencompass" if first is not None and _OPENS.match(first[1]) else "plain"
    if not isinstance(value, dict):
        return "plain"
    if value and all(key.isdecimal() and isinstance(entry, dict) for key, entry in value.items()):
        return "opencompass"
    return "lm-eval" if "resps" in value else "plain"


def raise_problems(path: Path, problems: list[Problem]) -> None:
    """Raises SuiteError with the first of them and the number of the others, if there are any."""
    more = len(problems) - MAX_PROBLEMS
    if problems:
        rest = [Problem(str(path), f"and {more} more")] if more > 0 else []
        raise SuiteError([*problems[:MAX_PROBLEMS], *rest])


# --- plain ------------------------------------------------------------------------------------------------------------


def _plain(path: Path) -> Iterator[Row | Problem]:
    return _rows(path, lambda place, row: [_plain_row(place, row)])


def _plain_row(place: str, row: dict[str, Any]) -> Row:
    task_id, doc_id = row.get("task_id"), row.get("doc_id")
    if task_id is None and doc_id is None:
        raise RowFault("whose answer is it? expected task_id (a string) or doc_id (its position, from 0)")
    if isinstance(task_id, int) and not isinstance(task_id, bool):
        task_id = str(task_id)  # as a mapped dataset makes it of a number
    if not isinstance(task_id, str | None):
        raise RowFault(f"task_id: expected a string, got {show(task_id)}")
    return Row(
        place=place,
        task_id=task_id,
        doc_id=_whole(doc_id, "doc_id") if doc_id is not None else None,
        repeat=_whole(row["repeat"], "repeat") if row.get("repeat") is not None else None,
        generation=_generation(row),
    )


def _generation(row: dict[str, Any]) -> Generation | None:
    keys = [key for key in TEXT_KEYS if key in row]
    if len(keys) != 1:
        got = " and ".join(keys) or f"none; the row has {', '.join(list(row)[:12])}"
        raise RowFault(f"which is the answer's text? expected one of {', '.join(TEXT_KEYS)}, got {got}")
    text = row[keys[0]]
    if text is None:
        return None
    if not isinstance(text, str):
        raise RowFault(f"{keys[0]}: expected a string, or null for no answer, got {show(text)}")
    told, problems = convert_table({key: row[key] for key in _Told.__struct_fields__ if key in row}, _Told, "")
    if told is None:
        raise RowFault("; ".join(map(str, problems)))
    if told.confidence is not None and not 0.0 <= told.confidence <= 1.0:
        raise RowFault(f"confidence: expected a number from 0 to 1, got {told.confidence:g}")
    return Generation(
        text=text,
        confidence=told.confidence,
        token_nll=told.token_nll,
        token_count=told.token_count,
        finish_reason=told.finish_reason,
        reasoning=told.reasoning,
    )


# --- lm-eval ----------------------------------------------------------------------------------------------------------


def _lm_eval(path: Path) -> Iterator[Row | Problem]:
    # Each filter writes the same answers once more.
    filters: dict[int, str] = {}

    def samples(place: str, row: dict[str, Any]) -> list[Row]:
        doc_id = _whole(row.get("doc_id"), "doc_id")
        name = str(row.get("filter"))
        if filters.setdefault(doc_id, name) != name:
            return []
        target = row.get("target")
        gold = target if isinstance(target, str) else None
        return [
            Row(place=place, doc_id=doc_id, generation=Generation(text=text), gold=gold)
            for text in _texts_of_resps(row.get("resps"))
        ]

    return _rows(path, samples)


def _texts_of_resps(resps: Any) -> list[str]:
    """resps: for each request of the doc, the list of its repeats' answers."""
    if not isinstance(resps, list) or not resps:
        raise RowFault(f"resps: expected an array of the requests' answers, got {show(resps)}")
    if len(resps) > 1 or not isinstance(resps[0], list) or not all(isinstance(text, str) for text in resps[0]):
        raise RowFault(
            "resps: these are log-likelihoods of choices, not texts, and only generated answers can be scored here "
            "(in lm-eval, output_type: generate_until)"
        )
    if not resps[0]:
        raise RowFault("resps: holds no answer")
    return list(resps[0])


# --- OpenCompass ------------------------------------------------------------------------------------------------------


def _opencompass(path: Path) -> Iterator[Row | Problem]:
    data = b"".join(line for _, line in read_lines(path))
    try:
        pairs = json.loads(data, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        yield Problem(str(path), f"not usable JSON: {error}")
        return
    if not isinstance(pairs, _Pairs):
        yield Problem(str(path), f"expected an object keyed by position, got {show(pairs)}")
        return
    seen: set[str] = set()
    for key, entry in pairs:
        place = f"{path}: {show(key)}"
        try:
            if key in seen:
                raise RowFault("this position is there twice")
            seen.add(key)
            if not key.isdecimal() or len(key) > 18 or not isinstance(entry, _Pairs):  # int() refuses thousands
                raise RowFault("expected a position, from 0, with an object that holds `prediction`")
            yield from _opencompass_rows(place, int(key), dict(entry))
        except RowFault as fault:
            yield Problem(place, str(fault))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written: keys that stand there twice are kept."""


def _opencompass_rows(place: str, doc_id: int, entry: dict[str, Any]) -> Iterator[Row]:
    texts = entry.get("prediction")
    gold = entry.get("gold")
    for text in texts if isinstance(texts, list) and not isinstance(texts, _Pairs) and texts else [texts]:
        if not isinstance(text, str):
            raise RowFault(f"prediction: expected a string or an array of strings, got {show(text)}")
        yield Row(
            place=place,
            doc_id=doc_id,
            generation=Generation(text=text),
            gold=gold if isinstance(gold, str) else None,
        )


# --- all --------------------------------------------------------------------------------------------------------------


def _rows(path: Path, make: Callable[[str, dict[str, Any]], list[Row]]) -> Iterator[Row | Problem]:
    for number, row in read_rows(path, "jsonl"):
        if isinstance(row, Problem):
            yield row
            continue
        place = f"{path}:{number}"
        try:
            yield from make(place, row)
        except RowFault as fault:
            yield Problem(place, str(fault))


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RowFault(f"{name}: expected an integer >= 0, got {show(value)}")
    return value


_READERS: dict[FileFormat, Callable[[Path], Iterator[Row | Problem]]] = {
    "plain": _plain,
    "opencompass": _opencompass,
    "lm-eval": _lm_eval,
}
