"""Files of tasks and of rows: what is read, what is refused, and with which words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.config import DatasetConfig, FieldMapping
from shared.errors import SuiteError
from shared.records import Example, GenerationSettings, Message, TaskSpec, encode_record
from shared.tasks import read_tasks
from shared.tasks.mapping import RowError, compile_template, text_of
from shared.tasks.native import TaskLine
from shared.vocabulary import STEPS

NATIVE = DatasetConfig(abbr="d", path="d.jsonl")
QA = FieldMapping(prompt="q", target="a")


def write(folder: Path, data: bytes | str, name: str = "d.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def mapped(path: Path, **options: Any) -> list[TaskSpec]:
    return list(read_tasks(DatasetConfig(abbr="d", path=path.name, **({"fields": QA} | options)), path))


def refused(path: Path, **options: Any) -> list[str]:
    """The problems of a file of plain rows, without the folder in front."""
    with pytest.raises(SuiteError) as caught:
        mapped(path, **options)
    return [str(problem).replace(f"{path.parent}/", "") for problem in caught.value.problems]


def refused_native(path: Path, dataset: DatasetConfig = NATIVE) -> list[str]:
    with pytest.raises(SuiteError) as caught:
        list(read_tasks(dataset, path))
    return [str(problem).replace(f"{path.parent}/", "") for problem in caught.value.problems]


def task_line(**changes: Any) -> bytes:
    return msgspec.json.encode({"task_id": "t", "prompt": "p", "targets": ["1"]} | changes) + b"\n"


# --- files of TaskSpec lines ------------------------------------------------------------------------------------------


def test_a_task_line_says_what_a_task_spec_says() -> None:
    """The form users write has exactly the fields of the record, so neither can drift from the other."""
    assert TaskLine.__struct_fields__ == TaskSpec.__struct_fields__


def test_task_lines_are_read_as_they_stand(tmp_path: Path) -> None:
    """Every field of a line arrives; what a line leaves out has the record's default."""
    path = write(
        tmp_path,
        b'{"schema":1,"task_id":"a","messages":[{"role":"user","content":"hi"}],"targets":["1","2"],'
        b'"metric_name":["f1","exact_match"],"post_process":"strip","category":"c",'
        b'"few_shot":[{"prompt":"x","target":"y"}],"generation":{"max_tokens":4,"temperature":0}}\n'
        b'{"task_id":"b","prompt":"p","targets":["1"]}',
    )
    assert list(read_tasks(NATIVE, path)) == [
        TaskSpec(
            task_id="a",
            messages=(Message("user", "hi"),),
            targets=("1", "2"),
            metric_name=("f1", "exact_match"),
            post_process="strip",
            category="c",
            few_shot=(Example("x", "y"),),
            generation=GenerationSettings(max_tokens=4, temperature=0.0),
        ),
        TaskSpec(task_id="b", prompt="p", targets=("1",)),
    ]


