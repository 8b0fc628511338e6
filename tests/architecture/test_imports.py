"""The house rules that a reader can't hold in mind: layers, purity, and who may touch the disk, the clock, the layout.

Each rule is a function from a tree of modules to the places that break it. The project is held to them; and each is
shown made-up bad trees, so that a rule that sees nothing fails here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("shared", "inferd", "evald", "evalctl")
FORBIDDEN_LAYERS = {
    "shared": {"inferd", "evald", "evalctl"},
    "inferd": {"evald", "evalctl"},
    "evald": {"inferd", "evalctl"},
    "evalctl": set[str](),
}
PURE = (
    "inferd/scheduler.py",
    "inferd/retry.py",
    "inferd/limiter.py",
    "inferd/outcome.py",
    "inferd/adapters/failures.py",
    "evald/post_process/*.py",
    "evald/reducers.py",
    "evald/metrics/*.py",
    "evald/calibration.py",
    "evald/stats/*.py",
    "evald/comparisons.py",
    "evald/leaderboard.py",
    "evald/account.py",
    "evald/report/*.py",
)
IMPURE_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "threading"),
    *("fileinput", "glob", "os", "pathlib", "shutil", "sqlite3", "tempfile", "watchdog"),
    *("http", "pycurl", "requests", "select", "selectors", "socket", "ssl", "urllib"),
    *("logging", "psutil", "signal", "subprocess", "sys", "time"),
}
IMPURE_NAMES = {"io.open", "io.FileIO", "open", "print", "input", "exec", "eval", "breakpoint"}
LAYOUT, ATOMIC, CLOCK = "shared/layout.py", "shared/atomic.py", "shared/clock.py"
DURABLE = {"os.replace", "os.rename", "os.renames", "os.fsync", "os.fdatasync", "shutil.move"}
WALL_CLOCK = {
    "time.time",
    "time.time_ns",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
}
# Names of the work_dir that mean nothing else, and those that are words too and count only as part of a path.
TREE_NAMES = {
    *("infer_status", "eval_status", "infer_heartbeat", "eval_heartbeat", "plan.json"),
    *("report.json", "report.md", "report.html", "leaderboard.csv"),
}
TREE_WORDS = {"predictions", "results", "summary", "control", "claims", "logs", "tasks"}
PATH_CALLS = {"join", "joinpath", "Path", "PurePath", "PurePosixPath", "glob", "rglob", "with_name", "open"}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
MAX_LINES = 400
LONG_FILES: dict[str, str] = {
    "shared/records.py": "every record on disk in one place, each with its sample: a table, not logic",
}
"""Files that may be longer than MAX_LINES, each with the reason."""


@dataclass(frozen=True)
class Module:
    """One source file. name: its path from the root, with `/`."""

    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @property
    def package(self) -> str:
        return self.name.split("/")[0]

    def place(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}"


Modules = list[Module]
Rule = Callable[[Modules], Iterator[str]]


def read_modules(root: Path) -> Modules:
    return [
        Module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    ]


# --- what a module imports, and what its names stand for --------------------------------------------------------------


def imports(module: Module) -> Iterator[tuple[ast.AST, str, str]]:
    """(node, dotted name of what is imported, the other name it goes by), wherever in the module it stands."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name, alias.asname or ""
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(module, node)
            for alias in node.names:
                yield node, f"{base}.{alias.name}".strip("."), alias.asname or alias.name
        elif isinstance(node, ast.Call) and last_part(node.func) in ("import_module", "__import__") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node, first.value, ""


def absolute_base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    folders = module.name.split("/")[:-1]
    above = folders[: len(folders) - (node.level - 1)]
    return ".".join([*above, *([node.module] if node.module else [])])


def last_part(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def uses(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """(node, full dotted name) of each name and attribute, with import aliases resolved: `t.time` -> `time.time`."""
    local = {name: full for _, full, name in imports(module) if name}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name | ast.Attribute) and (dotted := dotted_name(node)):
            head, _, tail = dotted.partition(".")
            yield node, f"{local.get(head, head)}.{tail}".rstrip(".")


def dotted_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted_name(node.value)):
        return f"{base}.{node.attr}"
    return ""


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


# --- the rules --------------------------------------------------------------------------------------------------------


