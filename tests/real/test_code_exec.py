"""code_exec over published programs and tasks, in real sandboxes. Names in brackets are cases of ../shared/cases."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evald.metrics import Sample, of_spec
from evald.post_process import pipeline_of
from evald.sandbox import choice
from evald.sandbox.contract import SandboxUnavailable
from evald.sandbox.failure import FAILURES
from shared.errors import SuiteError
from shared.records import TaskSpec
from shared.tasks.native import task_faults
from tests.unit.test_score import answer, planned, runs, scored, write

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    choice.use("auto")
    try:
        choice.chosen()
    except SandboxUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def rows(path: Path) -> list[Row]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def sample(row: Row, text: str, steps: Any = "none", **metadata: Any) -> Sample:
    known = {name: row[name] for name in ("prompt", "test", "entry_point", "test_list") if name in row}
    task = TaskSpec(task_id="t", prompt="?", targets=(), metric_name="code_exec", post_process=steps,
                    metadata=known | metadata)  # fmt: skip
    assert task_faults(task) == []
    return Sample(pipeline_of(steps).answer(text), [], text, task)


def scores(samples: Sequence[Sample], **parameters: Any) -> list[float | Exception]:
    return list(of_spec({"metric": "code_exec"} | parameters).score_all(samples))


DOUBLE = {"entry_point": "f", "test": "def check(candidate):\n    assert candidate(2) == 4\n"}


# --- published numbers ------------------------------------------------------------------------------------------------


def test_human_eval_of_gpt4(evaldata: Path) -> None:
    """134 of 164, and each verdict as its authors' executor gave it."""
    given = rows(evaldata / "humaneval_reflexion" / "humaneval_gpt4_simple.jsonl")
    expected = json.loads((evaldata / "humaneval_reflexion" / "EXPECTED.json").read_text())["humaneval_gpt4_simple"]
    found = scores([sample(row, row["solution"]) for row in given])
    assert [sum(found), len(found)] == expected  # type: ignore[arg-type]  # an exception among them can't be added
    assert [row["task_id"] for row, score in zip(given, found, strict=True) if score != row["is_solved"]] == []


PASSED_HERE = {
    "mbpp_67_bell_number",
    "mbpp_170_sum_range_list",
    "mbpp_798__sum",
    "mbpp_724_power_base_sum",
    "mbpp_419_round_and_sum",
    "mbpp_598_armstrong_number",
}
"""What the authors' executor failed and we pass: six right programs that call the builtin `sum`. One of the tasks is to
write a function named `sum` (of the common divisors of two numbers), and that executor runs every program in one and
the same namespace (`exec(code, globals())` in py_executor.py of noahshinn/reflexion at 247b678), so that all after it
call that one. `test_why_those_six_differ` shows it."""


def test_mbpp_of_gpt4(evaldata: Path) -> None:
    """318 of 397 by their executor, 324 here: the same but for six, which are right."""
    given = rows(evaldata / "humaneval_reflexion" / "mbpp_gpt4_simple.jsonl")
    expected = json.loads((evaldata / "humaneval_reflexion" / "EXPECTED.json").read_text())["mbpp_gpt4_simple"]
    assert [sum(row["is_solved"] for row in given), len(given)] == expected
    found = scores([sample(row, row["solution"]) for row in given])
    differ = {row["name"]: score for row, score in zip(given, found, strict=True) if score != row["is_solved"]}
    assert differ == dict.fromkeys(PASSED_HERE, 1.0)
    assert sum(found) == 318 + len(PASSED_HERE)  # type: ignore[arg-type]


def test_why_those_six_differ(evaldata: Path) -> None:
    """Behind the task that defines `sum`, each of them fails as it did for its authors; by itself it passes. In the
    authors' file every program that calls `sum` after that task is failed, and most before it aren't.
    """
    given = rows(evaldata / "humaneval_reflexion" / "mbpp_gpt4_simple.jsonl")
    [at] = [place for place, row in enumerate(given) if row["entry_point"] == "sum"]
    shadow = given[at]["solution"]
    callers = {row["name"]: place for place, row in enumerate(given) if re.search(r"(?<![\w.])sum\(", row["solution"])}
    solved = {place: given[place]["is_solved"] for place in callers.values() if place != at}
    assert [solved[place] for place in sorted(solved) if place > at] == [False] * 10
    assert [solved[place] for place in sorted(solved) if place < at].count(True) == 7
    assert set(callers) >= PASSED_HERE
    six = [row for row in given if row["name"] in PASSED_HERE]
    assert all(callers[row["name"]] > at for row in six)
    after_it = [sample(row, f"{shadow}\n\n{row['solution']}") for row in six]
    assert scores(after_it) == [0.0] * 6


