"""Which rows a dataset's `limit` leaves, in every kind of file, and how that is recorded and shown."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.report.csv import leaderboard_csv
from evald.report.markdown import markdown
from evald.summary import read_report
from shared.clock import ManualClock
from shared.config import DatasetConfig, FieldMapping, ModelConfig, Suite
from shared.errors import SuiteError
from shared.layout import WorkDir
from shared.plan import make_plan
from shared.records import Limit, SampleLimit, encode_record
from shared.suite import parse_suite
from shared.tasks import read_tasks
from shared.tasks.limits import wanted

ROWS = 20
KINDS = ["jsonl", "json", "csv", "parquet"]


def file_of(folder: Path, kind: str, rows: int = ROWS) -> Path:
    path = folder / f"d.{kind}"
    table = [{"q": f"q{n}", "a": str(n)} for n in range(rows)]
    match kind:
        case "jsonl":
            path.write_text("\n".join(json.dumps(row) for row in table))
        case "json":
            path.write_text(json.dumps(table))
        case "csv":
            path.write_text("q,a\n" + "".join(f"q{n},{n}\n" for n in range(rows)))
        case _:
            pyarrow = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(table), path)
    return path


def dataset(path: Path, limit: Limit | None) -> DatasetConfig:
    return DatasetConfig(abbr="d", path=path.name, fields=FieldMapping(prompt="q", target="a"), limit=limit)


def places(path: Path, limit: Limit | None) -> list[int]:
    """Which rows are asked; a task is named after its row's place."""
    tasks = list(read_tasks(dataset(path, limit), path))
    assert [task.task_id for task in tasks] == [f"d-{task.targets[0]}" for task in tasks]
    return [int(task.targets[0]) for task in tasks]


LIMITS: list[tuple[Limit, list[int]]] = [
    (3, [0, 1, 2]),
    (50, list(range(ROWS))),
    (0.1, [0, 1]),
    (0.11, [0, 1, 2]),
    (1.0, list(range(ROWS))),
    ("5:8", [5, 6, 7]),
    ("18:", [18, 19]),
    (":2", [0, 1]),
    ("18:99", [18, 19]),
]


@pytest.mark.parametrize("kind", KINDS)
def test_counts_fractions_and_ranges(tmp_path: Path, kind: str) -> None:
    """The rows that they say, each under the name that it has in the whole; a fraction is rounded up."""
    path = file_of(tmp_path, kind)
    for limit, expected in LIMITS:
        assert places(path, limit) == expected, limit


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_the_same_each_time(tmp_path: Path, kind: str) -> None:
    """In the file's order, by the seed; a smaller one lies within a larger, one beyond the rows is all of them."""
    path = file_of(tmp_path, kind)
    some = places(path, SampleLimit(sample=7, seed=1))
    assert some == sorted(some) == [2, 4, 8, 10, 15, 17, 18]
    assert places(path, SampleLimit(sample=7, seed=2)) != some
    assert set(places(path, SampleLimit(sample=4, seed=1))) < set(some)
    assert places(path, SampleLimit(sample=99)) == list(range(ROWS))


@given(st.integers(0, 200), st.integers(1, 250), st.integers(0, 2**40))
def test_a_sample_has_its_size(total: int, size: int, seed: int) -> None:
    """Or all there is; and reads no further than its last row."""
    found = wanted(SampleLimit(sample=size, seed=seed), lambda: total)
    taken = [place for place, _ in found.of(iter(range(total)))]
    assert len(set(taken)) == len(taken) == min(size, total)
    assert taken == sorted(taken)
    assert found.end == (taken[-1] + 1 if taken else 0)


