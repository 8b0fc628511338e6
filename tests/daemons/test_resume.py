"""inferd started again over what an earlier run, a crash or a changed suite left: what is asked again, and what isn't.

Throughout: the server counts, and the predictions are whole afterwards.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.layout import WorkDir
from tests.daemons.runs import answered, answers, behaving, ended, journal_file, state, submitted, tasks, texts
from tests.harness import evalctl, evald, infer_status, inferd, journal, openai, predictions, report, task
from tests.server import FakeServer

SIZE = 20
SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x1cf\x00g"


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture(scope="module")
def finished(server: FakeServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the suite that each test begins with, to be copied."""
    run = Run(tmp_path_factory.mktemp("finished"), server, None)
    assert run.asked() == SIZE
    return run.work.root


class Run:
    """A work_dir whose suite can be changed and run again."""

    def __init__(self, folder: Path, server: FakeServer, finished: Path | None) -> None:
        self.folder = folder
        self.server = server
        self._finished = finished
        self.model = openai(server.url())
        self.items: list[dict[str, Any]] = tasks(SIZE)
        self.infer: dict[str, Any] = {}
        self.dataset: dict[str, Any] = {}
        self.work = WorkDir(folder / "work")

    def submit(self) -> None:
        submitted(self.folder, [self.model], {"d": self.items}, infer=self.infer, dataset_options=self.dataset)

    def asked(self, *, code: int = 0) -> int:
        """Submit, run, and how many requests that took."""
        self.submit()
        return self.asked_again(code=code)

    def asked_again(self, *, code: int = 0) -> int:
        self.server.reset_stats()
        ended(inferd(self.work), code)
        return int(self.server.stats()["posts"])

    def finish(self) -> None:
        """As a first run to the end leaves it."""
        if self.items == tasks(SIZE) and self._finished is not None:
            shutil.copytree(self._finished, self.work.root)
            self.submit()
        else:
            assert self.asked() == len(self.items)

    def interrupted(self) -> list[bytes]:
        """As a run killed just before its merge leaves it; the journal's lines."""
        self.finish()
        self.work.predictions("m", "d").unlink()
        self.work.infer_status("m", "d").unlink()
        return journal_file(self.work).read_bytes().splitlines(keepends=True)


@pytest.fixture
def run(tmp_path: Path, server: FakeServer, finished: Path) -> Run:
    return Run(tmp_path, server, finished)


def _whole(run: Run) -> bool:
    return (
        texts(predictions(run.work)) == answers(SIZE)
        and [row.doc_id for row in predictions(run.work)] == list(range(SIZE))
        and state(run.work) == "done"
    )


def test_nothing_left_to_do(run: Run) -> None:
    """A finished run started again asks nothing, rewrites nothing, and exits 0."""
    run.finish()
    paths = [run.work.predictions("m", "d"), run.work.infer_status("m", "d"), run.work.plan]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    assert run.asked() == 0
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before


def test_torn_tail(run: Run) -> None:
    """#2: a last line without its end is ignored, silently, and its request alone is asked again; the torn journal is
    left as it was.
    """
    run.interrupted()
    path = journal_file(run.work)
    torn = path.read_bytes()[:-20]
    path.write_bytes(torn)
    assert run.asked_again() == 1
    assert path.read_bytes() == torn
    assert _whole(run)
    assert infer_status(run.work).journal_damage == 0  # type: ignore[union-attr]


def _nuls(line: bytes) -> bytes:
    return b"\0" * (len(line) - 1) + b"\n"