def test_human_evals_own_solutions(evaldata: Path) -> None:
    """The canonical solutions pass (a quarter of them here, for the time it takes)."""
    given = rows(evaldata / "humaneval" / "HumanEval.jsonl.gz")[::4]
    found = scores([sample(row, row["canonical_solution"]) for row in given])
    assert [row["task_id"] for row, score in zip(given, found, strict=True) if score != 1.0] == []


def test_human_evals_example(evaldata: Path, tmp_path: Path) -> None:
    """Its example samples, hostile ones among them, have a pass@1 of 0.5: through plan, predictions and result."""
    [problem] = rows(evaldata / "humaneval" / "example_problem.jsonl")
    completions = [row["completion"] for row in rows(evaldata / "humaneval" / "example_samples.jsonl")]
    spec = {"metric": "code_exec", "reduce": "pass_at_k", "k": 1, "timeout": 2.0}
    metadata = {name: problem[name] for name in ("prompt", "test", "entry_point")}
    one = {"task_id": "t0", "prompt": problem["prompt"], "metric_name": spec, "metadata": metadata}
    work = planned(tmp_path, [one], repeats=len(completions))
    result = scored(work, write(work, [answer(0, text, repeat=number) for number, text in enumerate(completions)]))
    assert (result.mean, result.n_docs, result.metric) == (0.5, 1, "code_exec pass@1")
    assert result.metrics[0].params["sandbox"] in choice.SAFE
    assert result.n_score_errors == 0


def test_pass_at_k_needs_k_repeats(tmp_path: Path) -> None:
    """Fewer repeats than k are refused, not reckoned with: of the headline when it is planned, of another metric when
    it is scored.
    """
    spec = {"metric": "code_exec", "reduce": "pass_at_k", "k": 3}
    task = {"task_id": "t0", "prompt": "?", "metadata": DOUBLE}
    with pytest.raises(SuiteError, match="pass@3 needs 3 repeats, and there are 2"):
        planned(tmp_path / "headline", [task | {"metric_name": spec}], repeats=2)
    work = planned(tmp_path / "other", [task | {"metric_name": ["code_exec", spec]}], repeats=2)
    right = "def f(x): return 2 * x"
    result = scored(work, write(work, [answer(0, right, repeat=number) for number in range(2)]))
    (other,) = (metric for metric in result.metrics if metric.name == "code_exec pass@3")
    assert result.mean == 1.0
    assert (other.mean, other.n_errors) == (None, 1)
    assert "over 3 repeats, and 2 were answered" in other.reason


# --- how an answer becomes a program ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Sure!\n```python\ndef f(x):\n    return x * 2\n", 1.0),  # (a) never closed
        ("Use it so:\n```python\nprint('f of two, and then some more text', f(2), 'and that is all')\n```\nwhere\n"
         "```python\ndef f(x):\n    return x * 2\n```", 1.0),  # (b) the one that defines it wins, though shorter
        ("~~~py\ndef f(x):\n    return x * 2\n~~~", 1.0),  # (c)
        ("def f(x):\r\n    return x * 2\r\n", 1.0),  # (e)
        ("```\r\ndef f(x):\r\n    return x * 2\r\n```\r\n", 1.0),
        ("I can't do that.", 0.0),  # (d) nothing extracted, which is counted apart
    ],
)  # fmt: skip
def test_code_in_an_answer(text: str, score: float) -> None:
    """[exec-unclosed-fence] With the step `code_block`."""
    assert scores([sample(DOUBLE, text, "code_block")]) == [score]