def test_a_task_wins_over_its_dataset(tmp_path: Path) -> None:
    """The dataset's word holds where the line is silent, also when the line names just the default."""
    dataset = DatasetConfig(
        abbr="d",
        path="d.jsonl",
        metric="f1",
        post_process="lower",
        category="all",
        few_shot=(Example("x", "y"),),
        generation=GenerationSettings(temperature=0.5, max_tokens=9),
    )
    own = {"metric_name": "exact_match", "post_process": "none", "category": "", "few_shot": []}
    path = write(tmp_path, task_line() + task_line(task_id="u", generation={"max_tokens": 1}, **own))
    assert list(read_tasks(dataset, path)) == [
        TaskSpec(
            task_id="t",
            prompt="p",
            targets=("1",),
            metric_name="f1",
            post_process="lower",
            category="all",
            few_shot=(Example("x", "y"),),
            generation=GenerationSettings(temperature=0.5, max_tokens=9),
        ),
        TaskSpec(task_id="u", prompt="p", targets=("1",), generation=GenerationSettings(temperature=0.5, max_tokens=1)),
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"promt": "x"}, ["d.jsonl:1: promt: unknown key; did you mean prompt?"]),
        ({"targets": "1"}, ['d.jsonl:1: targets: expected an array of strings, got "1"']),
        ({"targets": [1]}, ["d.jsonl:1: targets[0]: expected a string, got 1; quote it"]),
        ({"targets": []}, ["d.jsonl:1: targets: expected at least one for exact_match, got none"]),
        ({"targets": ["1", " "]}, ["d.jsonl:1: targets[1]: is empty"]),
        ({"prompt": None}, ["d.jsonl:1: expected exactly one of prompt and messages, got neither"]),
        ({"prompt": "\n"}, ["d.jsonl:1: prompt: is empty"]),
        (
            {"messages": [{"role": "user", "content": "x"}]},
            ["d.jsonl:1: expected exactly one of prompt and messages, got both"],
        ),
        ({"prompt": None, "messages": []}, ["d.jsonl:1: messages: hold no text"]),
        (
            {"messages": [{"role": "bot", "content": "x"}]},
            ['d.jsonl:1: messages[0].role: expected one of "assistant", "system", "user", got "bot"'],
        ),
        ({"task_id": ""}, ["d.jsonl:1: task_id: is empty"]),
        ({"task_id": 7}, ["d.jsonl:1: task_id: expected a string, got 7; quote it"]),
        (
            {"metric_name": "exactmatch", "post_process": "xyz"},
            [
                'd.jsonl:1: metric_name: unknown "exactmatch"; did you mean exact_match?',
                f'd.jsonl:1: post_process: unknown "xyz"; known: {", ".join(sorted(STEPS))}',
            ],
        ),
        (
            {"post_process": ["strip", {"step": "regex", "pattern": "(", "take": "first"}]},
            ["d.jsonl:1: post_process[1]: pattern: isn't a pattern that RE2 knows: missing ): ("],
        ),
        (
            {"post_process": {"step": "regex", "pattern": "x", "take": "second"}},
            ['d.jsonl:1: post_process.take: expected one of "first", "last", got "second"'],
        ),
        ({"metric_name": []}, ["d.jsonl:1: metric_name: expected at least one, got none"]),
        ({"metric_name": ["f1", "f1"]}, ["d.jsonl:1: metric_name[1]: f1 is named twice: give one of them a `label`"]),
        (
            {"generation": {"temperature": -1, "top_p": 2, "max_tokens": 0, "stop": []}},
            [
                "d.jsonl:1: generation.temperature: expected a number >= 0, got -1",
                "d.jsonl:1: generation.top_p: expected a number from 0 to 1, got 2",
                "d.jsonl:1: generation.max_tokens: expected an integer >= 1, got 0",
                "d.jsonl:1: generation.stop: expected an array of strings of at least 1 item, got 0 items",
            ],
        ),
        (
            {"targets": ["12", "twelve"], "post_process": "last_number"},
            ["d.jsonl:1: targets[1]: post_process last_number needs a number, got 'twelve'"],
        ),
        ({"schema": 2}, ["d.jsonl:1: schema: this program reads schema 1, got 2"]),
    ],
)
def test_a_wrong_task_line_is_refused_with_all_that_is_wrong(
    tmp_path: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    """File, line, field, what was expected: before any request is sent."""
    assert refused_native(write(tmp_path, task_line(**changes))) == expected


def test_a_dataset_wide_post_process_is_checked_against_the_targets(tmp_path: Path) -> None:
    """A numeric post_process that the suite gives needs numbers in the file's targets too."""
    dataset = DatasetConfig(abbr="d", path="d.jsonl", post_process="gsm8k")
    assert refused_native(write(tmp_path, task_line(targets=["no"])), dataset) == [
        "d.jsonl:1: targets[0]: post_process gsm8k needs a number, got 'no'"
    ]


def test_equal_ids_are_refused_with_both_lines(tmp_path: Path) -> None:
    """json-array-not-jsonl (f): a duplicate id names the line it stands on and the one it stood on first."""
    path = write(tmp_path, task_line() + b"\n" + task_line(task_id="u") + task_line() + task_line())
    assert refused_native(path) == [
        'd.jsonl:4: task_id "t" is already on line 1',
        'd.jsonl:5: task_id "t" is already on line 1',
    ]
    one_line = write(tmp_path, b"[" + task_line().strip() + b"," + task_line().strip() + b"]")
    assert refused_native(one_line) == ['d.jsonl:1: task_id "t" is already on line 1']


def test_of_many_problems_twenty_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    """A file that is wrong throughout doesn't fill the screen."""
    found = refused_native(write(tmp_path, b"x\n" * 27))
    assert len(found) == 21
    assert found[19] == "d.jsonl:20: not valid JSON: Expecting value at column 1"
    assert found[20] == "d.jsonl: and 7 more"


def test_no_task_comes_after_a_problem(tmp_path: Path) -> None:
    """What was given out before stays right; the stream ends with the error."""
    path = write(tmp_path, task_line() + b"x\n" + task_line(task_id="u"))
    stream = read_tasks(NATIVE, path)
    assert next(stream).task_id == "t"
    with pytest.raises(SuiteError, match=r"d.jsonl:2"):
        next(stream)


def test_limit_takes_the_first_rows_and_reads_no_further(tmp_path: Path) -> None:
    """What lies beyond the limit isn't looked at."""
    path = write(tmp_path, task_line() + b"\n" + task_line(task_id="u") + b"x\n")
    tasks = list(read_tasks(DatasetConfig(abbr="d", path="d.jsonl", limit=2), path))
    assert [task.task_id for task in tasks] == ["t", "u"]


@pytest.mark.parametrize("data", ["", "\n \n", "[]", "\ufeff"])
def test_a_file_without_tasks_is_refused(tmp_path: Path, data: str) -> None:
    """A score over nothing is no score."""
    assert refused_native(write(tmp_path, data)) == ["d.jsonl: holds no tasks"]


# --- JSON files -------------------------------------------------------------------------------------------------------


def test_json_lines_in_all_their_forms(tmp_path: Path) -> None:
    """json-array-not-jsonl (b), (c): a byte order mark, CRLF, blank lines and a missing last newline are no matter."""
    path = write(tmp_path, b'\xef\xbb\xbf{"q":"x","a":"1"}\r\n\r\n  \n{"q":"y","a":"2"}')
    assert [(task.task_id, task.prompt, task.targets) for task in mapped(path)] == [
        ("d-0", "x", ("1",)),
        ("d-1", "y", ("2",)),
    ]


@pytest.mark.parametrize("name", ["d.jsonl", "d.json"])
def test_an_array_and_lines_are_told_apart_by_content(tmp_path: Path, name: str) -> None:
    """json-array-not-jsonl (a): a JSON array is read as its elements, whatever the file is called."""
    array = write(tmp_path, b'\n[\n {"q":"x","a":"1"},\n\n {"q":"y",\n "a":"2"}, {"q":"z","a":"3"}]\n', name)
    assert [task.prompt for task in mapped(array)] == ["x", "y", "z"]
    lines = write(tmp_path, b'{"q":"x","a":"1"}\n{"q":"y","a":"2"}\n', name)
    assert [task.prompt for task in mapped(lines)] == ["x", "y"]


def test_an_array_knows_the_lines_of_its_elements(tmp_path: Path) -> None:
    """A bad element is named by the line that it begins on."""
    path = write(tmp_path, b'[\n {"q":"x","a":"1"},\n {"q":\n"y"}, 7,\n\n "caf\xe9",\n {"q":"z","a":"1"}]')
    assert refused(path) == [
        'd.jsonl:3: task d-1: target: no field "a"; the row has q',
        "d.jsonl:4: expected an object with named fields, got 7",
        "d.jsonl:6: not UTF-8: byte 0xE9 at column 5: save the file as UTF-8",
    ]


def test_a_broken_array_names_the_line(tmp_path: Path) -> None:
    """An array can't be read past its first fault; the fault has its line."""
    path = write(tmp_path, b'[\n{"q":"x","a":"1"},\n{"q":"y","a":"2"}\n{"q":"z"}]')
    assert refused(path) == ["d.jsonl:4: not a valid JSON array: Expecting ',' delimiter at column 1"]
    assert refused(write(tmp_path, b'[\n{"q":"x","a":"1"},\n')) == [
        "d.jsonl:3: not a valid JSON array: Expecting value at column 1"
    ]


def test_bad_lines_are_named_with_the_reason(tmp_path: Path) -> None:
    """json-array-not-jsonl (d), (e): file, line 17, and what is wrong there; the lines between are no matter."""
    good = b'{"q":"x","a":"1"}\n'
    path = write(
        tmp_path,
        good * 16
        + b'{"q":"x","a":\n'
        + good
        + b'{"q":"caf\xe9","a":"1"}\n'
        + b"[1]\n"
        + b'{"q":NaN,"a":"1"}\n'
        + b'{"q":"\\ud800","a":"1"}\n'
        + b'{"q":' * 5000
        + b"\n",
    )
    assert refused(path) == [
        "d.jsonl:17: not valid JSON: Expecting value at column 14",
        "d.jsonl:19: not UTF-8: byte 0xE9 at column 10: save the file as UTF-8",
        "d.jsonl:20: expected an object with named fields, got an array",
        "d.jsonl:21: not valid JSON: it holds NaN, an infinity, a number out of range or half of a surrogate pair",
        "d.jsonl:22: not valid JSON: it holds NaN, an infinity, a number out of range or half of a surrogate pair",
        "d.jsonl:23: not usable JSON: nested too deeply",
    ]


def test_gzip_is_unpacked_on_the_way(tmp_path: Path) -> None:
    """A packed file reads as its content; a damaged one says so."""
    data = gzip.compress(b'{"q":"x","a":"1"}\n' * 3, mtime=0)
    assert len(mapped(write(tmp_path, data, "d.jsonl.gz"))) == 3
    assert refused(write(tmp_path, data[:-9], "d.jsonl.gz")) == [
        "d.jsonl.gz: the gzip data is damaged: Compressed file ended before the end-of-stream marker was reached"
    ]
    assert refused(write(tmp_path, b"{}", "d.jsonl.gz")) == [
        "d.jsonl.gz: the gzip data is damaged: Not a gzipped file (b'{}')"
    ]


def test_a_file_that_cant_be_opened_is_a_problem_of_the_suite(tmp_path: Path) -> None:
    """Gone since the check, or a folder: said in the same way as any problem."""
    assert refused(tmp_path / "d.jsonl") == ["d.jsonl: can't be read: No such file or directory"]
    (tmp_path / "e.jsonl").mkdir()
    assert refused(tmp_path / "e.jsonl") == ["e.jsonl: can't be read: Is a directory"]


texts = st.text(st.characters(codec="utf-8"), max_size=40)
some_text = texts.filter(str.strip)


@given(prompt=some_text, target=some_text, task_id=texts.filter(bool), category=texts)
def test_any_text_survives_a_file_of_task_lines(
    tmp_path_factory: pytest.TempPathFactory, prompt: str, target: str, task_id: str, category: str
) -> None:
    """U+2028, U+0085, NUL, quotes: what was written is what is read."""
    task = TaskSpec(task_id=task_id, prompt=prompt, targets=(target,), category=category)
    data = encode_record(task) + b"\n"
    data += json.dumps({"task_id": task_id + "'", "prompt": prompt, "targets": [target]}, ensure_ascii=False).encode()
    path = write(tmp_path_factory.mktemp("t"), data)
    first, second = read_tasks(NATIVE, path)
    assert first == task
    assert (second.prompt, second.targets) == (prompt, (target,))


@given(question=some_text, answer=some_text)
def test_any_text_survives_a_mapping(tmp_path_factory: pytest.TempPathFactory, question: str, answer: str) -> None:
    """A field goes into the prompt as it is: braces, markup and line ends are text, not template."""
    row = json.dumps({"q": question, "a": answer}, ensure_ascii=False).encode()
    path = write(tmp_path_factory.mktemp("t"), row + b"\n" + row)
    for task in mapped(path, fields=FieldMapping(target="a"), prompt="<{{ q }}>\n"):
        assert task.prompt == f"<{question}>\n"
        assert task.targets == (answer,)


# --- CSV, TSV, Parquet ------------------------------------------------------------------------------------------------


def test_csv_with_a_header(tmp_path: Path) -> None:
    """Quotes, commas, line ends and U+2028 inside of fields, a byte order mark and CRLF are read as they are meant."""
    path = write(tmp_path, '\ufeffq, a\r\n"x, ""y""\nz\u2028w",1\r\n\r\nplain,2\r\n', "d.csv")
    assert [(task.prompt, task.targets) for task in mapped(path)] == [
        ('x, "y"\nz\u2028w', ("1",)),
        ("plain", ("2",)),
    ]


def test_csv_without_a_header_has_its_columns_named(tmp_path: Path) -> None:
    """With `columns` the first line is a row as any other."""
    path = write(tmp_path, "x,1\ny,2\n", "d.csv")
    assert [task.prompt for task in mapped(path, columns=("q", "a"))] == ["x", "y"]


def test_bad_csv_is_named_by_the_line_its_row_begins_on(tmp_path: Path) -> None:
    """Too few and too many fields are problems of their rows; what breaks the file's structure ends the reading."""
    path = write(tmp_path, 'q,a\n"x\ny",1\nz\nu,2,3\nv,"4" 5\nw,6\n', "d.csv")
    assert refused(path) == [
        "d.csv:4: expected 2 fields (q, a), got 1",
        "d.csv:5: expected 2 fields (q, a), got 3",
        "d.csv:6: not a valid row: ',' expected after '\"'",
    ]
    assert refused(write(tmp_path, 'q,a\n"x,1\n', "d.csv")) == ["d.csv:2: not a valid row: unexpected end of data"]
    assert refused(write(tmp_path, b"q,a\ncaf\xe9,1\n", "d.csv")) == [
        "d.csv:2: not UTF-8: byte 0xE9 at column 4: save the file as UTF-8"
    ]
    assert refused(write(tmp_path, "a,a\nx,1\n", "d.csv")) == [
        'd.csv:1: the header names "a" twice: for a file without a header, set `columns`'
    ]


def test_long_csv_fields_are_read(tmp_path: Path) -> None:
    """A context of a million characters is a normal field."""
    (task,) = mapped(write(tmp_path, f"q,a\n{'x' * 1_000_000},1\n", "d.csv"))
    assert len(task.prompt or "") == 1_000_000


def test_tsv_is_csv_with_tabs(tmp_path: Path) -> None:
    """Commas are text there."""
    (task,) = mapped(write(tmp_path, "q\ta\nx, y\t1\n", "d.tsv"))
    assert (task.prompt, task.targets) == ("x, y", ("1",))


def test_parquet_is_read_by_batches(tmp_path: Path) -> None:
    """Typed columns, lists and nested fields arrive; what is no Parquet says so."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "d.parquet"
    rows = [{"q": f"x{i}", "a": {"text": [str(i), f"{i}.0"]}} for i in range(3000)]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    tasks = mapped(path, fields=FieldMapping(prompt="q", target="a.text"))
    assert len(tasks) == 3000
    assert (tasks[-1].task_id, tasks[-1].prompt, tasks[-1].targets) == ("d-2999", "x2999", ("2999", "2999.0"))
    (text,) = refused(write(tmp_path, b"no parquet at all", "e.parquet"))
    assert text.startswith("e.parquet: can't be read as Parquet after row 0: ")


# --- mapping ----------------------------------------------------------------------------------------------------------


def test_fields_and_templates_make_tasks(tmp_path: Path) -> None:
    """Ids and categories from fields, a chat from templates, and the dataset's own settings on each task."""
    path = write(
        tmp_path,
        '{"id":7,"q":"2+2","a":4,"kind":"sum","Right Answer":"x"}\n{"id":8,"q":"1<2","a":true,"kind":null}\n',
    )
    tasks = mapped(
        path,
        fields=FieldMapping(target="a", task_id="id", category="kind"),
        messages=(Message("system", "Be brief."), Message("user", "{{ q }}? {{ row['Right Answer'] | default('-') }}")),
        metric=("f1", "exact_match"),
        post_process="lower",
        category="other",
        few_shot=(Example("1+1?", "2"),),
        generation=GenerationSettings(max_tokens=5),
    )
    common: dict[str, Any] = {
        "metric_name": ("f1", "exact_match"),
        "post_process": "lower",
        "few_shot": (Example("1+1?", "2"),),
        "generation": GenerationSettings(max_tokens=5),
    }
    assert tasks == [
        TaskSpec(
            task_id="7",
            messages=(Message("system", "Be brief."), Message("user", "2+2? x")),
            targets=("4",),
            category="sum",
            **common,
        ),
        TaskSpec(
            task_id="8",
            messages=(Message("system", "Be brief."), Message("user", "1<2? -")),
            targets=("true",),
            category="other",
            **common,
        ),
    ]


def test_a_row_that_gives_no_task_says_all_that_it_lacks(tmp_path: Path) -> None:
    """Misspelt names get the nearest one; null is neither a prompt nor a target."""
    path = write(tmp_path, '{"question":"x","answer":"1"}\n{"question":null,"answer":[]}\n')
    assert refused(path, fields=FieldMapping(target="answr", category="kind"), prompt="{{ questin }}") == [
        'd.jsonl:1: task d-0: fields.category: no field "kind"; the row has question, answer',
        "d.jsonl:1: task d-0: prompt: 'questin' is undefined; the row has question, answer",
        'd.jsonl:1: task d-0: target: no field "answr"; did you mean answer?',
        'd.jsonl:2: task d-1: fields.category: no field "kind"; the row has question, answer',
        "d.jsonl:2: task d-1: prompt: 'questin' is undefined; the row has question, answer",
        'd.jsonl:2: task d-1: target: no field "answr"; did you mean answer?',
    ]
    assert refused(path, fields=FieldMapping(target="answer"), prompt="{{ question }}") == [
        "d.jsonl:2: task d-1: prompt: a value of the template is null: give it a default, as in {{ field or '-' }}"
    ]
    assert refused(path, fields=FieldMapping(target="answer"), prompt="x") == [
        "d.jsonl:2: task d-1: targets: expected at least one for exact_match, got none"
    ]
    assert refused(path, fields=FieldMapping(target="answer", prompt="question")) == [
        "d.jsonl:2: task d-1: prompt: expected a string, number or boolean, got null"
    ]


def test_target_regex_takes_the_last_match(tmp_path: Path) -> None:
    """gsm8k-gold-unparsed, gsm8k-negative-gold: calculator marks, spaces, CRLF, minus signs; the last mark counts."""
    answers = [
        "He has <<80000+50000=130000>>130000\n#### 70000",
        "x\r\n####  70000 \r\n",
        "from 2 to -3\n#### -3",
        "#### -1,234.5",
        "#### 1\n#### 2",
    ]
    path = write(tmp_path, "".join(json.dumps({"q": "x", "a": answer}) + "\n" for answer in answers))
    tasks = mapped(path, target_regex=r"####\s*(.+)", post_process="gsm8k")
    assert [task.targets for task in tasks] == [("70000",), ("70000",), ("-3",), ("-1,234.5",), ("2",)]
    assert mapped(path, target_regex=r"[\d.]+")[3].targets == ("234.5",)


def test_a_target_without_a_match_is_refused_with_its_task(tmp_path: Path) -> None:
    """gsm8k-gold-unparsed: a gold without its mark is a fault of the file, not a wrong answer later."""
    path = write(tmp_path, '{"q":"x","a":"#### 1","id":"good"}\n{"q":"y","a":"the answer is 2","id":"bad-gold"}\n')
    fields = FieldMapping(prompt="q", target="a", task_id="id")
    assert refused(path, fields=fields, target_regex=r"####\s*(.+)") == [
        "d.jsonl:2: task bad-gold: target: no match for target_regex '####\\\\s*(.+)' in \"the answer is 2\""
    ]


def test_a_label_means_one_thing_in_a_dataset(tmp_path: Path) -> None:
    """Scores under one label are averaged: of another metric, or with other parameters, they need another."""
    specs: list[Any] = [
        "f1", {"metric": "f1", "label": "f1"}, ["exact_match", {"metric": "f1", "normaliser": "squad"}],
        {"metric": "bleu", "label": "exact_match"}, {"metric": "f1", "normaliser": "squad", "label": "squad"}, "f1",
    ]  # fmt: skip
    lines = b"".join(task_line(task_id=str(n), metric_name=spec) for n, spec in enumerate(specs))
    said = "is another metric, or has other parameters, on line"
    assert refused_native(write(tmp_path, lines)) == [
        f'd.jsonl:3: metric_name: "f1" {said} 1: give one of them a `label`',
        f'd.jsonl:4: metric_name: "exact_match" {said} 3: give one of them a `label`',
    ]
    sound = b"".join(task_line(task_id=str(n), metric_name=specs[n]) for n in (0, 1, 4, 5))
    assert len(list(read_tasks(NATIVE, write(tmp_path, sound)))) == 4


def test_ids_from_a_field_must_differ(tmp_path: Path) -> None:
    """They are what scores are keyed by."""
    path = write(tmp_path, '{"q":"x","a":"1","id":1}\n{"q":"y","a":"2","id":"1"}\n')
    assert refused(path, fields=FieldMapping(prompt="q", target="a", task_id="id")) == [
        'd.jsonl:2: task_id "1" is already on line 1'
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (18, "18"), (18.0, "18"), (-0.5, "-0.5"), (True, "true"), (False, "false"), (10**20, "1" + "0" * 20)],
)
def test_single_values_have_one_text(value: Any, text: str) -> None:
    """So a target is the same whether the file holds 18, 18.0 or "18"."""
    assert text_of(value) == text


