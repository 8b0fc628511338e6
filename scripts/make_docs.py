#!/usr/bin/env python3
"""Writes what the documents tell of the code from the code: docs/work_dir.md from the records' docstrings, the tables
of docs/errors.md from those that the code evaluates, the exit statuses of docs/operate.md, and docs/keys.md from the
types that a suite is checked by. In docs/errors.md and docs/operate.md they stand between marks, the rest is written by
hand.

scripts/make_docs.py            writes them
scripts/make_docs.py --check    exit status 1 when they aren't what would be written
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import inspect as inspected

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from evald import calibration, results, samples  # noqa: E402  # after the path is set, so that a bare clone works
from evald.stats import means  # noqa: E402
from inferd.adapters import failures  # noqa: E402
from inferd.outcome import RULES  # noqa: E402
from shared import config, layout, records  # noqa: E402
from shared.errors import EXIT_STATUSES, MEANINGS  # noqa: E402

WORK_DIR = ROOT / "docs" / "work_dir.md"
ERRORS = ROOT / "docs" / "errors.md"
OPERATE = ROOT / "docs" / "operate.md"
KEYS = ROOT / "docs" / "keys.md"
SUITE_TABLES = {
    "The suite": config.Suite,
    "`[[models]]`": config.ModelConfig,
    "`price`": config.Price,
    "`[[datasets]]`": config.DatasetConfig,
    "`fields`": config.FieldMapping,
    "`few_shot_draw`": config.FewShotDraw,
    "`generation`": config.BoundedSettings,
    "`[infer]`": config.InferConfig,
    "`[eval]`": config.EvalConfig,
    "`[budget]`": config.BudgetConfig,
    "`[notify]`": config.NotifyConfig,
    "`[[groups]]`": config.GroupConfig,
    "`[[combinations]]`": config.CombinationConfig,
    "`[select]`": config.SelectConfig,
}
_NAMES = {
    inspected.StrType: "string",
    inspected.IntType: "integer",
    inspected.FloatType: "number",
    inspected.BoolType: "true or false",
}
_NO_TYPES = (inspected.NoneType, inspected.CustomType)
RECORDS = (
    records.Plan,
    records.PlanDataset,
    records.PlanPair,
    records.PlanShard,
    records.TaskSpec,
    records.Heartbeat,
    records.Command,
    records.Acknowledgement,
    records.InferStatus,
    records.Straggler,
    records.Attempt,
    records.Generation,
    records.Prediction,
    records.EvalStatus,
    results.PairResult,
    results.Served,
    results.MetricResult,
    results.CategoryResult,
    means.Clusters,
    calibration.CalibrationSums,
    records.EvalRun,
    samples.SampleLine,
)


def work_dir_page() -> str:
    tree = inspect.cleandoc(layout.__doc__ or "").split("\n\n")
    parts = [
        "# The files of a work_dir",
        "",
        "<!-- Written by scripts/make_docs.py from the docstrings of shared/layout.py, shared/records.py, "
        "evald/results.py and evald/samples.py. -->",
        "",
        tree[0],
        "",
        "```",
        inspect.cleandoc(tree[1]),
        "```",
        "",
        *tree[2:],
        "",
        inspect.cleandoc(records.__doc__ or "").split("\n\n", 1)[1],
        "",
    ]
    for kind in RECORDS:
        parts += [f"## {kind.__name__}", "", *_record(kind)]
    return "\n".join(parts).rstrip() + "\n"


def _record(kind: type) -> list[str]:
    """The docstring's paragraphs, with its sample as a block of indented JSON."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n"):
        if paragraph.startswith("{"):
            sample = json.loads(re.sub(r"\n\s*", "", paragraph))
            lines += ["```json", json.dumps(sample, indent=2, ensure_ascii=False), "```", ""]
        else:
            lines += [paragraph, ""]
    return lines


def marked_page(path: Path, parts: Mapping[str, Callable[[], Iterator[str]]]) -> str:
    """The page with what stands between marks written anew. Raises SystemExit when something has no place in it."""
    text = path.read_text("utf-8")
    for name, lines in parts.items():
        begin, end = f"<!-- {name}: written by scripts/make_docs.py -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise SystemExit(f"{path.relative_to(ROOT)}: no place for {name}: {begin}{end}")
        text = before + begin + "".join(f"{line}\n" for line in lines()) + end + after
    return text


