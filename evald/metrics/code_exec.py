"""code_exec: the program that the model wrote passes the task's tests. It runs in a sandbox, never here.

The arithmetic of it is pure; what starts processes is in evald.sandbox. A program that fails, or that is ended at a
limit, scores 0.0; where the sandbox fails or the tests can't be run, there is no score but an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from evald.metrics.scorer import Explained, Sample, Scorer
from evald.post_process.code import blocks
from evald.sandbox import choice, pool
from evald.sandbox.contract import MB, Limits, Sandbox, SandboxFailed
from evald.sandbox.failure import shown
from evald.sandbox.interpreter import Interpreter, interpreter
from evald.sandbox.trial import Case, Command, Unfit, Verdict, judge_cases, judge_command, judge_python
from shared.programs import ProgramTests
from shared.records import TaskSpec
from shared.scoring import pipelines_of, steps_of
from shared.vocabulary import CodeExecParameters

VERSION = "2"


def make(parameters: CodeExecParameters) -> Scorer:
    params: dict[str, Any] = {}

    def many(samples: Sequence[Sample]) -> list[float | Exception]:
        """Raises SandboxUnavailable: where no program can be judged, there is nothing to say of any."""
        sandbox, python = choice.chosen(), interpreter(parameters.python)
        params.update({"sandbox": sandbox.name, "python_version": python.version})
        return pool.each(lambda sample: _score(sample, sandbox, python, parameters), samples)

    def score(sample: Sample) -> float:
        [found] = many([sample])
        if isinstance(found, Exception):
            raise found
        return found

    return Scorer(score, 1.0, params, many=many)


def _score(sample: Sample, sandbox: Sandbox, python: Interpreter, parameters: CodeExecParameters) -> float | Exception:
    try:
        tests = msgspec.convert(sample.task.metadata, ProgramTests)
        answer = program_of(sample, tests.entry_point)
        if answer is None:
            return Explained(0.0, "no_program")
        verdict = _judge(answer, tests, sandbox, python, parameters)
        return 1.0 if verdict.passed else Explained(0.0, verdict.failure or "exception", shown(verdict.why))
    except (SandboxFailed, Unfit, msgspec.ValidationError) as error:
        return error


def _judge(
    answer: str, tests: ProgramTests, sandbox: Sandbox, python: Interpreter, parameters: CodeExecParameters
) -> Verdict:
    limits = Limits(
        wall=tests.timeout or parameters.timeout,
        memory=parameters.memory * MB,
        address_space=not parameters.command,
        processes=parameters.processes,
        disk=parameters.disk * MB,
    )
    if not parameters.command and not tests.cases:
        return judge_python(sandbox, python, tests.prompt, answer, tests.tests, tests.entry_point, limits)
    command = Command(parameters.command or (*python.argv, "{program}"), parameters.file, parameters.visible)
    program = tests.prompt + answer
    if tests.cases:
        cases = [Case(case.stdin, case.stdout) for case in tests.cases]
        return judge_cases(sandbox, python, command, program, cases, limits)
    return judge_command(sandbox, python, command, program, tests.tests, limits)


def _takes_blocks(task: TaskSpec) -> bool:
    return any(step.name == "code_block" for spec in pipelines_of(task).values() for step in steps_of(spec))


def program_of(sample: Sample, entry_point: str) -> str | None:
    """The answer; where it is one of several blocks of code, the last of those that define the entry point."""
    answer = sample.answer
    if answer is None or not entry_point or not _takes_blocks(sample.task):
        return answer
    definition = re.compile(rf"^(?:async )?(?:def|class) {re.escape(entry_point)}\b", re.MULTILINE)
    if definition.search(answer):
        return answer
    return next((b.code for b in reversed(list(blocks(sample.text))) if definition.search(b.code)), answer)
