"""Inference put together: the dispatcher with a lane a model, over the pairs of a plan that it is offered. The daemon
composes it (service.py), and so does whoever infers and scores in one process.

Invariant: whoever made one closes it, whatever happens. Then all that was answered is saved, and no thread of it is
left but those of calls that hang.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from inferd import local_model, shards
from inferd.adapters import ModelAdapter, build_adapter, is_carried
from inferd.adapters.redact import Redactor, usual_writings
from inferd.ask import Asker, Redact
from inferd.desk import Desk
from inferd.dispatcher import Dispatcher
from inferd.engine import Engine
from inferd.limiter import Budget, Health, Permits
from inferd.orders import ceiling
from inferd.pool import Pool
from inferd.progress import Job, Lane, Workers
from inferd.shards import Shelf
from shared import claims, daemon
from shared.atomic import remove, sweep
from shared.clock import Clock, utc
from shared.config import InferConfig, ModelConfig, Suite
from shared.errors import DONE, FATAL, INCOMPLETE, OVER_BUDGET
from shared.layout import WorkDir
from shared.records import Plan, PlanPair
from shared.secrets import lookup
from shared.status import write_record

ENGINE_FROM = 64
"""Calls in flight from which one thread that drives them all beats a thread for each (docs/benchmarks.md)."""
LONG_SECRET = 16  # characters from which a secret can't be a word of an answer


@dataclass(frozen=True)
class Ended:
    """How it ended, over all that was offered. code: the exit status."""

    done: int
    failed: int
    unfinished: int
    code: int
    reason: str
    state: Literal["finished", "aborted"]


class Inference:
    """suite: with the address of a running server in each `local` model. adapters: those of models that aren't to be
    built, by abbr. desk: where all calls are made, one at a time, where no workers are wanted. on_defect: see `Asker`.

    First `reset`, then `offer` and `run`, as often as there is something to offer.
    """

    def __init__(
        self,
        work: WorkDir,
        suite: Suite,
        plan: Plan,
        config: InferConfig,
        clock: Clock,
        logger: Any,
        tick: Callable[[], None],
        *,
        adapters: Mapping[str, ModelAdapter] | None = None,
        desk: Desk | None = None,
        on_defect: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._shelf = Shelf(work, plan)
        self._budget = Budget(suite.budget)
        self._clock = clock
        self._dispatcher = Dispatcher(self._shelf, config, self._budget, clock, random.uniform, logger, tick)
        secret = _Secrets()
        try:
            for model in suite.models:
                given = (adapters or {}).get(model.abbr)
                adapter = given or build_adapter(model, infer=config, secret=secret.lookup)
                asker = Asker(adapter, model.price, clock, secret.redact(), on_defect)
                self._dispatcher.lanes.append(_lane(model, config, asker, clock, self._dispatcher, desk))
        except BaseException:
            self._dispatcher.close()
            raise

    @property
    def dispatcher(self) -> Dispatcher:
        return self._dispatcher

    @property
    def lanes(self) -> list[Lane]:
        return self._dispatcher.lanes

    def counters(self) -> dict[str, float]:
        """Progress in numbers, as of the last second. From any thread."""
        return self._dispatcher.counters()

    @property
    def completed(self) -> int:
        """Requests with a durable end. For whoever is called at each step of `run` (`tick`)."""
        return self._dispatcher.completed

    def wake(self) -> None:
        """Have `run` look again at once. From any thread, and from signal handlers."""
        self._dispatcher.wake()

    def reset(self, tick: Callable[[], None]) -> None:
        """`pending` for every shard that isn't done as planned, so that no state of an earlier run is taken for this
        one's. What the done ones took counts towards the budget; what the others took does when they are opened.

        Shards that another inferd works on keep the status which that one writes. What an earlier sharding left of a
        pair that is done is of no use any more.
        """
        work = self._shelf.work
        merged = {model: work.all_merged(model) for model in {pair.model for pair in self._shelf.plan.pairs}}
        for pair in self._shelf.plan.pairs:
            standing = 0
            for shard in pair.shards:
                tick()
                claim = claims.take(work.shard_claim(pair.model, shard.stem))
                if claim is None:
                    continue
                with claim:
                    if (done := shards.standing(work, pair, shard)) is not None:
                        standing += 1
                        self._budget.load(done.attempts, done.prompt_tokens + done.completion_tokens, done.cost)
                        continue
                    old = shards.last_status(work, pair, shard)
                    if old is not None and old.state == "pending":
                        continue
                    now, spans = utc(self._clock.time()), old.spans if old is not None else ()
                    write_record(
                        work.infer_status(pair.model, shard.stem),
                        shards.bare_status(pair, shard, "pending", now, spans=spans),
                    )
            if standing == len(pair.shards):
                for path in merged[pair.model].get(pair.dataset, ()):
                    remove(path)

    def offer(self, pairs: Iterable[PlanPair]) -> None:
        """Have these pairs asked when `run` is called."""
        lanes = {lane.model.abbr: lane for lane in self._dispatcher.lanes}
        for pair in pairs:
            lanes[pair.model].waiting.extend((pair, shard) for shard in pair.shards)

    def run(self, stop: daemon.StopSignal, on_drain: Callable[[], None], patience: float = math.inf) -> bool:
        """Ask until each pair that was offered is done or has failed: True, or until a stop, the end of the budget or a
        fatal error has drained it: False. on_drain: told at a stop. patience: the longest wait between two steps.
        """

        def step(now: float) -> float | None:
            if stop.event.is_set() and not self._dispatcher.draining:
                on_drain()
                self._dispatcher.stop(stop.name)
            if stop.hurry.is_set():
                self._dispatcher.stop(stop.name, 0.0)
            return self._dispatcher.step(now)

        daemon.run_loop(step, self._clock.monotonic, lambda delay: self._dispatcher.wait(min(delay, patience)))
        return not self._dispatcher.draining

    def settle(self, timeout: float = 10.0) -> bool:
        """Wait until the status of each shard that ended is on disk; False when for `timeout` seconds none could be
        written.
        """
        return self._dispatcher.settle(timeout)

    def close(self) -> Ended:
        """Save what is left to save and end the threads."""
        dispatcher = self._dispatcher
        ended = dispatcher.close()
        clean = not ended.failed and not ended.unfinished and ended.saved
        if clean:
            code, reason = DONE, ""
        elif not ended.saved and not dispatcher.fatal:
            code, reason = FATAL, "not everything could be written to the work_dir"
        elif dispatcher.fatal:
            code, reason = FATAL, dispatcher.fatal
        elif dispatcher.over_budget:
            code, reason = OVER_BUDGET, dispatcher.stop_reason
        else:
            code, reason = INCOMPLETE, dispatcher.stop_reason
        state: Literal["finished", "aborted"] = "aborted" if dispatcher.draining and not clean else "finished"
        return Ended(ended.done, ended.failed, ended.unfinished, code, reason, state)


def sweep_statuses(work: WorkDir, suite: Suite) -> None:
    """Remove what a killed writer of statuses left half-written. For the first inferd of a work_dir alone."""
    for folder in work.written_by_inferd(model.abbr for model in suite.models):
        sweep(folder)


def with_local_servers(suite: Suite, stack: ExitStack, work: WorkDir, stop: threading.Event, logger: Any) -> Suite:
    """The suite with the address of a running server in each `local` model; the servers end with the stack."""
    models = []
    for model in suite.models:
        if model.type == "local":
            logger.info("starting the local model", model=model.abbr)
            server = local_model.serve(model, log=work.model_log(model.abbr), progress=logger.info, stop=stop)
            stack.enter_context(server)
            model = msgspec.structs.replace(model, base_url=server.base_url)
        models.append(model)
    return msgspec.structs.replace(suite, models=tuple(models))


def _lane(
    model: ModelConfig, config: InferConfig, asker: Asker, clock: Clock, dispatcher: Dispatcher, desk: Desk | None
) -> Lane:
    adapter = asker.adapter
    limit = 1 if desk is not None else ceiling(model, config)
    timeout = model.attempt_timeout or config.attempt_timeout
    name = f"ask-{model.abbr}"
    workers: Workers
    if desk is not None:
        workers = desk.workers(dispatcher.work)
        timeout = math.inf  # somebody may sit in a debugger; and the one thread there is couldn't be replaced
    elif is_carried(adapter) and (model.transport == "engine" or (model.transport == "auto" and limit >= ENGINE_FROM)):
        workers = Engine[Job](name, limit, adapter, asker, clock, dispatcher.report)
    else:
        workers = Pool(name, limit, dispatcher.work)
    return Lane(
        model=model,
        asker=asker,
        permits=Permits(limit),
        health=Health(config.unhealthy_after, config.unhealthy_timeout, config.fail_fast_after),
        timeout=timeout,
        workers=workers,
    )


class _Secrets:
    """Hands out secrets to adapters and takes them out of every text that is kept."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._message = self._answer = Redactor(())

    def lookup(self, name: str) -> str | None:
        value = lookup(name, os.environ)
        if value and value not in self._known:
            self._known.add(value)
            self._message = Redactor(self._known)
            long = (secret for secret in self._known if len(secret) >= LONG_SECRET)
            self._answer = Redactor(long, usual_writings)
        return value

    def redact(self) -> Redact:
        """For a model whose own secrets were all looked up."""
        has_long = any(len(secret) >= LONG_SECRET for secret in self._known)
        return Redact(message=lambda text: self._message(text), answer=self._clean if has_long else None)

    def _clean(self, text: str) -> str:
        return self._answer(text)
