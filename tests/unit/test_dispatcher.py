"""The dispatcher in one process, over a real work_dir, with adapters that do what a script says.

After every step of its loop the books must balance; at the end every request has had exactly one end.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd import dispatcher as module
from inferd import lifecycle
from inferd.ask import Asker, Redact
from inferd.dispatcher import UNSAVED, Dispatcher
from inferd.limiter import Budget, Health, Permits
from inferd.merge import Merge
from inferd.pool import Pool
from inferd.progress import Ending, Lane
from inferd.shards import Shelf
from shared.atomic import AppendFile
from shared.clock import SystemClock
from shared.config import BudgetConfig, DatasetConfig, InferConfig, ModelConfig, Suite
from shared.daemon import run_loop
from shared.errors import Permanent, Retryable
from shared.layout import WorkDir
from shared.plan import make_plan, read_plan
from shared.records import ANSWERS, Attempt, Generation, InferStatus, Prediction, Prompt, TaskSpec, Usage, encode_record
from shared.status import read_record

Call = tuple[str, int]  # (task_id, repeat)

CONFIG = InferConfig(
    poll_interval=0.05,
    backoff_base=0.0005,
    backoff_max=0.002,
    commit_interval=0.0005,
    status_interval=0.002,
    max_attempts=3,
    drain_timeout=10.0,
    unhealthy_after=10**6,
    fail_fast_after=10**6,
)


class Scripted:
    """Does what its script says for each call of a request: `ok`, `empty`, an error to come again, or one for good."""

    def __init__(self, model_id: str, script: Callable[[Call, int], str]) -> None:
        self.model_id = model_id
        self.calls: Counter[Call] = Counter()
        self._script = script
        self._lock = threading.Lock()
        self.now = self.most = 0

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        call = (task.task_id, prompt.repeat)
        with self._lock:
            self.calls[call] += 1
            number = self.calls[call]
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            what = self._script(call, number)
        finally:
            with self._lock:
                self.now -= 1
        if what == "later":
            raise Retryable("server_error", "500", status=500)
        if what == "down":
            raise Retryable("connection", "refused")
        if what == "never":
            raise Permanent("bad_request", "400", status=400)
        if what == "defect":
            raise ZeroDivisionError
        return Generation(
            text="" if what == "empty" else f"{call} {number}",
            finish_reason="stop",
            usage=Usage(prompt_tokens=10, completion_tokens=5),
        )


class Silent:
    """Stands in for the log; keeps what was said."""

    def __init__(self, said: list[str] | None = None) -> None:
        self.said: list[str] = [] if said is None else said

    def bind(self, **_: object) -> Silent:
        return self

    def info(self, event: str, **_: object) -> None:
        self.said.append(event)

    debug = warning = error = info


class Bench:
    """A work_dir with a plan, and dispatchers over it, one after the other."""

    def __init__(
        self,
        folder: Path,
        sizes: dict[str, tuple[int, int]],
        models: int = 1,
        question: Callable[[str], dict[str, Any]] = lambda text: {"prompt": text, "targets": ["1"]},
    ) -> None:
        """sizes: of each dataset, how many docs and repeats. question: what a task asks, beside its id."""
        datasets = []
        for abbr, (docs, repeats) in sizes.items():
            path = folder / f"{abbr}.jsonl"
            rows = [{"task_id": f"{abbr}-{n}", **question(f"{abbr} {n}")} for n in range(docs)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            datasets.append(DatasetConfig(abbr=abbr, path=str(path), repeats=repeats))
        self.sizes = sizes
        self.models = [ModelConfig(abbr=f"m{number}", type="rule") for number in range(models)]
        self.work = WorkDir(folder / "work")
        suite = Suite(base_dir=str(folder), models=tuple(self.models), datasets=tuple(datasets))
        make_plan(self.work, suite, b"", SystemClock())
        self.dispatcher: Dispatcher | None = None
        self.log = Silent()

    def dispatch(
        self,
        adapters: list[Scripted],
        *,
        workers: int = 2,
        config: InferConfig = CONFIG,
        budget: BudgetConfig | None = None,
        timeout: float = 60.0,
        hung: int = 0,
        each_step: Callable[[Dispatcher], None] = lambda dispatcher: None,
    ) -> Ending:
        """Run one dispatcher to its end, as inferd does."""
        plan = read_plan(self.work)
        assert plan is not None
        clock = SystemClock()
        made = self.dispatcher = Dispatcher(
            Shelf(self.work, plan), config, Budget(budget or BudgetConfig()), clock, lambda low, high: high, self.log
        )
        for model, adapter in zip(self.models, adapters, strict=True):
            lane = Lane(
                model=model,
                asker=Asker(adapter, model.price, clock, Redact()),
                permits=Permits(workers),
                health=Health(config.unhealthy_after, config.unhealthy_timeout, config.fail_fast_after),
                timeout=timeout,
                workers=Pool(f"ask-{model.abbr}", workers, made.work),
            )
            lane.waiting.extend(
                (pair, shard) for pair in plan.pairs if pair.model == model.abbr for shard in pair.shards
            )
            made.lanes.append(lane)
        started = clock.monotonic()

        def step(now: float) -> float | None:
            assert now - started < 30, "it doesn't end"
            delay = made.step(now)
            balance(made)
            each_step(made)
            return delay

        run_loop(step, clock.monotonic, made.wait)
        ended = made.close()
        for lane, adapter in zip(made.lanes, adapters, strict=True):
            assert adapter.most <= workers + hung
            if not lane.in_flight:
                assert lane.permits.in_use == 0
        return ended

    def status(self, dataset: str, model: str = "m0") -> InferStatus:
        found = read_record(self.work.infer_status(model, dataset), InferStatus)
        assert found is not None
        return found

    def journal(self, dataset: str, model: str = "m0") -> list[Attempt]:
        return [
            msgspec.json.decode(line, type=Attempt)
            for path in self.work.journals(model, dataset)
            for line in path.read_bytes().split(b"\n")[:-1]
        ]

    def predictions(self, dataset: str, model: str = "m0") -> list[Prediction]:
        data = self.work.predictions(model, dataset).read_bytes()
        return [msgspec.json.decode(line, type=Prediction) for line in data.split(b"\n")[:-1]]

    def requests(self, dataset: str) -> list[Call]:
        docs, repeats = self.sizes[dataset]
        return [(f"{dataset}-{doc}", repeat) for doc in range(docs) for repeat in range(repeats)]


def balance(dispatcher: Dispatcher) -> None:
    """What must hold between any two steps."""
    for lane in dispatcher.lanes:
        assert lane.permits.in_use == len(lane.in_flight) <= lane.permits.limit
        assert lane.opening >= 0
        for run in lane.runs:
            own = sum(job.run is run for job in lane.in_flight.values())
            assert run.in_flight == own
            assert run.unsaved >= 0
            assert run.pending >= own + lane.queue.waiting(run)
            assert run.completed <= run.shard.requests
            assert run.left >= 0
    assert dispatcher._budget._in_flight == sum(len(lane.in_flight) for lane in dispatcher.lanes)


@contextmanager
def bench(sizes: dict[str, tuple[int, int]], models: int = 1) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        yield Bench(Path(folder), sizes, models)


def always(what: str) -> Callable[[Call, int], str]:
    return lambda call, number: what


# --- every request has one end ----------------------------------------------------------------------------------------

WORDS = ["ok", "ok", "empty", "later", "later", "never", "defect"]


@settings(max_examples=25)
@given(
    sizes=st.dictionaries(
        st.sampled_from(["a", "a.b", "c"]), st.tuples(st.integers(1, 6), st.integers(1, 2)), min_size=1
    ),
    models=st.integers(1, 2),
    workers=st.integers(1, 4),
    most=st.integers(1, 3),
    allowed=st.sampled_from([0.0, 0.5, 1.0]),
    data=st.data(),
)
def test_each_request_has_exactly_one_end(
    sizes: dict[str, tuple[int, int]], models: int, workers: int, most: int, allowed: float, data: st.DataObject
) -> None:
    """Whatever errors come in whatever order: as many calls as its script needs, one journal line a call, and one
    outcome in status and predictions. A second run asks again only what failed for good in a pair that failed.
    """
    config = msgspec.structs.replace(CONFIG, max_attempts=most, max_error_rate=allowed)
    with bench(sizes, models) as made:
        everything = [call for dataset in sizes for call in made.requests(dataset)]
        scripts: list[dict[Call, list[str]]] = [
            {call: data.draw(st.lists(st.sampled_from(WORDS), min_size=3, max_size=3)) for call in everything}
            for _ in range(models)
        ]

        def ending(script: list[str]) -> list[str]:
            """The calls that are made of it."""
            for number, what in enumerate(script[:most], 1):
                if what != "later":
                    return script[:number]
            return script[:most]

        adapters = [
            Scripted(f"m{number}", lambda call, n, script=script: script[call][n - 1])  # type: ignore[misc]
            for number, script in enumerate(scripts)
        ]
        ended = made.dispatch(adapters, workers=workers, config=config)
        assert ended.saved
        assert ended.unfinished == 0
        assert ended.done + ended.failed == models * len(sizes)
        assert made.dispatcher is not None
        assert made.dispatcher.fatal == ""
        failing: list[set[Call]] = []
        for number, script in enumerate(scripts):
            failing.append(set())
            for dataset in sizes:
                expected = {call: ending(script[call]) for call in made.requests(dataset)}
                assert {call: adapters[number].calls[call] for call in expected} == {
                    call: len(words) for call, words in expected.items()
                }
                answers = Counter(words[-1] for words in expected.values() if words[-1] in ANSWERS)
                errors = {"later": "server_error", "never": "bad_request", "defect": "adapter"}
                failed = Counter(errors[words[-1]] for words in expected.values() if words[-1] in errors)
                status = made.status(dataset, f"m{number}")
                total = len(expected)
                done = sum(failed.values()) <= allowed * total
                assert status.state == ("done" if done else "fail")
                assert (status.completed, status.total) == (total, total)
                assert (status.outcomes, status.failed) == (answers, failed)
                assert status.attempts == sum(map(len, expected.values()))
                lines = made.journal(dataset, f"m{number}")
                assert Counter((line.doc_id, line.repeat, line.attempt) for line in lines) == {
                    (doc, repeat, n): 1
                    for doc in range(sizes[dataset][0])
                    for repeat in range(sizes[dataset][1])
                    for n in range(1, len(expected[(f"{dataset}-{doc}", repeat)]) + 1)
                }
                assert made.work.predictions(f"m{number}", dataset).exists() == done
                if done:
                    predictions = made.predictions(dataset, f"m{number}")
                    assert [(p.task_id, p.repeat) for p in predictions] == made.requests(dataset)
                    assert [p.outcome for p in predictions] == [
                        words[-1] if words[-1] in ANSWERS else "error" for words in expected.values()
                    ]
                    assert [p.attempts for p in predictions] == [len(words) for words in expected.values()]
                else:
                    failing[-1] |= {call for call, words in expected.items() if words[-1] in errors}
        again = [Scripted(f"m{number}", always("ok")) for number in range(models)]
        assert made.dispatch(again, workers=workers, config=config).done == models * len(sizes)
        assert [set(adapter.calls) for adapter in again] == failing


@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(0, 20))
def test_a_stop_loses_nothing(workers: int, after: int) -> None:
    """Stopped after any number of calls: what was sent ends and is kept, the status is `pending`, and the next run asks
    exactly the others.
    """
    with bench({"a": (8, 1), "b": (8, 1)}) as made:
        adapter = Scripted("m0", always("ok"))

        def stop(dispatcher: Dispatcher) -> None:
            # Shards that are just being opened keep their claims until the process ends, which this one doesn't.
            opening = any(lane.opening for lane in dispatcher.lanes)
            if adapter.calls.total() >= after and not dispatcher.draining and not opening:
                dispatcher.stop("SIGTERM", 10.0)

        ended = made.dispatch([adapter], workers=workers, each_step=stop)
        asked = set(adapter.calls)
        assert ended.saved
        assert ended.done + ended.unfinished == 2
        assert {(f"{name}-{line.doc_id}", 0) for name in "ab" for line in made.journal(name)} == asked
        rest = Scripted("m0", always("ok"))
        assert made.dispatch([rest], workers=workers).done == 2
        assert not asked & set(rest.calls)
        assert asked | set(rest.calls) == {call for name in "ab" for call in made.requests(name)}
        for name in "ab":
            assert len(made.predictions(name)) == made.status(name).completed == 8


# --- models that don't work -------------------------------------------------------------------------------------------


def test_a_dead_model_is_given_up_and_the_other_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pairs fail with the reason, with retries still on their way to the journal; the run isn't hurt."""
    monkeypatch.setattr(Health, "PROBE_FIRST", 0.002)
    monkeypatch.setattr(Health, "PROBE_MAX", 0.002)
    config = msgspec.structs.replace(
        CONFIG, unhealthy_after=3, unhealthy_timeout=0.02, max_attempts=10**6, commit_interval=0.02
    )
    with bench({"a": (40, 1), "b": (3, 1)}, models=2) as made:
        dead, alive = Scripted("m0", always("down")), Scripted("m1", always("ok"))
        ended = made.dispatch([dead, alive], workers=3, config=config)
        assert made.dispatcher is not None
        assert made.dispatcher.fatal == ""
        assert (ended.done, ended.failed, ended.unfinished, ended.saved) == (2, 2, 0, True)
        for dataset in "ab":
            status = made.status(dataset)
            assert status.state == "fail"
            assert "given up" in status.reason
            assert "connection: refused" in status.reason
            assert made.status(dataset, "m1").state == "done"
        assert sum(len(made.journal(dataset)) for dataset in "ab") == dead.calls.total()
        back = [Scripted("m0", always("ok")), Scripted("m1", always("ok"))]
        assert made.dispatch(back).done == 4
        assert back[0].calls.total() == 43
        assert back[1].calls.total() == 0


