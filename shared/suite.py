"""The suite file, read once at the edge: TOML text becomes a `Suite` in which everything that can be known before the
first request holds, or one SuiteError with all that is wrong.

Relative paths start from the suite's `base_dir`, or from the folder of its file. A suite that goes into a work_dir is
frozen first (`freeze`), so that it finds its files from there. No secret may stand in a suite: it is copied to disk and
shown to people. Whether a model's `type` exists is for the adapters to say.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shared.atomic import read_regular
from shared.combinations import selected
from shared.config import DatasetConfig, ModelConfig, SelectConfig, Suite
from shared.errors import Problem, SuiteError
from shared.suite_checks import (
    CERTIFICATES,
    check_certificates,
    check_dataset,
    check_generation,
    check_groups,
    check_intervals,
    check_model,
    check_names,
    check_notify,
    check_pairs,
)
from shared.tables import convert_table, is_deep, join_place, show, unknown_word

T = TypeVar("T")

MAX_BYTES = 16 << 20
"""Of the suite in a work_dir."""

_TOML_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def read_suite(path: Path) -> bytes:
    """The suite file's bytes. Raises SuiteError when it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SuiteError([Problem(str(path), f"can't be read: {error.strerror or error}")]) from None


def submitted_suite(path: Path) -> bytes:
    """The bytes of a work_dir's suite, where others may write: it must be a regular file, and no larger than a suite
    can be. Raises OSError as open does, and SuiteError.
    """
    try:
        return read_regular(path, MAX_BYTES)
    except ValueError as error:
        raise SuiteError([Problem(str(path), str(error).removeprefix(f"{path}: "))]) from None


def parse_suite(
    text: bytes | str,
    origin: str,
    base_dir: Path,
    env: Mapping[str, str] | None = None,
    *,
    check_files: bool = True,
    model_faults: Callable[[ModelConfig], Iterable[Problem]] = lambda model: (),
    dataset_faults: Callable[[DatasetConfig], Iterable[Problem]] = lambda dataset: (),
) -> Suite:
    """The suite that `text` is. origin: what the text is called in messages. env: where to look for variables, if at
    all. model_faults, dataset_faults: what else is wrong with one, by someone who knows the adapters and the metrics;
    places are those in its table.
    """
    raw = _parse_toml(text, origin)
    unknown = _apply_paths(raw)
    suite, problems = convert_table(raw, Suite, "")
    base = _base_dir(raw, base_dir, problems)
    found = [*unknown, *check_names(raw), *check_generation(raw), *check_intervals(suite)]
    found += [*check_groups(suite), *check_pairs(suite), *check_notify(suite, env)]
    for place, model in _tables(raw, "models", ModelConfig, {"abbr": "_"}):
        found += check_model(model, place, env)
        found += check_certificates(model, place, base) if check_files else ()
        found += [Problem(f"{place}.{fault.place}", fault.text) for fault in model_faults(model)]
    for place, dataset in _tables(raw, "datasets", DatasetConfig, {"abbr": "_", "path": "_"}):
        found += check_dataset(dataset, place, base, check_files)
        found += [Problem(f"{place}.{fault.place}", fault.text) for fault in dataset_faults(dataset)]
    problems += [problem for problem in found if not _told(problem, problems)]
    if problems or suite is None:
        raise SuiteError(sorted(problems, key=_rank))
    models = tuple(_with_absolute_paths(model, base) for model in suite.models)
    datasets = tuple(_with_absolute_source(dataset, base) for dataset in suite.datasets)
    return selected(msgspec.structs.replace(suite, base_dir=str(base), models=models, datasets=datasets))


def _with_absolute_paths(model: ModelConfig, base: Path) -> ModelConfig:
    """Who asks the model isn't told where the suite's paths start from."""
    given = {name: getattr(model, name) for name in CERTIFICATES if getattr(model, name)}
    return msgspec.structs.replace(model, **{name: os.path.normpath(Path(base, path)) for name, path in given.items()})


def _with_absolute_source(dataset: DatasetConfig, base: Path) -> DatasetConfig:
    """Who draws examples isn't either."""
    draw = dataset.few_shot_draw
    if draw is None or draw.source is None:
        return dataset
    there = msgspec.structs.replace(draw, source=os.path.normpath(Path(base, draw.source)))
    return msgspec.structs.replace(dataset, few_shot_draw=there)


def dataset_path(suite: Suite, dataset: DatasetConfig) -> Path:
    """Where the dataset's file lies. The suite's base_dir is set by `parse_suite`."""
    return Path(suite.base_dir or "", dataset.path)


def with_paths(text: bytes | str, paths: Mapping[str, Path]) -> str:
    """The suite's text with a `[paths]` table at its end, so that the datasets named there are read from other files.

    Raises SuiteError when the text is no TOML, or has such a table already.
    """
    if "paths" in _parse_toml(text, "suite"):
        raise SuiteError([Problem("paths", "the suite has this table already: change it there")])
    table = "".join(f"{_quoted(abbr)} = {_quoted(str(path.absolute()))}\n" for abbr, path in paths.items())
    return f"{_decode(text, 'suite')}\n[paths]\n{table}"


def with_selection(text: bytes | str, select: SelectConfig) -> str:
    """The suite's text with a `[select]` table at its end, so that whoever plans it takes that part of it.

    Raises SuiteError when the text is no TOML, or has such a table already.
    """
    if "select" in _parse_toml(text, "suite"):
        raise SuiteError([Problem("select", "the suite has this table already: change it there")])
    given = msgspec.structs.asdict(select)
    lines = [f"{name} = [{', '.join(map(_quoted, globs))}]\n" for name, globs in given.items() if globs]
    return f"{_decode(text, 'suite')}\n[select]\n{''.join(lines)}"


