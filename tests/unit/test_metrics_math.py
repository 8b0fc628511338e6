"""math_equal: mathematics compared in a process of its own, which what a model writes can't harm or hold up."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evald import math_child, math_process
from evald.math_child import judge
from evald.metrics import of_spec, task_fault
from shared import vocabulary
from shared.records import TaskSpec
from shared.scoring import SpecError, measures_of

QUICK = {"metric": "math_equal", "seconds": 1.0}


def score(answer: str, *targets: str) -> float:
    return of_spec(QUICK).of(answer, targets)


@pytest.fixture(autouse=True)
def one_child() -> Iterator[None]:
    yield
    math_process._CURRENT.drop()


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        ("1/2", "0.5", 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"So it is \boxed{72}.", "72", 1.0),
        ("The answer is 72.", "72", 1.0),
        ("We get 5", "72", 0.0),
        ("The answer is $x+1$.", "1+x", 1.0),
        ("(x-1)(x+1)", "x^2-1", 1.0),
        (r"2\sqrt2", r"\sqrt{8}", 1.0),
        (r"50\%", "0.5", 1.0),
        (r"\{2, 1\}", r"\{1, 2\}", 1.0),
        ("", "1", 0.0),
        ("nothing here", "1", 0.0),
    ],
)
def test_math_equal(answer: str, target: str, expected: float) -> None:
    """With a box, in prose, or as what a step took out of a box."""
    assert score(answer, "12345", target) == expected


def test_model_text_is_never_run(tmp_path: Path) -> None:
    """[math-scorer-executes] Code where mathematics was asked for is wrong, and does nothing."""
    mark = tmp_path / "pwned"
    for code in (
        f"\\boxed{{__import__('os').system('touch {mark}')}}",
        f"__import__('os').system('touch {mark}')",
        f"$\\text{{__import__('os').system('touch {mark}')}}$",
        f"open('{mark}', 'w')",
    ):
        assert score(code, "4") == 0.0
    assert not mark.exists()


@pytest.mark.parametrize(
    "answer", ["9**9**9**9", "$10^{10^{10}}$", "(100!)!", "(" * 100_000, r"\frac" * 5000, "\x00", "\ud800 4"]
)
def test_what_takes_too_long_is_wrong(answer: str) -> None:
    """[scorer-raises-on-answer] The child is killed by its CPU timer, or gives up; the next answer is scored."""
    assert score(answer, "4000") == 0.0
    assert score("1/2", "0.5") == 1.0


def test_a_target_that_is_no_mathematics_is_an_error() -> None:
    """No zero: the task is at fault, not the answer."""
    with pytest.raises(math_process.MathError, match="'hello there' can't be read as mathematics"):
        score("5", "hello there")


def test_a_child_that_dies_is_replaced_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed once: asked again. Killed each time, or never there: an error, and no verdict."""
    assert score("1/2", "0.5") == 1.0
    child = math_process._CURRENT.take()
    os.kill(child._process.pid, signal.SIGKILL)
    assert score("1/2", "0.5") == 1.0
    monkeypatch.setattr(math_process, "_CHILD", Path("/nonexistent.py"))
    math_process._CURRENT.drop()
    with pytest.raises(math_process.MathError, match="math-verify failed: its process ended with status 2"):
        score("1/2", "0.5")


@pytest.mark.parametrize(
    "act",
    [
        "__import__('os').system('true')",
        "__import__('subprocess').run(['true'])",
        "__import__('socket').socket()",
        "open('/dev/null', 'w')",
        "__import__('os').fork()",
        "__import__('os').remove('/nonexistent')",
    ],
)
def test_the_child_has_given_up_its_rights(act: str) -> None:
    """Should anything ever be run in there: no program, no connection, no file."""
    code = f"""
import math_child
math_child._give_up_rights()
try:
    {act}
except PermissionError:
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(math_child.__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "refused\n", done.stderr


def test_the_child_sees_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is made for it."""
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    math_process._CURRENT.drop()
    assert score("1", "1") == 1.0
    seen = Path(f"/proc/{math_process._CURRENT.take()._process.pid}/environ")
    if not seen.exists():
        pytest.skip("no /proc here")
    assert b"s3cret" not in seen.read_bytes()


def test_memory_is_bounded() -> None:
    """A child's address space has its limit."""
    assert score("1", "1") == 1.0
    if not hasattr(resource, "prlimit"):
        pytest.skip("limits of other processes can't be read here")
    pid = math_process._CURRENT.take()._process.pid
    assert resource.prlimit(pid, resource.RLIMIT_AS)[0] == math_child.MEMORY
    assert resource.prlimit(pid, resource.RLIMIT_FSIZE)[0] == 0


def test_without_the_extra_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the task is read, with the remedy."""
    monkeypatch.setattr(vocabulary, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs the extra `math`: pip install 'tandem-eval\[math\]'"):
        measures_of({"metric": "math_equal", "decimals": 3})
    measures_of("exact_match")


def test_targets_are_not_parsed_when_a_suite_is_read() -> None:
    """That would take the extra's process."""
    assert task_fault(TaskSpec(task_id="t", prompt="?", targets=("hello",), metric_name="math_equal")) is None


def _read(text: str) -> list[str]:
    if "unreadable" in text:
        raise ValueError(text)
    if "endless" in text:
        raise RecursionError
    return [] if "prose" in text else [text]


def _same(wanted: list[str], given: list[str], question: dict[str, Any]) -> bool:
    for text in (*wanted, *given):
        if "huge" in text:
            raise MemoryError
        if "odd" in text:
            raise TypeError(text)
    return wanted == given


@pytest.mark.parametrize(
    ("answer", "targets", "reply"),
    [
        ("1", ["1"], True),
        ("2", ["1"], False),
        ("prose", ["1"], False),
        ("unreadable", ["1"], False),
        ("endless", ["1", "2"], False),
        ("huge", ["1"], False),
        ("odd", ["1"], False),
        ("odd", ["1", "odd"], None),
        ("1", ["odd"], None),
        ("1", ["huge"], None),
        ("1", ["unreadable"], None),
        ("1", ["endless"], None),
        ("1", ["prose"], None),
        ("unreadable", ["prose"], None),
        ("1", ["1", "prose"], True),
        ("prose", ["1", "prose"], None),
    ],
)
def test_an_answer_that_breaks_the_scorer_is_wrong(answer: str, targets: list[str], reply: bool | None) -> None:
    """[scorer-raises-on-answer] It is no error, or the mean would rise without it. A target that does so is one."""
    found = judge({"answer": answer, "targets": targets}, _read, _same)
    assert found.get("equal") is reply
    assert ("fault" in found) is (reply is None)


@pytest.mark.parametrize(
    "answer", ["(" * 9000, "We analyse ... Answer: the set is open (0, 1)", "9**9**9**9", "\\frac{" * 1500]
)
def test_answers_that_are_no_mathematics_are_wrong(answer: str) -> None:
    """[scorer-raises-on-answer] With the library itself."""
    assert score(answer, "7") == 0.0