def test_a_model_that_comes_back_is_asked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down for a while, then probed, then healthy: nothing failed."""
    monkeypatch.setattr(Health, "PROBE_FIRST", 0.002)
    config = msgspec.structs.replace(CONFIG, unhealthy_after=3, unhealthy_timeout=30.0, max_attempts=10**6)
    down = [12]

    def script(call: Call, number: int) -> str:
        down[0] -= 1
        return "down" if down[0] >= 0 else "ok"

    with bench({"a": (20, 1)}) as made:
        adapter = Scripted("m0", script)
        assert made.dispatch([adapter], workers=3, config=config).done == 1
        assert "model unhealthy" in made.log.said
        assert adapter.calls.total() == 20 + 12
        assert made.status("a").errors == {"connection": 12}


def test_a_pair_that_is_refused_throughout_is_given_up() -> None:
    """Its first requests are all refused for good: not all the others are paid for; the other pair goes on."""
    config = msgspec.structs.replace(CONFIG, fail_fast_after=4)
    with bench({"a": (50, 1), "b": (10, 1)}) as made:
        adapter = Scripted("m0", lambda call, number: "never" if call[0].startswith("a-") else "ok")
        ended = made.dispatch([adapter], workers=2, config=config)
        assert (ended.done, ended.failed) == (1, 1)
        status = made.status("a")
        assert status.reason.startswith("given up: its first 4 requests were all refused: bad_request: 400")
        assert status.completed < 10
        assert f"{50 - status.completed} not run" in status.reason


# --- time, money and disks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hung_call_is_replaced(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again, all others are asked as well, and its late answer is dropped."""
    monkeypatch.setattr(module, "GRACE", 0.02)
    release = threading.Event()

    def script(call: Call, number: int) -> str:
        if call == ("a-0", 0) and number == 1:
            release.wait(30)
        elif call == ("a-0", 0):
            release.set()
        return "ok"

    with bench({"a": (10, 1)}) as made:
        adapter = Scripted("m0", script)
        assert made.dispatch([adapter], workers=workers, timeout=0.02, hung=1).done == 1
        assert adapter.calls == Counter({call: 2 if call[0] == "a-0" else 1 for call in made.requests("a")})
        status = made.status("a")
        assert (status.errors, status.outcomes) == ({"timeout": 1}, {"ok": 10})
        assert [p.outcome for p in made.predictions("a")] == ["ok"] * 10