@pytest.mark.parametrize("value", [None, {}, [], float("nan"), b"x"])
def test_what_is_no_single_value_has_no_text(value: Any) -> None:
    """A null that turned into the word "None" would be a prompt nobody wrote."""
    with pytest.raises(RowError, match=r"^expected a "):
        text_of(value)


def test_templates_are_kept_in() -> None:
    """No way out of the sandbox, no output without end, nothing random."""
    with pytest.raises(RowError, match=r"^the template failed: SecurityError"):
        compile_template("{{ ''.__class__.__mro__[1].__subclasses__() }}")({})
    with pytest.raises(RowError, match=r"^the template gives more than 4,000,000 characters$"):
        compile_template("{% for i in range(90000) %}{{ q }}{% endfor %}")({"q": "x" * 100})
    with pytest.raises(RowError, match="'cycler' is undefined"):
        compile_template("{{ cycler }}")({"q": "x"})
    with pytest.raises(RowError, match=r"^the template failed: ZeroDivisionError"):
        compile_template("{{ 1 // n }}")({"n": 0})
    assert compile_template("{{ range }}{{ row.q }}")({"range": "own", "q": "x"}) == "ownx"


# --- real files -------------------------------------------------------------------------------------------------------


def test_gsm8k_is_read_whole(evaldata: Path) -> None:
    """The 1319 tasks of the public test file, with numbers for targets."""
    dataset = DatasetConfig(
        abbr="gsm8k",
        path="test.jsonl",
        fields=FieldMapping(target="answer"),
        prompt="{{ question }}\nEnd with #### and the number.",
        target_regex=r"####\s*(.+)",
        post_process="gsm8k",
    )
    tasks = list(read_tasks(dataset, evaldata / "gsm8k/test.jsonl"))
    assert len(tasks) == 1319
    assert tasks[0].targets == ("18",)
    assert (tasks[0].prompt or "").startswith("Janet\u2019s ducks lay 16 eggs per day.")
    assert (tasks[0].prompt or "").endswith("\nEnd with #### and the number.")
    assert (tasks[1318].task_id, tasks[1318].targets) == ("gsm8k-1318", ("14",))
    assert all(task.targets[0].replace(",", "").lstrip("-").isdigit() for task in tasks)


