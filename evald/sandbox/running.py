"""Runs a command in a sandbox, by itself (`run`) or as two that talk to each other (`converse`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from evald.sandbox import host
from evald.sandbox.contract import Limits, Outcome, Program, Sandbox, SandboxFailed, Started
from evald.sandbox.watching import Watched, watch


def run(
    sandbox: Sandbox, program: Program, limits: Limits, stdin: bytes = b"", pass_fds: Sequence[int] = ()
) -> Outcome:
    """Raises SandboxFailed where the sandbox can't be started."""
    given = host.memory_file(stdin)
    try:
        started = _start(sandbox, program, limits, given, None, pass_fds)
    finally:
        os.close(given)
    watch(started)
    return started.end()


def converse(
    sandbox: Sandbox, asking: Program, answering: Program, limits: Limits, stdin: bytes
) -> tuple[Outcome, Outcome]:
    """Both at once, each in a sandbox of its own. asking: argv[channel] ... holds `{reads},{writes}`, which becomes the
    descriptors by which it hears the other one and is heard by it; the other has them as standard input and output.
    stdin: what the asking one gets. Ends when that one does. Raises SandboxFailed.
    """
    asked, to_ask = os.pipe()
    to_hear, answered = os.pipe()
    given = host.memory_file(stdin)
    try:
        answerer = _start(sandbox, answering, limits, asked, answered, ())
        try:
            argv = [part.replace("{channel}", f"{to_hear},{to_ask}") for part in asking.argv]
            asker_program = Program(argv, asking.files, asking.visible, asking.environment)
            asker = _start(sandbox, asker_program, limits, given, None, (to_hear, to_ask))
        except BaseException:
            answerer.end()
            raise
    finally:
        for fd in (asked, to_ask, to_hear, answered, given):
            os.close(fd)
    try:
        watch(asker, [answerer])
    finally:
        # The one that asks first: what the other one does can't count any more then.
        outcome = asker.end()
        other = answerer.end()
    return outcome, other


def _start(
    sandbox: Sandbox, program: Program, limits: Limits, stdin: int, stdout: int | None, pass_fds: Sequence[int]
) -> Watched:
    """stdout: where that goes; None: it is taken."""
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    try:
        started: Started = sandbox.start(
            program,
            limits,
            stdin=stdin,
            stdout=out_end if stdout is None else stdout,
            stderr=err_end,
            pass_fds=pass_fds,
        )
    except OSError as error:
        os.close(out)
        os.close(err)
        raise SandboxFailed(f"{sandbox.name} can't be started: {error}") from None
    finally:
        os.close(out_end)
        os.close(err_end)
    return Watched(started, limits, out=out, err=err)