def test_the_budget_is_met_and_can_be_raised() -> None:
    """So many requests and no more, over both runs; the pairs stay to be resumed."""
    with bench({"a": (10, 1), "b": (10, 1)}) as made:
        first = Scripted("m0", always("ok"))
        ended = made.dispatch([first], workers=3, budget=BudgetConfig(requests=7))
        assert made.dispatcher is not None
        assert made.dispatcher.over_budget
        assert made.dispatcher.stop_reason == "budget reached: 7 of 7 requests"
        assert first.calls.total() == 7
        assert ended.failed == 0
        assert ended.unfinished >= 1
        second = Scripted("m0", always("ok"))
        assert made.dispatch([second], budget=BudgetConfig(requests=20)).done == 2
        assert second.calls.total() == 13


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_refuses_stops_the_paying(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Answers that can't be kept are worth nothing: it drains, says so, and the next run asks again."""

    def refusing(self: AppendFile, data: bytes) -> int:
        raise OSError(code, os.strerror(code))

    config = msgspec.structs.replace(CONFIG, drain_timeout=0.1)
    with bench({"a": (200, 1)}) as made:
        adapter = Scripted("m0", always("ok"))
        with monkeypatch.context() as patch:
            patch.setattr(AppendFile, "append", refusing)
            ended = made.dispatch([adapter], workers=2, config=config)
        assert not ended.saved
        assert made.dispatcher is not None
        assert made.dispatcher.fatal.startswith("the journal can't be written: ")
        assert os.strerror(code) in made.dispatcher.fatal
        assert made.status("a").state == "pending"
        assert made.dispatch([Scripted("m0", always("ok"))]).done == 1


def test_a_disk_that_stands_still_stops_the_paying(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an fsync hangs, only so much is asked as a kill may lose; when it returns, all goes on to the end."""
    goes_on = threading.Event()
    real = AppendFile.append
    looks: list[int] = []

    def hanging(self: AppendFile, data: bytes) -> int:
        assert goes_on.wait(30)
        return real(self, data)

    adapter = Scripted("m0", always("ok"))

    def look(dispatcher: Dispatcher) -> None:
        if dispatcher.counters().get("unsaved", 0) >= UNSAVED and not dispatcher.lanes[0].in_flight:
            looks.append(adapter.calls.total())
            if len(looks) > 5:
                goes_on.set()

    monkeypatch.setattr(AppendFile, "append", hanging)
    with bench({"a": (UNSAVED + 500, 1)}) as made:
        assert made.dispatch([adapter], workers=2, each_step=look).done == 1
        assert set(looks[:5]) == {looks[0]}
        assert UNSAVED <= looks[0] <= UNSAVED + 2
        assert adapter.calls.total() == UNSAVED + 500


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"\x00\x00", b'":'])
def test_a_damaged_answer_is_asked_again(damage: bytes) -> None:
    """Two bytes of a journalled answer were overwritten: counted, asked again, and the pair comes to its end."""
    with bench({"a": (5, 1)}) as made:
        adapter = Scripted("m0", lambda call, number: "never" if call == ("a-4", 0) else "ok")
        assert made.dispatch([adapter]).failed == 1
        (path,) = made.work.journals("m0", "a")
        content = bytearray(path.read_bytes())
        at = content.index(b"a-2")
        content[at : at + 2] = damage
        path.write_bytes(content)
        again = Scripted("m0", always("ok"))
        assert made.dispatch([again]).done == 1
        assert set(again.calls) == {("a-2", 0), ("a-4", 0)}
        assert made.status("a").journal_damage == 1


def test_changed_tasks_are_refused() -> None:
    """The tasks file isn't the one that was planned: the pair fails with the remedy, nothing is asked of it."""
    with bench({"a": (3, 1), "b": (3, 1)}) as made:
        path = made.work.tasks("a")
        path.write_bytes(path.read_bytes().replace(b"a 1", b"a 7"))
        adapter = Scripted("m0", always("ok"))
        ended = made.dispatch([adapter])
        assert (ended.done, ended.failed) == (1, 1)
        assert "submit the suite again" in made.status("a").reason
        assert all(call[0].startswith("b") for call in adapter.calls)


def test_two_dispatchers_share_the_work() -> None:
    """A shard that another one holds is waited for, not asked twice."""
    with bench({"a": (5, 1), "b": (5, 1)}) as made:
        adapter = Scripted("m0", always("ok"))
        other = copy.copy(made)
        results: list[Ending] = []

        def run(one: Bench) -> None:
            results.append(one.dispatch([adapter], workers=10))

        threads = [threading.Thread(target=run, args=(one,)) for one in (made, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [tally.done for tally in results] == [2, 2]
        assert adapter.calls == Counter({call: 1 for name in "ab" for call in made.requests(name)})


# --- what a review found ----------------------------------------------------------------------------------------------


def test_a_merge_that_failed_once_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tries, ahead and at the end, meet a full disk: the pair ends well all the same."""
    left = [2]
    real = Merge.advance

    def refusing(self: Merge, *given: Any) -> None:
        real(self, *given)
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lifecycle, "MERGE_AHEAD", 5)
    monkeypatch.setattr(lifecycle, "MERGE_TRIES", 3)
    monkeypatch.setattr(Merge, "advance", refusing)
    with bench({"a": (40, 1)}) as made:
        assert made.dispatch([Scripted("m0", always("ok"))]).done == 1
        assert [prediction.outcome for prediction in made.predictions("a")] == ["ok"] * 40
    assert left == [0]


def test_answers_that_come_while_it_closes_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drain's time is over and the disk is slow: what arrives until the calls are cut off is journalled."""
    stopped = threading.Event()
    real = AppendFile.append

    def slow(self: AppendFile, data: bytes) -> int:
        threading.Event().wait(0.3)
        return real(self, data)

    def script(call: Call, number: int) -> str:
        if call != ("a-0", 0):
            stopped.wait(30)
        return "ok"

    def stop(dispatcher: Dispatcher) -> None:
        if adapter.calls.total() == 5 and not dispatcher.draining:
            dispatcher.stop("enough", 0.0)
            stopped.set()

    adapter = Scripted("m0", script)
    monkeypatch.setattr(AppendFile, "append", slow)
    with bench({"a": (30, 1)}) as made:
        ended = made.dispatch([adapter], workers=4, each_step=stop)
        assert ended.saved
        (path,) = made.work.journals("m0", "a")
        assert path.read_bytes().count(b"\n") == 5
        assert made.status("a").stragglers == ()


def test_late_answers_are_remembered() -> None:
    """What earlier runs counted is not forgotten by the next."""
    with bench({"a": (3, 1)}) as made:
        assert made.dispatch([Scripted("m0", always("never"))], config=CONFIG).failed == 1
        path = made.work.infer_status("m0", "a")
        path.write_bytes(encode_record(msgspec.structs.replace(made.status("a"), late_answers=2, duplicates=2)))
        assert made.dispatch([Scripted("m0", always("ok"))]).done == 1
        assert (made.status("a").late_answers, made.status("a").duplicates) == (2, 2)
