"""One program against its tests: the verdict, or why there is none.

Python's tests run in a process of their own, in another sandbox than the program they test: they hold handles to its
functions and compare values that were copied over (inside/judge.py, inside/solver.py). So whatever a program does to
its interpreter, its exit status, its output or its children, it can pass in one way alone: by giving the right values.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evald.sandbox.contract import KilledBy, Limits, Outcome, Program, Sandbox, SandboxFailed
from evald.sandbox.failure import LIMITS, Failure, of_exception
from evald.sandbox.host import oom_kills
from evald.sandbox.inside import wire
from evald.sandbox.interpreter import ENVIRONMENT, Interpreter
from evald.sandbox.running import converse, run

TRIES = 2
"""Of a sandbox that fails by itself."""
TOKEN = "{token}"
_ENVIRONMENT = {**ENVIRONMENT, "PYTHONPATH": "/"}
_CONFINED, _NO_START = b"tandem: confined\n", b"tandem: no start: "


class Unfit(Exception):
    """These tests can't be run so: a fault of the task, which says nothing of the program."""


@dataclass(frozen=True)
class Verdict:
    """why: in a few words, of what didn't pass; they may be the program's. killed_by: the limit that ended it, if one
    did. failure: None where it passed.
    """

    passed: bool
    why: str = ""
    killed_by: KilledBy = ""
    failure: Failure | None = None


@dataclass(frozen=True)
class Case:
    """An input and the output that is right for it."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class Command:
    """What runs a program of any language. argv: `{program}` in it is the program's file. file_name: of that file.
    visible: folders that it needs to see beside the system's.
    """

    argv: Sequence[str]
    file_name: str
    visible: Sequence[str] = ()


def judge_python(
    sandbox: Sandbox, python: Interpreter, prefix: str, completion: str, test: str, entry_point: str, limits: Limits
) -> Verdict:
    """The tests' word on the program that prefix and completion make. Raises SandboxFailed, Unfit."""
    message = wire.Codec(_no_handle, _no_handle).encode((prefix, completion, test, entry_point))
    data = wire.frame(message)

    def once() -> Verdict:
        judge = python.module("judge", ["{channel}", *sandbox.settings(limits)])
        solver = python.module("solver", sandbox.settings(limits))
        asking, answering = (Program(argv, {}, python.visible, _ENVIRONMENT) for argv in (judge, solver))
        return _verdict(*converse(sandbox, asking, answering, limits, data))

    return _surely(once)


def judge_command(
    sandbox: Sandbox, python: Interpreter, command: Command, text: str, test: str, limits: Limits
) -> Verdict:
    """Of a program in any language, with its tests behind it: it passes with exit status 0. Where the tests hold
    `{token}`, a number that is another each time stands there, and must be the last word of the output: a program that
    ends before its tests then doesn't pass. Raises SandboxFailed.
    """

    def once() -> Verdict:
        token = secrets.token_hex(16)
        ended = run_command(sandbox, python, command, f"{text}\n{test.replace(TOKEN, token)}", limits)
        if (bad := _bad_end(ended)) is not None:
            return bad
        if TOKEN in test and ended.stdout.split()[-1:] != [token.encode()]:
            return _failed("it ended before its tests did", "ended_early")
        return Verdict(True)

    return _surely(once)


def judge_cases(
    sandbox: Sandbox, python: Interpreter, command: Command, text: str, cases: Sequence[Case], limits: Limits
) -> Verdict:
    """Of a program that reads its input and prints: each case's output must be the right one, white space at the ends
    of lines and of the whole aside. The program sees no output that is right. Raises SandboxFailed.
    """
    for number, case in enumerate(cases):

        def once(case: Case = case, number: int = number) -> Verdict:
            ended = run_command(sandbox, python, command, text, limits, case.stdin.encode("utf-8", "replace"))
            if (bad := _bad_end(ended)) is not None:
                return bad
            same = _lines(ended.stdout.decode("utf-8", "replace")) == _lines(case.stdout)
            return Verdict(True) if same else _failed(f"another output for case {number}", "wrong_output")

        verdict = _surely(once)
        if not verdict.passed:
            return verdict
    return Verdict(True)


