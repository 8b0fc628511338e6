"""The scheduler against a model of lists: nothing lost, nothing doubled, nobody starved."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inferd.scheduler import Scheduler

SHARDS = "abcd"


class Model(RuleBasedStateMachine):
    """Every step is done to the scheduler and to one list a shard."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: Scheduler[str, int] = Scheduler()
        self.queues: dict[str, list[int]] = {shard: [] for shard in SHARDS}
        self.passed_over: dict[str, int] = dict.fromkeys(SHARDS, 0)
        self.count = 0

    @rule(shard=st.sampled_from(SHARDS), size=st.integers(0, 4))
    def offer(self, shard: str, size: int) -> None:
        requests = list(range(self.count, self.count + size))
        self.count += size
        self.scheduler.offer(shard, iter(requests))
        self.queues[shard] += requests

    @rule()
    def take(self) -> None:
        waiting = {shard for shard, queue in self.queues.items() if queue}
        got = self.scheduler.next()
        assert (got is None) == (not waiting)
        if got is None:
            return
        shard, request = got
        assert self.queues[shard].pop(0) == request
        self.passed_over[shard] = 0
        for other in waiting - {shard}:
            self.passed_over[other] += 1
            assert self.passed_over[other] < len(SHARDS), f"{other} waits for more than one round"
        for other in set(SHARDS) - waiting:
            self.passed_over[other] = 0

    @rule(shard=st.sampled_from(SHARDS))
    def drop(self, shard: str) -> None:
        assert self.scheduler.drop(shard) == len(self.queues[shard])
        self.queues[shard] = []
        self.passed_over[shard] = 0

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.scheduler) == sum(map(len, self.queues.values()))
        assert all(self.scheduler.waiting(shard) == len(queue) for shard, queue in self.queues.items())


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.dictionaries(st.integers(0, 6), st.lists(st.integers(), max_size=12)))
def test_each_request_comes_once_in_its_shards_order(offers: dict[int, list[int]]) -> None:
    """Taken until nothing is left: each shard's requests, in order, each once."""
    scheduler: Scheduler[int, int] = Scheduler()
    for shard, requests in offers.items():
        scheduler.offer(shard, requests)
    got: dict[int, list[int]] = {shard: [] for shard in offers}
    while (taken := scheduler.next()) is not None:
        got[taken[0]].append(taken[1])
    assert got == offers


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_between_two_of_one_shard_every_other_gets_one(sizes: list[int]) -> None:
    """Fairness in the strict sense, from the first request to the last."""
    scheduler: Scheduler[int, int] = Scheduler()
    left = dict(enumerate(sizes))
    for shard, size in left.items():
        scheduler.offer(shard, range(size))
    since: dict[int, set[int]] = {}
    while (taken := scheduler.next()) is not None:
        shard = taken[0]
        if shard in since:
            others = {other for other, count in left.items() if count and other != shard}
            assert since[shard] >= others
        since[shard] = set()
        for seen in since.values():
            seen.add(shard)
        left[shard] -= 1


def test_nothing_waits_in_an_empty_scheduler() -> None:
    """Offers of nothing, drops of what isn't there."""
    scheduler: Scheduler[str, Any] = Scheduler()
    scheduler.offer("a", [])
    assert scheduler.next() is None
    assert scheduler.drop("a") == scheduler.drop("b") == 0
    assert scheduler.waiting("b") == len(scheduler) == 0