def layers(modules: Modules) -> Iterator[str]:
    """shared imports neither daemon; the daemons don't import each other; nobody below imports evalctl."""
    for module in modules:
        for node, full, _ in imports(module):
            if full.split(".")[0] in FORBIDDEN_LAYERS[module.package]:
                yield f"{module.place(node)}: {module.package} must not import {full}"


def purity(modules: Modules) -> Iterator[str]:
    """The thinking parts do no I/O, start no thread, read no clock, and draw no random number of their own."""
    for module in modules:
        if not matches(module.name, PURE):
            continue
        for node, full, _ in imports(module):
            if full.split(".")[0] in IMPURE_MODULES:
                yield f"{module.place(node)}: a pure module imports {full}"
        for node, full in uses(module):
            if full in IMPURE_NAMES:
                yield f"{module.place(node)}: a pure module uses {full}"
            if re.fullmatch(r"(random|numpy\.random)\.[a-z]\w*", full) and full != "numpy.random.default_rng":
                yield f"{module.place(node)}: a pure module draws from {full}: take the source as a parameter"


def every_pure_part_is_there(modules: Modules) -> Iterator[str]:
    """A pattern of PURE that matches nothing guards nothing."""
    for pattern in PURE:
        if not any(fnmatch(module.name, pattern) and not module.name.endswith("__init__.py") for module in modules):
            yield f"{pattern}: no such module: correct PURE"


def durable_writes(modules: Modules) -> Iterator[str]:
    """Renaming and syncing happen in shared/atomic.py alone, where their guarantees are written down."""
    for module in modules:
        if module.name == ATOMIC:
            continue
        for node, full in uses(module):
            if full in DURABLE:
                yield f"{module.place(node)}: {full} outside {ATOMIC}"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_path_rename(node, node.func):
                yield f"{module.place(node)}: Path.{node.func.attr} outside {ATOMIC}"


def is_path_rename(call: ast.Call, function: ast.Attribute) -> bool:
    """`x.rename(y)`, or `x.replace(y)` with one plain argument: a string's takes two, a datetime's only named ones."""
    one_argument = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
    return one_argument and function.attr in ("rename", "replace")


def clock(modules: Modules) -> Iterator[str]:
    """The wall clock is read in shared/clock.py alone; everyone else is given one."""
    for module in modules:
        if module.name == CLOCK:
            continue
        for node, full in uses(module):
            if full in WALL_CLOCK:
                yield f"{module.place(node)}: {full} outside {CLOCK}"