def _cut(line: bytes) -> bytes:
    return line[: len(line) // 2] + b"\n"


def _with(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda line: json.dumps(json.loads(line) | fields).encode() + b"\n"


def _without(field: str) -> Callable[[bytes], bytes]:
    return lambda line: json.dumps({k: v for k, v in json.loads(line).items() if k != field}).encode() + b"\n"


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "NULs, as after an NFS crash": _nuls,
    "garbage": lambda line: b"\xff\xfe{]nonsense" + line[3:],
    "cut": _cut,
    "no latency": _without("latency"),
    "schema of another type": _with(schema="1"),
    "bad UTF-8 inside the answer": lambda line: line.replace(b'"text":"', b'"text":"\xff'),
    "no attempt number": _without("attempt"),
    "no answer in an answer": _without("generation"),
    "confidence of another type": _with(generation={"text": "1", "confidence": "high"}),
    "unknown outcome": _with(outcome="splendid"),
    "huge doc_id": _with(doc_id=2**80),
    "negative doc_id": _with(doc_id=-1),
    "negative repeat": _with(repeat=-3),
    "huge idx": _with(idx=70_000),
    "number out of range": lambda line: line.replace(b'"latency":', b'"latency":1e999,"x":'),
    "short key": _with(key="ab"),
    "key that isn't hexadecimal": _with(key="z" * 64),
    "deep nesting": lambda line: b'{"key":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "an array": lambda line: b"[" + line.strip() + b"]\n",
    "empty": lambda line: b"\n",
}


def test_a_journal_of_another_version(run: Run) -> None:
    """What a later version journalled is paid for: nothing is asked again, the pair fails with the remedy."""
    lines = run.interrupted()
    journal_file(run.work).write_bytes(b"".join([*lines[:3], _with(schema=2)(lines[3]), *lines[4:]]))
    run.server.reset_stats()
    process = inferd(run.work)
    assert process.wait() == 3, process.err
    assert run.server.stats()["posts"] == 0
    status = infer_status(run.work)
    assert status is not None
    assert (status.state, "use the version of tandem-eval that wrote it" in status.reason) == ("fail", True)


def test_a_changed_gold_makes_old_scores_no_scores(run: Run) -> None:
    """Between a submit with other targets and evald's end, the report shows no score at all, never the old one."""
    run.finish()
    ended(evald(run.work), 0)
    assert report(run.work)["leaderboard"][0]["score"] == 1.0
    run.items = [item | {"targets": ["another"]} for item in run.items]
    run.submit()
    said = evalctl("report", "-w", run.work.root, "--json")
    assert said.wait() == 3
    assert json.loads(said.out)["leaderboard"][0]["score"] is None
    assert run.asked_again() == 0, "the answers stand"
    said = evalctl("report", "-w", run.work.root, "--json")
    assert said.wait() == 3
    assert json.loads(said.out)["leaderboard"][0]["score"] is None
    shown = evalctl("status", "-w", run.work.root, "--json")
    shown.wait()
    assert json.loads(shown.out)["pairs"][0]["eval"] == "pending"
    ended(evald(run.work), 0)
    assert report(run.work)["leaderboard"][0]["score"] == 0.0


def test_damaged_lines(run: Run) -> None:
    """#2: lines that are no sound record, each damaged in another way, are skipped, counted and reported; their
    requests and no others are asked again.
    """
    lines = run.interrupted()
    assert len(DAMAGE) == len(lines)
    for number, (kind, damage) in enumerate(DAMAGE.items()):
        if number != 10:
            hurt = damage(lines[number])
            assert hurt != lines[number], kind
            lines[number] = hurt
    journal_file(run.work).write_bytes(b"".join(lines))
    assert run.asked_again() == SIZE - 1
    assert _whole(run)
    status = infer_status(run.work)
    assert status is not None
    assert (status.journal_damage, status.reused) == (SIZE - 1, 1)


def test_foreign_lines_disturb_nothing(run: Run) -> None:
    """Sound lines that answer nothing of the plan (other doc_ids, keys, repeats) are passed over, however huge their
    numbers; unknown fields are allowed.
    """
    lines = run.interrupted()
    strays = [
        _with(doc_id=2**32 - 1)(lines[0]),
        _with(repeat=65_535)(lines[1]),
        _with(key="ab" * 32)(lines[2]),
        _with(generation={"text": "stray", "usage": {"prompt_tokens": 10**30}}, key="cd" * 32)(lines[3]),
        _with(unknown={"deep": [1, 2, 3]})(lines[4]),
    ]
    journal_file(run.work).write_bytes(b"".join(strays + lines))
    assert run.asked_again() == 0
    assert _whole(run)
    assert ended(evald(run.work), 0)


def test_first_answer_wins(run: Run) -> None:
    """Of two answers to one request the one that was journalled first counts, in each later run too."""
    lines = run.interrupted()
    later = [line.replace(b'"text":"', b'"text":"later ') for line in lines]
    journal_file(run.work).write_bytes(b"".join(lines + later))
    assert run.asked_again() == 0
    assert _whole(run)


def test_line_separators(run: Run) -> None:
    """`u2028-splits-record`, #3: answers that hold U+2028, U+2029, U+0085 and other separators are read back whole,
    code point by code point, on resume and by evald.
    """
    run.model = openai(run.server.url())
    run.items = [task(0, prompt=SEPARATORS, targets=[f"echo: {SEPARATORS}"], post_process="none"), *tasks(1, first=1)]
    run.interrupted()
    assert run.asked_again() == 0
    assert texts(predictions(run.work)) == [f"echo: {SEPARATORS}", "1"]
    ended(evald(run.work), 0)
    assert report(run.work)["leaderboard"][0]["score"] == 1.0


def _model(**more: Any) -> Callable[[Run], None]:
    return lambda run: run.model.update(more)


def _infer(**more: Any) -> Callable[[Run], None]:
    return lambda run: run.infer.update(more)


def _items(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Callable[[Run], None]:
    def apply(run: Run) -> None:
        run.items = change(run.items)

    return apply


CHANGES: dict[str, tuple[Callable[[Run], None], int]] = {
    "temperature": (_model(generation={"temperature": 0.7}), SIZE),
    "max_tokens": (_model(generation={"max_tokens": 64}), SIZE),
    "version": (_model(version="2027"), SIZE),
    "model": (_model(model="another"), SIZE),
    "extra_body": (_model(extra_body={"top_a": 1}), SIZE),
    "one prompt": (_items(lambda old: [task(0, prompt="anew ANSWER=0"), *old[1:]]), 1),
    "template": (_items(lambda old: [task(n, prompt=f"Q: {n} ANSWER={n}") for n in range(SIZE)]), SIZE),
    "one few_shot": (_items(lambda old: [{**old[0], "few_shot": [{"prompt": "1?", "target": "1"}]}, *old[1:]]), 1),
    "own generation of one": (_items(lambda old: [*old[:-1], {**old[-1], "generation": {"max_tokens": 9}}]), 1),
    "more tasks": (_items(lambda old: old + tasks(5, first=SIZE)), 5),
    "fewer tasks": (_items(lambda old: old[:5]), 0),
    "targets": (_items(lambda old: [{**item, "targets": ["7"]} for item in old]), 0),
    "metric": (_items(lambda old: [{**item, "metric_name": "accuracy"} for item in old]), 0),
    "category": (_items(lambda old: [{**item, "category": "x"} for item in old]), 0),
    # Rows are found by their place AND their key: two that changed places are asked again, the others aren't.
    "two swapped": (_items(lambda old: [old[1], old[0], *old[2:]]), 2),
    "first one dropped": (_items(lambda old: old[1:]), SIZE - 1),
    "base_url": (lambda run: run.model.update(base_url=run.server.url("d1")), 0),
    "max_workers": (_model(max_workers=2), 0),
    "transport": (_model(transport="engine"), 0),  # #7: another way of asking goes on with the same journal
    "attempt_timeout": (_model(attempt_timeout=5.0), 0),
    "price": (_model(price={"input": 1.0}), 0),
    "retries": (_infer(max_attempts=2, backoff_base=0.05), 0),
    "commit_interval": (_infer(commit_interval=0.2), 0),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_suite(run: Run, what: str) -> None:
    """`cache-ignores-changed-model`, #6: another prompt, setting or model asks again exactly what it changes;
    addresses, limits, retries, targets and metrics ask nothing again. Old answers are never mixed in. (The case would
    have the change refused; the design re-asks what changed, since each row carries its request_key.)
    """
    change, expected = CHANGES[what]
    run.finish()
    change(run)
    assert run.asked() == expected
    wanted = [re.findall(r"ANSWER=(\S+)", item["prompt"])[-1] for item in run.items]
    assert texts(predictions(run.work)) == wanted
    assert state(run.work) == "done"


def test_more_repeats(run: Run) -> None:
    """Repeats topped up from 1 to 3 ask only for the new ones; back at 1, nothing is asked."""
    run.finish()
    run.dataset = {"repeats": 3}
    assert run.asked() == 2 * SIZE
    rows = predictions(run.work)
    assert [(row.doc_id, row.repeat) for row in rows] == [(doc, repeat) for doc in range(SIZE) for repeat in range(3)]
    run.dataset = {}
    assert run.asked() == 0
    assert _whole(run)


@pytest.mark.parametrize("one_seed", [False, True])
def test_seeds_and_topped_up_repeats(tmp_path: Path, server: FakeServer, one_seed: bool) -> None:
    """Repeats raised from 2 to 4 ask exactly the new ones, whether their seeds are seed + repeat, as usual, or the same
    for each; the seeds as the server got them. What was asked for one way is kept when the other way is chosen, where
    the seed stays the same.
    """
    run = Run(tmp_path, server, None)
    run.model = openai(server.url("seed"), generation={"seed": 40})
    run.items = tasks(5)
    run.dataset = {"repeats": 2} | ({"seed_per_repeat": False} if one_seed else {})
    step = 0 if one_seed else 1
    assert run.asked() == 10
    assert texts(predictions(run.work)) == 5 * ["40", str(40 + step)]
    run.dataset["repeats"] = 4
    assert run.asked() == 10
    assert server.stats()["distinct"] == (5 if one_seed else 10)  # the same body for each repeat, or another one
    seeds = [str(40 + repeat * step) for repeat in range(4)]
    assert texts(predictions(run.work)) == 5 * seeds
    assert infer_status(run.work).reused == 10  # type: ignore[union-attr]
    run.dataset["seed_per_repeat"] = one_seed
    assert run.asked() == 15  # the first repeat's seed is the same either way
    assert texts(predictions(run.work)) == 5 * [str(40 + repeat * (1 - step)) for repeat in range(4)]


def test_changed_back(run: Run) -> None:
    """A suite changed and changed back finds its first answers again."""
    run.finish()
    run.model["generation"] = {"temperature": 0.7}
    assert run.asked() == SIZE
    del run.model["generation"]
    assert run.asked() == 0
    assert _whole(run)


def test_journals_cleared_away(run: Run) -> None:
    """Journals deleted, predictions there: those answer; with a changed prompt only that one is asked again."""
    run.finish()
    journal_file(run.work).unlink()
    assert run.asked_again() == 0
    run.items[3] = task(3, prompt="anew ANSWER=3")
    assert run.asked() == 1
    assert _whole(run)


def test_predictions_deleted(run: Run) -> None:
    """Predictions deleted, journal there, status `done`: they are written again, the same to the byte, unasked."""
    run.finish()
    path = run.work.predictions("m", "d")
    before = path.read_bytes()
    path.unlink()
    assert run.asked_again() == 0
    assert path.read_bytes() == before
    assert _whole(run)


@pytest.mark.parametrize("hurt", [b"", b"nonsense\n", b"half"])
def test_predictions_damaged(run: Run, hurt: bytes) -> None:
    """A `done` whose predictions aren't what its digest says counts for nothing: they are written again, unasked."""
    run.finish()
    path = run.work.predictions("m", "d")
    before = path.read_bytes()
    path.write_bytes(hurt + (before[: len(before) // 2] if hurt == b"half" else b""))
    assert run.asked_again() == 0
    assert path.read_bytes() == before
    assert _whole(run)


def test_crash_between_predictions_and_status(run: Run) -> None:
    """#13: predictions complete, status still `running`: the status is published, nothing is asked."""
    run.finish()
    path = run.work.infer_status("m", "d")
    path.write_bytes(json.dumps(json.loads(path.read_bytes()) | {"state": "running", "digest": ""}).encode())
    assert run.asked_again() == 0
    assert _whole(run)


@pytest.mark.parametrize("hurt", [b"", b'{"schema":1,"model"', b"\0" * 100, b"[1, 2]", b'{"schema":99}'])
def test_status_damaged(run: Run, hurt: bytes) -> None:
    """A status file that is no record is written anew; nothing is asked."""
    run.finish()
    run.work.infer_status("m", "d").write_bytes(hurt)
    assert run.asked_again() == 0
    assert _whole(run)


def test_stale_done_of_another_plan(run: Run) -> None:
    """#10: `done` of an earlier plan is reset before anything is asked, and ends as `fail` when the new requests do."""
    run.finish()
    run.items = [behaving(n, "422detail") for n in range(3)]
    assert run.asked(code=3) == 3
    assert state(run.work) == "fail"
    process = ended(evald(run.work), 3)
    assert process is not None
    assert not run.work.result("m", "d").exists()


def test_plan_and_tasks_deleted(run: Run) -> None:
    """Plan and tasks deleted: inferd plans again from the suite, and asks nothing that is answered."""
    run.finish()
    run.work.plan.unlink()
    assert run.asked_again() == 0
    assert _whole(run)


def test_tasks_damaged(run: Run) -> None:
    """A tasks file that isn't the planned one is refused with the remedy; its pair fails, nothing is sent."""
    run.submit()
    path = run.work.tasks("d")
    path.write_bytes(path.read_bytes()[:-30])
    assert run.asked_again(code=3) == 0
    status = infer_status(run.work)
    assert status is not None
    assert "submit the suite again" in status.reason
    assert run.asked() == SIZE
    assert _whole(run)


def test_killed_before_anything_is_journalled(run: Run) -> None:
    """An empty journal, and one that isn't ours, are no hindrance."""
    run.interrupted()
    folder = journal_file(run.work).parent
    (folder / f"tmp_d.{'0' * 32}.jsonl").touch()
    (folder / "tmp_d.notes.jsonl").write_text("mine\n")
    (folder / f"tmp_d.x.{'0' * 32}.jsonl").write_text("of another dataset\n")
    assert run.asked_again() == 0
    assert _whole(run)
    assert len(answered(run.work)) == SIZE
    assert journal(run.work)
