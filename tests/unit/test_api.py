"""evalctl.api: models and tasks given as Python values, asked and scored in this process."""

from __future__ import annotations

import doctest
import json
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import evalctl
from evalctl import api, infer, run_eval
from evalctl.api import EvalReport
from evald.leaderboard import Report
from inferd.adapters.builtin import BiasedAdapter, NoisyAdapter, RuleAdapter
from shared import claims
from shared.config import DatasetConfig, InferConfig, ModelConfig
from shared.errors import Fatal, Retryable, SuiteError, UsageError
from shared.layout import WorkDir
from shared.records import Attempt, Generation, Prediction, Prompt, TaskSpec
from tests.harness import journal, openai, predictions, task
from tests.server import FakeServer

QUICK = InferConfig(backoff_base=0.01, backoff_max=0.02, commit_interval=0.001)


def tasks(count: int = 20, **more: Any) -> list[dict[str, Any]]:
    return [task(number, category="even" if number % 2 == 0 else "odd", **more) for number in range(count)]


class Recorder:
    """Right, and keeps the task_id and the thread of each call. does: what happens instead, by task_id."""

    def __init__(self, model_id: str = "mine", does: dict[str, Callable[[], object]] | None = None) -> None:
        self.model_id = model_id
        self.calls: list[str] = []
        self.threads: set[threading.Thread] = set()
        self.most = 0
        self._does = does or {}
        self._now = 0
        self._lock = threading.Lock()

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        with self._lock:
            self.calls.append(task.task_id)
            self.threads.add(threading.current_thread())
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            if task.task_id in self._does:
                self._does[task.task_id]()
            return Generation(text=task.targets[0], finish_reason="stop")
        finally:
            with self._lock:
                self._now -= 1


def raising(error: BaseException) -> Callable[[], object]:
    def raise_it() -> None:
        raise error

    return raise_it


def text_of(row: Prediction) -> str | None:
    return row.generation.text if row.generation is not None else None


def all_texts(rows: list[Prediction]) -> list[str | None]:
    return [text_of(row) for row in rows]


# --- run_eval ---------------------------------------------------------------------------------------------------------


def three() -> list[Any]:
    return [RuleAdapter("rule"), NoisyAdapter("noisy"), BiasedAdapter("biased")]


def timeless(report: EvalReport) -> Report:
    summary = msgspec.structs.replace(report.summary, wall_seconds=0.0)
    return msgspec.structs.replace(report.report, summary=summary)


def choice(number: int) -> dict[str, Any]:
    kind = {"request_type": "multiple_choice", "choices": ["a", "b", "c"], "gold": [number % 3]}
    return {"task_id": f"c{number}", "prompt": "?", **kind}


def test_parallel_is_sequential(tmp_path: Path) -> None:
    """The same records, report and files to the byte; of predictions, but for how long each took."""
    asked = {"sums": tasks(40), "likely": [choice(number) for number in range(8)]}
    works = [WorkDir(tmp_path / way) for way in ("parallel", "sequential")]
    one, other = (run_eval(three(), asked, parallel=way == 0, repeats=2, work_dir=works[way].root) for way in range(2))
    assert one.runs == other.runs
    assert len(one.runs) == 3 * (40 + 8)
    assert timeless(one) == timeless(other)
    assert one.complete
    for model in ("rule", "noisy", "biased"):
        for dataset in asked:
            rows = [predictions(work, model, dataset) for work in works]
            kept = [[msgspec.structs.replace(row, latency=0.0) for row in some] for some in rows]
            assert kept[0] == kept[1]
            assert len({work.scores(model, dataset).read_bytes() for work in works}) == 1
            results = [json.loads(work.result(model, dataset).read_bytes()) for work in works]
            for result in results:  # of the predictions, latencies and all
                del result["content"], result["predictions_digest"]
            assert results[0] == results[1]


def test_sequential_pins_the_order() -> None:
    """One request at a time, on the caller's thread, pair by pair and in the order of the tasks."""
    models = [Recorder("a"), Recorder("b")]
    run_eval(models, {"first": tasks(9), "second": tasks(5)}, parallel=False)
    for model in models:
        assert model.calls == [f"t{n}" for n in (*range(9), *range(5))]
        assert model.threads == {threading.current_thread()}
        assert model.most == 1


