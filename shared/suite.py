"""The suite file, read once at the edge: TOML text becomes a `Suite` in which everything that can be known before the
first request holds, or one SuiteError with all that is wrong.

Relative paths start from the suite's `base_dir`, or from the folder of its file. A suite that goes into a work_dir is
frozen first (`freeze`), so that it finds its files from there. No secret may stand in a suite: it is copied to disk and
shown to people. Whether a model's `type` exists is for the adapters to say.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import jinja2
import msgspec
from msgspec import UNSET

from shared import secrets
from shared.config import BoundedSettings, DatasetConfig, ModelConfig, Suite
from shared.errors import Problem, SuiteError
from shared.names import collisions, safe_name
from shared.tables import convert_table, join_place, show, unknown_word
from shared.tasks.mapping import compile_template, is_mapped
from shared.tasks.native import metric_faults
from shared.tasks.rows import PYARROW_MISSING, SUFFIXES, format_of
from shared.vocabulary import POST_PROCESS

T = TypeVar("T")

SECRETS_REMEDY = "secrets belong in the environment: write ${VARIABLE}"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SECRET_HEADER = re.compile(r"(.*-)?(authorization|cookie|api-?key|token|secret|password)", re.IGNORECASE)
_SECRET_KEY = re.compile(r"(.*_)?(authorization|api_?key|(access|auth|api)_token|secret|password)", re.IGNORECASE)
_STRAY_KEY = re.compile(r"(?=.*[a-z])(?=.*[A-Z0-9]).{20,}", re.DOTALL)
_TOML_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def load_suite(
    path: Path, env: Mapping[str, str] = os.environ, *, check_env: bool = True, check_files: bool = True
) -> Suite:
    """Read and check the suite file at `path`. The result's base_dir is set.

    check_env: do the variables that hold keys exist? check_files: do the datasets' files? Both are for who will ask the
    models; a reader of a frozen suite needs neither. Raises SuiteError.
    """
    path = Path(path)
    text = read_suite(path)
    return parse_suite(text, str(path), path.absolute().parent, env if check_env else None, check_files=check_files)


def read_suite(path: Path) -> bytes:
    """The suite file's bytes. Raises SuiteError when it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SuiteError([Problem(str(path), f"can't be read: {error.strerror or error}")]) from None


def parse_suite(
    text: bytes | str, origin: str, base_dir: Path, env: Mapping[str, str] | None = None, *, check_files: bool = True
) -> Suite:
    """The suite that `text` is. origin: what the text is called in messages. env: where to look for variables, if at
    all.
    """
    raw = _parse_toml(text, origin)
    unknown = _apply_paths(raw)
    suite, problems = convert_table(raw, Suite, "")
    base = _base_dir(raw, base_dir, problems)
    found = [*unknown, *_check_names(raw), *_check_generation(raw), *_check_intervals(suite)]
    for place, model in _tables(raw, "models", ModelConfig, {"abbr": "_"}):
        found += _check_model(model, place, env)
    for place, dataset in _tables(raw, "datasets", DatasetConfig, {"abbr": "_", "path": "_"}):
        found += _check_dataset(dataset, place, base, check_files)
    problems += [problem for problem in found if not _told(problem, problems)]
    if problems or suite is None:
        raise SuiteError(sorted(problems, key=_rank))
    return msgspec.structs.replace(suite, base_dir=str(base))


def dataset_path(suite: Suite, dataset: DatasetConfig) -> Path:
    """Where the dataset's file lies. The suite must have been loaded: its base_dir is set."""
    return Path(suite.base_dir or "", dataset.path)


def with_paths(text: bytes | str, paths: Mapping[str, Path]) -> str:
    """The suite's text with a `[paths]` table at its end, so that the datasets named there are read from other files.

    Raises SuiteError when the text is no TOML, or has such a table already.
    """
    if "paths" in _parse_toml(text, "suite"):
        raise SuiteError([Problem("paths", "the suite has this table already: change it there")])
    table = "".join(f"{_quoted(abbr)} = {_quoted(str(path.absolute()))}\n" for abbr, path in paths.items())
    return f"{_decode(text, 'suite')}\n[paths]\n{table}"


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
        return tomllib.loads(text)
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


