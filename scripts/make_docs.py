#!/usr/bin/env python3
"""Writes what the documents tell of the code from the code: docs/work_dir.md from the records' docstrings, and the
tables of docs/errors.md from those that the code evaluates. In that page they stand between marks, the rest is written
by hand.

scripts/make_docs.py            writes them
scripts/make_docs.py --check    exit status 1 when they aren't what would be written
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from evald import calibration, results, samples  # noqa: E402  # after the path is set, so that a bare clone works
from evald.stats import means  # noqa: E402
from inferd.adapters import failures  # noqa: E402
from inferd.outcome import RULES  # noqa: E402
from shared import layout, records  # noqa: E402
from shared.errors import MEANINGS  # noqa: E402

WORK_DIR = ROOT / "docs" / "work_dir.md"
ERRORS = ROOT / "docs" / "errors.md"
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


def errors_page(text: str) -> str:
    """The page with its tables written anew. Raises SystemExit when one has no place in it."""
    for name, lines in (
        ("outcomes", _outcomes()),
        ("classes", _classes()),
        ("failures", _failures()),
        ("named statuses", _named_statuses()),
    ):
        begin, end = f"<!-- {name}: written by scripts/make_docs.py -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise SystemExit(f"{ERRORS.relative_to(ROOT)}: no place for {name}: {begin}{end}")
        text = before + begin + "".join(f"{line}\n" for line in lines) + end + after
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


def main() -> int:
    stale = 0
    for path, text in ((WORK_DIR, work_dir_page()), (ERRORS, errors_page(ERRORS.read_text("utf-8")))):
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