def test_parallel_holds_to_max_workers() -> None:
    together = threading.Barrier(4, timeout=20)
    model = Recorder(does={f"t{n}": together.wait for n in range(4)})
    report = run_eval(model, tasks(24), max_workers=4)
    assert report.complete
    assert model.most == 4
    assert threading.current_thread() not in model.threads


def test_the_report_holds_all_of_it() -> None:
    report = run_eval(three(), tasks(60))
    assert [standing.rank for standing in report.leaderboard] == [1, 2, 3]
    assert report.leaderboard[0].model == "rule"
    assert len(report.pairwise) == 3
    assert set(report.calibration) == {"rule", "noisy", "biased"}
    assert (report.summary.docs, report.summary.pairs_scored, report.errors) == (180, 3, ())
    assert [run.doc_id for run in report.scores["noisy", "tasks"]] == list(range(60))
    assert report._repr_markdown_() == report.markdown()
    assert "| noisy |" in report.markdown()
    assert report.work_dir is None


def test_what_an_adapter_raises_is_an_outcome() -> None:
    """The pair has no score, the report says why, and the other model has its own."""
    report = run_eval([Recorder(does={"t3": raising(ValueError("boom"))}), RuleAdapter("rule")], tasks())
    assert set(report.scores) == {("rule", "tasks")}
    assert not report.complete
    cell = {standing.model: standing.datasets["tasks"] for standing in report.leaderboard}["mine"]
    assert "boom" in cell.reason
    assert report.summary.attempts == 40


def test_some_errors_may_be_allowed() -> None:
    model = Recorder(does={"t3": raising(ValueError("boom"))})
    report = run_eval(model, tasks(), infer=InferConfig(max_error_rate=0.1))
    (standing,) = report.leaderboard
    assert (standing.n_scored, standing.n_docs, standing.score) == (19, 20, 1.0)
    assert report.runs[3].score is None


def test_tasks_come_in_every_form(tmp_path: Path) -> None:
    """TaskSpecs, mappings, a generator, a file, a dataset as in a suite, and several by name: the same scores."""
    rows = tasks()
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    forms: list[Any] = [
        rows,
        [msgspec.convert(row, TaskSpec) for row in rows],
        (row for row in rows),
        path,
        str(path),
        DatasetConfig(abbr="sums", path=str(path)),
        [DatasetConfig(abbr="sums", path=os.path.relpath(path))],
        {"sums": rows},
    ]
    found = [run_eval(NoisyAdapter("noisy"), form) for form in forms]
    assert all(report.runs == found[0].runs for report in found)
    assert [next(iter(report.scores))[1] for report in found] == ["tasks"] * 3 + ["sums"] * 5


