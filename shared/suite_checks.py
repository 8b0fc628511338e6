"""What can be wrong with a suite beyond its form: names, addresses, secrets, templates, files. Each check yields
Problems.

The form itself (keys, types, bounds) is checked by `shared.tables` against the types in `shared.config`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jinja2

from shared import secrets
from shared.addresses import CONTROL, address_fault, header_faults, userinfo_fault
from shared.combinations import combination_faults, select_faults
from shared.config import BoundedSettings, DatasetConfig, ModelConfig, Suite
from shared.errors import Problem
from shared.names import safe_name
from shared.records import TaskType
from shared.scoring import UNNAMED, filter_faults, measures_of, spec_faults, steps_of, type_faults, use_faults
from shared.tables import convert_table, join_place, show, unknown_word
from shared.tasks.limits import range_of
from shared.tasks.mapping import compile_template, is_mapped
from shared.tasks.native import default_metric, default_post_process
from shared.tasks.rows import PYARROW_MISSING, SUFFIXES, format_of
from shared.vocabulary import UNTARGETED

CERTIFICATES = ("ca_file", "client_cert", "client_key")
"""Keys of a model that name a file."""

SECRETS_REMEDY = "secrets belong in the environment: write ${VARIABLE}"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_SECRET_HEADER = re.compile(r".*(key|auth|authorization|token|secret|password|cookie|credentials?)", re.IGNORECASE)
_SECRET_KEY = re.compile(r"(.*_)?(authorization|api_?key|(access|auth|api)_token|secret|password)", re.IGNORECASE)
_STRAY_KEY = re.compile(r"(?=.*[a-z])(?=.*[A-Z0-9]).{20,}", re.DOTALL)


def check_names(raw: dict[str, Any]) -> Iterator[Problem]:
    for key in ("models", "datasets"):
        tables = raw.get(key)
        places: dict[str, tuple[str, str]] = {}  # by the file name where case is ignored: (abbr, where it stands)
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            name = table.get("abbr") if isinstance(table, dict) else None
            if not isinstance(name, str) or not name:
                continue
            place = f"{key}[{index}].abbr"
            if CONTROL.search(name):
                yield Problem(place, f"{show(name)} holds a control character: remove it")
                continue
            try:
                file_name = safe_name(name).casefold()
            except ValueError as error:
                yield Problem(place, str(error))
                continue
            other, owner = places.setdefault(file_name, (name, f"{key}[{index}]"))
            if owner == f"{key}[{index}]":
                continue
            if name == other:
                yield Problem(place, f"{show(name)} is already the abbr of {owner}: each needs its own")
            else:
                files = "would be the same file where case is ignored: rename one"
                yield Problem(place, f"{show(name)} and {show(other)} ({owner}) {files}")


def check_generation(raw: dict[str, Any]) -> Iterator[Problem]:
    """The bounds of sampling settings, which records on disk are read without."""
    for key in ("models", "datasets"):
        tables = raw.get(key)
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            if isinstance(table, dict) and isinstance(table.get("generation"), dict):
                yield from convert_table(table["generation"], BoundedSettings, f"{key}[{index}].generation")[1]


def check_intervals(suite: Suite | None) -> Iterator[Problem]:
    if suite is None:
        return
    beat, patience = suite.infer.heartbeat_interval, suite.eval.heartbeat_timeout
    if patience <= beat:
        text = f"expected more than infer.heartbeat_interval ({beat:g}), got {patience:g}"
        yield Problem("eval.heartbeat_timeout", f"{text}: a live inferd would count as gone")
    if suite.infer.backoff_max < suite.infer.backoff_base:
        text = f"expected at least infer.backoff_base ({suite.infer.backoff_base:g}), got {suite.infer.backoff_max:g}"
        yield Problem("infer.backoff_max", text)


def check_groups(suite: Suite | None) -> Iterator[Problem]:
    if suite is None:
        return
    known = {dataset.abbr for dataset in suite.datasets}
    names = [group.name for group in suite.groups]
    for index, group in enumerate(suite.groups):
        place = f"groups[{index}]"
        if group.name in names[:index]:
            yield Problem(f"{place}.name", f"{show(group.name)} is the name of another group: rename one")
        for position, abbr in enumerate(group.datasets):
            if abbr not in known:
                yield Problem(f"{place}.datasets[{position}]", f"no dataset has this abbr; {unknown_word(abbr, known)}")
            elif abbr in group.datasets[:position]:
                yield Problem(f"{place}.datasets[{position}]", f"{show(abbr)} stands in this group already")
        if group.weights and len(group.weights) != len(group.datasets):
            text = f"expected one a dataset, {len(group.datasets)}, got {len(group.weights)}"
            yield Problem(f"{place}.weights", text)


def check_pairs(suite: Suite | None) -> Iterator[Problem]:
    """Which models meet which datasets, and what of it is selected."""
    if suite is not None:
        faults = list(combination_faults(suite))
        yield from faults or select_faults(suite)


# --- models -----------------------------------------------------------------------------------------------------------


def check_model(model: ModelConfig, place: str, env: Mapping[str, str] | None) -> Iterator[Problem]:
    if fault := _url_fault(model):
        yield Problem(f"{place}.base_url", fault)
    if model.api_key_env and (fault := _key_variable_fault(model.api_key_env, env)):
        yield Problem(f"{place}.api_key_env", fault)
    if (name := model.client_key_password_env) and (fault := _key_variable_fault(name, env, "password")):
        yield Problem(f"{place}.client_key_password_env", fault)
    for key in ("client_key", "client_key_password_env"):
        if getattr(model, key) and not model.client_cert:
            yield Problem(f"{place}.{key}", "is of no use without client_cert")
    if model.low_speed_time != ModelConfig(abbr="_").low_speed_time and not model.low_speed_limit:
        yield Problem(f"{place}.low_speed_time", "is of no use without low_speed_limit")
    seen: dict[str, str] = {}
    for name, value in model.headers.items():
        where = join_place(f"{place}.headers", name)
        for fault in _header_faults(name, value, env):
            yield Problem(where, fault)
        if name.lower() in seen:
            yield Problem(where, f"is the same header as {seen[name.lower()]}: names of headers ignore case")
        seen.setdefault(name.lower(), name)
    if model.prompt_format != "chat" and model.type not in ("openai", "local"):
        yield Problem(f"{place}.prompt_format", f"is for endpoints: the adapter {show(model.type)} is given the turns")
    for key, fault in _likelihood_faults(model):
        yield Problem(f"{place}.{key}", fault)
    yield from _literal_secrets(model.options, f"{place}.options")
    yield from _literal_secrets(model.extra_body, f"{place}.extra_body")


def _likelihood_faults(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Settings of likelihoods that contradict each other: (key, what is wrong)."""
    way = model.loglikelihood
    for key in ("loglikelihood", "bos", "max_length"):
        if getattr(model, key) and model.type not in ("openai", "local"):
            yield key, f"is for endpoints: the adapter {show(model.type)} has its own way"
        elif key != "loglikelihood" and getattr(model, key) and not way and model.type == "openai":
            yield key, "is of no use without loglikelihood"
    if model.type == "local" and way.startswith("echo"):
        yield "loglikelihood", "a local model's server has no echo: remove it"
    if way == "echo" and model.max_length:
        yield "max_length", 'needs prompts as token ids: loglikelihood = "echo_tokens", or remove it'
    if way in ("echo_tokens", "logit_bias") and model.transport == "engine":
        yield "transport", f'loglikelihood = "{way}" takes several calls an answer, on threads: remove one of them'


