"""Does a sandbox keep its promises here? Programs that must pass, fail and be stopped, run before any score is made.

A sandbox that lets one of them get away with anything is not used: what it says of a model's program would be worth
nothing, and the program might do harm.
"""

from __future__ import annotations

import os
import select
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from evald.sandbox.contract import MB, Limits, Sandbox, SandboxFailed
from evald.sandbox.interpreter import Interpreter, interpreter
from evald.sandbox.trial import Command, Unfit, judge_python, run_command

_PATIENT = Limits(wall=30.0)  # these end by themselves, on a busy machine too
_TEST = "def check(candidate):\n    assert candidate(20) == 40\n"
_LEFT_BEHIND = 10.0  # seconds for the kernel to end what a program left


def faults(sandbox: Sandbox) -> list[str]:
    """Every promise that is broken, in words."""
    python = interpreter()
    checks: list[Callable[[Sandbox, Interpreter], Iterator[str]]] = [_verdicts, _time_limit]
    if sandbox.name != "unsafe-subprocess":
        checks += [_confinement, _memory, _forks]
    with ThreadPoolExecutor(len(checks)) as pool:
        return [fault for found in pool.map(lambda check: _told(check, sandbox, python), checks) for fault in found]


def _told(check: Callable[[Sandbox, Interpreter], Iterator[str]], sandbox: Sandbox, python: Interpreter) -> list[str]:
    try:
        return list(check(sandbox, python))
    except (SandboxFailed, Unfit, OSError) as error:
        return [str(error)]


def _verdicts(sandbox: Sandbox, python: Interpreter) -> Iterator[str]:
    right = judge_python(sandbox, python, "def double(x):\n", "    return 2 * x\n", _TEST, "double", _PATIENT)
    if not right.passed:
        yield f"a right program does not pass: {right.why}"
    wrong = judge_python(sandbox, python, "def double(x):\n", "    return x\n", _TEST, "double", _PATIENT)
    if wrong.passed:
        yield "a wrong program passes"


def _time_limit(sandbox: Sandbox, python: Interpreter) -> Iterator[str]:
    """The start takes of its time too, so one that never got as far as to begin its loop is asked again with more."""
    for wall in (1.5, 6.0, 24.0):
        try:
            endless = "def double(x):\n    while True: pass\n"
            verdict = judge_python(sandbox, python, "", endless, _TEST, "double", Limits(wall=wall))
        except SandboxFailed:
            if wall == 24.0:
                raise
            continue
        if verdict.killed_by not in ("wall", "cpu"):
            yield f"an endless program is not stopped: {verdict}"
        return


_ESCAPES = """
import os, socket
def attempt(name, act):
    try:
        act()
    except BaseException:
        return
    print("did", name)

def write(path):
    with open(path, "w") as file:
        file.write("escaped")

def reach(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as line:
        line.settimeout(2)
        line.connect(address)

attempt("write to a folder of this machine", lambda: write({folder!r} + "/written"))
attempt("read a file of this machine", lambda: open({folder!r} + "/secret").read())
for path in ("/written", "/usr/written", "/dev/written", "/inside/written"):
    attempt("write to " + path, lambda: write(path))
for path in ("/etc/shadow", "/root/.ssh", {home!r} + "/.ssh", {home!r} + "/.bashrc"):
    attempt("see " + path, lambda: os.stat(path))
attempt("read another process's environment", lambda: open("/proc/{pid}/environ", "rb").read())
attempt("signal another process", lambda: os.kill({pid}, 0))
attempt("connect to a port", lambda: reach(socket.AF_INET, ("127.0.0.1", {port})))
attempt("connect to a local socket", lambda: reach(socket.AF_UNIX, {abstract!r}))
attempt("make a namespace", lambda: os.unshare(0x10000000) if hasattr(os, "unshare") else 1 / 0)
if os.environ.get("TANDEM_SELF_TEST") or "TANDEM_SELF_TEST" in str(os.environ):
    print("did read a variable of the environment")
print("done")
"""


def _confinement(sandbox: Sandbox, python: Interpreter) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tandem-self-test-") as folder, closing(_listener()) as port:
        secret = Path(folder) / "secret"
        secret.write_text("x", encoding="utf-8")
        for path in (Path(folder), secret):
            path.chmod(0o777)
        with closing(socket.socket(socket.AF_UNIX)) as local:
            abstract = "\0" + Path(folder).name
            local.bind(abstract)
            local.listen()
            program = _ESCAPES.format(
                folder=folder,
                home=os.path.expanduser("~"),
                pid=os.getpid(),
                port=port.getsockname()[1],
                abstract=abstract,
            )
            ended = run_command(sandbox, python, _python(python), program, _PATIENT)
        lines = ended.stdout.decode("utf-8", "replace").splitlines()
        if "done" not in lines:
            yield f"a program that must end does not: exit status {ended.status}, {ended.killed_by}"
        yield from (f"a program could {line[4:]}" for line in lines if line.startswith("did "))
        if (Path(folder) / "written").exists():
            yield "a program wrote to a folder of this machine"


def _memory(sandbox: Sandbox, python: Interpreter) -> Iterator[str]:
    limits = Limits(wall=30.0, memory=128 * MB)
    ended = run_command(sandbox, python, _python(python), f"held = bytearray({256 * MB})\nprint('held')\n", limits)
    if b"held" in ended.stdout:
        yield "a program got twice its memory"


_FORKS = """
import os, time
count = 0
try:
    while count < {many}:
        if os.fork() == 0:
            try:
                os.setsid()
                time.sleep(600)
            finally:
                os._exit(0)
        count += 1
except OSError:
    pass
print(count, flush=True)
"""


def _forks(sandbox: Sandbox, python: Interpreter) -> Iterator[str]:
    """Each child holds a pipe: when all of them are gone, it is closed."""
    limits = Limits(wall=30.0, processes=16)
    held, holds = os.pipe()
    try:
        try:
            program = _FORKS.format(many=8 * limits.processes)
            ended = run_command(sandbox, python, _python(python), program, limits, pass_fds=[holds])
        finally:
            os.close(holds)
        count = ended.stdout.strip()
        if ended.killed_by != "processes" and not (count.isdigit() and int(count) <= limits.processes):
            yield f"a program could start {count[:20]!r} processes; its limit was {limits.processes}"
        if not select.select([held], [], [], _LEFT_BEHIND)[0]:
            yield "what a program started outlives it"
    finally:
        os.close(held)


def _listener() -> socket.socket:
    line = socket.socket(socket.AF_INET)
    line.bind(("127.0.0.1", 0))
    line.listen()
    return line


def _python(python: Interpreter) -> Command:
    return Command([*python.argv, "{program}"], "probe.py", python.visible)
