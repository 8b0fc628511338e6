"""What makes a pair ready, under events and without, and the processes that score."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import CapturingLogger
from watchdog.observers import Observer
from watchdog.observers.polling import PollingObserver

from evald.watch import Events, Wake, Watch
from evald.workers import OverTime, WorkerDied, Workers
from shared.atomic import replace
from shared.layout import WorkDir
from shared.records import InferStatus, Plan, PlanDataset, PlanPair, PlanShard
from shared.status import write_record
from tests.harness import until

BACKENDS = pytest.mark.parametrize(
    "observer", [Observer, lambda: PollingObserver(timeout=0.05)], ids=["inotify", "polling"]
)


def watch_of(work: WorkDir, *pairs: tuple[str, str], shards: int = 1) -> Watch:
    planned = []
    for model, dataset in pairs:
        stems = [dataset] if shards == 1 else [f"{dataset}_{k}" for k in range(shards)]
        planned.append(
            PlanPair(
                model=model, dataset=dataset, docs=1, instances=1, requests=1, digest="p",
                shards=tuple(PlanShard(stem=stem, first=0, docs=1, requests=1) for stem in stems),
            )
        )  # fmt: skip
    datasets = tuple(PlanDataset(abbr=name, docs=1, repeats=1, digest="d") for name in {name for _, name in pairs})
    return Watch(work, Plan(suite_digest="s", created_at="", datasets=datasets, pairs=tuple(planned)))


def say(work: WorkDir, model: str, stem: str, **more: Any) -> None:
    fields = {"state": "done", "plan_digest": "p", "total": 1, "digest": f"digest of {stem}"} | more
    write_record(work.infer_status(model, stem), InferStatus(model=model, dataset=stem, stem=stem, **fields))


def predict(work: WorkDir, model: str, stem: str) -> None:
    replace(work.predictions(model, stem), b"")


def names(found: Iterator[Any]) -> list[tuple[str, str]]:
    return [(pair.model, pair.dataset) for pair, _ in found]


def test_ready_is_predictions_and_done(tmp_path: Path) -> None:
    """A scan finds a pair once its predictions have a final name and its status says done for this plan; a sweep needs
    no name. Journals and half-written files are no names.
    """
    work = WorkDir(tmp_path)
    watch = watch_of(work, ("m", "d"))
    assert names(watch.scan()) == []
    say(work, "m", "d")
    assert names(watch.scan()) == []
    assert names(watch.sweep()) == [("m", "d")]
    work.journal("m", "d", "0" * 32).parent.mkdir(parents=True)
    work.journal("m", "d", "0" * 32).touch()
    (work.predictions_folder("m") / ".d.jsonl.7.new").touch()
    assert names(watch.scan()) == []
    predict(work, "m", "d")
    assert [(pair.dataset, digests) for pair, digests in watch.scan()] == [("d", ("digest of d",))]
    for more in ({"state": "running"}, {"state": "fail"}, {"state": "pending"}, {"plan_digest": "other"}):
        say(work, "m", "d", **more)
        assert names(watch.scan()) == []
        assert names(watch.sweep()) == []
    say(work, "m", "d")
    watch.handled(("m", "d"))
    assert names(watch.scan()) == []


def test_every_planned_shard_must_be_done(tmp_path: Path) -> None:
    """#11: shards that have no file yet count; other names don't; digests come in the plan's order."""
    work = WorkDir(tmp_path)
    watch = watch_of(work, ("m", "d"), ("m", "d_1x"), shards=3)
    for stem in ("d_2", "d_0", "d_3", "d", "d_1-0"):
        predict(work, "m", stem)
        say(work, "m", stem)
    assert names(watch.scan()) == []
    predict(work, "m", "d_1")
    assert names(watch.scan()) == []
    say(work, "m", "d_1")
    assert [digests for _, digests in watch.scan()] == [("digest of d_0", "digest of d_1", "digest of d_2")]


