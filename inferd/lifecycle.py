"""A shard's way from waiting to `done` or `fail`: opened, kept fed, given up or merged, its status published.

Owns the loaders and the publisher. All of it but what is marked runs on the dispatcher's thread; loaders report through
the dispatcher's inbox. The attempts in between are the dispatcher's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferd import shards
from inferd.feed import Batch
from inferd.limiter import Budget
from inferd.merge import Merge
from inferd.pool import Pool
from inferd.progress import Lane, ShardRun
from inferd.publisher import Publisher
from inferd.shards import AlreadyDone, Foreign, Opened, Shelf
from shared.clock import Clock, utc
from shared.config import InferConfig
from shared.errors import TandemError
from shared.journal import Target
from shared.records import Generation, PairState, PlanPair, PlanShard
from shared.requests import Request

LOOKAHEAD = 32  # datasets open at once, at most
BATCH = 512  # requests read in one go, at most
MERGE_AHEAD = 500  # requests of a shard from which its merge begins before its end
MERGE_TRIES = 2  # a disk that refuses once, or a half-made merge that somebody swept away, costs no pair
LOADERS = 4  # threads that open, read and merge shards


class Lifecycle:
    """done, failed: shards that ended so in this run; completed: the requests of those that ended. closed: nothing more
    is merged. post: hands an event to the dispatcher's inbox, from any thread. on_fatal: the run can't go on.
    """

    def __init__(
        self,
        shelf: Shelf,
        config: InferConfig,
        budget: Budget,
        clock: Clock,
        log: Any,
        post: Callable[[Callable[[], None]], None],
        on_fatal: Callable[[str], None],
        tick: Callable[[], None],
    ) -> None:
        self._shelf = shelf
        self._config = config
        self._budget = budget
        self._clock = clock
        self._log = log
        self._post = post
        self._on_fatal = on_fatal
        self._tick = tick
        self._loaders: Pool[Callable[[], None]] = Pool("loader", LOADERS, lambda job: job())
        self._publisher = Publisher(self._on_status_error)
        self.done = 0
        self.failed = 0
        self.completed = 0
        self.closed = False
        self._cancelled: dict[tuple[str, str], str] = {}  # (model, dataset): why
        self._failed: dict[tuple[str, str], dict[str, int]] = {}  # by pair, of its shards that ended here

    def reconfigure(self, config: InferConfig) -> None:
        self._config = config

    def refill(self, lane: Lane, run: ShardRun) -> None:
        if run.exhausted or run.filling or run.given_up:
            return
        batch = max(16, min(BATCH, 2 * lane.permits.limit // max(lane.open_runs(), 1)))
        run.refill_at = batch // 2
        if lane.queue.waiting(run) > run.refill_at:
            return
        run.filling = True

        def load() -> None:
            try:
                got: Batch | Exception = run.feed.take(batch)
            except Exception as error:  # noqa: BLE001  # the edge of a worker: it ends one pair
                got = error
            self._post(lambda: self._on_filled(lane, run, got))

        self._loaders.submit(load)

    def _on_filled(self, lane: Lane, run: ShardRun, got: Batch | Exception) -> None:
        run.filling = False
        if isinstance(got, Exception):
            self.give_up(lane, run, f"its tasks can't be read: {got}")
        elif not run.given_up:
            run.exhausted = got.exhausted
            run.outcomes.update(got.reused)
            run.reused += sum(got.reused.values())
            run.pending += len(got.requests)
            lane.queue.offer(run, got.requests)
            if run.exhausted:
                run.left = lane.queue.waiting(run)
                self._merge_ahead(lane, run)
            cancelled = self._cancelled.get((run.pair.model, run.pair.dataset), "")
            if (reason := lane.health.reason if lane.health.given_up else cancelled) and got.requests:
                self.give_up(lane, run, reason)
            self.refill(lane, run)
        self.maybe_finish(lane, run)

    def go_on(self, lane: Lane, run: ShardRun, request: Request, said: Generation) -> None:
        """Have the chat's next turn asked: `said`, the answer to this one, is durable."""
        if run.given_up:
            return
        following = run.feed.follow(request, said)
        run.pending += 1
        if not run.feed.journalled(following):
            lane.go_on(run, following)
            return

        def load() -> None:
            try:
                got: Batch | Exception = run.feed.pass_over(following)
            except Exception as error:  # noqa: BLE001  # the edge of a worker: it ends one pair
                got = error
            self._post(lambda: self._on_passed_over(lane, run, got))

        self._loaders.submit(load)

    def _on_passed_over(self, lane: Lane, run: ShardRun, got: Batch | Exception) -> None:
        if isinstance(got, Exception):
            self.give_up(lane, run, f"its answers can't be read: {got}")
        else:
            run.outcomes.update(got.reused)
            run.reused += sum(got.reused.values())
        if isinstance(got, Batch) and got.requests and not run.given_up:
            lane.go_on(run, *got.requests)
        else:
            run.pending -= 1
        self.maybe_finish(lane, run)

    # --- opening --------------------------------------------------------------------------------------------------

    def open_more(self, lane: Lane) -> None:
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
            self._post(lambda: self._on_opened(lane, pair, shard, got))

        self._loaders.submit(load)

    def _on_opened(
        self, lane: Lane, pair: PlanPair, shard: PlanShard, got: Opened | AlreadyDone | Foreign | Exception
    ) -> None:
        lane.opening -= 1
        log = self._log.bind(model=pair.model, dataset=shard.stem)
        match got:
            case AlreadyDone(status):
                self.done += 1
                self.completed += status.completed
                log.info("already done")
            case Foreign(owner):
                lane.foreign.append((pair, shard))
                log.warning("another inferd works on it: waiting", owner=owner)
            case Opened(claim, feed, index, spans, late):
                run = ShardRun(
                    pair=pair,
                    shard=shard,
                    claim=claim,
                    feed=feed,
                    index=index,
                    target=Target(self._shelf.work, pair.model, shard.stem, claim.token),
                    tally=index.tally,
                    told=index.told,
                    damaged=index.damaged,
                    duplicates=index.duplicates,
                    late=late,
                    left=max(shard.requests - len(index), 1),
                    started_at=utc(self._clock.time()),
                    earlier=spans,
                )
                tally = index.tally
                self._budget.load(tally.attempts, tally.prompt_tokens + tally.completion_tokens, tally.cost)
                lane.runs.add(run)
                if index.damaged:
                    log.warning("journal lines could not be read and are asked again", lines=index.damaged)
                self.publish(run, "running")
                self.refill(lane, run)
            case error:
                self.failed += 1
                reason = f"can't be opened: {error}"
                log.error("pair failed", reason=reason)
                self._post_failure(pair, shard, reason)

    # --- finishing ------------------------------------------------------------------------------------------------

    def cancel(self, lane: Lane, dataset: str, reason: str) -> bool:
        """Give up a dataset's shards, those that aren't open yet as soon as they are; False when none is left."""
        waiting = [one for one in lane.waiting if one[0].dataset == dataset]
        runs = [run for run in lane.runs if run.pair.dataset == dataset and not (run.given_up or run.finalising)]
        elsewhere = any(pair.dataset == dataset for pair, _ in lane.foreign)
        if not (waiting or runs or elsewhere or lane.opening):
            return False
        self._cancelled[lane.model.abbr, dataset] = reason
        for one in waiting:
            lane.waiting.remove(one)
            self._open(lane, *one)
        for run in runs:
            self.give_up(lane, run, reason)
        return True

    def give_up_lane(self, lane: Lane) -> None:
        self._log.error("model given up", model=lane.model.abbr, reason=lane.health.reason)
        for run in list(lane.runs):
            self.give_up(lane, run, lane.health.reason)

    def give_up(self, lane: Lane, run: ShardRun, reason: str) -> None:
        """Ask nothing more of this shard in this run; what is in flight still ends and is kept."""
        if run.given_up or run.finalising:
            return
        run.given_up = reason
        run.pending -= lane.queue.drop(run)
        run.pending -= len(lane.drop_retries(lambda job: job.run is run))
        run.left = 0
        self.maybe_finish(lane, run)

    def maybe_finish(self, lane: Lane, run: ShardRun) -> None:
        if self.closed or run.finalising or run.merging or run not in lane.runs or not run.drained():
            return
        total, failed = run.shard.requests, sum(run.failed.values())
        if run.given_up or failed > self._config.max_error_rate * run.pair.requests:
            self._end(lane, run, "fail", reason=_failure_reason(run))
        elif run.completed != total:
            self._end(
                lane, run, "fail", reason=f"{run.completed} requests where the plan has {total}: submit the suite again"
            )
        else:
            run.finalising = True
            self._merge(lane, run)

    def _merge_ahead(self, lane: Lane, run: ShardRun) -> None:
        """Merge what has its answer while the last requests are in flight: then the end has little left to do."""
        if run.merge is None and not run.given_up and run.shard.requests >= MERGE_AHEAD:
            self._merge(lane, run)

    def _merge(self, lane: Lane, run: ShardRun) -> None:
        """To the end if the shard is being finalised, else as far as there are answers."""
        run.merging = True
        merge = run.merge = run.merge or Merge(self._shelf.work, run.pair, run.shard, run.feed.asked, run.index)
        fresh, finish = run.index.take_fresh(), run.finalising
        failed = self._failed_of(lane, run.pair) if finish and run.failed else None

        def work() -> None:
            got: str | Exception = ""
            try:
                if failed is not None:
                    shards.check_failures(self._shelf.work, run.pair, failed, self._config.max_error_rate)
                if finish:
                    got = merge.finish(fresh, run.failures)
                else:
                    merge.advance(fresh, run.failures)
            except Exception as error:  # noqa: BLE001  # the edge of a worker: it ends one pair
                merge.abandon()
                got = error.with_traceback(None)  # its frames would hold on to the index
            self._post(lambda: self._on_merged(lane, run, got))

        self._loaders.submit(work)

    def _on_merged(self, lane: Lane, run: ShardRun, got: str | Exception) -> None:
        run.merging = False
        if isinstance(got, Exception):
            run.merge = None  # the next try begins anew
            run.merge_errors += 1
        if not run.finalising:
            self.maybe_finish(lane, run)
        elif isinstance(got, OSError) and run.merge_errors < MERGE_TRIES:
            self._merge(lane, run)
        elif isinstance(got, OSError):
            run.finalising = False
            self._on_fatal(f"the predictions can't be written: {got}")
        elif isinstance(got, Exception):
            reason = f"{got}" if isinstance(got, TandemError) else f"{type(got).__name__}: {got}"
            self._end(lane, run, "fail", reason=reason)
        else:
            self._end(lane, run, "done", digest=got)

    def _failed_of(self, lane: Lane, pair: PlanPair) -> dict[str, int]:
        """Failures of the pair by shard, of those that are or were open here."""
        running = {run.shard.stem: run.failed.total() for run in lane.runs if run.pair.dataset == pair.dataset}
        return self._failed.get((pair.model, pair.dataset), {}) | running

    def _drop_merge(self, run: ShardRun) -> None:
        if run.merge is not None:
            self._loaders.submit(run.merge.abandon)
            run.merge = None

    def _end(self, lane: Lane, run: ShardRun, state: PairState, *, reason: str = "", digest: str = "") -> None:
        lane.runs.discard(run)
        lane.queue.drop(run)
        self._drop_merge(run)
        self.completed += run.completed
        if run.failed:
            self._failed.setdefault((run.pair.model, run.pair.dataset), {})[run.shard.stem] = run.failed.total()
        self.publish(run, state, reason=reason, digest=digest)
        log = self._log.bind(
            model=run.pair.model, dataset=run.shard.stem, completed=run.completed, total=run.shard.requests
        )
        if state == "done":
            self.done += 1
            log.info("pair done", reused=run.reused, **({"failed": dict(run.failed)} if run.failed else {}))
        else:
            self.failed += 1
            log.error("pair failed", reason=reason)
        run.target.close()
        run.claim.release()

    def publish(self, run: ShardRun, state: PairState, *, reason: str = "", digest: str = "") -> None:
        now = utc(self._clock.time())
        path = self._shelf.work.infer_status(run.pair.model, run.shard.stem)
        self._publisher.post(path, run.status(state, now, reason=reason, digest=digest))

    def _post_failure(self, pair: PlanPair, shard: PlanShard, reason: str) -> None:
        now = utc(self._clock.time())
        self._publisher.post(
            self._shelf.work.infer_status(pair.model, shard.stem),
            shards.bare_status(pair, shard, "fail", now, reason=reason),
        )

    def _on_status_error(self, path: Path, error: Exception) -> None:
        """Runs on the publisher's thread."""
        self._log.warning("status can't be written; trying again", path=str(path), error=str(error))

    # --- the end --------------------------------------------------------------------------------------------------

    def leave(self, lane: Lane, reason: str, *, journal_closed: bool) -> int:
        """Give back what is left of a lane's shards, to be gone on with later; returns how many shards are
        unfinished.
        """
        unfinished = len(lane.runs) + len(lane.waiting) + len(lane.foreign) + lane.opening
        for run in list(lane.runs):
            run.in_flight = 0
            run.stragglers = ()
            self.publish(run, "pending", reason=reason)
            if journal_closed:  # else the journal's thread may still be at it
                run.target.close()
            if not run.merging:  # else a loader is still at it, under the claim; the next start sweeps up behind it
                self._drop_merge(run)
                run.claim.release()
        return unfinished

    def settle(self, timeout: float) -> bool:
        """See `Dispatcher.settle`."""
        return self._publisher.settle(timeout)

    def close(self, timeout: float) -> bool:
        """Write the last statuses and end the threads; False when some could not be written."""
        written = self._publisher.stop(timeout)
        self._loaders.end()
        self._loaders.wait(1.0)
        return written


def _failure_reason(run: ShardRun) -> str:
    total, failed = run.shard.requests, sum(run.failed.values())
    classes = ", ".join(f"{kind} {count}" for kind, count in run.failed.most_common())
    counts = f"{failed}/{total} requests failed ({classes})" if failed else ""
    missing = total - run.completed
    not_run = f"{missing} not run" if missing > 0 else ""
    last = f"last error: {run.last_error}" if run.last_error and run.last_error not in run.given_up else ""
    return "; ".join(part for part in (run.given_up, counts, not_run, last) if part)