def test_a_list_of_tests(evaldata: Path) -> None:
    """MBPP's own form: statements that name the function, with what they need before them."""
    row = {"test_list": ["assert f(2) == S * 4", "assert isclose(f(0.1), 0.2)"]}
    more: Row = {"test_setup_code": "S = 1", "test_imports": ["from math import isclose"]}
    texts = ["def f(x): return x * 2", "def f(x): return x * 3", "print('no function')", ""]
    assert scores([sample(row, text, **more) for text in texts]) == [1.0, 0.0, 0.0, 0.0]


def test_inputs_and_outputs() -> None:
    """Programs that read and print, with their cases."""
    row: Row = {"cases": [{"stdin": "3 4", "stdout": "7\n"}, {"stdin": "1 1", "stdout": "2"}]}
    texts = ["print(sum(map(int, input().split())))", "print(7)", "import sys; sys.exit(0)"]
    found = scores([sample({}, text, **row) for text in texts])
    assert found == [1.0, 0.0, 0.0]


def test_another_language() -> None:
    """The runner's command is the suite's."""
    test = '[ "$(double 4)" = 8 ] || exit 1\necho {token}\n'
    texts = ["double() { echo $(($1 * 2)); }", "double() { echo 3; }", "exit 0", "("]
    command = {"command": ["sh", "{program}"], "file": "program.sh"}
    assert scores([sample({"test": test}, text) for text in texts], **command) == [1.0, 0.0, 0.0, 0.0]


def test_an_interpreter_with_packages() -> None:
    """`python` names one whose packages programs may use; arrays and numbers of numpy are data for the test."""
    test = "import numpy as np\nassert f(np.arange(3)).tolist() == [0, 2, 4]\nassert f(np.float64(1.5)) == 3.0\n"
    texts = ["import numpy\ndef f(x): return x * numpy.int64(2)", "def f(x): return x"]
    samples = [sample({"entry_point": "f", "test": test}, text) for text in texts]
    assert scores(samples, python=sys.executable, timeout=60.0) == [1.0, 0.0]
    assert scores(samples) == [0.0, 0.0]


def test_another_interpreter_is_content(tmp_path: Path) -> None:
    """Its version stands in the result and decides its content: with another one the pair is scored anew."""
    spec = {"metric": "code_exec", "python": sys.executable}
    work = planned(tmp_path, [{"task_id": "t0", "prompt": "?", "metric_name": spec, "metadata": DOUBLE}])
    job = write(work, [answer(0, "def f(x): return 2 * x")])
    result = scored(work, job)
    assert result.pythons == {sys.executable: platform.python_version()}
    assert result.content == job.content(result.pythons)
    assert result.content not in (job.content(), job.content({sys.executable: "2.7.18"}))


def test_why_programs_fail_is_kept(tmp_path: Path) -> None:
    """Of each answer one word of a few and what was said, cut and cleaned; in the result how many of each."""
    programs = {
        "def f(x): return x": "assertion: AssertionError",
        "def f(x): return y": "exception: NameError: name 'y' is not defined",
        "def f(x) return": "syntax: SyntaxError: expected ':' (program.py, line 1)",
        "import sys\ndef f(x): sys.exit(0)": "ended_early: the program ended: SystemExit: 0",
        "def f(x):\n    while True: pass": "timeout: ended at its limit of wall",
        "def f(x): return open('/etc/shadow')": None,
        "def f(x): raise ValueError('\\x1b[31m' + 'A\\n' * 100_000)": "exception: ValueError: [31mA A A",
        "def f(x): return 2 * x": "",
    }
    spec = {"metric": "code_exec", "timeout": 3.0}
    tasks = [{"task_id": f"t{n}", "prompt": "?", "metric_name": spec, "metadata": DOUBLE, "post_process": "code_block"}
             for n in range(2)]  # fmt: skip
    work = planned(tmp_path, tasks, repeats=len(programs))
    rows = [answer(0, text, repeat=n) for n, text in enumerate(programs)]
    rows += [answer(1, "I can't do that.", repeat=n) for n in range(len(programs))]
    result = scored(work, write(work, rows))
    first, second = runs(work)
    for said, wanted in zip(first["failures"], programs.values(), strict=True):
        assert wanted is None or said.startswith(wanted)
        assert len(said) < 150
        assert said.isprintable()
    assert first["failures"][5].startswith(("blocked: ", "exception: FileNotFoundError: "))
    assert second["failures"] == ["no_program"] * len(programs)
    counted = result.metrics[0].failures
    assert set(counted) <= set(FAILURES)
    assert counted["no_program"] == len(programs)
    assert [counted[kind] for kind in ("assertion", "syntax", "ended_early", "timeout")] == [1] * 4
    assert sum(counted.values()) == 2 * len(programs) - 1