def test_a_scan_reads_no_more_than_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses are read as pairs are taken, and of those in `skip` not at all: a thousand ready pairs cost each scan
    no more than there is room for.
    """
    work = WorkDir(tmp_path)
    watch = watch_of(work, *(("m", f"d{n}") for n in range(100)))
    for n in range(100):
        predict(work, "m", f"d{n}")
        say(work, "m", f"d{n}")
    read: Counter[Any] = Counter()
    monkeypatch.setattr(watch, "statuses", lambda key: read.update([key]) or Watch.statuses(watch, key))
    found = watch.scan({("m", "d0"), ("m", "d1")})
    next(found)
    next(found)
    assert len(read) == 2
    assert not {("m", "d0"), ("m", "d1")} & read.keys()


@pytest.mark.parametrize("what", ["garbage", "folder", "fifo", "other schema", "huge", "unreadable"])
def test_a_status_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """`lock-file-is-fifo`: whatever lies where a status belongs speaks for nothing, and holds up no other pair."""
    work = WorkDir(tmp_path)
    watch = watch_of(work, ("m", "a"), ("m", "z"))
    for name in "az":
        predict(work, "m", name)
    say(work, "m", "z")
    path = work.infer_status("m", "a")
    match what:
        case "garbage":
            path.write_bytes(b"\0\0\0")
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "other schema":
            say(work, "m", "a")
            path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":99'))
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 33)
        case "unreadable":
            say(work, "m", "a")

            def estale(path: Path, kind: Any) -> Any:
                if path.name == "a.json":
                    raise OSError(116, "Stale file handle")
                return InferStatus(model="m", dataset="z", stem="z", state="done", plan_digest="p", total=1, digest="x")

            monkeypatch.setattr("evald.watch.read_record", estale)
    assert names(watch.scan()) == [("m", "z")]
    assert names(watch.sweep()) == [("m", "z")]


# --- events -------------------------------------------------------------------------------------------------------


@BACKENDS
def test_atomic_rename_not_seen_as_create(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observer: Any) -> None:
    """`atomic-rename-not-seen-as-create`: each of 50 states that are published by rename, over the one before it, wakes
    the loop, under inotify and under polling.
    """
    monkeypatch.setattr("evald.watch.Observer", observer)
    work = WorkDir(tmp_path)
    woken = threading.Event()
    events = Events(work.infer_status_root, woken.set, CapturingLogger())
    say(work, "m", "d", state="running")
    events.ensure()
    try:
        for n in range(50):
            woken.clear()
            say(work, "m", "d", state="running", completed=n)
            assert woken.wait(10), f"publication {n} went unnoticed"
        woken.clear()
        say(work, "new model", "d")  # in a folder that wasn't there when the listening began
        assert woken.wait(10)
    finally:
        events.stop()


@BACKENDS
def test_temporary_names_wake_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observer: Any) -> None:
    """What is written before the rename isn't news."""
    monkeypatch.setattr("evald.watch.Observer", observer)
    work = WorkDir(tmp_path)
    woken: list[float] = []
    events = Events(work.infer_status_root, lambda: woken.append(time.monotonic()), CapturingLogger())
    say(work, "m", "d")
    events.ensure()
    try:
        temporary = work.infer_status("m", "d").with_name(".d.json.7.new")
        for _ in range(20):
            temporary.write_bytes(b"half")
            temporary.unlink()
        say(work, "m", "last")
        until(lambda: woken, "the last one is noticed", 10.0)
        time.sleep(0.2)
        assert len(woken) <= 2
    finally:
        events.stop()


