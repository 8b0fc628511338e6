"""The readers under test, each with sound files to begin from."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from evalctl.doctor.meeting import Word
from evalctl.doctor.mount import parse
from evalctl.elsewhere import read_answers
from evald.predictions import Predictions
from evald.results import PairResult
from evald.samples import SampleLine, find_sample
from evald.summary import _Headlines
from shared import claims, control
from shared.answers import AnswerIndex
from shared.clock import ManualClock
from shared.config import DatasetConfig, FieldMapping
from shared.heartbeat import HeartbeatReader
from shared.journal import read_rows
from shared.layout import WorkDir
from shared.plan import read_plan, read_planned_ids, read_planned_tasks
from shared.records import (
    Attempt,
    Command,
    EvalRun,
    EvalStatus,
    Heartbeat,
    InferStatus,
    Plan,
    PlanPair,
    PlanShard,
    Prediction,
    TaskSpec,
)
from shared.status import read_record
from shared.suite import asked_for, freeze, parse_suite, submitted_suite
from shared.tasks import read_tasks

TOML = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Reader:
    """seeds: sound files. path: where in a folder the reader looks. read: given the folder."""

    name: str
    seeds: tuple[bytes, ...]
    path: str
    read: Callable[[Path], object]


def sample(kind: type[msgspec.Struct]) -> bytes:
    """The one in its docstring."""
    text = inspect.getdoc(kind) or ""
    value, _ = json.JSONDecoder().raw_decode(text[text.index("{") :].replace("\n", " "))
    if "key" in value:
        value["key"] = "9f" * 32  # shortened there
    return msgspec.json.encode(value) + b"\n"


def _suites() -> tuple[bytes, ...]:
    text = b"""# sound
