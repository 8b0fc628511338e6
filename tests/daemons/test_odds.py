"""What nobody should do to inferd and somebody will: odd files in the work_dir, odd names, odd sizes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.daemons.runs import answered, answers, ended, journal_file, state, submitted, tasks, texts
from tests.harness import infer_status, inferd, openai, predictions, running, until
from tests.server import FakeServer


def test_killed_in_the_merge(tmp_path: Path) -> None:
    """#4: killed while it writes the predictions: nothing is seen of them, nothing is asked again, and no leftover is
    in the way.
    """
    count = 10_000
    work = submitted(tmp_path, [{"abbr": "m", "type": "rule"}], {"d": tasks(count)})
    ended(inferd(work), 0)
    path = work.predictions("m", "d")
    whole = path.read_bytes()
    path.unlink()
    lines = len(answered(work))
    with running(inferd(work)) as process:
        until(lambda: any(name.endswith(".new") for name in os.listdir(path.parent)) or path.exists(), "the merge")
        process.kill_alone()
        process.kill()
    assert not path.exists(), "it had ended before it was killed: the test shows nothing"
    assert state(work) == "running"
    ended(inferd(work), 0)
    assert path.read_bytes() == whole
    assert len(answered(work)) == lines == count


@pytest.mark.parametrize("kind", ["symlink", "dangling symlink", "FIFO"])
def test_odd_status_file(tmp_path: Path, kind: str) -> None:
    """A status file that is a symlink or a FIFO is replaced by a file; what a link pointed to isn't touched."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url())], {"d": tasks(5)})
        path = work.infer_status("m", "d")
        path.parent.mkdir(parents=True, exist_ok=True)
        target = tmp_path / "precious"
        if kind == "FIFO":
            os.mkfifo(path)
        else:
            path.symlink_to(target)
            if kind == "symlink":
                target.write_text("precious")
        ended(inferd(work), 0, timeout=30)
    assert path.is_file()
    assert not path.is_symlink()
    assert state(work) == "done"
    if kind == "symlink":
        assert target.read_text() == "precious"


@pytest.mark.parametrize("kind", ["FIFO", "folder"])
def test_odd_journal(tmp_path: Path, kind: str) -> None:
    """A journal's name on something that is no file neither holds inferd up nor passes for an answer."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url())], {"d": tasks(5)})
        path = work.journal("m", "d", "0" * 32)
        path.parent.mkdir(parents=True)
        if kind == "FIFO":
            os.mkfifo(path)
        else:
            path.mkdir()
        ended(inferd(work), 0, timeout=30)
        assert server.stats()["posts"] == 5
    assert texts(predictions(work)) == answers(5)


def test_500_datasets_of_two_tasks(tmp_path: Path) -> None:
    """#25: 500 datasets of two tasks: all done, with a few files open at a time and no gap between datasets."""
    names = [f"d{n}" for n in range(500)]
    with FakeServer() as server:
        work = submitted(
            tmp_path,
            [openai(server.url("d5"), max_workers=16)],
            {name: [{**item, "prompt": f"{name} {item['prompt']}"} for item in tasks(2)] for name in names},
        )
        with running(inferd(work)) as process:
            measured = psutil.Process(process.process.pid)
            until(lambda: state(work, dataset="d10") == "done", "some are done")
            assert measured.num_fds() < 250
            ended(process, 0)
        assert server.stats()["posts"] == server.stats()["distinct"] == 1000
    assert all(state(work, dataset=name) == "done" for name in names)
    assert texts(predictions(work, dataset="d499")) == answers(2)


def test_few_open_files_allowed(tmp_path: Path) -> None:
    """A soft limit on open files below what max_workers needs is raised to the hard one."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url("d200"), max_workers=128)], {"d": tasks(256)})
        ended(inferd(work, prefix=["prlimit", "--nofile=64:1024"]), 0)
        assert server.stats()["peak_in_flight"] == 128
    assert infer_status(work).errors == {}  # type: ignore[union-attr]


def test_too_few_open_files_allowed(tmp_path: Path) -> None:
    """Where the hard limit is too low as well, nothing is asked: sockets would take what the journals need."""
    with FakeServer() as server:
        work = submitted(tmp_path, [openai(server.url(), max_workers=256)], {"d": tasks(10)})
        process = inferd(work, prefix=["prlimit", "--nofile=128:128"])
        ended(process, 2)
        assert "256 calls in flight need about 322 open files, and this process may have 128" in process.err
        assert server.stats()["posts"] == 0


@pytest.mark.parametrize("name", ["org/模型:фрее", "..", "tmp_x", "a b\u2028c"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    """Models and datasets may have any name: their files are found again under it, and nothing leaves the work_dir."""
    with FakeServer() as server:
        work = submitted(
            tmp_path, [openai(server.url(), abbr=name)], {name: tasks(3)} if "/" not in name else {"d": tasks(3)}
        )
        dataset = name if "/" not in name else "d"
        ended(inferd(work), 0)
        work.predictions(name, dataset).unlink()
        ended(inferd(work), 0)
        assert server.stats()["posts"] == 3
    assert texts(predictions(work, name, dataset)) == answers(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["suite", "work"]
    assert journal_file(work, name, dataset).is_file()
