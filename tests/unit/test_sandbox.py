"""Sandboxes: what programs may not do, how they are ended, and that none can forge its verdict. Names in brackets are
cases of ../shared/cases.

Everything here runs in each back end that is there, as the user who runs the tests.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from textwrap import dedent

import pytest

from evald.sandbox import choice, host, pool, seccomp, self_test, trial, watching
from evald.sandbox.bubblewrap import Bubblewrap
from evald.sandbox.contract import MB, Limits, Outcome, Program, Sandbox, SandboxFailed, SandboxUnavailable, Started
from evald.sandbox.inside.confine import clamp
from evald.sandbox.interpreter import interpreter, versions_now
from evald.sandbox.namespaces import Namespaces
from evald.sandbox.remedy import LAST, remedy
from evald.sandbox.running import run
from evald.sandbox.trial import (
    Case,
    Command,
    Unfit,
    Verdict,
    judge_cases,
    judge_command,
    judge_python,
    run_command,
)
from evald.sandbox.unconfined import Unconfined

PATIENT = Limits(wall=30.0)
PYTHON = Command([*interpreter().argv, "{program}"], "program.py")
CHECK = "def check(candidate):\n    assert candidate(20) == 40\n    assert candidate(3) == 6\n"


@lru_cache
def faults_here(name: str) -> list[str]:
    try:
        return self_test.faults(choice.BACK_ENDS[name]())
    except OSError as error:
        return [str(error)]


@pytest.fixture(params=choice.SAFE)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    name: str = request.param
    if found := faults_here(name):
        told = f"{name} doesn't work here: {found}"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    return choice.BACK_ENDS[name]()


def judged(sandbox: Sandbox, program: str, test: str = CHECK, name: str = "f", limits: Limits = PATIENT) -> Verdict:
    return judge_python(sandbox, interpreter(), "", dedent(program), test, name, limits)


def ran(sandbox: Sandbox, program: str, limits: Limits = PATIENT, **more: Sequence[int]) -> Outcome:
    return run_command(sandbox, interpreter(), PYTHON, dedent(program), limits, **more)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_right_and_wrong(sandbox: Sandbox) -> None:
    """A right program passes; one that gives another value, raises, doesn't compile or lacks the function fails."""
    assert judged(sandbox, "def f(x): return 2 * x") == Verdict(True)
    assert judged(sandbox, "def f(x): return x").why.startswith("AssertionError")
    assert judged(sandbox, "def f(x): return y").why.startswith("NameError")
    assert judged(sandbox, "def f(x) return").why.startswith("SyntaxError")
    assert judged(sandbox, "def g(x): return 2 * x").why == "NameError: the program defines no f"
    assert judged(sandbox, "").why == "NameError: the program defines no f"


@pytest.mark.parametrize(
    ("prefix", "completion"),
    [
        ("def f(x):\n", "    return 2 * x"),  # what follows the prompt
        ('def f(x):\n    """Doubles."""\n', "    return 2 * x\n"),
        ('TWO = 2\n\ndef f(x):\n    """Doubles."""\n', "def f(x):\n    return TWO * x\n"),  # the whole function again
        ("TWO = 2\n\ndef f(x):\n", "def f(x):\n    return TWO * x\n"),  # the same, and the prompt doesn't compile
        ("Write a function that doubles.", "def f(x):\n    return 2 * x\n"),
        ("", "def f(x):\r\n    return 2 * x\r\n"),
    ],
)
def test_how_prompt_and_answer_are_put_together(sandbox: Sandbox, prefix: str, completion: str) -> None:
    """The answer goes on with the prompt, or says the whole function itself."""
    assert judge_python(sandbox, interpreter(), prefix, completion, CHECK, "f", PATIENT) == Verdict(True)


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): return {(1, 'a'): [x, {2.5, None}]}", "assert f(1) == {(1, 'a'): [1, {2.5, None}]}"),
        ("def f(x): return x ** 400", "assert f(-7) == -7 ** 401 // 7 * -1"),
        ("def f(x): return [float('inf'), x / 3, 1j]", "assert f(1) == [float('inf'), 1 / 3, 1j]"),
        ("def f(x): return x[::-1]", "assert f('a\\ud800é') == 'é\\ud800a' and f(b'ab') == b'ba'"),
        ("def f(x): x.sort()", "data = [3, 1, 2]\nassert f(data) is None and data == [1, 2, 3]"),  # in place
        ("def f(x):\n  x['a'].append(1)\n  x.pop('b')", "d = {'a': [], 'b': 2}\nf(d)\nassert d == {'a': [1]}"),
        ("def f(g, x): return g(g(x))", "assert f(lambda x: x + 1, 1) == 3"),  # the test's own function
        ("def f(x): return list(map(str, x))", "assert f(iter([1, 2])) == ['1', '2'] == f(n for n in (1, 2))"),
        ("def f(x):\n  for i in range(x): yield i", "assert list(f(3)) == [0, 1, 2]\nassert next(f(9)) == 0"),
        ("def f(x): return lambda y: x + y", "assert f(1)(2) == 3"),
        ("def f(x): raise KeyError(x)", "try:\n  f(1)\nexcept KeyError as e: pass\nelse: assert False"),
        ("class E(ValueError): pass\ndef f(x): raise E(x)", "try:\n  f(1)\nexcept ValueError: pass\nelse: assert 0"),
        ("from collections import *\ndef f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("from collections import namedtuple\nP = namedtuple('P', 'a b')\ndef f(x): return P(x, 2)",
         "assert f(1) == (1, 2)"),
        ("from enum import IntEnum\nclass C(IntEnum):\n  RED = 3\ndef f(x): return C.RED", "assert f(0) == 3"),
        ("from decimal import *\nfrom fractions import *\nfrom datetime import *\n"
         "def f(x): return Decimal('1.5'), Fraction(1, 3), date(2026, 1, 2)",
         "from decimal import Decimal as D\nfrom fractions import Fraction as F\nfrom datetime import date\n"
         "assert f(0) == (D('1.5'), F(1, 3), date(2026, 1, 2))"),
        ("def f(x): return [type(i) for i in x]", "assert f([1, 'a']) == [int, str]"),
        ("def f(x): return x", "assert f(True) is True and f(None) is None and f(...) is ..."),
        ("class f:\n  def __init__(s, n): s.n = n\n  def __len__(s): return s.n\n  def add(s, k): s.n += k; return s",
         "a = f(1)\nassert a.add(2).n == 3 and len(a) == 3\na.n = 7\nassert a.n == 7 and a is not f(7)"),
        ("class P:\n  def __init__(s, v): s.v = v\n  def __eq__(s, o): return s.v == o.v\ndef f(p): return P(p.v + 1)",
         "assert f(P(1)) == P(2) and f(P(1)) != P(3)"),  # its own class, which the test makes objects of
        ("import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(2), 2 ** 0.5)"),  # the program's import
    ],
)  # fmt: skip
def test_values_cross_as_they_are(program: str, test: str) -> None:
    """What tests of published benchmarks hand over and look at."""
    sandbox = working()
    assert judged(sandbox, program, test) == Verdict(True)
    # The same test sees when it isn't so.
    assert not judged(sandbox, "class f:\n  def __init__(s, *a): s.n = s.v = None\nP = f", test).passed