def _outcomes() -> Iterator[str]:
    yield "| outcome | when |"
    yield "|---|---|"
    for rule in RULES:
        yield f"| `{rule.outcome}` | {rule.when} |"


def _classes() -> Iterator[str]:
    yield "| class | what it says | asked again | whose fault |"
    yield "|---|---|---|---|"
    for name, meaning in MEANINGS.items():
        yield f"| `{name}` | {meaning.what} | {_again(name)} | {meaning.fault} |"


def _failures() -> Iterator[str]:
    yield "| where | what happened | class | asked again | whose fault |"
    yield "|---|---|---|---|---|"
    for row in failures.TABLE:
        yield f"| {row.source} | {row.what} | `{row.kind}` | {_again(row.kind)} | {MEANINGS[row.kind].fault} |"


def _named_statuses() -> Iterator[str]:
    yield "| code or type | status |"
    yield "|---|---|"
    for status in sorted(set(failures.NAMED_STATUS.values())):
        names = [f"`{name}`" for name, named in failures.NAMED_STATUS.items() if named == status]
        yield f"| {', '.join(names)} | {status} |"


def _again(kind: str) -> str:
    return "yes" if MEANINGS[kind].retried else "no"


def _exit_statuses() -> Iterator[str]:
    yield "| status | inferd | evald | evalctl |"
    yield "|---|---|---|---|"
    for status, meaning in EXIT_STATUSES.items():
        yield f"| {status} | {meaning.inferd} | {meaning.evald} | {meaning.evalctl} |"


def keys_page() -> Iterator[str]:
    """Of each table its keys, with the types and bounds that a suite is checked by, and what its docstring says."""
    yield "# Every key of a suite"
    yield ""
    yield "<!-- Written by scripts/make_docs.py from shared/config.py. -->"
    yield ""
    yield "With the types and bounds that a suite is checked by. [suite.md](suite.md) tells what they are good for."
    yield ""
    for heading, kind in SUITE_TABLES.items():
        yield f"## {heading}"
        yield ""
        for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n"):
            yield " ".join(paragraph.split())
            yield ""
        yield "| key | type | default |"
        yield "|---|---|---|"
        bounded = {field.name: field for field in msgspec.inspect.type_info(kind).fields}  # type: ignore[attr-defined]
        for field in msgspec.structs.fields(kind):
            yield f"| `{field.name}` | {_type(bounded[field.name].type)} | {_default(field)} |"
        yield ""


def _type(kind: object) -> str:
    """As in TOML, with bounds."""
    match kind:
        case inspected.UnionType(types):
            return " or ".join(_type(one) for one in types if not isinstance(one, _NO_TYPES))
        case inspected.LiteralType(values):
            return " or ".join(f"`{json.dumps(value)}`" for value in values)
        case inspected.VarTupleType(item_type=item):
            return f"array of {_type(item)}"
        case inspected.DictType(value_type=value):
            return f"table of {_type(value)}"
        case inspected.StructType(cls=cls):
            return f"table ({cls.__name__})"
        case inspected.AnyType():
            return "anything"
        case _:
            name = _NAMES[type(kind)]
            signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
            said = [
                f"{sign} {found:g}" for key, sign in signs.items() if (found := getattr(kind, key, None)) is not None
            ]
            return " ".join([name, *said])


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is None or value is msgspec.UNSET or value in ("", (), {}) or isinstance(value, msgspec.Struct):
        return ""
    return f"`{json.dumps(value)}`"


def main() -> int:
    stale = 0
    pages = {
        WORK_DIR: work_dir_page(),
        ERRORS: marked_page(
            ERRORS,
            {
                "outcomes": _outcomes,
                "classes": _classes,
                "failures": _failures,
                "named statuses": _named_statuses,
            },
        ),
        OPERATE: marked_page(OPERATE, {"exit statuses": _exit_statuses}),
        KEYS: "".join(f"{line}\n" for line in keys_page()).rstrip() + "\n",
    }
    for path, text in pages.items():
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)} is out of date: run scripts/make_docs.py", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text, "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