def test_models_come_as_in_a_suite(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP, with a key from the environment; what is asked is told by the server."""
    monkeypatch.setenv("SOME_KEY", "sk-0123456789abcdef0123")
    model = ModelConfig(**openai(server.url("d2"), api_key_env="SOME_KEY", generation={"max_tokens": 5}))
    report = run_eval(msgspec.convert(msgspec.to_builtins(model), ModelConfig), tasks())
    assert report.complete
    assert report.leaderboard[0].score == 1.0
    assert server.stats()["posts"] == 20


def test_a_work_dir_goes_on(tmp_path: Path) -> None:
    """The second call asks nothing; a new `version` of the adapter asks all again; more tasks ask what is new."""
    work = tmp_path / "work"
    first, same, more, changed = Recorder(), Recorder(), Recorder(), Recorder()
    changed.version = "2"  # type: ignore[attr-defined]  # as an adapter may have
    reports = [run_eval(model, tasks(count), work_dir=work) for model, count in [(first, 20), (same, 20), (more, 22)]]
    assert [len(model.calls) for model in (first, same, more)] == [20, 0, 2]
    assert reports[0].runs == reports[1].runs == reports[2].runs[:20]
    assert reports[0].work_dir == work
    run_eval(changed, tasks(20), work_dir=work)
    assert len(changed.calls) == 20


def test_parameters_of_built_in_adapters_are_part_of_the_key(tmp_path: Path) -> None:
    reports = [
        run_eval(model, tasks(40), work_dir=tmp_path / "work")
        for model in (NoisyAdapter("n", 0.1), NoisyAdapter("n", 0.9), BiasedAdapter("n", ["even"]), BiasedAdapter("n"))
    ]
    assert len({msgspec.json.encode(report.runs) for report in reports}) == 4


BAD: list[tuple[Any, Any, str]] = [
    (object(), tasks(), "object is no adapter: it needs `model_id`"),
    (RuleAdapter, tasks(), "type is no adapter"),
    ([RuleAdapter("a"), NoisyAdapter("a")], tasks(), "a"),
    (RuleAdapter("a"), tasks()[0], "put it into a list"),
    (RuleAdapter("a"), ["one"], r"tasks\[0\]: expected a TaskSpec or a mapping, got str"),
    (RuleAdapter("a"), [], "holds no tasks"),
    (RuleAdapter("a"), [*tasks(3), *tasks(1)], r"tasks\.jsonl:4: .*already on line 1"),
    (RuleAdapter("a"), [{"task_id": "x", "promt": "?", "targets": ["1"]}], "promt"),
    (RuleAdapter("a"), "nowhere.jsonl", "nowhere.jsonl"),
    (ModelConfig(abbr="a"), tasks(), "base_url"),
    (ModelConfig(abbr="a", base_url="http://127.0.0.1:1/v1", extra_body={"x": None}), tasks(), "TOML has no NoneType"),
    (
        Recorder("a"),
        [task(0, request_type="loglikelihood", metric_name="acc")],
        "Recorder has no method `loglikelihood",
    ),
    ([], tasks(), "models"),
]


@pytest.mark.parametrize(("model", "some", "told"), BAD)
def test_what_cannot_be_asked_is_told(model: Any, some: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises((SuiteError, UsageError), match=told):
        run_eval(model, some)


def test_a_work_dir_in_use_is_refused(tmp_path: Path) -> None:
    """By an inferd, or an evald: nothing is asked."""
    work = WorkDir(tmp_path / "work")
    model = Recorder()
    for name, path in (("inferd", work.inferd_claim()), ("evald", work.evald_claim)):
        claim = claims.take(path)
        assert claim is not None
        with claim, pytest.raises(UsageError, match=f"{name} is at work here"):
            run_eval(model, tasks(), work_dir=work.root)
    assert model.calls == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), BdbQuit()], ids=["Ctrl-C", "the debugger was left"])
def test_an_interrupt_keeps_what_was_answered(interrupt: BaseException, tmp_path: Path) -> None:
    """Inside an adapter it is no outcome of it: the call ends, and the next one asks what is missing."""
    stopped, rest = Recorder(does={"t7": raising(interrupt)}), Recorder()
    with pytest.raises(KeyboardInterrupt):
        run_eval(stopped, tasks(), parallel=False, work_dir=tmp_path)
    assert stopped.calls == [f"t{n}" for n in range(8)]
    report = run_eval(rest, tasks(), parallel=False, work_dir=tmp_path)
    assert rest.calls == [f"t{n}" for n in range(7, 20)]
    assert report.complete


# --- leaving nothing --------------------------------------------------------------------------------------------------


def settled(look: Callable[[], object], wanted: object) -> bool:
    """A thread that was told to end takes a moment."""
    deadline = time.monotonic() + 10
    while look() != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return look() == wanted


def test_nothing_is_left(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the main thread: no thread, open file, process, signal handler, temporary folder or log handler stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = ModelConfig(**openai(server.url()))
    got: list[object] = []

    def work() -> None:
        for parallel in (True, False):
            got.append(run_eval([RuleAdapter("rule"), model], tasks(6), parallel=parallel))
            got.append(infer(model, tasks(6), max_infer_workers=4 if parallel else 1))

    def in_a_thread() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    in_a_thread()  # what is made once a process is made now
    process = psutil.Process()
    before = (set(threading.enumerate()), process.num_fds(), process.children())
    state = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), logging.getLogger().handlers[:])
    in_a_thread()
    assert len(got) == 8
    assert settled(lambda: (set(threading.enumerate()), process.num_fds(), process.children()), before)
    assert state == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), logging.getLogger().handlers)
    assert list(tmp_path.iterdir()) == []


def test_what_there_is_to_tell_goes_to_one_logger(caplog: pytest.LogCaptureFixture) -> None:
    """With the traceback of what an adapter raised."""
    with caplog.at_level(logging.DEBUG, "tandem"):
        run_eval(Recorder(does={"t3": raising(ValueError("boom"))}), tasks(), parallel=False)
    assert {record.name for record in caplog.records} == {"tandem"}
    assert "in raise_it" in caplog.text
    assert "pair failed" in caplog.text


# --- infer ------------------------------------------------------------------------------------------------------------


def test_answers_come_in_order() -> None:
    together = threading.Barrier(8, timeout=20)
    model = Recorder(does={f"t{n}": together.wait for n in range(8)})
    told: list[tuple[int, int, bool]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total, threading.current_thread() is threading.main_thread()))

    rows = infer(model, tasks(24), max_infer_workers=8, repeats=2, progress=progress)
    assert [(row.doc_id, row.repeat) for row in rows] == [(doc, repeat) for doc in range(24) for repeat in range(2)]
    assert all_texts(rows) == [str(doc) for doc in range(24) for _ in range(2)]
    assert model.most == 8
    assert told[-1] == (48, 48, True)
    assert told == sorted(told)


def test_one_worker_asks_in_order_on_this_thread() -> None:
    model = Recorder()
    infer(model, tasks(), max_infer_workers=1)
    assert model.calls == [f"t{n}" for n in range(20)]
    assert model.threads == {threading.current_thread()}


def test_every_request_is_asked_to_its_end(tmp_path: Path) -> None:
    """However many fail: errors are outcomes, and asked again by the next call with the same journal."""
    path = tmp_path / "deep" / "answers.jsonl"
    tries = iter([True, False])

    def once() -> None:
        if next(tries):
            raise Retryable("connection", "not now")

    does = {f"t{n}": raising(ValueError("boom")) for n in range(15)} | {"t17": once}
    rows = infer(Recorder(does=does), tasks(), journal=path, config=QUICK)
    assert [row.outcome for row in rows] == ["error"] * 15 + ["ok"] * 5
    assert {(row.error, row.message) for row in rows[:15]} == {("adapter", "adapter: ValueError: boom")}
    assert rows[17].attempts == 2
    again = Recorder()
    assert all_texts(infer(again, tasks(), journal=path)) == [str(n) for n in range(20)]
    assert sorted(again.calls) == sorted(f"t{n}" for n in range(15))


def test_a_journal_is_that_of_a_work_dir(tmp_path: Path) -> None:
    """Line by line: one that a run left answers here, and the other way round."""
    work = tmp_path / "work"
    run_eval(RuleAdapter("rule"), tasks(), work_dir=work)
    (path,) = WorkDir(work).journals("rule", "tasks")
    copied = shutil.copy(path, tmp_path / "copied.jsonl")
    rows = infer(RuleAdapter("rule"), tasks(), journal=copied)
    kept = [msgspec.structs.replace(row, latency=0.0) for row in predictions(WorkDir(work), "rule", "tasks")]
    assert [msgspec.structs.replace(row, latency=0.0) for row in rows] == kept
    assert Path(copied).read_bytes() == path.read_bytes(), "nothing was asked"
    own = tmp_path / "own.jsonl"
    infer(RuleAdapter("rule"), tasks(), journal=own)
    told = [msgspec.json.decode(line, type=Attempt) for line in own.read_bytes().splitlines()]
    there = journal(WorkDir(work), "rule", "tasks")
    assert {line.key: line.generation for line in told} == {line.key: line.generation for line in there}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("answered") / "j.jsonl"
    infer(Recorder(), tasks(6), journal=path, max_infer_workers=1)
    return path.read_bytes()


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_torn_tail_is_no_matter(answered: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Wherever the journal is cut off: what stands whole isn't asked again, and nothing that is appended is lost."""
    path = tmp_path / "j.jsonl"
    cut = answered[: data.draw(st.integers(0, len(answered)))]
    path.write_bytes(cut)
    model, nobody = Recorder(), Recorder()
    rows = infer(model, tasks(6), journal=path, config=QUICK)
    assert all_texts(rows) == [str(n) for n in range(6)]
    assert len(model.calls) == 6 - cut.count(b"\n")
    assert infer(nobody, tasks(6), journal=path) == rows
    assert nobody.calls == []
    assert path.read_bytes().startswith(cut[: cut.rfind(b"\n") + 1])


def test_a_damaged_line_is_asked_again(answered: bytes, tmp_path: Path) -> None:
    lines = answered.splitlines(keepends=True)
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"".join([*lines[:2], b"\0" * 40 + b"\n", *lines[3:]]))
    model = Recorder()
    assert all_texts(infer(model, tasks(6), journal=path)) == [str(n) for n in range(6)]
    assert model.calls == ["t2"]