def test_listening_begins_anew(tmp_path: Path) -> None:
    """`remount-stops-events`: the folder is replaced by another; the next `ensure` listens to that one. A folder that
    isn't there is not made: it might hide a mount that comes back.
    """
    work = WorkDir(tmp_path)
    woken = threading.Event()
    log = CapturingLogger()
    events = Events(work.infer_status_root, woken.set, log)
    try:
        events.ensure()
        assert not work.infer_status_root.exists()
        for _ in range(3):
            work.infer_status_root.mkdir()
            events.ensure()
            woken.clear()
            say(work, "m", "d")
            assert woken.wait(10)
            os.rename(work.infer_status_root, tmp_path / f"away-{time.monotonic_ns()}")
            events.ensure()
            assert not work.infer_status_root.exists()
        assert log.calls == []
    finally:
        events.stop()


def test_no_inotify_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`inotify-limits`: where listening can't begin it is tried again at each step, and told once."""

    def refuse() -> Any:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr("evald.watch.Observer", refuse)
    log = CapturingLogger()
    events = Events(tmp_path, lambda: None, log)
    for _ in range(10):
        events.ensure()
    assert [call.method_name for call in log.calls] == ["warning"]
    assert "fs.inotify.max_user_instances" in log.calls[0].kwargs["remedy"]
    events.stop()


def test_wake_is_not_lost_and_not_kept() -> None:
    """A wake before the wait ends it at once; many are one; after it the next wait lasts."""
    wake = Wake()
    for _ in range(1000):
        wake()
    before = time.monotonic()
    wake.wait(30)
    assert time.monotonic() - before < 10
    wake.wait(0.05)
    assert time.monotonic() - before >= 0.05


def test_wake_from_a_signal_while_waiting() -> None:
    """A signal's handler may wake the very thread that waits, however often: nothing deadlocks."""
    wake = Wake()
    before = signal.signal(signal.SIGUSR1, lambda *_: wake())
    ended = threading.Event()
    try:

        def shoot() -> None:
            while not ended.is_set():
                os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=shoot)
        thread.start()
        for _ in range(300):
            wake.wait(0.0001)
        ended.set()
        thread.join()
    finally:
        ended.set()
        signal.signal(signal.SIGUSR1, before)


# --- workers ------------------------------------------------------------------------------------------------------


class Unpicklable(Exception):
    def __init__(self, text: str, *, more: int) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def double(n: int) -> int:
    return 2 * n


def refuse(text: str) -> None:
    raise ValueError(text)


def refuse_oddly() -> None:
    raise Unpicklable("odd", more=1)


def quit_early() -> None:
    raise SystemExit(0)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    threading.Event().wait()


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(2, [])
    yield made
    made.stop()


def test_calls_and_their_failures(workers: Workers) -> None:
    """Results and exceptions come back; one that can't be sent comes as its text; what ends a process, or hangs, fails
    that call alone, and the calls around it go on.
    """
    futures = [workers.submit(double, n) for n in range(5)]
    broken = [workers.submit(die), workers.submit(hang, timeout=0.3), workers.submit(refuse_oddly),
              workers.submit(quit_early), workers.submit(refuse, "no")]  # fmt: skip
    after = [workers.submit(double, n) for n in range(5)]
    assert [future.result(30) for future in futures + after] == [0, 2, 4, 6, 8] * 2
    with pytest.raises(WorkerDied, match="SIGKILL"):
        broken[0].result(30)
    with pytest.raises(OverTime, match=r"0\.3 s"):
        broken[1].result(30)
    with pytest.raises(RuntimeError, match="Unpicklable: odd"):
        broken[2].result(30)
    with pytest.raises(RuntimeError, match="SystemExit"):
        broken[3].result(30)
    with pytest.raises(ValueError, match="no"):
        broken[4].result(30)


def test_stop_leaves_nothing_behind() -> None:
    """stop kills what hangs and cancels what waits; both futures end."""
    workers = Workers(1, [])
    first = workers.submit(hang)
    second = workers.submit(double, 1)
    until(first.running, "the first call runs")
    workers.stop()
    with pytest.raises(WorkerDied):
        first.result(10)
    assert second.cancelled()
