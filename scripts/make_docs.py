#!/usr/bin/env python3
"""Writes docs/work_dir.md from the records' docstrings, so that what is told of a file is what the code reads and
writes.

scripts/make_docs.py            writes it
scripts/make_docs.py --check    exit status 1 when it isn't what would be written
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from evald import results  # noqa: E402  # after the path is set, so that a bare clone works
from shared import layout, records  # noqa: E402

PAGE = ROOT / "docs" / "work_dir.md"
RECORDS = (
    records.Plan,
    records.TaskSpec,
    records.Heartbeat,
    records.InferStatus,
    records.Attempt,
    records.Generation,
    records.Prediction,
    records.EvalStatus,
    results.PairResult,
    results.MetricResult,
    records.EvalRun,
)


def page() -> str:
    tree = inspect.cleandoc(layout.__doc__ or "").split("\n\n")
    parts = [
        "# The files of a work_dir",
        "",
        "<!-- Written by scripts/make_docs.py from the docstrings of shared/layout.py, shared/records.py and "
        "evald/results.py. -->",
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


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.is_file() or PAGE.read_text("utf-8") != text:
            print(f"{PAGE.relative_to(ROOT)} is out of date: run scripts/make_docs.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
