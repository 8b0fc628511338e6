"""Files of answers that were made elsewhere, as they are read, and TOML as it is written."""

from __future__ import annotations

import datetime
import gzip
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalctl import toml
from evalctl.elsewhere import FileFormat, Row, form_of, read_answers
from shared.errors import SuiteError

PLAIN = [{"task_id": "a", "text": "1"}, {"doc_id": 1, "output": None}, {"task_id": 7, "response": "", "repeat": 2}]
LM_EVAL = [
    {"doc_id": 3, "target": "t", "resps": [["1", "2"]], "filtered_resps": ["x"], "filter": "none"},
    {"doc_id": 3, "target": "t", "resps": [["1", "2"]], "filtered_resps": ["y"], "filter": "strict-match"},
    {"doc_id": 0, "target": 4, "resps": [["3"]], "filtered_resps": ["z"], "filter": "none"},
]
OPENCOMPASS = {
    "0": {"origin_prompt": [{"role": "HUMAN"}], "prediction": "1", "gold": "g"},
    "2": {"prediction": ["2", "3"]},
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    return path


def read(path: Path, form: FileFormat | None = None) -> tuple[FileFormat, list[tuple[Any, ...]]]:
    told, rows = read_answers(path, form)
    return told, [(row.task_id, row.doc_id, row.repeat, text_of(row), row.gold) for row in rows]


def text_of(row: Row) -> str | None:
    return row.generation.text if row.generation is not None else None


def faults(path: Path, form: FileFormat | None = None) -> list[str]:
    with pytest.raises(SuiteError) as error:
        read_answers(path, form)
    return [str(problem).replace(f"{path.parent}/", "") for problem in error.value.problems]


def test_three_forms(tmp_path: Path) -> None:
    """Each is told by its content, and gives whose answer it is, which sample, its text, and what it has as right."""
    assert read(write(tmp_path / "a.json", *PLAIN)) == (
        "plain",
        [("a", None, None, "1", None), (None, 1, None, None, None), ("7", None, 2, "", None)],
    )
    # The second filter holds the same answers once more; what filters made of them isn't looked at.
    assert read(write(tmp_path / "b", *LM_EVAL)) == (
        "lm-eval",
        [(None, 3, None, "1", "t"), (None, 3, None, "2", "t"), (None, 0, None, "3", None)],
    )
    expected = ("opencompass", [(None, 0, None, "1", "g"), (None, 2, None, "2", None), (None, 2, None, "3", None)])
    assert read(write(tmp_path / "c", OPENCOMPASS)) == expected
    for text in (json.dumps(OPENCOMPASS, indent=4), json.dumps(OPENCOMPASS).replace("}, ", "},\n")):
        (tmp_path / "c").write_text(text)
        assert read(tmp_path / "c") == expected


def test_arrays_and_packed_files(tmp_path: Path) -> None:
    """A JSON array of rows is as good as lines, and `.gz` is unpacked, in every form."""
    for rows in (PLAIN, LM_EVAL):
        packed = tmp_path / "rows.gz"
        packed.write_bytes(gzip.compress(json.dumps(rows, indent=1).encode()))
        assert read(packed) == read(write(tmp_path / "rows.jsonl", *rows))
    (tmp_path / "oc.json.gz").write_bytes(gzip.compress(json.dumps(OPENCOMPASS, indent=1).encode()))
    assert form_of(tmp_path / "oc.json.gz") == "opencompass"
    assert len(read(tmp_path / "oc.json.gz")[1]) == 3


def test_what_is_told_wins(tmp_path: Path) -> None:
    """A form that was told is the one that is read, whatever the file looks like."""
    path = write(tmp_path / "a", {"doc_id": 0, "text": "plain", "resps": [["lm"]]})
    assert [row[3] for row in read(path)[1]] == ["lm"]
    assert [row[3] for row in read(path, "plain")[1]] == ["plain"]
    assert all("expected a position" in fault for fault in faults(path, "opencompass"))


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"resps": [["a"]]}, "doc_id: expected an integer >= 0, got null"),
        ({"doc_id": True, "resps": [["a"]]}, "doc_id: expected an integer >= 0, got true"),
        ({"doc_id": 0, "resps": []}, "expected an array of the requests' answers"),
        ({"doc_id": 0, "resps": [[]]}, "holds no answer"),
        ({"doc_id": 0, "resps": [[["-1.5", "False"]], [["-0.5", "True"]]]}, "log-likelihoods"),
        ({"doc_id": 0, "resps": [[-1.5]]}, "log-likelihoods"),
    ],
)
def test_lm_eval_rows_without_texts(tmp_path: Path, row: dict[str, Any], fault: str) -> None:
    """What holds no generated text is refused with its line."""
    (told,) = faults(write(tmp_path / "a", {"doc_id": 1, "resps": [["ok"]]}, row))
    assert told.startswith("a:2: ")
    assert fault in told


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "a: holds no answers"),
        ("\n \n", "a: holds no answers"),
        ("[]", "a: holds no answers"),
        ("{}", "a:1: whose answer is it?"),
        ("nonsense", "a:1: not valid JSON"),
        ('{"0": {"prediction": null}}', 'a: "0": prediction: expected a string'),
        ('{"0": {"prediction": []}}', 'a: "0": prediction: expected a string'),
        ('{"0": {"prediction": "a"}, "x": 1}', "a:1: whose answer is it?"),
        ('{\n"0": {"prediction": "a"},\n"0": {"prediction": "b"}}', 'a: "0": this position is there twice'),
        ('{\n"0": {"prediction": "a"', "a: not usable JSON"),
        ("{\n" + '"a": [' * 100_000, "a: not usable JSON"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, fault: str) -> None:
    """Empty, torn and foreign files are refused in words."""
    (tmp_path / "a").write_text(text)
    assert faults(tmp_path / "a")[0].startswith(fault)


def test_many_faults_are_counted(tmp_path: Path) -> None:
    """The first 20 are told, and how many more there are."""
    told = faults(write(tmp_path / "a", *[{"doc_id": 0}] * 25))
    assert len(told) == 21
    assert told[-1] == "a: and 5 more"


SCALARS = st.none().map(lambda _: True) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(
    st.characters(exclude_categories=["Cs"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS | st.datetimes() | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), VALUES, max_size=4))
def test_toml_reads_back(table: dict[str, Any]) -> None:
    """Whatever a suite may hold is written so that it reads back as the same."""
    assert tomllib.loads(toml.document(table)) == table


def test_toml_is_one_line_a_key() -> None:
    """As people would read it, and no other kind of value."""
    table = {"a b": [1, {"c": "d\x7f\n"}], "at": datetime.date(2026, 11, 30)}
    assert toml.document(table) == '"a b" = [1, {c = "d\\u007f\\n"}]\nat = 2026-11-30\n'
    with pytest.raises(TypeError, match="TOML has no NoneType"):
        toml.document({"a": None})