@pytest.mark.parametrize("workers", [1, 4])
def test_an_interrupt_saves_what_was_answered(workers: int, tmp_path: Path) -> None:
    """Here it comes while the caller's own `progress` runs: what is in flight ends and is kept."""
    path = tmp_path / "j.jsonl"

    def progress(done: int, total: int) -> None:
        if done >= 5:
            raise KeyboardInterrupt

    first, second = Recorder(), Recorder()
    with pytest.raises(KeyboardInterrupt):
        infer(first, tasks(200), journal=path, max_infer_workers=workers, progress=progress, config=QUICK)
    assert 5 <= len(first.calls) < 200
    assert len(infer(second, tasks(200), journal=path)) == 200
    assert len(second.calls) <= 200 - len(first.calls) + (1 if workers == 1 else 0)


def test_what_progress_raises_comes_out(tmp_path: Path) -> None:
    def progress(done: int, total: int) -> None:
        raise RuntimeError("a widget that was closed")

    with pytest.raises(RuntimeError, match="a widget that was closed"):
        infer(Recorder(), tasks(), progress=progress)


def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    claim = claims.take(tmp_path / "j.jsonl.lock")
    assert claim is not None
    with claim, pytest.raises(UsageError, match=r"j\.jsonl: process \d+ on .* writes to it"):
        infer(Recorder(), tasks(), journal=path)