def test_a_tasks_own_time_wins() -> None:
    """`timeout` of the metadata, else the metric's."""
    slow = "import time\ndef f(x):\n    time.sleep(1.2)\n    return 2 * x"
    assert scores([sample(DOUBLE, slow, timeout=30.0), sample(DOUBLE, slow)], timeout=1.0) == [1.0, 0.0]


def test_what_a_task_must_say() -> None:
    """A task without tests, and parameters that can't be right, are refused when it is read."""

    def faults(metadata: Row, **parameters: Any) -> list[str]:
        spec = {"metric": "code_exec"} | parameters
        return task_faults(TaskSpec(task_id="t", prompt="?", targets=(), metric_name=spec, metadata=metadata))

    assert faults(DOUBLE) == []
    assert "one of test, test_list and cases" in faults({"entry_point": "f"})[0]
    assert "cases stand instead" in faults(DOUBLE | {"cases": [{"stdout": "1"}]})[0]
    assert "{program}" in faults(DOUBLE, command=["node"])[0]
    assert "absolute path" in faults(DOUBLE, python="python3")[0]
    assert "one of them" in faults(DOUBLE, python="/usr/bin/python3", command=["x", "{program}"])[0]
    assert "file" in faults(DOUBLE, file="../x")[0]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_no_sandbox_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[exec-all-fail-zero] The pair fails with the reason and the remedy, and nothing is written: no zeros."""
    monkeypatch.setattr(choice, "_found", {"auto": "no sandbox for programs works here (...). Remedy: ..."})
    work = planned(tmp_path, [{"task_id": "t0", "prompt": "?", "metric_name": "code_exec", "metadata": DOUBLE}])
    job = write(work, [answer(0, "def f(x): return 2 * x")])
    with pytest.raises(SandboxUnavailable, match="Remedy"):
        scored(work, job)
    assert not work.result("m", "d").exists()
    assert not work.scores("m", "d").exists()


def test_a_failure_of_the_sandbox_is_no_wrong_answer(tmp_path: Path) -> None:
    """A doc whose tests can't be run, or whose command isn't there, has an error and no score; others have theirs."""
    unfit = {"entry_point": "f", "test": "pass\n"}
    tasks = [
        {"task_id": "t0", "prompt": "?", "metric_name": "code_exec", "metadata": DOUBLE},
        {"task_id": "t1", "prompt": "?", "metric_name": "code_exec", "metadata": unfit},
        {"task_id": "t2", "prompt": "?", "metadata": DOUBLE,
         "metric_name": {"metric": "code_exec", "label": "node", "command": ["no-such-node", "{program}"]}},
    ]  # fmt: skip
    work = planned(tmp_path, tasks)
    result = scored(work, write(work, [answer(n, "def f(x): return 2 * x") for n in range(3)]))
    assert (result.mean, result.n_scored, result.n_score_errors) == (1.0, 1, 2)
    reasons = [error.reason for error in result.score_errors]
    assert "never called the program" in reasons[0]
    assert "no-such-node" in reasons[1]


def test_verdicts_are_the_same_each_time(evaldata: Path) -> None:
    """[exec-limit-too-tight] Right, wrong and endless programs, several times and several at once."""
    texts = ["def f(x): return 2 * x", "def f(x): return x", "def f(x): return {1, 2, 'a', 'b'} and list({'a', 'b'})"]
    samples = [sample(DOUBLE, text) for text in texts] * 5
    assert scores(samples) == scores(samples) == [1.0, 0.0, 0.0] * 5


def test_one_that_asks_for_no_sandbox_gets_none() -> None:
    """`unsafe-subprocess` judges by the same tests, and what a program left running is ended."""
    choice.use("unsafe-subprocess")
    try:
        texts = ["def f(x): return 2 * x", "def f(x): return x", "import os; os._exit(0)"]
        assert scores([sample(DOUBLE, text) for text in texts]) == [1.0, 0.0, 0.0]
    finally:
        choice.use("auto")
