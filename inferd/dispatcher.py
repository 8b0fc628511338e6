"""The dispatcher: one thread that owns all of inference's state and decides everything; others do the waiting.

Workers ask, the journal's thread commits, loaders read and merge, the publisher writes status files. Each tells the
dispatcher through one inbox, and it does no disk or network work itself, so nothing can hold it up. A request counts as
answered only once the journal says its line is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from inferd import ask, shards
from inferd.limiter import Budget
from inferd.pool import Pool
from inferd.progress import Job, Lane, ShardRun
from inferd.publisher import Publisher
from inferd.retry import next_wait
from inferd.shards import AlreadyDone, Failure, Foreign, Opened, Shelf
from shared.clock import Clock, utc
from shared.config import InferConfig
from shared.errors import Permanent, Retryable, TandemError
from shared.journal import JournalWriter, Target
from shared.records import InferStatus, PairState, PlanPair, PlanShard
from shared.requests import Request

LOOKAHEAD = 32  # datasets open at once, at most
LOADERS = 4  # threads that open, read and merge shards
FOREIGN_POLLS = 5  # poll_intervals between looks at shards that another inferd holds
RETRIES_WAITING = 1024  # at most (or 16 a worker) wait for their retry; nothing new is sent beyond: memory is bounded
GRACE = 5.0  # seconds past its deadline after which an adapter's call counts as hung


@dataclass(frozen=True)
class Tally:
    """How the run ended, over all pairs."""

    done: int
    failed: int
    unfinished: int
    saved: bool  # every answer and every status is on disk


class Dispatcher:
    def __init__(
        self,
        shelf: Shelf,
        config: InferConfig,
        budget: Budget,
        clock: Clock,
        uniform: Callable[[float, float], float],
        log: Any,
        redact: Callable[[str], str] = str,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._shelf = shelf
        self._config = config
        self._budget = budget
        self._clock = clock
        self._uniform = uniform
        self._log = log
        self._redact = redact
        self._tick = tick
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._loaders: Pool[Callable[[], None]] = Pool("loader", LOADERS, lambda job: job())
        self._publisher = Publisher(self._on_status_error)
        self._journal = JournalWriter(self._on_committed, self._on_journal_failed, config.commit_interval)
        self.lanes: list[Lane] = []
        self._housekeeping_at = 0.0
        self._foreign_at = 0.0
        self._log_at = clock.monotonic() + config.log_interval
        self._done = 0
        self._completed = 0  # requests of the shards that ended
        self._failed = 0
        self._late = 0
        self._sent = 0
        self._counters: dict[str, float] = {}
        self._draining_until: float | None = None
        self._closed = False
        self.stop_reason = ""
        self.fatal = ""
        self.over_budget = False

    # --- from outside ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make the loop look again at once. From any thread, and from signal handlers."""
        self._inbox.put(lambda: None)

    def counters(self) -> dict[str, float]:
        """Progress in numbers, as of the last second. From any thread."""
        return self._counters

    def wait(self, delay: float) -> None:
        """Sleep until something is reported, at most `delay` seconds, and take it in."""
        try:
            self._inbox.get(timeout=delay)()
        except Empty:
            return

    def stop(self, reason: str, timeout: float) -> None:
        """Hand out nothing more; give what is in flight `timeout` seconds to end."""
        now = self._clock.monotonic()
        if self._draining_until is None:
            self.stop_reason = reason
            self._draining_until = now + timeout
            self._log.warning("draining", reason=reason, in_flight=self._in_flight(), timeout=timeout)
        else:
            self._draining_until = min(self._draining_until, now + timeout)

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
                self._dispatch(lane, now)
                self._open_more(lane)
            if now >= self._foreign_at:
                self._retry_foreign(now)
            if all(lane.finished for lane in self.lanes):
                return None
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
        if lane.health.given_up:
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
                self.stop(reason, self._config.drain_timeout)
                return
            self._budget.reserve()
            lane.permits.take()
            job.sent = now
            job.run.in_flight += 1
            lane.in_flight[id(job)] = job
            self._sent += 1
            lane.pool.submit(job)

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
        self._refill(lane, run)
        return Job(lane, run, request, attempt=1)

    def _refill(self, lane: Lane, run: ShardRun) -> None:
        if run.exhausted or run.filling or run.given_up:
            return
        batch = max(16, min(2048, 2 * lane.permits.limit // max(lane.open_runs(), 1)))
        if lane.queue.waiting(run) > batch // 2:
            return
        run.filling = True

        def load() -> None:
            try:
                got: shards.Batch | Exception = run.feed.take(batch)
            except Exception as error:  # noqa: BLE001  # the edge of a worker: it ends one pair
                got = error
            self._inbox.put(lambda: self._on_filled(lane, run, got))

        self._loaders.submit(load)

    def _on_filled(self, lane: Lane, run: ShardRun, got: shards.Batch | Exception) -> None:
        run.filling = False
        if isinstance(got, Exception):
            self._give_up(lane, run, f"its tasks can't be read: {got}")
        elif not run.given_up:
            run.exhausted = got.exhausted
            run.outcomes.update(got.reused)
            run.reused += sum(got.reused.values())
            run.pending += len(got.requests)
            lane.queue.offer(run, got.requests)
            if run.exhausted:
                run.left = lane.queue.waiting(run)
            if lane.health.given_up and got.requests:
                self._give_up(lane, run, lane.health.reason)
            self._refill(lane, run)
        self._maybe_finish(lane, run)

    # --- opening --------------------------------------------------------------------------------------------------

    def _open_more(self, lane: Lane) -> None:
        # A shard still in the opening may hold next to nothing, so only what is known to be left counts against the
        # need; no more are in the opening than can be opened at once. The shards of a model that was given up are
        # opened as well: some may need nothing, the others end as they should, under their claim.
        while (
            lane.waiting
            and lane.opening < LOADERS
            and lane.open_runs() < LOOKAHEAD
            and (lane.health.given_up or lane.samples_left() < 2 * lane.permits.limit)
        ):
            self._open(lane, *lane.waiting.popleft())

    def _open(self, lane: Lane, pair: PlanPair, shard: PlanShard) -> None:
        lane.opening += 1

        def load() -> None:
            try:
                got: Opened | AlreadyDone | Foreign | Exception = shards.open_shard(
                    self._shelf, pair, shard, lane.model, self._tick
                )
            except Exception as error:  # noqa: BLE001  # the edge of a worker: it ends one pair
                got = error
            self._inbox.put(lambda: self._on_opened(lane, pair, shard, got))

        self._loaders.submit(load)

    def _on_opened(
        self, lane: Lane, pair: PlanPair, shard: PlanShard, got: Opened | AlreadyDone | Foreign | Exception
    ) -> None:
        lane.opening -= 1
        log = self._log.bind(model=pair.model, dataset=pair.dataset)
        match got:
            case AlreadyDone(status):
                self._done += 1
                self._completed += status.completed
                log.info("already done")
            case Foreign(owner):
                lane.foreign.append((pair, shard))
                log.warning("another inferd works on it: waiting", owner=owner)
            case Opened(claim, feed, answered, tally, damaged):
                run = ShardRun(
                    pair=pair,
                    shard=shard,
                    claim=claim,
                    feed=feed,
                    target=Target(self._shelf.work, pair.model, shard.stem, claim.token),
                    tally=tally,
                    damaged=damaged,
                    left=max(shard.requests - answered, 1),
                    started_at=utc(self._clock.time()),
                )
                self._budget.load(tally.attempts, tally.prompt_tokens + tally.completion_tokens, tally.cost)
                lane.runs.add(run)
                if damaged:
                    log.warning("journal lines could not be read and are asked again", lines=damaged)
                self._publish(run, "running")
                self._refill(lane, run)
            case error:
                self._failed += 1
                reason = f"can't be opened: {error}"
                log.error("pair failed", reason=reason)
                self._post_failure(pair, shard, reason)

    def _retry_foreign(self, now: float) -> None:
        self._foreign_at = now + FOREIGN_POLLS * self._config.poll_interval
        for lane in self.lanes:
            lane.waiting.extend(lane.foreign)
            lane.foreign.clear()

    # --- what workers and the journal report ----------------------------------------------------------------------

    def work(self, job: Job) -> None:
        """Runs on a worker thread."""
        lane = job.lane
        ended = ask.ask(lane.adapter, job.request, job.attempt, lane.model.price, self._clock, self._redact)
        self._inbox.put(lambda: self._on_ended(job, ended))

    def _on_ended(self, job: Job, ended: ask.Ended) -> None:
        if job.abandoned:
            self._late += 1  # its deadline passed long ago: the request was asked again, or given up
            return
        lane, run = job.lane, job.run
        del lane.in_flight[id(job)]
        lane.permits.give_back()
        run.in_flight -= 1
        usage = ended.usage
        self._budget.settle(usage.prompt_tokens + usage.completion_tokens if usage else 0, ended.cost)
        run.tally.count(ended.error.kind if ended.error else None, usage, ended.cost)
        if ended.served_model is not None:
            run.served_models.add(ended.served_model)
        if ended.error is None:
            lane.health.on_answer()
            self._save(lane, run, ended.line, ended.outcome)
            return
        now = self._clock.monotonic()
        was_healthy = lane.health.healthy
        lane.health.on_error(ended.error, now)
        if was_healthy and not lane.health.healthy:
            self._log.warning("model unhealthy", model=lane.model.abbr, reason=lane.health.reason)
        run.last_error = f"{ended.error.kind}: {ended.message}"
        wait = next_wait(ended.error, job.attempt, self._config, self._uniform)
        if wait is None or run.given_up:
            failure = Failure(ended.error.kind, run.last_error, job.attempt, ended.latency)
            if isinstance(ended.error, Permanent):
                run.refused_for_good += 1
            self._save(lane, run, ended.line, "error", (job.request, failure))
        else:
            self._save(lane, run, ended.line, "retry")
            lane.retry_at(now + wait, Job(lane, run, job.request, job.attempt + 1))
        if lane.health.given_up:
            self._give_up_lane(lane)
        elif not run.answered and not run.reused and run.refused_for_good >= self._config.fail_fast_after:
            self._give_up(
                lane, run, f"given up: its first {run.refused_for_good} requests were all refused: {run.last_error}"
            )

    def _save(
        self, lane: Lane, run: ShardRun, line: bytes, kind: str, failed: tuple[Request, Failure] | None = None
    ) -> None:
        run.unsaved += 1
        self._journal.append(run.target, line, (lane, run, kind, failed))

    def _on_committed(self, target: object, tokens: list[Any]) -> None:
        """Runs on the journal's thread."""
        self._inbox.put(lambda: self._count_committed(tokens))

    def _count_committed(self, tokens: list[Any]) -> None:
        run: ShardRun
        for _, run, kind, failed in tokens:
            run.unsaved -= 1
            if kind == "retry":
                continue
            run.pending -= 1
            if failed is None:
                run.outcomes[kind] += 1
                run.answered += 1
            else:
                request, failure = failed
                run.failures[(request.doc_id, request.idx, request.repeat)] = failure
                run.failed[failure.error] += 1
        for lane, ended in {(lane, run) for lane, run, _, _ in tokens}:
            self._maybe_finish(lane, ended)

    def _on_journal_failed(self, target: object, error: OSError) -> None:
        """Runs on the journal's thread. Answers that can't be saved are worth nothing: stop paying for more of them."""
        self._inbox.put(lambda: self._stop_fatally(f"the journal can't be written: {error}"))

    def _stop_fatally(self, reason: str) -> None:
        if not self.fatal:
            self.fatal = reason
            self._log.error("stopping", reason=reason)
            self.stop(reason, self._config.drain_timeout)

    def _on_status_error(self, path: Any, error: Exception) -> None:
        """Runs on the publisher's thread."""
        self._log.warning("status can't be written; trying again", path=str(path), error=str(error))

    # --- finishing ------------------------------------------------------------------------------------------------

    def _give_up_lane(self, lane: Lane) -> None:
        self._log.error("model given up", model=lane.model.abbr, reason=lane.health.reason)
        for run in list(lane.runs):
            self._give_up(lane, run, lane.health.reason)

    def _give_up(self, lane: Lane, run: ShardRun, reason: str) -> None:
        """Ask nothing more of this shard in this run; what is in flight still ends and is kept."""
        if run.given_up or run.finalising:
            return
        run.given_up = reason
        run.pending -= lane.queue.drop(run)
        run.pending -= len(lane.drop_retries(lambda job: job.run is run))
        run.left = 0
        self._maybe_finish(lane, run)

    def _maybe_finish(self, lane: Lane, run: ShardRun) -> None:
        if self._closed or run.finalising or run not in lane.runs or not run.drained():
            return
        total, failed = run.shard.requests, sum(run.failed.values())
        if run.given_up or failed > self._config.max_error_rate * total:
            self._end(lane, run, "fail", reason=_failure_reason(run))
        elif run.completed != total:
            self._end(
                lane, run, "fail", reason=f"{run.completed} requests where the plan has {total}: submit the suite again"
            )
        else:
            run.finalising = True
            self._loaders.submit(lambda: self._finalise(lane, run))

    def _finalise(self, lane: Lane, run: ShardRun) -> None:
        """Runs on a loader thread."""
        try:
            digest = shards.write_predictions(self._shelf, run.pair, run.shard, lane.model, run.failures, self._tick)
        except OSError as error:
            reason = f"the predictions can't be written: {error}"
            self._inbox.put(lambda: self._on_not_merged(run, reason))
        except Exception as error:  # noqa: BLE001  # the edge of a worker: it ends one pair
            reason = f"{error}" if isinstance(error, TandemError) else f"{type(error).__name__}: {error}"
            self._inbox.put(lambda: self._end(lane, run, "fail", reason=reason))
        else:
            self._inbox.put(lambda: self._end(lane, run, "done", digest=digest))

    def _on_not_merged(self, run: ShardRun, reason: str) -> None:
        run.finalising = False
        self._stop_fatally(reason)

    def _end(self, lane: Lane, run: ShardRun, state: PairState, *, reason: str = "", digest: str = "") -> None:
        lane.runs.discard(run)
        lane.queue.drop(run)
        self._completed += run.completed
        self._publish(run, state, reason=reason, digest=digest)
        log = self._log.bind(
            model=run.pair.model, dataset=run.pair.dataset, completed=run.completed, total=run.shard.requests
        )
        if state == "done":
            self._done += 1
            log.info("pair done", reused=run.reused, **({"failed": dict(run.failed)} if run.failed else {}))
        else:
            self._failed += 1
            log.error("pair failed", reason=reason)
        run.target.close()
        run.claim.release()

    def _publish(self, run: ShardRun, state: PairState, *, reason: str = "", digest: str = "") -> None:
        now = utc(self._clock.time())
        path = self._shelf.work.infer_status(run.pair.model, run.shard.stem)
        self._publisher.post(path, run.status(state, now, reason=reason, digest=digest))

    def _post_failure(self, pair: PlanPair, shard: PlanShard, reason: str) -> None:
        now = utc(self._clock.time())
        self._publisher.post(
            self._shelf.work.infer_status(pair.model, shard.stem),
            InferStatus(
                model=pair.model,
                dataset=pair.dataset,
                stem=shard.stem,
                state="fail",
                plan_digest=pair.digest,
                total=shard.requests,
                reason=reason,
                updated_at=now,
                finished_at=now,
            ),
        )

    # --- now and then ---------------------------------------------------------------------------------------------

    def _keep_house(self, now: float) -> None:
        self._housekeeping_at = now + self._config.status_interval
        for lane in self.lanes:
            self._abandon_overdue(lane, now)
            for run in lane.runs:
                if not run.finalising:
                    self._publish(run, "running", reason=lane.health.reason)
        self._counters = self._count(now)
        if now >= self._log_at:
            self._log_at = now + self._config.log_interval
            self._log.info("progress", **self._counters)

    def _abandon_overdue(self, lane: Lane, now: float) -> None:
        """An adapter that doesn't keep its own deadline loses the call: its answer, should it come, is dropped."""
        overdue = [job for job in lane.in_flight.values() if now - job.sent > lane.timeout + GRACE]
        for job in overdue:
            lane.pool.abandon(job)
            error = Retryable("timeout", f"no answer {lane.timeout + GRACE:g} s after the call")
            self._on_ended(
                job, ask.ended(lane.adapter, job.request, job.attempt, self._clock, now - job.sent, error=error)
            )
            job.abandoned = True

    def _count(self, now: float) -> dict[str, float]:
        runs = [run for lane in self.lanes for run in lane.runs]
        oldest = min((job.sent for lane in self.lanes for job in lane.in_flight.values()), default=now)
        return {
            "pairs_done": self._done,
            "pairs_failed": self._failed,
            "pairs_open": len(runs),
            "pairs_waiting": sum(len(lane.waiting) + len(lane.foreign) + lane.opening for lane in self.lanes),
            "completed": self._completed + sum(run.completed for run in runs),
            "sent": self._sent,
            "in_flight": self._in_flight(),
            "limit": sum(lane.permits.limit for lane in self.lanes),
            "retries_waiting": sum(lane.retries for lane in self.lanes),
            "late_answers": self._late,
            "oldest_in_flight_seconds": round(now - oldest, 3),
        }

    def _in_flight(self) -> int:
        return sum(len(lane.in_flight) for lane in self.lanes)

    # --- the end --------------------------------------------------------------------------------------------------

    def _drained(self, now: float) -> bool:
        assert self._draining_until is not None
        busy = self._in_flight() > 0 or any(run.unsaved or run.finalising for lane in self.lanes for run in lane.runs)
        return not busy or now >= self._draining_until

    def close(self, timeout: float = 10.0) -> Tally:
        """Save what is left to save and end the threads; tells how the run ended."""
        self._closed = True
        saved = self._journal.stop(timeout)
        if not saved:
            self._log.error("answers could not be saved", lines=self._journal.backlog())
        self._take_in()
        unfinished = 0
        for lane in self.lanes:
            for run in list(lane.runs):
                unfinished += 1
                reason = f"stopped: {self.stop_reason}; start inferd again to go on"
                run.in_flight = 0
                self._publish(run, "pending", reason=reason)
                if saved:  # else the journal's thread may still be at it
                    run.target.close()
                run.claim.release()
            unfinished += len(lane.waiting) + len(lane.foreign) + lane.opening
        for lane in self.lanes:
            lane.pool.end()
        patience = self._clock.monotonic() + 1.0
        for lane in self.lanes:
            if hung := lane.pool.wait(patience - self._clock.monotonic()):
                self._log.warning("calls were cut off", model=lane.model.abbr, count=hung)
        if not self._publisher.stop(timeout):
            self._log.error("statuses could not be written")
            saved = False
        self._loaders.end()
        self._loaders.wait(1.0)
        self._counters = self._count(self._clock.monotonic())
        return Tally(self._done, self._failed, unfinished, saved)


def _failure_reason(run: ShardRun) -> str:
    total, failed = run.shard.requests, sum(run.failed.values())
    classes = ", ".join(f"{kind} {count}" for kind, count in run.failed.most_common())
    counts = f"{failed}/{total} requests failed ({classes})" if failed else ""
    missing = total - run.completed
    not_run = f"{missing} not run" if missing > 0 else ""
    last = f"last error: {run.last_error}" if run.last_error and run.last_error not in run.given_up else ""
    return "; ".join(part for part in (run.given_up, counts, not_run, last) if part)