def _apply_paths(raw: dict[str, Any]) -> list[Problem]:
    """Put each entry of `[paths]` into its dataset's table; tells the entries that name none."""
    paths, datasets = raw.get("paths"), raw.get("datasets")
    if not isinstance(paths, dict) or not isinstance(datasets, list):
        return []  # told as a wrong type elsewhere
    tables = {
        table["abbr"]: table for table in datasets if isinstance(table, dict) and isinstance(table.get("abbr"), str)
    }
    for abbr in paths.keys() & tables.keys():
        tables[abbr]["path"] = paths[abbr]
    return [
        Problem(join_place("paths", abbr), f"no dataset has this abbr; {unknown_word(abbr, tables)}")
        for abbr in paths
        if abbr not in tables
    ]


def freeze(text: bytes | str, base_dir: Path) -> str:
    """The suite's text with `base_dir` written into it, when it names none. Comments and order stay as they are.

    Raises SuiteError when the text is no TOML, or the folder's name is no text.
    """
    raw = _parse_toml(text, "suite")
    text = _decode(text, "suite")
    if "base_dir" in raw:
        return text
    folder = str(base_dir.absolute())
    try:
        folder.encode()
    except UnicodeEncodeError:
        raise SuiteError([Problem("base_dir", f"the folder's name isn't UTF-8: {folder!a}: rename it")]) from None
    return f"base_dir = {_quoted(folder)}\n{text}"


def asked_for(text: bytes | str) -> bytes:
    """What of a suite's text a plan depends on, in one form: everything but [infer], [eval], [notify] and
    the models' max_workers, which may change while it runs. A text that is no TOML stands for itself.
    """
    try:
        raw = _parse_toml(text, "suite")
    except SuiteError:
        return text if isinstance(text, bytes) else text.encode(errors="replace")
    tables = {name: table for name, table in raw.items() if name not in ("infer", "eval", "notify")}
    if isinstance(models := tables.get("models"), list):
        tables["models"] = [
            {name: value for name, value in model.items() if name != "max_workers"}
            if isinstance(model, dict)
            else model
            for model in models
        ]
    return json.dumps(tables, sort_keys=True, default=str).encode()


def _quoted(text: str) -> str:
    """As a TOML string. JSON's escapes are TOML's, but for DEL, which JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _decode(text: bytes | str, origin: str) -> str:
    if isinstance(text, bytes):
        try:
            return text.decode().removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            line = text.count(b"\n", 0, error.start) + 1
            fault = f"not UTF-8: byte 0x{text[error.start]:02X}: save the file as UTF-8"
            raise SuiteError([Problem(f"{origin}:{line}", fault)]) from None
    return text.removeprefix("\ufeff")


def _parse_toml(text: bytes | str, origin: str) -> dict[str, Any]:
    text = _decode(text, origin)
    try:
        raw = tomllib.loads(text)
        if is_deep(raw):  # dotted keys nest as deep as they are long
            raise RecursionError
        return raw
    except tomllib.TOMLDecodeError as error:
        match = _TOML_PLACE.fullmatch(str(error))
        said, line, column = match.groups() if match else (str(error), None, None)
        where = f" at column {column}" if column else " at the end of the file"
        problem = Problem(f"{origin}:{line or text.count(chr(10)) + 1}", f"not valid TOML: {said}{where}")
    except RecursionError:
        problem = Problem(origin, "not usable TOML: nested too deeply")
    except ValueError as error:  # an integer of thousands of digits, a date that doesn't exist
        problem = Problem(origin, f"not usable TOML: {error}")
    raise SuiteError([problem])


def _base_dir(raw: dict[str, Any], default: Path, problems: list[Problem]) -> Path:
    given = raw.get("base_dir")
    if not isinstance(given, str):
        return default.absolute()
    if not Path(given).is_absolute():
        problems.append(Problem("base_dir", f"expected an absolute path, got {show(given)}"))
        return default.absolute()
    return Path(given)


def _tables(raw: dict[str, Any], key: str, kind: type[T], stand_ins: dict[str, str]) -> Iterator[tuple[str, T]]:
    """Each table of an array as far as it can be read: without the keys that are wrong, with stand-ins for what is
    missing.
    """
    tables = raw.get(key)
    for index, table in enumerate(tables if isinstance(tables, list) else []):
        if not isinstance(table, dict):
            continue
        place = f"{key}[{index}]"
        _, problems = convert_table(table, kind, place)
        wrong = {name for name in table if any(_within(problem.place, join_place(place, name)) for problem in problems)}
        made, _ = convert_table(stand_ins | {k: v for k, v in table.items() if k not in wrong}, kind, place)
        if made is not None:
            yield place, made


def _within(place: str, outer: str) -> bool:
    return place == outer or place.startswith((outer + ".", outer + "["))


def _told(problem: Problem, problems: Iterable[Problem]) -> bool:
    """Was something said of this place already? What follows from one mistake isn't another one."""
    return any(_within(problem.place, told.place) or _within(told.place, problem.place) for told in problems)


def _rank(problem: Problem) -> tuple[int, int]:
    """Where a problem stands among the others: by section and table, in a section in the order it was found."""
    section, index = re.match(r"(\w*)(?:\[(\d+)\])?", problem.place).groups()  # type: ignore[union-attr]  # matches all
    fields = Suite.__struct_fields__
    return fields.index(section) if section in fields else len(fields), int(index or 0)