def working() -> Sandbox:
    """Any back end, for what doesn't depend on which."""
    for name in choice.SAFE:
        if not faults_here(name):
            return choice.BACK_ENDS[name]()
    told = f"no sandbox works here: {[faults_here(name) for name in choice.SAFE]}"
    if os.environ.get("CI"):
        pytest.fail(told)
    pytest.skip(told)


def test_the_tasks_own_functions_are_its_own() -> None:
    """HumanEval/32 checks a root with `poly` from the prompt: a program that redefines it gains nothing."""
    prefix = "def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n\n\ndef root(xs):\n"
    test = "def check(candidate):\n    assert abs(poly([-4, 2], candidate([-4, 2]))) < 1e-6\n"
    sandbox = working()
    good = judge_python(sandbox, interpreter(), prefix, "    return -xs[0] / xs[1]\n", test, "root", PATIENT)
    assert good == Verdict(True)
    cheat = "    return 0\n\ndef poly(xs, x):\n    return 0\n"
    assert not judge_python(sandbox, interpreter(), prefix, cheat, test, "root", PATIENT).passed


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("def check(candidate):\n    pass\n", "never called"),
        ("x = 1\n", "never called"),
        ("class Own: pass\nassert f(Own()) == 1\n", "hands a Own"),
        ("class Own: pass\nassert f(Own) == 1\n", "hands the class Own"),
    ],
)
def test_a_test_that_is_unfit_is_no_verdict(test: str, why: str) -> None:
    """What can't be tested from another process, and what tests nothing, is the task's fault: neither 0 nor 1."""
    with pytest.raises(Unfit, match=why):
        judged(working(), "def f(x): return 1", test)


# --- forgery ----------------------------------------------------------------------------------------------------------

