"""Worker threads: never more than allowed, and a hung one is replaced."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from inferd.pool import Pool


def until(condition: threading.Event, what: str) -> None:
    assert condition.wait(10), what


@pytest.mark.parametrize("size", [1, 3])
def test_at_most_so_many_at_once(size: int) -> None:
    """Each job is done once, on threads of the pool's name, never more than `size` of them at once."""
    lock = threading.Lock()
    now = most = 0
    done: Counter[int] = Counter()
    names: set[str] = set()
    finished = threading.Event()

    def work(job: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            names.add(threading.current_thread().name)
        time.sleep(0.001)  # the others get a chance to overlap
        with lock:
            now -= 1
            done[job] += 1
            if len(done) == 100:
                finished.set()

    pool: Pool[int] = Pool("p", size, work)
    for job in range(100):
        pool.submit(job)
    until(finished, "all jobs are done")
    pool.end()
    assert pool.wait(10.0) == 0
    assert done == Counter(range(100))
    assert most <= size
    assert len(names) <= size
    assert all(name.startswith("p-") for name in names)


def test_threads_are_started_as_they_are_needed() -> None:
    """Two jobs don't start a thousand threads; a pool without a job has none."""
    pool: Pool[int] = Pool("p", 1000, lambda job: None)
    before = threading.active_count()
    pool.submit(1)
    pool.submit(2)
    assert threading.active_count() <= before + 2
    pool.end()
    assert pool.wait(10.0) == 0
    assert Pool("q", 3, lambda job: None).wait(0.0) == 0


@pytest.mark.parametrize("size", [1, 2])
def test_a_hung_job_is_replaced_for_good(size: int) -> None:
    """All threads hang and are abandoned: as many others do all the work that is left, not one job each; the hung ones
    end when they come back.
    """
    release = threading.Event()
    hung = threading.Semaphore(0)
    done: list[int] = []
    finished = threading.Event()

    def work(job: int) -> None:
        if job < 0:
            hung.release()
            release.wait(30)
        else:
            done.append(job)
            if len(done) == 50:
                finished.set()

    pool: Pool[int] = Pool("p", size, work)
    for number in range(size):
        pool.submit(-1 - number)
    for _ in range(size):
        assert hung.acquire(timeout=10)
    for job in range(25):
        pool.submit(job)
    assert done == []
    for number in range(size):
        pool.abandon(-1 - number)
    for job in range(25, 50):
        pool.submit(job)
    until(finished, "the others do the rest")
    assert sorted(done) == list(range(50))
    pool.end()
    assert pool.wait(0.05) == size
    release.set()
    assert pool.wait(10.0) == 0


def test_a_job_that_came_back_after_all_makes_no_crowd() -> None:
    """Abandoned, then back: its thread ends, so that no more than `size` are at work."""
    release = threading.Event()
    hung = threading.Event()
    lock = threading.Lock()
    now = most = 0
    left = threading.Semaphore(0)

    def work(job: int) -> None:
        nonlocal now, most
        if job < 0:
            hung.set()
            release.wait(30)
            return
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.001)
        with lock:
            now -= 1
        left.release()

    pool: Pool[int] = Pool("p", 1, work)
    pool.submit(-1)
    until(hung, "it hangs")
    pool.abandon(-1)
    release.set()
    for job in range(30):
        pool.submit(job)
    for _ in range(30):
        assert left.acquire(timeout=10)
    assert most == 1
    pool.end()
    assert pool.wait(10.0) == 0
