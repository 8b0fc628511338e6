"""A user's own metric: found, checked when the suite is, versioned, and alone with its faults."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from evalctl.estimate import estimate
from evalctl.submit import check
from evald import metrics
from evald.metrics import MetricError, judges_of, of_spec
from shared import plugins, scoring
from shared.errors import SuiteError
from shared.scoring import SpecError, measures_of
from tests.harness import task, write_suite
from tests.unit.test_score import answer, planned, runs, scored, write

ROOT = Path(__file__).parents[2]
OWN = """
import sys

def length(sample, limit):
    return len(sample.answer) <= limit

def told(sample):
    match sample.answer:
        case "raise":
            raise KeyError("oh")
        case "exit":
            sys.exit(3)
        case "text":
            return "1"
        case "two":
            return 2
    return float(sample.answer in sample.targets and sample.task.metadata["weight"])

NUMBER = 7
"""


@pytest.fixture(autouse=True)
def own_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`own_metrics` is a module in the folder that the command is started in."""
    (tmp_path / "own_metrics.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for cached in (metrics._judges, scoring._measures):
        cached.cache_clear()
    yield
    for cached in (metrics._judges, scoring._measures):
        cached.cache_clear()
    for name in ("own_metrics", "my_metrics"):
        sys.modules.pop(name, None)


def installed(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, value, scoring.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == scoring.GROUP else [])


def test_by_module_and_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are called with the sample and the params; a truth value is a score."""
    installed(monkeypatch, "short", "own_metrics:length")
    for name in ("own_metrics:length", "short"):
        (judged,) = judges_of({"metric": name, "params": {"limit": 3}, "version": "4", "threshold": 1.0})
        assert (judged.label, judged.version, judged.scorer.threshold) == (name, "4", 1.0)
        assert [judged.scorer.of(text, ["x"]) for text in ("abc", "abcd")] == [1.0, 0.0]
        assert isinstance(judged.scorer.of("abc", ["x"]), float)


def test_names_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt entry point gets a hint as a built-in does; a built-in name can't be taken over."""
    installed(monkeypatch, "shortness", "own_metrics:length")
    with pytest.raises(SpecError, match="did you mean shortness"):
        measures_of("shortnes")
    installed(monkeypatch, "f1", "own_metrics:length")
    assert of_spec("f1").of("a b", ["a b"]) == 1.0


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("no_such_module:score", "can't be loaded: ModuleNotFoundError"),
        ("own_metrics:no_such", "can't be loaded: AttributeError"),
        ("own_metrics:NUMBER", "is no function"),
        ("own_metrics:length", r"doesn't take a sample and these params: missing .* 'limit'"),
        ({"metric": "own_metrics:length", "params": {"limit": 1, "more": 2}}, "unexpected keyword argument 'more'"),
    ],
)
def test_what_can_not_be_used_is_refused_with_the_suite(tmp_path: Path, spec: Any, fault: str) -> None:
    """By `validate` and `submit`: once where the dataset names it, with its place; by line where a task does."""
    with pytest.raises(MetricError, match=fault):
        judges_of(spec)
    named = {"metric": spec} if isinstance(spec, str) else spec
    suite = write_suite(
        tmp_path / "a", [{"abbr": "m", "type": "rule"}], {"d": [task(0), task(1)]}, dataset_options={"metric": named}
    )
    with pytest.raises(SuiteError) as told:
        check(suite)
    (problem,) = told.value.problems
    assert problem.place == "datasets[0].metric"
    assert re.search(fault, problem.text)
    by_task = write_suite(tmp_path / "b", [{"abbr": "m", "type": "rule"}], {"d": [task(0, metric_name=spec)]})
    checked, _ = check(by_task)
    with pytest.raises(SuiteError, match=fault) as told:
        estimate(checked)
    assert str(told.value.problems[0].place).endswith("d.jsonl:1")


def test_its_faults_cost_the_doc_and_name_it(tmp_path: Path) -> None:
    """With the same records as a built-in metric: what raises, exits or gives no score in [0, 1] is an error, never a
    zero; the others have their scores, and so has another metric of the same doc."""
    both = ["own_metrics:told", "exact_match"]
    tasks = [task(n, metric_name=both, metadata={"weight": 0.5}) for n in range(6)]
    work = planned(tmp_path / "run", tasks)
    texts = ["raise", "exit", "text", "two", "4", "no"]
    found = scored(work, write(work, [answer(n, text) for n, text in enumerate(texts)]))
    assert (found.metric, found.n_docs, found.n_scored, found.n_score_errors) == ("own_metrics:told", 6, 2, 4)
    assert [error.reason.split(":")[0] for error in found.score_errors] == [
        *("KeyError", "RuntimeError", "TypeError", "ValueError")
    ]
    assert "tried to exit (3)" in found.score_errors[1].reason
    by_name = {(run["task_id"], run["metric_name"]): run["score"] for run in runs(work)}
    assert (by_name["t4", "own_metrics:told"], by_name["t4", "exact_match"], by_name["t0", "exact_match"]) == (
        0.5,
        1,
        0,
    )
    own = next(metric for metric in found.metrics if metric.name == "own_metrics:told")
    assert (own.version, own.n, own.mean, own.threshold) == ("1", 2, 0.25, 0.5)


def test_what_extracted_nothing_is_not_asked_about(tmp_path: Path) -> None:
    """It scores 0, and counts as unextracted."""
    work = planned(tmp_path / "run", [task(0, metric_name="own_metrics:told", post_process="last_number")])
    found = scored(work, write(work, [answer(0, "raise")]))
    assert (found.n_scored, found.mean, found.unextracted) == (1, 0.0, 1)


def test_another_version_is_another_result(tmp_path: Path) -> None:
    """The version stands in the tasks, and so in what a result is known by."""
    jobs = []
    for version in ("1", "2"):
        spec = {"metric": "own_metrics:length", "params": {"limit": 3}, "version": version}
        work = planned(tmp_path / version, [task(0, metric_name=spec)])
        jobs.append(write(work, [answer(0, "0")]))
    assert jobs[0].content() != jobs[1].content()


def test_the_example_in_the_documents_works(tmp_path: Path) -> None:
    """docs/extend.md: its module and its suite lines, as they stand there."""
    text = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    section = text[text.index("## A metric of one's own") :]
    code = re.search(r"```python\n# my_metrics.py\n(.*?)```", section, re.DOTALL)
    lines = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert code
    assert lines
    (tmp_path / "my_metrics.py").write_text(code[1])
    suite = tmp_path / "suite.toml"
    rows = '{"question": "Name the primary colours.", "answer": ["red", "blue", "yellow"]}\n'
    (tmp_path / "colours.jsonl").write_text(rows)
    suite.write_text(f'[[models]]\nabbr = "m"\ntype = "rule"\n\n{lines[1]}')
    checked, _ = check(suite)
    assert estimate(checked).docs == 1
    spec = checked.datasets[0].metric
    scorer = of_spec(spec)  # type: ignore[arg-type]  # it is set
    assert scorer.of("Red, blue and green", ["red", "blue", "yellow"]) == pytest.approx(2 / 3)
    assert scorer.of("none", ["red", "blue"]) == 0.0