def test_a_journal_that_cannot_be_written_ends_it(tmp_path: Path) -> None:
    """Answers that can't be kept are worth nothing; a full disk, as /dev/full plays it."""
    path = tmp_path / "j.jsonl"
    path.symlink_to("/dev/full")
    impatient = msgspec.structs.replace(QUICK, drain_timeout=0.1)
    model = Recorder()
    with pytest.raises((Fatal, OSError)):
        infer(model, tasks(2000), journal=path, max_infer_workers=2, config=impatient)
    assert len(model.calls) < 2000


@pytest.mark.parametrize(
    ("more", "told"),
    [({"max_infer_workers": 0}, "max_infer_workers: 0 is less than 1"), ({"repeats": 0}, "repeats")],
)
def test_infer_tells_what_is_wrong(more: dict[str, Any], told: str) -> None:
    with pytest.raises((SuiteError, UsageError), match=told):
        infer(Recorder(), tasks(), **more)


def test_infer_takes_one_dataset() -> None:
    two: Any = {"a": tasks(2), "b": tasks(2)}
    with pytest.raises(UsageError, match="one model and one dataset"):
        infer(Recorder(), two)


def test_a_chat_goes_on_in_its_middle(tmp_path: Path) -> None:
    """Turns behind one without an answer are not asked, and told so; a later call asks from there on."""

    class Turns:
        model_id = "turns"

        def __init__(self, fails: bool) -> None:
            self.asked: list[str] = []
            self._fails = fails

        def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
            said = prompt.messages[-1].content
            self.asked.append(said)
            if self._fails and said == "two":
                raise ValueError("boom")
            return Generation(text=said.upper(), finish_reason="stop")

    turns = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    chat = {"task_id": "chat", "messages": turns, "targets": ["THREE"], "chat_mode": "every"}
    first, second = Turns(fails=True), Turns(fails=False)
    rows = infer(first, [chat], journal=tmp_path / "j.jsonl")
    assert [(row.idx, row.outcome) for row in rows] == [(0, "ok"), (1, "error"), (2, "not_run")]
    assert all_texts(infer(second, [chat], journal=tmp_path / "j.jsonl")) == ["ONE", "TWO", "THREE"]
    assert second.asked == ["two", "three"]


def test_a_dataset_in_shards_is_asked_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in tasks()))
    dataset = DatasetConfig(abbr="sums", path=str(path), num_shards=4)
    assert all_texts(infer(Recorder(), dataset, journal=tmp_path / "j.jsonl")) == [str(n) for n in range(20)]


# --- the documents ----------------------------------------------------------------------------------------------------


def test_the_examples_in_docstrings() -> None:
    found = doctest.testmod(api)
    assert found.attempted > 5
    assert found.failed == 0


def test_it_is_there_under_the_package() -> None:
    assert (evalctl.run_eval, evalctl.infer, evalctl.EvalReport) == (api.run_eval, api.infer, EvalReport)
    assert (Path(evalctl.__file__).parent / "py.typed").is_file()


PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture
def in_a_folder(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def test_the_page_says_what_is_so(in_a_folder: Path) -> None:
    """Every Python example of docs/python.md, from the first to the last, in one session."""
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 10
    assert found.failed == 0