def test_mgsm_is_read_without_a_header(evaldata: Path) -> None:
    """Tab-separated, no header, Chinese text: 250 tasks."""
    dataset = DatasetConfig(abbr="mgsm", path="x.tsv", columns=("q", "a"), fields=QA, post_process="last_number")
    tasks = list(read_tasks(dataset, evaldata / "mgsm/mgsm_zh.tsv"))
    assert len(tasks) == 250
    assert tasks[0].targets == ("18",)


def test_mmlu_is_read_with_its_header(evaldata: Path) -> None:
    """Choices in columns, the answer as an index into them."""
    prompt = "{{ question }}\nA. {{ choice0 }}\nB. {{ choice1 }}\nC. {{ choice2 }}\nD. {{ choice3 }}"
    for path in sorted((evaldata / "mmlu/test").glob("*.csv")):
        dataset = DatasetConfig(abbr="mmlu", path=path.name, fields=FieldMapping(target="answer"), prompt=prompt)
        tasks = list(read_tasks(dataset, path))
        assert len(tasks) >= 100
        assert {target for task in tasks for target in task.targets} == {"0", "1", "2", "3"}


def test_choices_in_a_column_each(tmp_path: Path) -> None:
    """As MMLU's files have them; the right one by its position or its letter. Where a text is asked for, the letter is
    the target.
    """
    path = write(tmp_path, "q,a,b,c,right\nBlue?,sky,sun,1,0\nHot?,ice,sun,2,B\n", "d.csv")
    fields = FieldMapping(prompt="q", choices=("a", "b", "c"), gold="right")
    chosen = mapped(path, fields=fields, request_type="multiple_choice")
    assert [(task.choices, task.gold, task.targets) for task in chosen] == [
        (("sky", "sun", "1"), (0,), ()),
        (("ice", "sun", "2"), (1,), ()),
    ]
    written = mapped(path, fields=FieldMapping(prompt="q", gold="right"))
    assert [(task.choices, task.gold, task.targets) for task in written] == [((), (), ("A",)), ((), (), ("B",))]
    letters = FieldMapping(prompt="q", gold="right")
    named = mapped(path, fields=letters, choices=("A", "{{ b }}!"), request_type="multiple_choice")
    assert [(task.choices, task.gold) for task in named] == [(("A", "sun!"), (0,)), (("A", "sun!"), (1,))]
    (fault, *_) = refused(path, fields=letters, choices=("A", "{{ z }}"), request_type="multiple_choice")
    assert "choices: 'z' is undefined" in fault
    wrong = FieldMapping(prompt="q", choices=("a", "z"), gold="right")
    assert 'no field "z"' in refused(path, fields=wrong, request_type="multiple_choice")[0]
    (fault,) = refused(write(tmp_path, "q,right\nx,26\n", "e.csv"), fields=FieldMapping(prompt="q", gold="right"))
    assert "position 26 has no letter" in fault