def check_certificates(model: ModelConfig, place: str, base: Path) -> Iterator[Problem]:
    """The files that the model's connections need."""
    for key in CERTIFICATES:
        if CONTROL.search(name := getattr(model, key)):  # the key itself, perhaps, so it isn't quoted
            yield Problem(f"{place}.{key}", "expected the name of a file in PEM")
        elif name and (fault := _file_fault(Path(os.path.normpath(Path(base, name))))):
            yield Problem(f"{place}.{key}", fault)


def _url_fault(model: ModelConfig) -> str | None:
    if model.type == "local":
        return "a local model has none: inferd starts the server itself; remove it" if model.base_url else None
    if not model.base_url:
        return 'is required for type "openai": the address up to and including /v1' if model.type == "openai" else None
    return address_fault(model.base_url) if model.type == "openai" else userinfo_fault(model.base_url)


def _key_variable_fault(
    name: str, env: Mapping[str, str] | None, what: Literal["key", "password", "URL"] = "key"
) -> str | None:
    if not _VARIABLE.fullmatch(name) or name.lower().startswith("sk_") or _STRAY_KEY.fullmatch(name):
        # It may be the key itself, so it is never quoted.
        example = {"key": "OPENAI_API_KEY", "password": "KEY_PASSWORD", "URL": "WEBHOOK_URL"}[what]
        return (
            f"expected the name of an environment variable such as {example}, not a {what}: "
            f"put the {what} into a variable and write that variable's name, in capitals"
        )
    if env is not None and not secrets.lookup(name, env):
        return _unset(name, env)
    return None


