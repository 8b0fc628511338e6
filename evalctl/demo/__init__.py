"""`evalctl demo`: ten fixed tasks over every metric through the real daemons and files, and the checks that all of it
works. An eleventh asks for a program, where there is a sandbox to run one in.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from msgspec import Struct
from rich.console import Console

from evalctl.run import run_daemons, tell_what_is_kept
from evalctl.submit import submit
from evald.leaderboard import Report
from evald.sandbox import choice
from evald.sandbox.contract import SandboxUnavailable
from evald.summary import read_report
from shared.atomic import replace
from shared.errors import TandemError
from shared.layout import WorkDir
from shared.records import Record

TASKS = 10


class DemoError(Struct, frozen=True):
    """A check that failed."""

    check: str
    reason: str


class DemoResult(Record, frozen=True, kw_only=True):
    """What `evalctl demo --json` prints. report: None when the run didn't get as far as that."""

    ok: bool
    exit_code: int
    errors: tuple[DemoError, ...]
    report: Report | None


def run(folder: Path, console: Console, *, with_local_model: bool, progress: bool) -> DemoResult:
    """Run the demo in `folder`. Never raises for what breaks: it is told in the result."""
    work = WorkDir(folder)
    data = files(__package__)
    suite = data.joinpath("suite.toml").read_text("utf-8")
    if with_local_model:
        suite += data.joinpath("local.toml").read_text("utf-8")
    try:
        source = work.demo
        tasks = data.joinpath("tasks.jsonl").read_bytes()
        with_program = _has_sandbox(console)
        replace(source / "tasks.jsonl", tasks + data.joinpath("program.jsonl").read_bytes() * with_program)
        replace(source / "suite.toml", suite.encode())
        submit(source / "suite.toml", work)
        ended = run_daemons(work, console, progress=progress)
        tell_what_is_kept(work, console, ended)
        report = read_report(work)
    except (TandemError, OSError) as error:
        code = error.exit_code if isinstance(error, TandemError) else 1
        return DemoResult(ok=False, exit_code=code, errors=(DemoError("run", str(error)),), report=None)
    errors = tuple(judge(report, ended.exit_code, TASKS + with_program))
    return DemoResult(ok=not errors, exit_code=ended.exit_code or int(bool(errors)), errors=errors, report=report)


def _has_sandbox(console: Console) -> bool:
    try:
        choice.chosen()
    except SandboxUnavailable as error:
        console.print(f"The demo leaves out its task of a program: {error}", markup=False, highlight=False)
        return False
    return True


def judge(report: Report, exit_code: int, tasks: int) -> Iterator[DemoError]:
    """Every way in which the demo's outcome isn't what a sound installation gives. tasks: how many it has."""
    if exit_code:
        yield DemoError("daemons", f"they ended with exit status {exit_code}")
    for fault in report.errors:
        yield DemoError(fault.stage, f"{fault.model} x {fault.dataset}: {fault.reason}")
    counts = report.summary
    if counts.tasks != tasks:
        yield DemoError("tasks", f"{counts.tasks} tasks validated, not {tasks}")
    if counts.docs_scored != counts.docs:
        yield DemoError("coverage", f"{counts.docs_scored} of {counts.docs} docs have a score")
    for standing in report.leaderboard:
        calibration = report.calibration.get(standing.model)
        if calibration is None or calibration.n + calibration.n_missing != standing.n_docs:
            yield DemoError("calibration", f"{standing.model}: not every answer was taken into account")
        elif calibration.n and calibration.ece is None:
            yield DemoError("calibration", f"{standing.model}: no figure came out")
    rank = {standing.model: standing.rank for standing in report.leaderboard}
    rule, noisy = rank.get("rule"), rank.get("noisy")
    if rule is None or noisy is None or rule >= noisy:
        yield DemoError("ranks", f"rule ranks {rule}, noisy {noisy}: rule must be strictly above")
