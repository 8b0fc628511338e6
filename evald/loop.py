"""What evald does at each step: see what inference does, have what is ready scored, keep statuses and summary true.

Each pair of the plan is in one place: waiting (in Watch), being scored, scored, or failed. One that turns out not to
match its status goes back to waiting, and is looked at ever more seldom.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from evald.predictions import Incomplete
from evald.results import PairResult
from evald.sandbox.interpreter import versions_now
from evald.score import ScoreJob, score_pair
from evald.summary import RESULT_LIMIT, write_summary
from evald.watch import Events, Pair, Wake, Watch
from evald.workers import OverTime, Scorers
from shared import claims
from shared.atomic import look_again, open_regular, sweep
from shared.clock import Clock, utc
from shared.config import EvalConfig
from shared.daemon import StopSignal
from shared.errors import DONE, INCOMPLETE, TandemError, WorkDirError
from shared.heartbeat import HeartbeatReader
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import EvalStatus, PairState, Plan, PlanPair
from shared.status import read_record, write_record

OLD_BEAT_GRACE = 3
"""Intervals of inferd's beat for which one that had ended before we came is given to become a new one; a single one
where no inferd holds its claim.
"""
SETTLE = 60.0  # seconds after inferd's end in which predictions that don't match their status yet are looked at again


@dataclass
class _Unready:
    """A pair that is done by its status and not by its files: looked at again, ever more seldom."""

    reason: str
    tries: int
    again_at: float  # monotonic


class Loop:
    """`step(now)` is one look at the work_dir; the loop around it lives in shared.daemon."""

    def __init__(
        self,
        work: WorkDir,
        config: EvalConfig,
        reader: HeartbeatReader,
        workers: Scorers,
        events: Events | None,
        stop: StopSignal,
        wake: Wake,
        clock: Clock,
        log: Any,
        tick: Callable[[], None],
    ) -> None:
        self._work = work
        self._config = config
        self._reader = reader
        self._workers = workers
        self._events = events
        self._stop = stop
        self._wake = wake
        self._clock = clock
        self._log = log
        self._tick = tick
        self._plan: Plan | None = None
        self._plan_seen: tuple[int, int, int] | None = None
        self._watch: Watch | None = None
        self._running: dict[Pair, tuple[Future[str], ScoreJob]] = {}
        self._unready: dict[Pair, _Unready] = {}
        self._failed: dict[Pair, str] = {}
        self._summary: Future[None] | None = None
        self._summary_began = 0.0
        self._summary_at = 0.0
        self._summary_due = False
        self._started = clock.monotonic()
        self._log_at = self._started + config.log_interval
        self._swept = False
        self._ended_at: float | None = None
        self._trouble = ""
        self.done = 0
        self.reason = ""
        self.unscored: dict[Pair, str] = {}

    def counters(self) -> dict[str, float]:
        waiting = len(self._watch.waiting) if self._watch is not None else 0
        return {"scored": self.done, "failed": len(self._failed), "running": len(self._running), "waiting": waiting}

    def reconfigure(self, config: EvalConfig) -> None:
        """What is decided from now on is decided by this."""
        self._config = config
        self._log_at = min(self._log_at, self._clock.monotonic() + config.log_interval)

    @property
    def busy(self) -> bool:
        """Whether a pair is being scored, or was and has not been looked at since."""
        return bool(self._running)

    def step(self, now: float) -> float | None:
        self._tick()
        if self._stop.event.is_set():
            self.reason = f"stopped by {self._stop.name}"
            return None
        if self._events is not None:
            self._events.ensure()
        ended = self._inference_ended(now)
        if not ended:
            self._ended_at = None
        trouble = self._reader.trouble
        try:
            self._load_plan()
            self._collect(now)
            if self._watch is not None:
                self._look(self._watch, now, ended)
        except OSError as error:
            trouble = str(error)
        # A mount that went away may come back; the heartbeat's silence decides how long that is waited for.
        if trouble and trouble != self._trouble:
            self._log.warning("the work_dir can't be read; trying again", error=trouble)
        self._trouble = trouble
        self._refresh_summary(now)
        if now >= self._log_at:
            self._log_at = now + self._config.log_interval
            self._log.info("progress", **self.counters())
        if self._watch is not None and not self._watch.waiting and not self._running:
            return None
        if ended and not self._running and self._may_leave(now):
            self.reason = ended
            return None
        return min(self._config.watch_interval, 1.0) if ended or self._unready else self._config.watch_interval

    def finish(self) -> int:
        """Write down what was not scored and why, and the last summary; returns the exit status."""
        self._workers.stop()  # so that what a worker writes can't come after what is written here
        if self._watch is not None:
            for key in sorted(self._watch.waiting & self._running.keys()):
                self.unscored[key] = self.reason
                self._write(key, "pending", self.reason)
            for key in sorted(self._watch.waiting - self._running.keys()):
                self.unscored[key] = reason = self._why_not(key)
                self._log.warning("pair skipped", model=key[0], dataset=key[1], reason=reason)
                self._write(key, "pending" if self._stop.event.is_set() else "fail", reason)
        self.unscored |= self._failed
        if self._watch is None:
            self.reason = self.reason or "no plan"
            self._log.error("nothing to score: no plan was written", reason=self.reason)
            return INCOMPLETE
        sweep(self._work.report_json.parent)  # what a worker that was stopped just now left
        write_summary(str(self._work))
        return INCOMPLETE if self.unscored else DONE

    # --- inferd -------------------------------------------------------------------------------------------------

    def _inference_ended(self, now: float) -> str:
        """Why no more predictions will come, or "" while they may."""
        verdict = self._reader.look()
        last = self._reader.last
        if verdict == "missing":
            silent = self._reader.silent_for()
            return (
                f"inferd has not started: no heartbeat for {silent:.0f} s"
                if silent >= self._config.startup_timeout
                else ""
            )
        if verdict == "stale":
            return f"inferd's heartbeat has not changed for {self._reader.silent_for():.0f} s"
        if verdict in ("finished", "aborted"):
            beats = 1 if claims.held(self._work.inferd_claim()) is False else OLD_BEAT_GRACE
            grace = min(self._config.startup_timeout, beats * (last.interval if last else 5.0))
            if self._reader.moved or now - self._started >= grace or self._all_ended():
                return f"inferd {verdict}" + (f": {last.reason}" if last is not None and last.reason else "")
        return ""

    def _all_ended(self) -> bool:
        """Whether each waiting pair's shards all say `done`: nothing more is to come, whoever may start."""
        if self._watch is None:
            return False
        return all(
            status is not None and status.state == "done"
            for key in self._watch.waiting
            for status in self._watch.statuses(key)
        )

    def _may_leave(self, now: float) -> bool:
        """Whether a last look at what doesn't match its status yet has had its time."""
        if self._ended_at is None:
            self._ended_at = now
            return False  # one more sweep, begun after the end was known
        return not self._unready or now - self._ended_at >= min(SETTLE, self._config.heartbeat_timeout)

    # --- pairs --------------------------------------------------------------------------------------------------

    def _load_plan(self) -> None:
        """Read the plan when it is new. Opening revalidates what NFS has cached, a bare stat would not."""
        try:
            with open_regular(self._work.plan) as file:
                stat = _stat(file.fileno())
        except FileNotFoundError:
            if self._plan is not None:
                raise  # it was there: the whole work_dir is away
            look_again(self._work.root)
            return
        if stat == self._plan_seen:
            return
        plan = read_plan(self._work)
        if plan is None:
            return
        self._plan_seen = stat
        if plan != self._plan:
            self._log.info("plan read", pairs=len(plan.pairs))
            if self._plan is None:  # later on, what is half-written is a worker's at work
                for folder in self._work.written_by_evald({pair.model for pair in plan.pairs}):
                    sweep(folder)
            self._plan = plan
            self._watch = Watch(self._work, plan)
            self._swept = False
            self._failed.clear()
            self._unready.clear()
            self.done = 0

    def _look(self, watch: Watch, now: float, ended: str) -> None:
        """Have scored what is ready, as much of it as there is room for.

        A sweep reads every status: at the start, and once inference has ended; else the cheap scan will do.
        """
        skip = self._running.keys() | {key for key, unready in self._unready.items() if now < unready.again_at}
        for pair, digests in watch.sweep(skip) if ended or not self._swept else watch.scan(skip):
            if not self._submit(pair, digests) and self._swept:
                break
            self._tick()
        if not self._swept:
            self._swept = True
            # What an earlier run said of pairs that aren't scored as they stand now is no longer so.
            for key in sorted(watch.waiting - self._running.keys()):
                self._reset(key)
                self._tick()

    def _reset(self, key: Pair) -> None:
        status = self._status(key)
        if status is None or (status.state, status.plan_digest) != ("pending", self._digest(key)):
            self._write(key, "pending", "")

    def _status(self, key: Pair) -> EvalStatus | None:
        try:
            return read_record(self._work.eval_status(*key), EvalStatus)
        except WorkDirError:
            return None

    def _submit(self, pair: PlanPair, digests: tuple[str, ...]) -> bool:
        """False when there is no room for it now."""
        assert self._plan is not None
        key = (pair.model, pair.dataset)
        dataset = next(dataset for dataset in self._plan.datasets if dataset.abbr == pair.dataset)
        config = self._config
        job = ScoreJob(
            str(self._work), pair, dataset, digests, config.calibration_bins, config.sandbox, config.sample_log
        )
        if (content := self._standing(key, job)) is not None:
            self._end(key, "done", content=content)
            return True
        if len(self._running) >= 2 * self._config.max_num_workers:
            return False  # it stays a candidate; the queue to the workers is kept short
        self._log.debug("scoring", model=pair.model, dataset=pair.dataset)
        self._write(key, "running", "")
        future = self._workers.submit(score_pair, job, timeout=self._config.pair_timeout)
        future.add_done_callback(lambda _: self._wake())
        self._running[key] = (future, job)
        return True

    def _standing(self, key: Pair, job: ScoreJob) -> str | None:
        """The content of the result that lies there, if it came from the same predictions, tasks and rules, and all
        beside it is there.
        """
        try:
            result = read_record(self._work.result(*key), PairResult, RESULT_LIMIT)
        except WorkDirError:
            return None
        if result is None or result.content != job.content(versions_now(result.pythons)):
            return None
        files = [self._work.scores(*key)] + ([self._work.samples(*key)] if job.sample_log else [])
        return result.content if all(path.is_file() for path in files) else None

    def _collect(self, now: float) -> None:
        assert self._watch is not None or not self._running
        for key, (future, job) in list(self._running.items()):
            if not future.done():
                continue
            del self._running[key]
            if self._watch is None or not self._watch.plans(job.pair):
                # Of a plan that is no more. What it wrote is known by its content for what it is.
                if self._watch is not None and key in self._watch.waiting:
                    self._reset(key)
                continue
            try:
                content = future.result()
            except (Incomplete, OSError) as error:
                # Not the scorer's fault: a mount that went away, a full disk, files still under way.
                tries = self._unready[key].tries + 1 if key in self._unready else 1
                pause = min(self._config.watch_interval, 1.0) * min(2 ** (tries - 1), 30)
                self._unready[key] = _Unready(str(error), tries, now + pause)
                self._write(key, "pending", f"incomplete: {error}")
            except OverTime:
                self._end(key, "fail", f"scoring took longer than {self._config.pair_timeout:g} s")
            except Exception as error:  # noqa: BLE001  # the edge of a worker: its failure is this pair's alone
                kind = "" if isinstance(error, TandemError) else f"{type(error).__name__}: "
                self._end(key, "fail", f"scoring failed: {kind}{error}")
            else:
                self._end(key, "done", content=content)

    def _end(self, key: Pair, state: PairState, reason: str = "", content: str = "") -> None:
        assert self._watch is not None
        self._watch.handled(key)
        self._unready.pop(key, None)
        self._summary_due = True
        if state == "done":
            self.done += 1
            self._log.info("pair scored", model=key[0], dataset=key[1])
        else:
            self._failed[key] = reason
            self._log.error("pair not scored", model=key[0], dataset=key[1], reason=reason)
        known = self._status(key)
        told = (state, self._digest(key), reason, content)
        if known is None or (known.state, known.plan_digest, known.reason, known.content) != told:
            self._write(key, state, reason, content)

    def _why_not(self, key: Pair) -> str:
        assert self._watch is not None
        if key in self._unready:
            return f"incomplete: {self._unready[key].reason}"
        for status in self._watch.statuses(key):
            if status is not None and status.state == "fail":
                return f"inference failed: {status.reason}"
            if status is None or status.state != "done":
                counts = f"{status.completed}/{status.total} requests answered; " if status is not None else ""
                return f"inference incomplete: {counts}{self.reason}"
        return self.reason

    def _digest(self, key: Pair) -> str:
        return self._watch.digest(key) if self._watch is not None else ""

    def _write(self, key: Pair, state: PairState, reason: str, content: str = "") -> None:
        status = EvalStatus(
            model=key[0],
            dataset=key[1],
            state=state,
            plan_digest=self._digest(key),
            reason=reason,
            content=content,
            updated_at=utc(self._clock.time()),
        )
        try:
            write_record(self._work.eval_status(*key), status)
        except OSError as error:
            self._log.warning("status can't be written", model=key[0], dataset=key[1], error=str(error))

    # --- the summary --------------------------------------------------------------------------------------------

    def _refresh_summary(self, now: float) -> None:
        """Keep the summary fresh while pairs come in, in a worker, and no more often than it pays."""
        if self._summary is not None:
            if not self._summary.done():
                return
            if (error := self._summary.exception()) is not None:
                self._log.warning("the summary could not be written; trying again", error=str(error))
                self._summary_due = True
            self._summary = None
            self._summary_at = now + max(self._config.watch_interval, 10 * (now - self._summary_began))
        if self._summary_due and now >= self._summary_at:
            self._summary_due = False
            self._summary_began = now
            self._summary = self._workers.submit(write_summary, str(self._work))


def _stat(fd: int) -> tuple[int, int, int]:
    found = os.fstat(fd)
    return found.st_ino, found.st_size, found.st_mtime_ns