ALWAYS = """
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 1
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    __lt__ = __gt__ = __le__ = __ge__ = __eq__
    __add__ = __radd__ = __sub__ = __rsub__ = __abs__ = __round__ = __mul__ = __getitem__ = lambda self, *a: self
    __contains__ = __bool__ = lambda self, *a: True
"""
ON_THE_WIRE = """
import os
def f(x):
    for fd in range(3, 16):
        try:
            os.write(fd, {})
        except OSError:
            pass
    return x
"""
FORGERIES = {
    "exit": "import sys\nsys.exit(0)",
    "exit in the call": "import sys\ndef f(x): sys.exit(0)",
    "os._exit": "import os\ndef f(x): os._exit(0)",
    "os._exit on load": "import os\nos._exit(0)",
    "exit of a thread": "import os, threading\nthreading.Timer(0, os._exit, [0]).start()\ndef f(x):\n  while 1: pass",
    "kill all": "import os\ndef f(x): os.kill(-1, 9)",
    "raise SystemExit": "def f(x): raise SystemExit(0)",
    "raise KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "raise a BaseException": "class E(BaseException): pass\ndef f(x): raise E",
    "swallowed end": "import os\ndef f(x): os._exit(0)  # the test: except: pass",
    "equal to all": ALWAYS + "def f(x): return Always()",
    "an int equal to all": "class I(int):\n  def __eq__(s, o): return True\n  __hash__ = None\ndef f(x): return I(1)",
    "a str equal to all": "class S(str):\n  def __eq__(s, o): return True\n  __hash__ = None\ndef f(x): return S()",
    "a list equal to all": "class L(list):\n  def __eq__(s, o): return True\ndef f(x): return L()",
    "NotImplemented": "def f(x): return NotImplemented",
    "atexit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): return x",
    "excepthook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef f(x): return x",
    "trace": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef f(x): return x",
    "builtins": """
        import builtins
        builtins.AssertionError = type("Quiet", (SystemExit,), {})
        builtins.isinstance = lambda *a: True
        builtins.type = builtins.len = builtins.getattr = builtins.id = lambda *a: 1
        builtins.__build_class__ = builtins.compile = builtins.exec = lambda *a, **k: None
        def f(x): return x
    """,
    "operators of float": "import ctypes\ndef f(x): return float('nan')",
    "no asserts": "import sys\nsys.flags\n__debug__\ndef check(c): pass\ntest = check\ndef f(x): return x",
    "modules of the judge": """
        import sys
        for name, module in list(sys.modules.items()):
            for key, value in list(vars(module).items()):
                if "assert" in key.lower() or key in ("_verdict", "_run", "_say", "check"):
                    setattr(module, key, lambda *a, **k: "passed")
        def f(x): return x
    """,
    "frames": """
        import sys, gc
        def f(x):
            frame = sys._getframe()
            while frame:
                for value in frame.f_locals.values():
                    if isinstance(value, dict) and "check" in value:
                        value["check"] = lambda c: None
                if "40" in str(frame.f_code.co_consts) and frame.f_code.co_name == "check":
                    return 40
                frame = frame.f_back
            found = [o for o in gc.get_objects() if isinstance(o, str) and "candidate(20) ==" in o]
            return 2 * x if len(found) > 1 else x
    """,
    "lines to every descriptor": """
        import os
        def shout():
            for fd in range(0, 256):
                try:
                    os.write(fd, b"ready\\nmet\\npassed\\n")
                except OSError:
                    pass
        shout()
        def f(x):
            shout()
            os._exit(0)
    """,
    "forged messages": """
        import gc, os
        def f(x):
            peers = [o for o in gc.get_objects() if type(o).__name__ == "Peer"]
            for peer in peers:
                for message in (("value", True, []), ("passed",), ("value", None, [(0, 1)]), ("ended", "passed")):
                    peer.tell(*message)
            os._exit(0)
    """,
    "an object made in the judge": """
        import gc
        def f(x):
            [peer] = [o for o in gc.get_objects() if type(o).__name__ == "Peer"]
            same = lambda *a: True
            return peer.ask("call", type, "Same", (int,), {"__eq__": same})
    """,
    "attributes of the judge's objects": """
        import gc
        def f(x):
            [peer] = [o for o in gc.get_objects() if type(o).__name__ == "Peer"]
            foreign = peer._remote(peer, 0)
            for what in ("get", "__getattribute__", "set", "call"):
                try:
                    peer.ask(what, foreign, "__globals__")
                except Exception:
                    pass
            return x
    """,
    "closed descriptors": "import os\nos.closerange(0, 256)\ndef f(x): return x",
    "other output": "import os\nos.dup2(os.open('/dev/null', 1), 1)\ndef f(x):\n  print('passed')\n  return x",
    "the argument made equal": ALWAYS + "def f(x):\n  x = Always()\n  return x",
    "a child that answers": """
        import os
        if os.fork() == 0:
            import time
            time.sleep(1)
            os.write(3, b"passed") if os.path.exists("/dev/fd/3") else None
            os._exit(0)
        def f(x): return x
    """,
    "memory of the judge": """
        import os
        def f(x):
            for pid in range(1, 64):
                try:
                    with open(f"/proc/{pid}/mem", "r+b", 0) as memory:
                        memory.write(b"passed")
                except OSError:
                    pass
            return x
    """,
    "garbage on the wire": ON_THE_WIRE.format(r"b'\x00' * 64"),
    "a huge length on the wire": ON_THE_WIRE.format(r"b'\xff' * 64"),
    "a value too large for the judge": "def f(x): return [None] * 60_000_000",
    "a value nested without end": "def f(x):\n  x = []\n  x.append(x)\n  return x",
    "the largest message that may be": "def f(x): return 'x' * ((64 << 20) - 100)",
}  # fmt: skip
SWALLOWING = """
def check(candidate):
    for x in (20, 3):
        try:
            assert candidate(x) == 2 * x
        except Exception:
            raise
        except:
            pass
"""