def layout(modules: Modules) -> Iterator[str]:
    """Only shared/layout.py knows what lies where in a work_dir."""
    for module in modules:
        if module.name == LAYOUT:
            continue
        tree = module.tree
        documentation = set(docstrings(tree))
        in_paths = set(path_operands(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
                if names_the_tree(node.value, part_of_path=node in in_paths):
                    yield f"{module.place(node)}: {node.value!r} names the work_dir's tree outside {LAYOUT}"
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and is_work_dir(node.left):
                yield f"{module.place(node)}: a path is joined under the work_dir outside {LAYOUT}"


def names_the_tree(text: str, *, part_of_path: bool) -> bool:
    if re.search(r"\s", text) or "://" in text:
        return False  # words for a person, or an address
    parts = text.split("/")
    if any(part in TREE_NAMES or part.endswith(".scores.jsonl") for part in parts):
        return True
    return (part_of_path or len(parts) > 1) and any(part in TREE_WORDS for part in parts)


def docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    """Constants that stand as a statement of their own: docstrings, also those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield node.value


def path_operands(tree: ast.Module) -> Iterator[ast.AST]:
    """What is joined to a path with `/`, or handed to something that makes paths."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield from (node.left, node.right)
        elif isinstance(node, ast.Call) and last_part(node.func) in PATH_CALLS:
            # str.join takes one iterable: its parts aren't operands here
            yield from node.args


def is_work_dir(node: ast.expr) -> bool:
    dotted = dotted_name(node)
    return last_part(node) in ("work_dir", "workdir") or dotted.endswith(
        ("work_dir.root", "workdir.root", "layout.root")
    )


def sizes(modules: Modules) -> Iterator[str]:
    """A long file wants another look; the look's outcome stands in LONG_FILES."""
    lengths = {module.name: module.text.count("\n") for module in modules}
    for name, lines in lengths.items():
        if lines > MAX_LINES and not LONG_FILES.get(name):
            yield f"{name}: {lines} lines: split it, or give the reason in LONG_FILES"
    for name in LONG_FILES:
        if lengths.get(name, MAX_LINES + 1) <= MAX_LINES:
            yield f"{name}: needs no place in LONG_FILES any more"


def names(modules: Modules) -> Iterator[str]:
    """A module is named after what it owns."""
    for module in modules:
        for part in module.name.removesuffix(".py").split("/"):
            if VAGUE_NAMES & set(part.lower().split("_")):
                yield f"{module.name}: a vague name"


RULES: tuple[Rule, ...] = (
    layers,
    purity,
    every_pure_part_is_there,
    durable_writes,
    clock,
    layout,
    sizes,
    names,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    broken = list(rule(read_modules(ROOT)))
    assert not broken, f"{rule.__doc__}\n" + "\n".join(broken)


def test_the_whole_project_is_read() -> None:
    found = {module.package for module in read_modules(ROOT)}
    assert found == set(PACKAGES)
    known = {module.name for module in read_modules(ROOT)}
    assert {LAYOUT, ATOMIC, CLOCK} <= known, "the modules that the rules make exceptions for"


# --- each rule sees what it is for ------------------------------------------------------------------------------------

BAD: list[tuple[Rule, str, str]] = [
    (layers, "shared/a.py", "import inferd.pool"),
    (layers, "shared/a.py", "from evald.metrics import f1"),
    (layers, "shared/a.py", "def f():\n    from evalctl import main"),
    (layers, "shared/tasks/a.py", "from ...inferd import pool"),
    (layers, "shared/a.py", "import importlib\nimportlib.import_module('evald.watch')"),
    (layers, "shared/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import evald"),
    (layers, "inferd/a.py", "import evald"),
    (layers, "inferd/adapters/a.py", "from evalctl.main import main"),
    (layers, "evald/a.py", "import inferd.local_model as model"),
    (layers, "evald/metrics/a.py", "import evalctl"),
    (purity, "inferd/scheduler.py", "import os"),
    (purity, "inferd/limiter.py", "from time import monotonic"),
    (purity, "inferd/retry.py", "def f():\n    import threading"),
    (purity, "evald/metrics/f1.py", "import subprocess as s"),
    (purity, "evald/report/html.py", "from pathlib import Path"),
    (purity, "evald/stats/means.py", "import socket"),
    (purity, "evald/leaderboard.py", "from io import open as o\ndef f(x):\n    return o(x).read()"),
    (purity, "evald/leaderboard.py", "def f(x):\n    return open(x).read()"),
    (purity, "inferd/retry.py", "import random\ndelay = random.uniform(0, 1)"),
    (purity, "evald/stats/means.py", "import numpy as np\nx = np.random.rand(3)"),
    (every_pure_part_is_there, "evald/metrics/__init__.py", ""),
    (durable_writes, "inferd/a.py", "import os\nos.replace('a', 'b')"),
    (durable_writes, "inferd/a.py", "from os import rename as r\nr('a', 'b')"),
    (durable_writes, "shared/journal.py", "import os\nos.fdatasync(3)"),
    (durable_writes, "shared/a.py", "import os\nsync = os.fsync"),
    (durable_writes, "evald/a.py", "import shutil\nshutil.move('a', 'b')"),
    (durable_writes, "evald/a.py", "def f(path, other):\n    path.replace(other)"),
    (durable_writes, "evald/a.py", "def f(path, other):\n    path.with_suffix('.x').rename(other)"),
    (clock, "inferd/a.py", "import time\nnow = time.time()"),
    (clock, "inferd/a.py", "import time as t\nnow = t.time_ns()"),
    (clock, "inferd/a.py", "from time import time\nnow = time()"),
    (clock, "evald/a.py", "from datetime import UTC, datetime\nnow = datetime.now(UTC)"),
    (clock, "evald/a.py", "import datetime as d\nnow = d.datetime.utcnow()"),
    (clock, "evalctl/a.py", "from time import time\ndefault_factory = time"),
    (layout, "inferd/a.py", "def f(root):\n    return root / 'infer_status'"),
    (layout, "inferd/a.py", "NAME = 'eval_heartbeat'"),
    (layout, "evald/a.py", "def f(root, model):\n    return f'{root}/predictions/{model}'"),
    (layout, "evald/a.py", "def f(root):\n    return root / 'results'"),
    (layout, "evald/a.py", "import os\ndef f(root):\n    return os.path.join(root, 'claims')"),
    (layout, "evald/a.py", "def f(root):\n    return root.glob('predictions/*/*.jsonl')"),
    (layout, "evalctl/a.py", "def f(root):\n    return root / 'summary' / 'x'"),
    (layout, "evalctl/a.py", "def f(root, name):\n    return root / (name + '.scores.jsonl')"),
    (layout, "evalctl/a.py", "def f(work_dir):\n    return work_dir / 'anything'"),
    (layout, "evalctl/a.py", "class A:\n    def f(self):\n        return self.work_dir.root / 'anything'"),
    (sizes, "inferd/a.py", "x = 1\n" * 401),
    (names, "shared/utils.py", ""),
    (names, "inferd/pool_manager.py", ""),
    (names, "evald/common/a.py", ""),
]

GOOD: list[tuple[Rule, str, str]] = [
    (layers, "shared/a.py", "import os\nfrom shared import errors\nfrom . import records"),
    (layers, "inferd/a.py", "import shared.plan\nfrom .adapters import openai\nimport inferd.pool"),
    (layers, "evalctl/a.py", "import inferd, evald, shared"),
    (
        purity,
        "inferd/retry.py",
        "import math\nfrom random import Random\ndef f(source: Random):\n    source.uniform(0, 1)",
    ),
    (purity, "inferd/service.py", "import os, time"),
    (purity, "evald/report/csv.py", "import io\ntext = io.StringIO()"),
    (purity, "evald/stats/means.py", "import numpy as np\ndef f(seed):\n    return np.random.default_rng(seed)"),
    (durable_writes, "shared/atomic.py", "import os\nos.replace('a', 'b')\nos.fsync(1)"),
    (durable_writes, "shared/a.py", "def f(text, day):\n    return text.replace('a', 'b'), day.replace(hour=1)"),
    (durable_writes, "shared/a.py", "from shared.atomic import replace\nreplace('path', b'data')"),
    (clock, "shared/clock.py", "import time\nnow = time.time()"),
    (clock, "inferd/a.py", "import time\ndef f(clock):\n    return clock.time(), time.monotonic()"),
    (layout, "shared/layout.py", "def f(root):\n    return root / 'infer_status'"),
    (layout, "evald/a.py", "'''Reads predictions/<model>/x.jsonl and plan.json.'''"),
    (layout, "evald/a.py", "message = 'plan.json: missing: start inferd first'"),
    (layout, "evald/a.py", "def f(record):\n    return record['results'], record.get('summary'), 'tasks'"),
    (layout, "evald/a.py", "address = 'http://127.0.0.1/results'"),
    (layout, "evald/a.py", "ratio = 3 / 4"),
    (layout, "evalctl/a.py", "def f(folder):\n    return folder / 'suite.toml'  # a user's own file"),
    (sizes, "inferd/a.py", "x = 1\n" * 400),
    (names, "inferd/pool.py", ""),
    (names, "shared/commons_base.py", ""),
]


def tree_of(folder: Path, name: str, text: str) -> Modules:
    """The made-up tree, through the same reader as the project."""
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text(dedent(text), encoding="utf-8")
    return read_modules(folder)


@pytest.mark.parametrize(("rule", "name", "text"), BAD)
def test_the_rule_sees_a_breach(rule: Rule, name: str, text: str, tmp_path: Path) -> None:
    broken = list(rule(tree_of(tmp_path, name, text)))
    assert broken
    if rule is not every_pure_part_is_there:
        assert all(line.startswith(name) for line in broken)


@pytest.mark.parametrize(("rule", "name", "text"), GOOD)
def test_the_rule_leaves_good_code_alone(rule: Rule, name: str, text: str, tmp_path: Path) -> None:
    assert list(rule(tree_of(tmp_path, name, text))) == []


def test_every_rule_was_shown_a_breach() -> None:
    assert {rule for rule, _, _ in BAD} == set(RULES)


def test_the_excused_files_are_there() -> None:
    assert LONG_FILES.keys() <= {module.name for module in read_modules(ROOT)}


def test_a_stale_excuse_for_a_long_file_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(LONG_FILES, "inferd/a.py", "a table")
    assert list(sizes(tree_of(tmp_path, "inferd/a.py", "x = 1\n" * 500))) == []
    (tmp_path / "inferd/a.py").write_text("x = 1\n")
    assert list(sizes(read_modules(tmp_path))) == ["inferd/a.py: needs no place in LONG_FILES any more"]