def _check_names(raw: dict[str, Any]) -> Iterator[Problem]:
    for key in ("models", "datasets"):
        tables = raw.get(key)
        places: dict[str, str] = {}
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            name = table.get("abbr") if isinstance(table, dict) else None
            if not isinstance(name, str) or not name:
                continue
            place = f"{key}[{index}].abbr"
            if _CONTROL.search(name):
                yield Problem(place, f"{show(name)} holds a control character: remove it")
                continue
            try:
                safe_name(name)
            except ValueError as error:
                yield Problem(place, str(error))
                continue
            for other, owner in places.items():
                if name == other:
                    yield Problem(place, f"{show(name)} is already the abbr of {owner}: each needs its own")
                elif collisions([name, other]):
                    files = "would be the same file where case is ignored: rename one"
                    yield Problem(place, f"{show(name)} and {show(other)} ({owner}) {files}")
            places.setdefault(name, f"{key}[{index}]")


def _check_generation(raw: dict[str, Any]) -> Iterator[Problem]:
    """The bounds of sampling settings, which records on disk are read without."""
    for key in ("models", "datasets"):
        tables = raw.get(key)
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            if isinstance(table, dict) and isinstance(table.get("generation"), dict):
                yield from convert_table(table["generation"], BoundedSettings, f"{key}[{index}].generation")[1]


def _check_intervals(suite: Suite | None) -> Iterator[Problem]:
    if suite is None:
        return
    beat, patience = suite.infer.heartbeat_interval, suite.eval.heartbeat_timeout
    if patience <= beat:
        text = f"expected more than infer.heartbeat_interval ({beat:g}), got {patience:g}"
        yield Problem("eval.heartbeat_timeout", f"{text}: a live inferd would count as gone")
    if suite.infer.backoff_max < suite.infer.backoff_base:
        text = f"expected at least infer.backoff_base ({suite.infer.backoff_base:g}), got {suite.infer.backoff_max:g}"
        yield Problem("infer.backoff_max", text)


# --- models -----------------------------------------------------------------------------------------------------------


def _check_model(model: ModelConfig, place: str, env: Mapping[str, str] | None) -> Iterator[Problem]:
    if fault := _url_fault(model):
        yield Problem(f"{place}.base_url", fault)
    if model.api_key_env and (fault := _key_variable_fault(model.api_key_env, env)):
        yield Problem(f"{place}.api_key_env", fault)
    seen: dict[str, str] = {}
    for name, value in model.headers.items():
        where = join_place(f"{place}.headers", name)
        for fault in _header_faults(name, value, env):
            yield Problem(where, fault)
        if name.lower() in seen:
            yield Problem(where, f"is the same header as {seen[name.lower()]}: names of headers ignore case")
        seen.setdefault(name.lower(), name)
    yield from _literal_secrets(model.options, f"{place}.options")
    yield from _literal_secrets(model.extra_body, f"{place}.extra_body")


def _url_fault(model: ModelConfig) -> str | None:
    """What is wrong with the address. It may hold a password or a key, so it is never quoted."""
    if model.type == "local":
        return "a local model has none: inferd starts the server itself; remove it" if model.base_url else None
    if not model.base_url:
        return 'is required for type "openai": the address up to and including /v1' if model.type == "openai" else None
    try:
        parts = urlsplit(model.base_url)
        _ = parts.port  # raises where it is no number from 0 to 65535
    except ValueError as error:
        return f"isn't a valid address: {error}" if "netloc" not in str(error) else "isn't a valid address"
    if "@" in parts.netloc:
        return "holds a user name or password: secrets belong in the environment: use api_key_env or headers"
    if model.type != "openai":
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "expected an address that begins with http:// or https://"
    if _CONTROL.search(model.base_url) or " " in model.base_url:
        return "holds white space or a control character: remove it"
    if parts.query or parts.fragment or model.base_url.endswith(("?", "#")):
        return "expected the address up to and including /v1, without ? and #"
    for path in ("/chat/completions", "/completions"):
        if parts.path.rstrip("/").endswith(path):
            return f"expected the address up to and including /v1: leave {path} out"
    return None


def _key_variable_fault(name: str, env: Mapping[str, str] | None) -> str | None:
    if not _VARIABLE.fullmatch(name) or name.lower().startswith("sk_") or _STRAY_KEY.fullmatch(name):
        # It may be the key itself, so it is never quoted.
        return (
            "expected the name of an environment variable such as OPENAI_API_KEY, not a key: "
            "put the key into a variable and write that variable's name, in capitals"
        )
    if env is not None and not secrets.lookup(name, env):
        return _unset(name, env)
    return None


def _unset(name: str, env: Mapping[str, str]) -> str:
    return f"the environment variable {name} is {'empty' if name in env else 'not set'}: export {name}=..."