@pytest.mark.parametrize("name", FORGERIES)
def test_no_program_can_forge_its_verdict(name: str) -> None:
    """A program that doesn't give the right values doesn't pass, whatever else it does; and that is a verdict, no error
    of the sandbox."""
    limits = Limits(wall=10.0, processes=8)
    verdict = judged(working(), FORGERIES[name], SWALLOWING if "swallowed" in name else CHECK, limits=limits)
    assert not verdict.passed, verdict
    assert verdict.why


def test_a_program_sees_nothing_of_the_tests() -> None:
    """Not in its memory, its arguments, its files or its environment: only what it is called with."""
    program = """
        import gc, os, sys
        def f(x):
            texts = [str(o) for o in gc.get_objects() if isinstance(o, (str, bytes, dict, list, tuple))]
            texts += [str(sys.argv), str(os.environ), str(os.listdir("/tmp"))]
            needle = "".join(["tell", "tale"])
            return any(needle in text for text in texts)
    """
    assert judged(working(), program, "telltale = 1\nassert f(1) is False  # telltale") == Verdict(True)


def test_a_test_in_the_language_itself_needs_its_token(sandbox: Sandbox) -> None:
    """Of other languages: a program that ends before its tests, or prints what it thinks they'd print, doesn't pass."""
    shell = Command(["sh", "{program}"], "program.sh")
    test = '[ "$(double 4)" = 8 ] || exit 1\necho {token}\n'
    right = "double() { echo $(($1 * 2)); }"
    assert judge_command(sandbox, interpreter(), shell, right, test, PATIENT) == Verdict(True)
    for wrong in ("double() { echo 3; }", right + "\nexit 0", right + "\necho {token}\nexit 0", "not a program ("):
        assert not judge_command(sandbox, interpreter(), shell, wrong, test, PATIENT).passed
    assert judge_command(sandbox, interpreter(), shell, "exit 0", "false", PATIENT).passed  # without one it's fooled


def test_inputs_and_outputs(sandbox: Sandbox) -> None:
    """A program by itself: the output of every case must be right, white space at the ends aside."""
    cases = [Case("1 2\n", "3"), Case("5 6\n", "11\n")]

    def judge(text: str) -> Verdict:
        return judge_cases(sandbox, interpreter(), PYTHON, text, cases, PATIENT)

    assert judge("print(sum(map(int, input().split())))") == Verdict(True)
    assert judge("print(3)").why == "another output for case 1"
    assert "EOFError" in judge("input(), input()").why


PAIRS = "cases = [((1,), 2), ((2,), 4)]\n"


@pytest.mark.parametrize(
    "test",
    [
        PAIRS + "assert all(map(lambda case: f(*case[0]) == case[1], cases))",
        "for got, wanted in zip(map(f, [1, 2, 3]), [2, 4, 6]): assert got == wanted",
        "assert [got for got in iter(lambda: f(1), 2)] == []",
        "assert list(map(lambda n: f(n).field, [1])) == []",
        """
import asyncio
class Each:
    def __aiter__(self): return self
    async def __anext__(self): return f(1)
async def main():
    async for got in Each(): assert got == 2
    assert False
try: asyncio.run(main())
except RuntimeError: raise AssertionError from None
""",
    ],
)
@pytest.mark.parametrize(
    "stop", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "type('S', (StopIteration,), {})"]
)
def test_a_program_cant_end_the_loop_of_its_cases(test: str, stop: str) -> None:
    """What ends a loop in Python ends none of the test's when the program raises it, but from its own iterators."""
    assert not judged(working(), f"def f(x): raise {stop}", test).passed


def test_the_programs_own_iterators_have_an_end() -> None:
    program = "def f(x):\n  yield x\nclass I:\n  def __iter__(s): return s\n  def __next__(s): raise StopIteration"
    test = "assert list(f(1)) == [1] and next(f(2)) == 2 and list(zip(f(1), I())) == [] and next(I(), 7) == 7"
    assert judged(working(), program, test) == Verdict(True)


@pytest.mark.parametrize(
    "test",
    [
        "with f(1) as got: assert got == 2",
        "import sys\nsys.exit(f(1))",
        "assert f(1) == 2, f(1)",
        "raise Exception(f(1))",
    ],
)
@pytest.mark.parametrize("text", ["1 / 0", "sys.exit(0)", "os._exit(0)", "2 * self", "'x' * 60_000_000"])
def test_objects_swallow_no_failure(test: str, text: str) -> None:
    """An object with a say in how the test goes on, or in the words for its failure: that has failed, and is told."""
    program = f"""
        import os, sys
        class A:
            def __enter__(self): return 1
            def __exit__(self, *_): return True
            def __bool__(self): return False
            def __str__(self): return {text}
            __repr__ = __str__
        def f(x): return A()
    """
    assert not judged(working(), program, test).passed