def check_notify(suite: Suite | None, env: Mapping[str, str] | None) -> Iterator[Problem]:
    name = suite.notify.url_env if suite is not None else ""
    if name and (fault := _key_variable_fault(name, env, "URL")):
        yield Problem("notify.url_env", fault)


def _unset(name: str, env: Mapping[str, str]) -> str:
    under_systemd = f", or LoadCredential={name} in the unit" if "CREDENTIALS_DIRECTORY" in env else ""
    return (
        f"the environment variable {name} is {'empty' if name in env else 'not set'}: export {name}=...{under_systemd}"
    )


def _header_faults(name: str, value: str, env: Mapping[str, str] | None) -> Iterator[str]:
    yield from header_faults(name, value)
    variables = _REFERENCE.findall(value)
    if (not variables and _SECRET_HEADER.fullmatch(name)) or secrets.looks_like_key(_REFERENCE.sub("", value)):
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


def check_dataset(dataset: DatasetConfig, place: str, base: Path, check_files: bool) -> Iterator[Problem]:
    kind = format_of(dataset)
    if kind is None:
        known = ", ".join(SUFFIXES)
        yield Problem(f"{place}.path", f"can't tell the format from the name (known: {known}, also .gz): set `format`")
    if check_files:
        if fault := _file_fault(Path(os.path.normpath(Path(base, dataset.path))), " (another: --path ABBR=FILE)"):
            yield Problem(f"{place}.path", fault)
        if kind == "parquet" and importlib.util.find_spec("pyarrow") is None:
            yield Problem(f"{place}.path", PYARROW_MISSING)
    yield from _check_rows(dataset, place, base, check_files)
    if is_mapped(dataset):
        yield from _check_mapping(dataset, place)
    else:
        if kind in ("csv", "tsv", "parquet"):
            yield Problem(f"{place}.fields", f"is required for {kind}: say which column holds the target")
        for key, what in (("target_regex", "targets"), ("choices", "choices")):
            if getattr(dataset, key) is not None:
                yield Problem(f"{place}.{key}", f"is for plain rows: TaskSpec lines hold their {what} ready")
    if dataset.columns is not None:
        if kind not in ("csv", "tsv", None):
            yield Problem(f"{place}.columns", f"is for csv and tsv files without a header, this one is {kind}")
        for name in sorted({name for name in dataset.columns if dataset.columns.count(name) > 1}):
            yield Problem(f"{place}.columns", f"names {show(name)} twice")
    yield from _check_scoring(dataset, place)


def _check_rows(dataset: DatasetConfig, place: str, base: Path, check_files: bool) -> Iterator[Problem]:
    """Which rows are asked, in how many shards, and where their examples come from."""
    if isinstance(dataset.limit, str):
        try:
            first, end = range_of(dataset.limit)
        except ValueError as error:
            yield Problem(f"{place}.limit", str(error))
        else:
            if end is not None and end <= first:
                yield Problem(f"{place}.limit", f"{show(dataset.limit)} holds no rows: the end comes before the first")
    if dataset.num_shards is not None and dataset.max_shard_size is not None:
        yield Problem(f"{place}.max_shard_size", "expected one of num_shards and max_shard_size, got both")
    draw = dataset.few_shot_draw
    if draw is None:
        return
    where = f"{place}.few_shot_draw"
    if dataset.few_shot:
        yield Problem(where, "expected one of few_shot and few_shot_draw, got both")
    if dataset.request_type == "loglikelihood_rolling":
        yield Problem(where, "the likelihood of a whole text has no examples before it")
    source = Path(os.path.normpath(Path(base, draw.source))) if draw.source is not None else None
    if source is not None and check_files and (fault := _file_fault(source)):
        yield Problem(f"{where}.source", fault)
    for key, template in (("prompt", draw.prompt), ("target", draw.target)):
        if template is None:
            continue
        if not is_mapped(dataset):
            yield Problem(f"{where}.{key}", "is for plain rows: task lines hold their prompts and targets ready")
        elif fault := _template_fault(template):
            yield Problem(f"{where}.{key}", fault)