def test_rows_that_are_left_out_are_not_looked_at(tmp_path: Path) -> None:
    """Bad ones among them are no fault, and of a file whose end can't be read a count still takes the beginning."""
    path = tmp_path / "d.jsonl"
    path.write_text("bad\n" + json.dumps({"q": "q", "a": "1"}) + '\nbad\n{"q": 5}')
    assert places(path, "1:2") == [1]
    with pytest.raises(SuiteError, match=r"d\.jsonl:1"):
        places(path, 2)
    with pytest.raises(SuiteError, match="limit 7:9 leaves no tasks of it"):
        places(path, "7:9")


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ("0", "limit: expected an integer >= 1, got 0"),
        ("0.0", "limit: expected a number > 0 and <= 1, got 0.0"),
        ("1.5", "limit: expected a number > 0 and <= 1, got 1.5"),
        (
            "true",
            "limit: expected an integer >= 1 or a number > 0 and <= 1 or a string or a table, got true; quote it",
        ),
        ('"ten"', 'limit: expected a range such as "100:200", got "ten"'),
        ('"-5:"', 'limit: expected a range such as "100:200", got "-5:"'),
        ('"5:5"', 'limit: "5:5" holds no rows: the end comes before the first'),
        ("{ sample = 0 }", "limit.sample: expected an integer >= 1, got 0"),
        ("{ sample = 3, sed = 1 }", "limit.sed: unknown key; did you mean seed?"),
    ],
)
def test_what_is_no_limit_is_refused(tmp_path: Path, limit: str, problem: str) -> None:
    """With its place, before any file is read."""
    file_of(tmp_path, "jsonl")
    text = '[[models]]\nabbr = "m"\ntype = "rule"\n[[datasets]]\nabbr = "d"\npath = "d.jsonl"\n'
    with pytest.raises(SuiteError) as caught:
        parse_suite(f'{text}fields = {{ prompt = "q", target = "a" }}\nlimit = {limit}\n', "s", tmp_path)
    assert [str(one) for one in caught.value.problems] == [f"datasets[0].{problem}"]


@pytest.mark.parametrize(
    ("limit", "words"),
    [(5, "5"), (0.2, "0.2"), ("3:7", "3:7"), (SampleLimit(sample=4, seed=9), "a sample of 4, seed 9")],
    ids=str,
)
def test_a_limit_is_recorded_and_shown(tmp_path: Path, limit: Limit, words: str) -> None:
    """`missing-problems-assert`: in the plan, beside all rows there are; report.md, report.json and leaderboard.csv are
    marked with it.
    """
    path = file_of(tmp_path, "jsonl")
    work = WorkDir(tmp_path / "work")
    suite = Suite(
        base_dir=str(tmp_path), models=(ModelConfig(abbr="m", type="rule"),), datasets=(dataset(path, limit),)
    )
    (planned,) = make_plan(work, suite, b"", ManualClock()).datasets
    docs = 5 if limit == 5 else 4
    assert (planned.docs, planned.rows, planned.limit) == (docs, ROWS, limit)
    report = read_report(work)
    told: dict[str, Any] = json.loads(encode_record(report))
    assert [(one["docs"], one["rows"]) for one in told["limited"]] == [(docs, ROWS)]
    text = markdown(report)
    assert f"- d: {docs} of {ROWS} docs (limit {words})" in text
    assert f"| d ({docs}/{ROWS}) |" in text
    (row,) = csv.DictReader(io.StringIO(leaderboard_csv(report)))
    assert (row["limit"], row["rows"]) == (words, str(ROWS))


def test_without_a_limit_nothing_is_marked(tmp_path: Path) -> None:
    """And the rows aren't counted a second time."""
    path = file_of(tmp_path, "jsonl")
    work = WorkDir(tmp_path / "work")
    models = (ModelConfig(abbr="m", type="rule"),)
    suite = Suite(base_dir=str(tmp_path), models=models, datasets=(dataset(path, None),))
    (planned,) = make_plan(work, suite, b"", ManualClock()).datasets
    assert (planned.docs, planned.rows, planned.limit) == (ROWS, None, None)
    assert read_report(work).limited == ()