@pytest.mark.parametrize(
    "test",
    [
        "got = f(1)\nassert got == 2, f'{got!r}'",
        "got = f(1)\nassert got == 2, got",
        "got = f(1)\nassert got == 2, repr(got)[:220_000_000]",
        "raise KeyError(f(1))",
        "kept = [f(1)]\nwhile True: kept.append(kept[-1] + 'a')",
        "kept = [f(1)]\ntry:\n  while True: kept.append(kept[-1] + 'a')\nexcept MemoryError:\n"
        "  while True: kept = kept, kept[0][:1] + 'b'",
    ],
)
@pytest.mark.parametrize("value", ["'\\0' * 60_000_000", "'\\udc80' * 20_000_000", "'é' * 30_000_000"])
def test_a_value_too_long_to_be_told_is_a_wrong_one(test: str, value: str) -> None:
    """[scorer-raises-on-answer] No memory for the words of a failure doesn't make it the sandbox's."""
    limits = Limits(wall=30.0, memory=384 * MB)  # enough for the test's words, not for a copy of them
    assert not judged(working(), f"def f(x): return {value}", test, limits=limits).passed


# --- confinement ------------------------------------------------------------------------------------------------------


def test_nothing_of_this_machine_can_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    """Not a work_dir, a home, a key, a password file, another process, or a variable; nor written."""
    secret = tmp_path / "predictions.jsonl"
    secret.write_text("secret")
    os.environ["TANDEM_TEST_API_KEY"] = "sk-secret"
    try:
        ended = ran(
            sandbox,
            f"""
            import os
            for path in ({str(secret)!r}, "/etc/shadow", "/etc/passwd", "/root/.ssh", {str(Path.home() / ".ssh")!r},
                         "/proc/1/environ", "/proc/self/environ", "/proc/{os.getpid()}", "/sys", "/var", "/run",
                         {str(Path(__file__).parents[2])!r}):
                if os.path.lexists(path):
                    print("sees", path)
            print(sorted(os.environ), os.getcwd(), os.path.expanduser("~"))
            for path in {str(tmp_path)!r}, "/", "/usr", "/dev", "/etc", "/inside":
                try:
                    with open(os.path.join(path, "x"), "w"):
                        print("writes", path)
                except OSError:
                    pass
            with open("/tmp/x", "w") as file:
                print(file.write("fine"))
            """,
        )
    finally:
        del os.environ["TANDEM_TEST_API_KEY"]
    lines = ended.stdout.decode().splitlines()
    assert lines[1:] == ["4"], ended
    assert "KEY" not in lines[0]
    assert lines[0].endswith("/tmp /tmp")
    assert list(tmp_path.iterdir()) == [secret]