def _check_scoring(dataset: DatasetConfig, place: str) -> Iterator[Problem]:
    """metric, post_process and filters, as far as no task has its own."""
    metric, post_process = default_metric(dataset), default_post_process(dataset)
    alone = is_mapped(dataset)  # no task has its own
    names = dataset.filters if alone or dataset.filters else None
    faults = spec_faults(lambda spec: measures_of(spec, names), metric, "metric")
    faults += spec_faults(steps_of, post_process, "post_process")
    faults += filter_faults(dataset.filters)
    if alone and not faults:
        faults += type_faults(dataset.request_type, measures_of(metric, names))
        if dataset.request_type == "generate_until":
            faults += use_faults(metric, post_process, dataset.filters)
        else:
            idle = {"post_process": post_process != UNNAMED, "filters": bool(dataset.filters)}
            nothing = f"request_type {dataset.request_type} brings no text to read: take it out"
            faults += [f"{key}: {nothing}" for key, is_told in idle.items() if is_told]
    for fault in faults:
        where, _, text = fault.partition(": ")
        yield Problem(f"{place}.{where.replace('metric_name', 'metric')}", text)


def _file_fault(path: Path, remedy: str = "") -> str | None:
    try:
        if path.is_file():
            return None if os.access(path, os.R_OK) else f"can't be read, permission denied: {path}"
        return f"{f'is no file: {path}' if path.exists() else f'no such file: {path}'}{remedy}"
    except OSError as error:  # a folder that may not be entered, a name that is too long
        return f"can't be read: {error.strerror}: {path}"


NEEDED_FIELDS: Mapping[TaskType, dict[str, str]] = {
    "generate_until": {"target": ": the field that holds the right answer"},
    "loglikelihood": {"target": ": the field that holds the text whose likelihood is asked for"},
    "multiple_choice": {
        "choices": " of request_type multiple_choice: the field that holds the choices",
        "gold": " of request_type multiple_choice: the field that holds the right one's position",
    },
    "loglikelihood_rolling": {},
}
"""What `fields` must name of rows that aren't tasks yet, and the rest of the sentence that says so."""


def _check_mapping(dataset: DatasetConfig, place: str) -> Iterator[Problem]:
    fields = dataset.fields
    untargeted = not spec_faults(measures_of, default_metric(dataset), "") and all(
        measure.name in UNTARGETED for measure in measures_of(default_metric(dataset))
    )
    needed = NEEDED_FIELDS[dataset.request_type]
    # Of a chat that is asked turn by turn the gold turns may say what is right: the tasks' own check tells.
    for name in needed if not untargeted and dataset.chat_mode == "last" else ():
        if name == "target" and dataset.request_type == "generate_until" and fields is not None and fields.gold:
            continue  # the letter of the right choice is the target
        if name == "choices" and dataset.choices is not None:
            continue
        if fields is None or getattr(fields, name) is None:
            yield Problem(f"{place}.fields.{name}", f"is required for plain rows{needed[name]}")
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
    if dataset.choices is not None and fields is not None and fields.choices is not None:
        yield Problem(f"{place}.choices", "expected one of fields.choices, choices, got both")
    if dataset.messages is not None and not dataset.messages:
        yield Problem(f"{place}.messages", "expected at least one message, got none")
    if dataset.target_regex is not None:
        try:
            re.compile(dataset.target_regex)
        except (re.error, OverflowError, RecursionError) as error:
            yield Problem(f"{place}.target_regex", f"isn't a valid regular expression: {error}")
    templates = [("prompt", dataset.prompt)] if dataset.prompt is not None else []
    templates += [(f"choices[{i}]", choice) for i, choice in enumerate(dataset.choices or ())]
    templates += [(f"messages[{i}].content", message.content) for i, message in enumerate(dataset.messages or ())]
    for key, source in templates:
        if fault := _template_fault(source or ""):
            yield Problem(f"{place}.{key}", fault)


def _template_fault(source: str) -> str | None:
    try:
        compile_template(source)
    except jinja2.TemplateSyntaxError as error:
        return f"isn't a valid template: line {error.lineno}: {error.message}"
    except (SyntaxError, RecursionError, ValueError) as error:
        return f"isn't a valid template: {error}"
    return None