def run_command(
    sandbox: Sandbox,
    python: Interpreter,
    command: Command,
    text: str,
    limits: Limits,
    stdin: bytes = b"",
    pass_fds: Sequence[int] = (),
) -> Outcome:
    """The program run by itself. Raises SandboxFailed where the command didn't come to run."""
    confine = python.module("confine", [*sandbox.settings(limits), "--"])
    argv = [*confine, *(part.replace("{program}", command.file_name) for part in command.argv)]
    visible = tuple(dict.fromkeys((*python.visible, *command.visible)))
    files = {command.file_name: text.encode("utf-8", "replace")}
    ended = run(sandbox, Program(argv, files, visible, _ENVIRONMENT), limits, stdin, pass_fds)
    if not ended.stderr.startswith(_CONFINED) and not ended.killed_by:
        raise SandboxFailed(_last_words(ended))
    said = ended.stderr[len(_CONFINED) :]
    if said.startswith(_NO_START):
        raise SandboxFailed(said[len(_NO_START) :].decode("utf-8", "replace").strip())
    return ended


def _verdict(judge: Outcome, solver: Outcome) -> Verdict:
    """What came of a conversation. Raises SandboxFailed where it didn't come to one."""
    lines = judge.stdout.decode("utf-8", "replace").split("\n")
    killed_by = solver.killed_by or judge.killed_by
    if lines[0] != "ready" or lines[1] != "met":
        late = f"nothing was heard within the limit of {killed_by}; " if killed_by else ""
        raise SandboxFailed(late + _last_words(solver if lines[0] == "ready" else judge))
    if killed_by:
        return _ended_at(killed_by)
    word, _, why = lines[2].partition(" ")
    match word:
        case "passed":
            return Verdict(True)
        case "failed":
            return _failed(why, of_exception(why) or _of_words(why))
        case "unfit":
            raise Unfit(why)
    raise SandboxFailed(f"the process of the tests died: {_last_words(judge)}")


def _bad_end(ended: Outcome) -> Verdict | None:
    if ended.killed_by:
        return _ended_at(ended.killed_by)
    if not ended.status:
        return None
    return _failed(_last_words(ended), of_exception(_last_line(ended)) or "exit_status")


def _ended_at(limit: KilledBy) -> Verdict:
    return Verdict(False, f"ended at its limit of {limit}", limit, LIMITS[limit])


def _failed(why: str, failure: Failure) -> Verdict:
    return Verdict(False, why, failure=failure)


def _of_words(why: str) -> Failure:
    """Of what the process of the tests says where it isn't an exception of Python's own."""
    if why.startswith("the program ended: "):
        return "ended_early"
    if why.startswith("the test ended "):
        return "assertion"
    return "memory" if why == "no memory is left" else "exception"


def _surely(once: Callable[[], Verdict]) -> Verdict:
    """The verdict of a run in which nothing but the program was at fault."""
    failure = SandboxFailed("")
    for _ in range(TRIES):
        killed = oom_kills()
        try:
            verdict = once()
        except SandboxFailed as error:
            failure = error
            continue
        if verdict.passed or oom_kills() == killed:
            return verdict
        failure = SandboxFailed("this machine ran out of memory meanwhile")
    raise failure


def _last_line(ended: Outcome) -> str:
    return ended.stderr.decode("utf-8", "replace").strip().split("\n")[-1][:300]


def _last_words(ended: Outcome) -> str:
    last = _last_line(ended)
    return f"exit status {ended.status}" + (f": {last}" if last else "")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().split("\n")]


def _no_handle(*_: object) -> tuple[bytes, int]:
    raise wire.WireError("no data")