def test_who_a_program_is(sandbox: Sandbox) -> None:
    """Nobody of this machine: no privileges, none to be had, and a filter for system calls."""
    ended = ran(
        sandbox,
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        def refused(result):
            return result == -1 and ctypes.get_errno()
        print(os.getuid() not in (0, OWN), os.getgid() != 0, os.getgroups() in ([], [65534]), os.getpid() < 10)
        print(libc.prctl(39, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0))  # no new privileges; seccomp
        print(refused(libc.unshare(0x10000000)), refused(libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)),
              refused(libc.ptrace(0, 0, 0, 0)), refused(libc.syscall(425, 1, 0)), refused(libc.socket(40, 1, 0)),
              refused(libc.socket(16, 3, 0)), refused(libc.syscall(319, b"x", 0)))
        """.replace("OWN", str(os.getuid() or 1)),
    )
    refusals = " ".join(map(str, [errno.EPERM] * 4 + [errno.EAFNOSUPPORT] * 2 + [errno.EPERM]))
    assert ended.stdout.decode().splitlines() == ["True True True True", "1 2", refusals], ended


def test_the_filter_is_refused_nowhere(sandbox: Sandbox) -> None:
    """What ordinary programs use still works: threads, processes, pools of them, pipes, local sockets, files, time."""
    ended = ran(
        sandbox,
        """
        import asyncio, concurrent.futures, multiprocessing, os, random, socket, subprocess, tempfile, threading, time
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            print(sum(pool.map(int, "123")))
        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(abs, [-1, -2]))
        print(subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout.strip())
        a, b = socket.socketpair()
        a.send(b"x")
        print(b.recv(1))
        async def main():
            await asyncio.sleep(0.01)
            return "async"
        print(asyncio.run(main()))
        with tempfile.TemporaryFile() as file:
            file.write(b"y" * 1000)
        print(len(os.urandom(4)), random.random() < 1, time.time() > 0)
        """,
    )
    assert ended.stdout.decode().splitlines() == ["6", "[1, 2]", "hi", "b'x'", "async", "4 True True"], ended


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("while True: pass", "wall"),
        ("import time\ntime.sleep(600)", "wall"),
        ("import signal, time\nsignal.pthread_sigmask(0, range(1, 65))\ntime.sleep(600)", "wall"),
        ("print('x' * 100)\nwhile True: print('x' * 10000)", "output"),
        ("import sys\nwhile True: sys.stderr.write('x' * 10000)", "output"),
        (
            "import os, time\nfor _ in range(6):\n  if os.fork() == 0:\n    held = bytearray(60 << 20)\n    break\n"
            "time.sleep(600)",
            "memory",
        ),
    ],
)
def test_limits_end_a_program(sandbox: Sandbox, program: str, why: str) -> None:
    """Each at its limit, and it says which."""
    ended = ran(sandbox, program, Limits(wall=0.7 if why == "wall" else 30.0, output=100_000, memory=200 * MB))
    assert ended.killed_by == why
    assert len(ended.stdout) + len(ended.stderr) <= 100_000


def test_processor_time_is_limited_apart() -> None:
    """A process is ended after its seconds of work even where the clock allows more."""

    class Quick(Limits):
        @property
        def cpu(self) -> int:
            return 1

    ended = ran(working(), "while True: pass", Quick(wall=60.0))
    assert ended.killed_by == "cpu"


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("bytearray(400 << 20)", "MemoryError"),
        ("import mmap\nmmap.mmap(-1, 400 << 20)", "Cannot allocate memory"),
        ("open('/tmp/big', 'wb').write(bytes(40 << 20))", "No space left"),
        ("for n in range(9): open(f'/tmp/{n}', 'wb').write(bytes(3 << 20))", "No space left"),
        ("for n in range(9): open(f'/dev/shm/{n}', 'wb').write(bytes(3 << 20))", "No space left"),
        ("import os\nwhile True: os.fork() or __import__('time').sleep(600)", "Resource temporarily unavailable"),
        ("import os\nheld = [os.dup(0) for _ in range(1000)]", "Too many open files"),
        ("import threading as t\nfor _ in range(99): t.Thread(target=t.Event().wait, daemon=True).start()",
         "can't start new thread"),
    ],
)  # fmt: skip
def test_limits_refuse(sandbox: Sandbox, program: str, error: str) -> None:
    """Memory, files, disk, processes and threads run out for the program alone."""
    limits = Limits(wall=30.0, memory=200 * MB, disk=10 * MB, processes=12)
    ended = ran(sandbox, program, limits)
    assert ended.status
    assert error in ended.stderr.decode(), ended


def test_nothing_outlives_its_sandbox(sandbox: Sandbox) -> None:
    """[exec-children-survive] A child in a session of its own, and one that holds the output open: gone with it, and
    nobody waits for that pipe."""
    held, holds = os.pipe()
    program = """
        import subprocess, sys
        for _ in range(3):
            subprocess.Popen(["sleep", "600"], start_new_session=True, close_fds=False)
        {end}
    """
    try:
        for end, why in (("while True: pass", "wall"), ("print('ended')", "")):
            began = time.monotonic()
            ended = ran(sandbox, program.format(end=end), Limits(wall=1.0 if why else 300.0), pass_fds=[holds])
            assert ended.killed_by == why
            assert time.monotonic() - began < 200  # it didn't wait for the ten minutes of its children
        os.close(holds)
        assert os.read(held, 1) == b""  # comes once every process of both sandboxes has closed it
    finally:
        os.close(held)


def test_a_sandbox_ends_with_its_watcher() -> None:
    """Where the scoring process is killed, what it started goes too."""
    held, holds = os.pipe()
    code = f"""
        from evald.sandbox import choice
        from evald.sandbox.contract import Limits
        from evald.sandbox.interpreter import interpreter
        from evald.sandbox.trial import Command, run_command
        python = interpreter()
        program = "import os, time; os.write({holds}, b'here'); time.sleep(60)"
        command = Command([*python.argv, "{{program}}"], "program.py")
        sandbox = choice.BACK_ENDS[{working().name!r}]()
        run_command(sandbox, python, command, program, Limits(wall=60.0), pass_fds=[{holds}])
    """
    watcher = subprocess.Popen([sys.executable, "-c", dedent(code)], pass_fds=[holds])
    os.close(holds)
    assert os.read(held, 4) == b"here"
    watcher.kill()
    watcher.wait()
    assert os.read(held, 1) == b""
    os.close(held)


def test_limits_are_clamped_to_what_is_allowed() -> None:
    """[exec-rlimit-above-hard] A hard limit below the wanted one isn't an error. (No warning: a metric doesn't log.)"""
    assert clamp(4 << 30, 1 << 30) == 1 << 30
    assert clamp(1 << 20, 1 << 30) == 1 << 20
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from evald.sandbox import choice\nfrom evald.sandbox.contract import *\n"
        "from evald.sandbox.interpreter import interpreter\nfrom evald.sandbox.trial import judge_python\n"
        f"sandbox = choice.BACK_ENDS[{working().name!r}]()\n"
        "print(judge_python(sandbox, interpreter(), '', 'def f(x): return 2 * x', 'assert f(1) == 2', 'f', "
        "Limits(wall=30.0, memory=4 << 30)).passed)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", done


def test_verdicts_hold_under_load() -> None:
    """[exec-limit-too-tight] A right program passes each time, several at once on few cores."""
    sandbox = working()

    def one(_: int) -> bool:
        return judged(sandbox, "def f(x): return 2 * x", limits=Limits(wall=10.0)).passed

    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.extend(one(n) for n in range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 40


# --- the self-test, the choice ----------------------------------------------------------------------------------------


class Leaky:
    """A sandbox with a hole."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner
        self.name = "bubblewrap"

    def settings(self, limits: Limits) -> list[str]:
        return self._inner.settings(limits)

    def start(self, program: Program, limits: Limits, **given: int) -> Started:
        return self._inner.start(program, limits, **given)  # type: ignore[arg-type]