base_dir = "/"
paths = { d = "data/d.jsonl" }
[[models]]
abbr = "org/m:free"
type = "openai"
base_url = "http://127.0.0.1:1/v1"
headers = { X = "${KEY}" }
generation = { temperature = 0.0, stop = ["\\n"] }
max_workers = 4
[[datasets]]
abbr = "d"
path = "d.csv"
repeats = 2
limit = "1:20"
prompt = "{{ question }}"
fields = { target = "answer" }
post_process = [{ step = "regex", pattern = "(\\\\d+)" }, "lower"]
metric = ["exact_match", { metric = "bleu" }]
[[datasets]]
abbr = "e"
path = "e.jsonl"
[datasets.filters]
strict = ["strip"]
[eval]
watch_interval = 1.5
[[groups]]
name = "g"
datasets = ["d"]
"""
    return (text, *(path.read_bytes() for path in sorted(TOML.glob("*.toml"))))


def _records() -> list[Reader]:
    kinds = (Plan, InferStatus, EvalStatus, Heartbeat, Command, EvalRun, PairResult, SampleLine, TaskSpec, Attempt)
    return [
        Reader(kind.__name__, (sample(kind),), "record.json", lambda folder, kind=kind: _record(folder, kind))  # type: ignore[misc]
        for kind in (*kinds, Prediction, Word)
    ]


def _record(folder: Path, kind: type[Any]) -> None:
    read_record(folder / "record.json", kind)


def _tasks(name: str, **config: Any) -> Callable[[Path], object]:
    dataset = DatasetConfig(abbr="d", path=name, **config)
    return lambda folder: sum(1 for _ in read_tasks(dataset, folder / name))


MAPPED: dict[str, Any] = {
    "fields": FieldMapping(target="answer"),
    "prompt": "{{ question }}\n{{ row.question | upper }}",
    "target_regex": r"(\d+)",
    "metric": "exact_match",
}
TASKS = (
    sample(TaskSpec) + b'{"task_id":"b","messages":[{"role":"user","content":"x"}],"targets":["y"]}\n',
    b'{"task_id":"c","prompt":"p","choices":["a","b"],"gold":[0],"request_type":"multiple_choice","metric_name":"acc"}\n',
    b'\xef\xbb\xbf[{"task_id":"d","prompt":"p","targets":["t"]},\r\n{"task_id":"e","prompt":"p","targets":["t"]}]',
)
ROWS = (
    b'{"question":"q","answer":"#### 1,200"}\n\n{"question":"r","answer":18.0,"extra":[1,{"a":null}]}\n',
    b'[{"question":"q","answer":"3"},\n {"question":"r","answer":4}]\n',
)
CSV = (b'question,answer\nq,1\n"a ""b""\nc",22\n\n', b"\xef\xbb\xbfquestion,answer\r\nq,1\r\n")


def _beat(folder: Path) -> None:
    reader = HeartbeatReader(lambda: [folder / "infer_heartbeat"], ManualClock(), 60.0)
    reader.look()
    reader.silent_for()


def _claim(folder: Path) -> None:
    claims.owner(folder / "evald.lock")
    claims.held(folder / "evald.lock.owner")


COMMAND_ID = json.loads(sample(Command))["id"]


def _inbox(folder: Path) -> None:
    control.Inbox(WorkDir(folder), "3f2a", lambda *_: None).look()


def _journal(folder: Path) -> None:
    AnswerIndex([folder / "j.jsonl"], [folder / "p.jsonl"])


DIGEST = hashlib.sha256(sample(Prediction)).hexdigest()
PAIR = PlanPair(
    model="m",
    dataset="d",
    docs=1,
    instances=1,
    requests=1,
    digest="",
    shards=(PlanShard(stem="d", first=0, docs=1, requests=1),),
)


def _predictions(folder: Path) -> None:
    list(read_rows(WorkDir(folder).predictions("m", "d"), Prediction, lambda: None))
    rows = Predictions(WorkDir(folder), PAIR, (DIGEST,))
    try:
        doc = msgspec.json.decode(sample(Prediction))["doc_id"]
        rows.take(doc, 1, 1)
        rows.finish()
    finally:
        rows.close()


def _planned(folder: Path) -> None:
    work = WorkDir(folder)
    sum(1 for _ in read_planned_ids(work, "d"))
    sum(1 for _ in read_planned_tasks(work, "d"))


def _suite(folder: Path) -> None:
    data = submitted_suite(folder / "suite.toml")
    asked_for(data)
    try:
        parse_suite(data, "suite.toml", folder, {"KEY": "x"}, check_files=False)
    finally:
        freeze(data, folder)


def _scores(folder: Path) -> None:
    with ExitStack() as stack:
        sum(1 for _ in _Headlines(folder / "d.scores.jsonl", stack).until(1 << 40))


def _sample_log(folder: Path) -> None:
    find_sample(WorkDir(folder), "m", "d", "add-1")


def _answers(name: str) -> Callable[[Path], object]:
    return lambda folder: read_answers(folder / name)


def _mounts(folder: Path) -> None:
    parse((folder / "mountinfo").read_text("utf-8", "surrogateescape"))


ANSWERS = (
    b'{"task_id":"add-1","text":"12"}\n{"task_id":"b","text":null}\n',
    b'{"doc_id":0,"doc":{"q":"x"},"target":"12","arguments":[["p",{}]],"resps":[["12"]],"filtered_resps":["12"]}\n',
    b'{"0":{"origin_prompt":"p","prediction":"12","gold":"12"},"1":{"prediction":["a","b"]}}',
)
COMMAND = f"control/{COMMAND_ID}.json"
READERS = (
    *_records(),
    Reader("heartbeat", (sample(Heartbeat),), "infer_heartbeat", _beat),
    Reader("owner of a claim", (sample(claims.Owner),), "evald.lock.owner", _claim),
    Reader("control", (sample(Command),), COMMAND, _inbox),
    Reader("journal", (sample(Attempt) * 3,), "j.jsonl", _journal),
    Reader("merged predictions", (sample(Prediction) * 3,), "p.jsonl", _journal),
    Reader("predictions", (sample(Prediction), sample(Prediction) * 3), "predictions/m/d.jsonl", _predictions),
    Reader("plan", (sample(Plan),), "plan.json", lambda folder: read_plan(WorkDir(folder))),
    Reader("planned tasks", (sample(TaskSpec) * 3, *TASKS[:2]), "tasks/d.jsonl", _planned),
    Reader("suite", _suites(), "suite.toml", _suite),
    Reader("scores", (sample(EvalRun) * 3,), "d.scores.jsonl", _scores),
    Reader("sample log", (sample(SampleLine) * 2,), "results/m/d.samples.jsonl", _sample_log),
    Reader("tasks", TASKS, "d.jsonl", _tasks("d.jsonl", metric="exact_match")),
    Reader("rows of JSON lines", (*ROWS, *CSV), "d.jsonl", _tasks("d.jsonl", **MAPPED)),
    Reader("rows of JSON", ROWS, "d.json", _tasks("d.json", **MAPPED)),
    Reader("rows of CSV", CSV, "d.csv", _tasks("d.csv", **MAPPED)),
    Reader("rows of TSV", tuple(text.replace(b",", b"\t") for text in CSV), "d.tsv", _tasks("d.tsv", **MAPPED)),
    Reader("packed rows", tuple(map(gzip.compress, ROWS)), "d.jsonl.gz", _tasks("d.jsonl.gz", **MAPPED)),
    Reader("answers made elsewhere", ANSWERS, "a.jsonl", _answers("a.jsonl")),
    Reader("mounts", (Path("/proc/self/mountinfo").read_bytes(),), "mountinfo", _mounts),
)
