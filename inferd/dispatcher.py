"""The dispatcher: one thread that owns all of inference's state and decides everything; others do the waiting.

Workers ask, the journal's thread commits, loaders read and merge, the publisher writes status files. Each tells the
dispatcher through one inbox, and it does no disk or network work itself, so nothing can hold it up. A request counts as
answered only once the journal says its line is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Any

from inferd.ask import Ended
from inferd.feed import Failure
from inferd.lifecycle import Lifecycle
from inferd.limiter import Budget
from inferd.progress import Ending, Job, Lane, ShardRun, figures
from inferd.retry import next_wait
from inferd.shards import Shelf
from shared.answers import key64, order_of
from shared.clock import Clock
from shared.config import InferConfig
from shared.errors import Permanent, Retryable
from shared.journal import JournalWriter, Target
from shared.records import Generation, Outcome
from shared.requests import Request

FOREIGN_POLLS = 5  # poll_intervals between looks at shards that another inferd holds
RETRIES_WAITING = 1024  # at most (or 16 a worker) wait for their retry; nothing new is sent beyond: memory is bounded
UNSAVED = 1024  # answers at most (or 8 a worker) wait for their fsync; nothing new is sent beyond: a kill loses no more
PATIENCE = 0.2  # seconds for workers to end after a drain
GRACE = 5.0  # seconds past its deadline after which an adapter's call counts as hung


class Dispatcher:
    def __init__(
        self,
        shelf: Shelf,
        config: InferConfig,
        budget: Budget,
        clock: Clock,
        uniform: Callable[[float, float], float],
        log: Any,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._budget = budget
        self._clock = clock
        self._uniform = uniform
        self._log = log
        self._tick = tick
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._life = Lifecycle(shelf, config, budget, clock, log, self._inbox.put, self._stop_fatally, tick)
        self._journal = JournalWriter(self._on_committed, self._on_journal_failed, config.commit_interval)
        self.lanes: list[Lane] = []
        self._housekeeping_at = 0.0
        self._foreign_at = 0.0
        self._log_at = clock.monotonic() + config.log_interval
        self._late = 0
        self._sent = 0
        self._unsaved = 0  # lines on their way to the journal, of all shards
        self._counters: dict[str, float] = {}
        self._draining_until: float | None = None
        self.paused = False
        self.stop_reason = ""
        self.fatal = ""
        self.over_budget = False

    # --- from outside ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make the loop look again at once. From any thread, and from signal handlers."""
        self.post(lambda: None)

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` happen on the loop's thread. From any thread."""
        self._inbox.put(event)

    def counters(self) -> dict[str, float]:
        """Progress in numbers, as of the last second. From any thread."""
        return self._counters

    def wait(self, delay: float) -> None:
        """Sleep until something is reported, at most `delay` seconds, and take it in."""
        try:
            self._inbox.get(timeout=delay)()
        except Empty:
            return

    def reconfigure(self, config: InferConfig) -> None:
        """What is decided from now on is decided by this."""
        self._config = config
        self._life.reconfigure(config)
        self._housekeeping_at = self._log_at = 0.0  # by the new intervals from here

    def cancel(self, model: str, dataset: str, reason: str) -> bool:
        """Give a pair up; False when nothing of it is left here."""
        return any(self._life.cancel(lane, dataset, reason) for lane in self.lanes if lane.model.abbr == model)

    def stop(self, reason: str, timeout: float | None = None) -> None:
        """Hand out nothing more; give what is in flight `timeout` seconds to end (`drain_timeout` by default)."""
        timeout = self._config.drain_timeout if timeout is None else timeout
        now = self._clock.monotonic()
        if self._draining_until is None:
            self.stop_reason = reason
            self._draining_until = now + timeout
            self._log.warning("draining", reason=reason, in_flight=self._in_flight(), timeout=timeout)
        else:
            self._draining_until = min(self._draining_until, now + timeout)

    @property
    def completed(self) -> int:
        """Requests with a durable end, those of earlier runs included. On the dispatcher's thread."""
        return self._life.completed + sum(run.completed for lane in self.lanes for run in lane.runs)

    @property
    def draining(self) -> bool:
        return self._draining_until is not None

    # --- the loop -------------------------------------------------------------------------------------------------

    def step(self, now: float) -> float | None:
        """Take in what was reported, hand out what may go; returns the longest time to wait, None when all is over."""
        self._tick()
        self._take_in()
        if self.draining:
            if self._drained(now):
                return None
        else:
            for lane in self.lanes:
                lane.release_retries(now)
                if not self.paused:
                    self._dispatch(lane, now)
                    self._life.open_more(lane)
            if now >= self._foreign_at:
                self._foreign_at = now + FOREIGN_POLLS * self._config.poll_interval
                for lane in self.lanes:
                    lane.waiting.extend(lane.foreign)
                    lane.foreign.clear()
            if all(lane.finished for lane in self.lanes):
                return None
        if not any(lane.in_flight for lane in self.lanes) or self._disk_is_behind():
            self._journal.hurry()
        if now >= self._housekeeping_at:
            self._keep_house(now)
        return self._delay(now)

    def _take_in(self) -> None:
        for _ in range(10_000):  # bounded: retries, deadlines and status must get their turn under any load
            try:
                event = self._inbox.get_nowait()
            except Empty:
                return
            event()

    def _delay(self, now: float) -> float:
        moments = [now + self._config.poll_interval, self._housekeeping_at]
        if self._draining_until is not None:
            moments.append(self._draining_until)
        for lane in self.lanes:
            # What is overdue waits for something else than time: a permit, a probe that is out, the end of a drain.
            moments += [at for at in (lane.next_retry(), lane.health.next_look()) if at is not None and at > now]
        return max(min(moments) - now, 0.001)

    # --- handing out ----------------------------------------------------------------------------------------------

    def _dispatch(self, lane: Lane, now: float) -> None:
        if lane.health.given_up or self._disk_is_behind():
            return
        while True:
            if lane.permits.in_use >= lane.permits.limit:
                return
            if not lane.health.healthy and not (
                (lane.again or len(lane.queue)) and lane.health.may_probe(now, lane.permits.in_use)
            ):
                return
            job = self._next_job(lane)
            if job is None:
                return
            if reason := self._budget.exhausted():
                lane.again.appendleft(job)
                self.over_budget = True
                self.stop(reason)
                return
            self._budget.reserve()
            lane.permits.take()
            job.sent = now
            job.run.in_flight += 1
            lane.in_flight[id(job)] = job
            self._sent += 1
            lane.workers.submit(job)

    def _disk_is_behind(self) -> bool:
        return self._unsaved >= max(UNSAVED, 8 * sum(lane.permits.limit for lane in self.lanes))

    def _next_job(self, lane: Lane) -> Job | None:
        if lane.again:
            return lane.again.popleft()
        if lane.retries >= max(RETRIES_WAITING, 16 * lane.permits.limit):
            return None
        chosen = lane.queue.next()
        if chosen is None:
            return None
        run, request = chosen
        run.left = max(run.left - 1, 0 if run.exhausted else 1)
        if lane.queue.waiting(run) <= run.refill_at:
            self._life.refill(lane, run)
        return Job(lane, run, request, attempt=1)

    # --- what workers and the journal report ----------------------------------------------------------------------

    def work(self, job: Job) -> None:
        """Runs on a worker thread."""
        ended = job.lane.asker.ask(job.request, job.attempt)
        self._inbox.put(lambda: self._on_ended(job, ended))

    def report(self, ended: list[tuple[Job, Ended]]) -> None:
        """Runs on an engine's thread."""

        def take_in() -> None:
            for job, what in ended:
                self._on_ended(job, what)

        self._inbox.put(take_in)

    def _on_ended(self, job: Job, ended: Ended) -> None:
        if job.abandoned:  # its deadline passed long ago: the request was asked again, or given up
            if ended.error is None:
                self._on_late(job.run, ended)
            return
        lane, run = job.lane, job.run
        del lane.in_flight[id(job)]
        lane.permits.give_back()
        run.in_flight -= 1
        usage = ended.usage
        lane.on_latency(ended.latency)
        self._budget.settle(usage.prompt_tokens + usage.completion_tokens if usage else 0, ended.cost)
        run.tally.count(ended.error.kind if ended.error else None, usage, ended.cost)
        run.told.add(ended.served_model, ended.system_fingerprint)
        if ended.error is None:
            lane.health.on_answer()
            self._save(lane, run, ended.line, ended.outcome, job.request, ended.said)
            return
        now = self._clock.monotonic()
        was_healthy = lane.health.healthy
        lane.health.on_error(type(ended.error)(ended.error.kind, ended.message), now)
        if was_healthy and not lane.health.healthy:
            self._log.warning("model unhealthy", model=lane.model.abbr, reason=lane.health.reason)
        run.last_error = f"{ended.error.kind}: {ended.message}"
        wait = next_wait(ended.error, job.attempt, self._config, self._uniform)
        job.log_failure(self._log, ended, None if run.given_up else wait)
        if wait is None or run.given_up:
            failure = Failure(job.request.key, ended.error.kind, run.last_error, job.attempt, ended.latency)
            run.refused_for_good += isinstance(ended.error, Permanent)
            self._save(lane, run, ended.line, failure, job.request)
        else:
            self._save(lane, run, ended.line, None, job.request)
            lane.retry_at(now + wait, Job(lane, run, job.request, job.attempt + 1))
        if lane.health.given_up:
            self._life.give_up_lane(lane)
        elif not run.answered and not run.reused and run.refused_for_good >= self._config.fail_fast_after:
            self._life.give_up(
                lane, run, f"given up: its first {run.refused_for_good} requests were all refused: {run.last_error}"
            )

    def _on_late(self, run: ShardRun, ended: Ended) -> None:
        """It was paid for, and is dropped: its request has another answer, or an end."""
        self._late += 1
        run.late += 1
        if (usage := ended.usage) is not None:
            run.tally.pay(usage, ended.cost)
            self._budget.load(0, usage.prompt_tokens + usage.completion_tokens, ended.cost)

    def _save(
        self,
        lane: Lane,
        run: ShardRun,
        line: bytes,
        end: Outcome | Failure | None,
        request: Request,
        said: Generation | None = None,
    ) -> None:
        """end: what the request came to; None: it is tried again. said: the answer that later turns wait for."""
        run.unsaved += 1
        self._unsaved += 1
        self._journal.append(run.target, line, (lane, run, end, request, said))

    def _on_committed(self, target: Target, lines: list[tuple[Any, int, int]]) -> None:
        """Runs on the journal's thread."""
        self._inbox.put(lambda: self._count_committed(target, lines))

    def _count_committed(self, target: Target, lines: list[tuple[Any, int, int]]) -> None:
        """All lines of a target are of one shard."""
        lane: Lane
        run: ShardRun
        lane, run, *_ = lines[0][0]
        run.unsaved -= len(lines)
        self._unsaved -= len(lines)
        answers = []
        for (_, _, end, request, said), offset, length in lines:
            if end is None:
                continue
            run.pending -= 1
            if isinstance(end, Failure):
                run.fail(request, end)
            else:
                run.outcomes[end] += 1
                run.answered += 1
                order = order_of(request.doc_id, request.idx, request.repeat)
                answers.append((order, key64(request.key), offset, length, end))
                if said is not None:
                    self._life.go_on(lane, run, request, said)
        run.index.add(target.path, answers)
        self._life.maybe_finish(lane, run)

    def _on_journal_failed(self, target: Target, error: OSError) -> None:
        """Runs on the journal's thread. Answers that can't be saved are worth nothing: stop paying for more of them."""
        self._inbox.put(lambda: self._stop_fatally(f"the journal can't be written: {error}"))

    def _stop_fatally(self, reason: str) -> None:
        if not self.fatal:
            self.fatal = reason
            self._log.error("stopping", reason=reason)
            self.stop(reason)

    # --- now and then ---------------------------------------------------------------------------------------------

    def _keep_house(self, now: float) -> None:
        self._housekeeping_at = now + self._config.status_interval
        for lane in self.lanes:
            self._abandon_overdue(lane, now)
            lane.name_stragglers(now)
            for run in lane.runs:
                if not run.finalising:
                    self._life.publish(run, "running", reason=lane.health.reason)
        self._counters = self._count(now)
        if now >= self._log_at:
            self._log_at = now + self._config.log_interval
            self._log.info("progress", **self._counters)

    def _abandon_overdue(self, lane: Lane, now: float) -> None:
        """An adapter that doesn't keep its own deadline loses the call: its answer, should it come, is dropped."""
        sent = iter(lane.in_flight.values())  # the longest in flight first
        for job in list(takewhile(lambda job: now - job.sent > lane.timeout + GRACE, sent)):
            lane.workers.abandon(job)
            error = Retryable("timeout", f"no answer {lane.timeout + GRACE:g} s after the call")
            self._on_ended(job, lane.asker.failed(job.request, job.attempt, now - job.sent, error))
            job.abandoned = True

    def _count(self, now: float) -> dict[str, float]:
        return {
            "pairs_done": self._life.done,
            "pairs_failed": self._life.failed,
            "completed": self.completed,
            "sent": self._sent,
            "unsaved": self._unsaved,
            "late_answers": self._late,
        } | figures(self.lanes, now)

    def _in_flight(self) -> int:
        return sum(len(lane.in_flight) for lane in self.lanes)

    # --- the end --------------------------------------------------------------------------------------------------

    def _drained(self, now: float) -> bool:
        assert self._draining_until is not None
        busy = self._in_flight() > 0 or any(run.unsaved or run.merging for lane in self.lanes for run in lane.runs)
        return not busy or now >= self._draining_until

    def settle(self, timeout: float) -> bool:
        """Wait until every status told so far is on disk; False when for `timeout` seconds none could be written."""
        return self._life.settle(timeout)

    def close(self, timeout: float = 10.0) -> Ending:
        """Save what is left to save and end the threads; tells how the run ended."""
        self._life.closed = True
        for lane in self.lanes:
            lane.workers.end()
        patience = self._clock.monotonic() + PATIENCE
        busy = [lane for lane in self.lanes if lane.in_flight]
        for lane in busy:
            if hung := lane.workers.wait(patience - self._clock.monotonic()):
                self._log.warning("calls were cut off", model=lane.model.abbr, count=hung)
        self._take_in()  # the last answers: nothing comes after this
        saved = self._journal.stop(timeout)
        if not saved:
            self._log.error("answers could not be saved", lines=self._journal.backlog())
        self._take_in()
        reason = f"stopped: {self.stop_reason}; start inferd again to go on"
        unfinished = sum(self._life.leave(lane, reason, journal_closed=saved) for lane in self.lanes)
        if not self._life.close(timeout):
            self._log.error("statuses could not be written")
            saved = False
        for lane in self.lanes:
            if lane not in busy:  # its threads closed their connections meanwhile
                lane.workers.wait(patience - self._clock.monotonic())
        self._counters = self._count(self._clock.monotonic())
        return Ending(self._life.done, self._life.failed, unfinished, saved)