def test_the_self_test_sees_a_sandbox_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of hole is told: what can be read, written, reached, started, taken."""
    monkeypatch.setattr(self_test, "_LEFT_BEHIND", 0.2)
    told = "; ".join(self_test.faults(Leaky(Unconfined())))
    for hole in (
        "write to a folder",
        "read a file",
        "connect to a port",
        "connect to a local socket",
        "signal another",
    ):
        assert hole in told
    assert "could start" in told or host.is_root() is False
    assert "outlives it" in told or "could start" in told


def test_the_self_test_sees_missing_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either limit on processes, the kernel's and the watcher's, it fails."""
    monkeypatch.setattr(watching.Watched, "look", lambda _: None)

    class Unlimited(Leaky):
        def settings(self, limits: Limits) -> list[str]:
            return [s for s in super().settings(limits) if not s.startswith("processes=")]

    told = self_test.faults(Unlimited(working()))
    assert any("processes" in fault for fault in told), told


def test_a_sandbox_that_cant_start_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """[exec-all-fail-zero] Nothing is judged, and the text says why and what to do."""

    class Missing(Leaky):
        def start(self, program: Program, limits: Limits, **given: int) -> Started:
            raise FileNotFoundError("bwrap")

    monkeypatch.setattr(choice, "BACK_ENDS", {name: lambda: Missing(Unconfined()) for name in choice.SAFE})
    monkeypatch.setattr(choice, "_found", {})
    choice.use("auto")
    for _ in range(2):
        with pytest.raises(
            SandboxUnavailable, match=r"can't be started.*apt-get install bubblewrap.*docs/code-exec\.md"
        ):
            choice.chosen()


def test_no_python_in_the_sandbox_is_no_verdict() -> None:
    """[exec-all-fail-zero] An interpreter that can't be started there is the sandbox's failure, not the program's."""
    sandbox = working()
    broken = type(interpreter())(("/nowhere/python3", "-s"), (), "3")
    with pytest.raises(SandboxFailed):
        judge_python(sandbox, broken, "", "def f(x): return 2 * x", CHECK, "f", PATIENT)
    with pytest.raises(SandboxFailed, match="no-such-command"):
        judge_command(sandbox, interpreter(), Command(["no-such-command", "{program}"], "p"), "", "", PATIENT)
    with pytest.raises(SandboxUnavailable, match="doesn't run"):
        interpreter("/nowhere/python3")


def test_a_sandbox_is_tested_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pairs a worker scores; and another choice is tested by itself."""
    tested: list[str] = []
    monkeypatch.setattr(choice, "faults", lambda sandbox: tested.append(sandbox.name) or [])
    monkeypatch.setattr(choice, "_found", {})
    for wanted in ("unsafe-subprocess", "unsafe-subprocess", "auto", "auto"):
        choice.use(wanted)  # type: ignore[arg-type]
        first = choice.chosen()
        assert choice.chosen() is first
    assert len(tested) == len(set(tested)) == 2
    choice.use("auto")


def test_out_of_memory_of_the_machine_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel killed for want of memory meanwhile, a program that failed is run again, then told apart."""
    kills = iter(range(100))
    monkeypatch.setattr(trial, "oom_kills", lambda: next(kills))
    with pytest.raises(SandboxFailed, match="out of memory"):
        judged(working(), "import os\ndef f(x): os.kill(os.getpid(), 9)")
    assert judged(working(), "def f(x): return 2 * x").passed


def test_versions_of_interpreters_are_asked_anew() -> None:
    """What is another one now is seen; of one that is gone what was known stays: nothing could be scored with it."""
    gone, here = "/no/such/python", sys.executable
    found = versions_now({here: "2.7.18", gone: "3.1.4"})
    assert found == {here: interpreter(here).version, gone: "3.1.4"}


def test_the_pool_keeps_order() -> None:
    assert pool.each(lambda n: n * n, range(50)) == [n * n for n in range(50)]


def filtered(machine: str, number: int, argument: int = 0, arch: int | None = None) -> int | str:
    """What the machine's filter answers to a call: "allowed", "killed", or the error. A small interpreter of classic
    BPF, of those instructions that a filter may hold.
    """
    code = seccomp.program(machine)
    assert code is not None
    own = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    data = struct.pack("<IIQQ", number, own if arch is None else arch, 0, argument)
    instructions = list(struct.iter_unpack("<HBBI", code))
    at = loaded = 0
    while True:
        kind, yes, no, value = instructions[at]
        at += 1
        match kind:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, value)
            case 0x15:
                at += yes if loaded == value else no
            case 0x25:
                at += yes if loaded > value else no
            case 0x45:
                at += yes if loaded & value else no
            case 0x06:
                known: dict[int, int | str] = {0x7FFF0000: "allowed", 0x80000000: "killed"}
                return known.get(value, value & 0xFFFF)
            case other:
                raise AssertionError(f"not an instruction of a filter: {other}")


ARCHES = ("x86_64", "aarch64")