def _header_faults(name: str, value: str, env: Mapping[str, str] | None) -> Iterator[str]:
    if not _HEADER_NAME.fullmatch(name):
        yield "isn't a valid name of a header"
    if _CONTROL.search(value):
        yield "the value holds a control character: remove it"
    variables = _REFERENCE.findall(value)
    if not variables and _SECRET_HEADER.fullmatch(name):
        yield SECRETS_REMEDY
    for variable in variables:
        if not _VARIABLE.fullmatch(variable):
            yield "expected the name of a variable between ${ and }"
        elif env is not None and not secrets.lookup(variable, env):
            yield _unset(variable, env)


def _literal_secrets(table: Mapping[str, Any], place: str) -> Iterator[Problem]:
    for key, value in table.items():
        where = join_place(place, key)
        if isinstance(value, dict):
            yield from _literal_secrets(value, where)
        elif isinstance(value, str) and value and _SECRET_KEY.fullmatch(key):
            yield Problem(where, "secrets belong in the environment: use api_key_env or headers")


# --- datasets ---------------------------------------------------------------------------------------------------------


def _check_dataset(dataset: DatasetConfig, place: str, base: Path, check_files: bool) -> Iterator[Problem]:
    kind = format_of(dataset)
    if kind is None:
        known = ", ".join(SUFFIXES)
        yield Problem(f"{place}.path", f"can't tell the format from the name (known: {known}, also .gz): set `format`")
    if check_files:
        if fault := _file_fault(Path(base, dataset.path)):
            yield Problem(f"{place}.path", fault)
        if kind == "parquet" and importlib.util.find_spec("pyarrow") is None:
            yield Problem(f"{place}.path", PYARROW_MISSING)
    if is_mapped(dataset):
        yield from _check_mapping(dataset, place)
    else:
        if kind in ("csv", "tsv", "parquet"):
            yield Problem(f"{place}.fields", f"is required for {kind}: say which column holds the target")
        if dataset.target_regex is not None:
            yield Problem(f"{place}.target_regex", "is for plain rows: TaskSpec lines hold their targets ready")
    if dataset.columns is not None:
        if kind not in ("csv", "tsv", None):
            yield Problem(f"{place}.columns", f"is for csv and tsv files without a header, this one is {kind}")
        for name in sorted({name for name in dataset.columns if dataset.columns.count(name) > 1}):
            yield Problem(f"{place}.columns", f"names {show(name)} twice")
    if dataset.metric is not UNSET:
        for fault in metric_faults(dataset.metric, "metric"):
            key, _, text = fault.partition(": ")
            yield Problem(f"{place}.{key}", text)
    if dataset.post_process is not UNSET and dataset.post_process not in POST_PROCESS:
        yield Problem(f"{place}.post_process", unknown_word(dataset.post_process, POST_PROCESS))


def _file_fault(path: Path) -> str | None:
    try:
        if path.is_file():
            return None if os.access(path, os.R_OK) else f"can't be read, permission denied: {path}"
        return f"is no file: {path}" if path.exists() else f"no such file: {path}"
    except OSError as error:  # a folder that may not be entered, a name that is too long
        return f"can't be read: {error.strerror}: {path}"


def _check_mapping(dataset: DatasetConfig, place: str) -> Iterator[Problem]:
    fields = dataset.fields
    if fields is None or not fields.target:
        yield Problem(f"{place}.fields.target", "is required for plain rows: the field that holds the right answer")
    sources = {
        "fields.prompt": fields.prompt if fields else None,
        "prompt": dataset.prompt,
        "messages": dataset.messages,
    }
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        yield Problem(f"{place}.{given[1]}", f"expected one of {', '.join(sources)}, got {' and '.join(given)}")
    if not given:
        yield Problem(place, f"expected one of {', '.join(sources)}: where prompts come from")
    if dataset.messages is not None and not dataset.messages:
        yield Problem(f"{place}.messages", "expected at least one message, got none")
    if dataset.target_regex is not None:
        try:
            re.compile(dataset.target_regex)
        except (re.error, OverflowError, RecursionError) as error:
            yield Problem(f"{place}.target_regex", f"isn't a valid regular expression: {error}")
    templates = [("prompt", dataset.prompt)] if dataset.prompt is not None else []
    templates += [(f"messages[{i}].content", message.content) for i, message in enumerate(dataset.messages or ())]
    for key, source in templates:
        try:
            compile_template(source or "")
        except jinja2.TemplateSyntaxError as error:
            yield Problem(f"{place}.{key}", f"isn't a valid template: line {error.lineno}: {error.message}")
        except (SyntaxError, RecursionError, ValueError) as error:
            yield Problem(f"{place}.{key}", f"isn't a valid template: {error}")