@pytest.mark.parametrize("machine", ARCHES)
def test_the_filter_on_each_architecture(machine: str) -> None:
    """Every refused call has that machine's own number and no other one has; of another architecture none is allowed;
    namespaces can be made neither by clone nor by clone3; sockets are those that the sandbox's network holds.
    """
    at = ARCHES.index(machine)
    refused = {numbers[at] for numbers in seccomp._REFUSED.values()} - {None}
    clone, clone3, socket = (numbers[at] for numbers in (seccomp._CLONE, seccomp._CLONE3, seccomp._SOCKET))
    for number in range(600):
        if number in refused:
            assert filtered(machine, number) == errno.EPERM
        elif number == clone3:
            assert filtered(machine, number) == errno.ENOSYS
        elif number == socket:
            families = {family for family in range(64) if filtered(machine, number, family) == "allowed"}
            assert families == {1, 2, 10}
            assert filtered(machine, number, 40) == errno.EAFNOSUPPORT
        else:
            assert filtered(machine, number) == "allowed"
    assert filtered(machine, clone, 0x11) == filtered(machine, clone, 0x3D0F00) == "allowed"  # fork, a thread
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert filtered(machine, clone, flag | 0x11) == errno.EPERM
    others = [0x40000003, *({0xC000003E, 0xC00000B7} - {{"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]})]
    assert [filtered(machine, 0, arch=other) for other in others] == ["killed"] * 2
    assert filtered(machine, 0x40000000 | 1) == (errno.ENOSYS if machine == "x86_64" else "allowed")


def test_numbers_of_calls_are_the_kernels() -> None:
    """As its headers have them, where they are installed: of x86-64, and the generic ones, which AArch64 has."""
    checked = 0
    headers = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")
    for at, header in enumerate(map(Path, headers)):
        if not header.exists():
            continue
        found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text(encoding="utf-8")))
        known = {name: numbers[at] for name, numbers in seccomp._REFUSED.items() if name in found}
        known |= {"clone": seccomp._CLONE[at], "clone3": seccomp._CLONE3[at], "socket": seccomp._SOCKET[at]}
        assert known == {name: int(found[name]) for name in known}
        checked += len(known)
    if not checked:
        pytest.skip("no headers of the kernel are installed (Debian: linux-libc-dev)")


def test_other_architectures_have_no_filter() -> None:
    """There the rest of the sandbox must hold alone, or the self-test refuses it."""
    assert seccomp.program("m68k") is None


UNTOLD = "namespaces: exit status 1: PermissionError: [Errno 1] mount /: Operation not permitted"


@pytest.mark.parametrize(
    ("reasons", "known", "root", "told"),
    [
        ("bubblewrap: bwrap isn't installed", {}, False, "apt-get install bubblewrap"),
        (UNTOLD, {"/proc/sys/kernel/unprivileged_userns_clone": "0"}, False, "kernel.unprivileged_userns_clone=1"),
        (UNTOLD, {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, False, "AppArmor profile"),
        (UNTOLD, {"/proc/sys/user/max_user_namespaces": "0"}, False, "user.max_user_namespaces=10000"),
        ("unshare: No space left on device", {}, False, "user.max_user_namespaces=10000"),
        ("[Errno 22] seccomp: Invalid argument", {}, True, "CONFIG_SECCOMP_FILTER"),
        (UNTOLD, {"/proc/self/status": "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1"}, True, "seccomp=unconfined"),
        ("bwrap: execvp /root/python3: No such file or directory", {}, False, "Python where the user"),
        ("something else", {}, True, "install bubblewrap"),
    ],
)
def test_a_refusal_names_the_remedy(reasons: str, known: dict[str, str], root: bool, told: str) -> None:
    """Of what keeps a sandbox from working here, by what the machine says of itself; the last resort stands behind."""
    text = remedy(reasons, known, root=root)
    assert told in text
    assert text.endswith(LAST)


def test_root_of_nobody_is_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a user namespace that holds one user, a program can't be made another one: it is started as by any user."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for users, root in ((1, False), (65537, True), (1 << 32, True)):
        monkeypatch.setattr(host, "_users", lambda users=users: users)
        assert host.is_root() is root
        assert bool(host.own_user()) is root


def test_back_ends_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="apt-get install bubblewrap"):
        Bubblewrap()
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    with pytest.raises(FileNotFoundError, match="user namespaces"):
        Namespaces()


def test_a_command_by_itself(sandbox: Sandbox) -> None:
    """Status, output and errors come as they are; a signal is 128 and its number."""

    def run_it(*argv: str) -> Outcome:
        return run(sandbox, Program(argv), PATIENT, b"in")

    assert run_it("/usr/bin/cat") == Outcome(0, "", b"in", b"")
    assert run_it("/bin/sh", "-c", "echo a; echo b >&2; exit 3") == Outcome(3, "", b"a\n", b"b\n")
    assert run_it("/bin/sh", "-c", "kill -9 $$").status == 128 + 9


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    """Nothing here keeps one open."""
    interpreter()
    pool.each(abs, [1])
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before
