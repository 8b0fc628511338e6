"""What a daemon tells of itself to a webhook (`[notify]`): a stall, a failure, the end of the budget, its own end.

All of it happens on one thread, which looks at the daemon's counters every second and is waited for once, at the end
and not for long: neither a hook nor a mount that hangs can hold the daemon up. What goes wrong here is logged.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

from shared.clock import Clock, utc
from shared.config import NotifyConfig, NotifyEvent
from shared.errors import TandemError
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import SCHEMA, EvalStatus, InferStatus
from shared.secrets import lookup
from shared.status import read_record
from shared.webhook import post, text_of, url_fault

LOOK_EVERY = 1.0  # seconds
PATIENCE = 12.0  # seconds for which the end of a daemon waits for its last news
NAMED = 3  # pairs that one piece of news names

Daemon = Literal["inferd", "evald"]
Counters = Callable[[], Mapping[str, float]]


class News(NamedTuple):
    event: NotifyEvent
    reason: str


class Judge:
    """When a daemon's counters are news. Pure: `now` is a monotonic time.

    answered, failed: the names of the counters of what moves and of the pairs that failed.
    """

    def __init__(self, stall_after: float, now: float, answered: str, failed: str) -> None:
        self._stall_after = stall_after
        self._answered = answered
        self._failed = failed
        self._last = -1.0
        self._since = now
        self._stalled = False
        self._told = 0.0

    def stall(self, counters: Mapping[str, float], now: float, *, idle: bool) -> News | None:
        """Once a stall. idle: nothing is expected to move."""
        done = counters.get(self._answered, 0.0)
        if idle or done != self._last:
            self._last, self._since, self._stalled = done, now, False
        elif now - self._since >= self._stall_after and not self._stalled:
            self._stalled = True
            waits = counters.get("in_flight", 0), counters.get("retries_waiting", 0)
            return News(
                "stall",
                f"no request was answered for {now - self._since:.0f} s ({waits[0]:.0f} in flight, {waits[1]:.0f} wait "
                "for a retry): `evalctl why` tells more",
            )
        return None

    def failures(self, counters: Mapping[str, float]) -> int:
        """How many more pairs failed than was asked about before."""
        failed = counters.get(self._failed, 0.0)
        more, self._told = failed - self._told, max(failed, self._told)
        return max(int(more), 0)


class Vigil:
    """counters: the daemon's, from any thread. idle: whether it is meant to do nothing now. Without a URL it does
    nothing at all.
    """

    def __init__(
        self,
        config: NotifyConfig,
        work: WorkDir,
        daemon: Daemon,
        clock: Clock,
        log: Any,
        counters: Counters,
        idle: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._work = work
        self._daemon = daemon
        self._clock = clock
        self._log = log
        self._counters = counters
        self._idle = idle
        self._url = _url(config, log)
        infer = daemon == "inferd"
        names = ("completed", "pairs_failed") if infer else ("scored", "failed")
        # What evald waits for is inference, whose stalls inferd tells.
        stall_after = config.stall_after if infer else float("inf")
        self._judge = Judge(stall_after, clock.monotonic(), *names)
        self._known: set[tuple[str, str]] = set()  # failed pairs that were told
        self._ended: SimpleQueue[News] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="vigil", daemon=True)

    def start(self) -> None:
        if self._url:
            self._thread.start()

    def end(self, code: int, reason: str, *, stopped: bool = False, patience: float = PATIENCE) -> None:
        """Tell the daemon's end, and wait at most `patience` seconds for that. stopped: somebody asked it to end."""
        event: NotifyEvent = "finish" if code == 0 or stopped else "budget" if code == 4 else "failure"
        self._ended.put(News(event, f"ended with status {code}" + (f": {reason}" if reason else "")))
        if self._thread.ident is not None:
            self._thread.join(patience)

    def _run(self) -> None:
        while True:
            try:
                last: News | None = self._ended.get(timeout=LOOK_EVERY)
            except Empty:
                last = None
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  # the edge of this thread: news is no reason to end
                self._log.warning("the webhook's news is incomplete", error=type(error).__name__)
            if last is not None:
                self._tell(last)
                return

    def _look(self) -> None:
        counters = self._counters()
        now = self._clock.monotonic()
        if (news := self._judge.stall(counters, now, idle=self._idle())) is not None:
            self._tell(news)
        if more := self._judge.failures(counters):
            self._tell(News("failure", f"{more} more failed: {self._failed()}".rstrip(": ")))

    def _failed(self) -> str:
        """The pairs that failed and weren't told yet, with their reasons, as far as their statuses are there."""
        found = dict(self._statuses())
        new = sorted(found.keys() - self._known)
        self._known |= found.keys()
        more = [f"and {len(new) - NAMED} more"] if len(new) > NAMED else []
        return "; ".join([f"{'/'.join(key)}: {found[key]}" for key in new[:NAMED]] + more)

    def _statuses(self) -> list[tuple[tuple[str, str], str]]:
        plan = read_plan(self._work)
        found = []
        for pair in plan.pairs if plan is not None else ():
            key = (pair.model, pair.dataset)
            paths: list[tuple[Path, type[EvalStatus] | type[InferStatus]]]
            if self._daemon == "evald":
                paths = [(self._work.eval_status(*key), EvalStatus)]
            else:
                paths = [(self._work.infer_status(pair.model, shard.stem), InferStatus) for shard in pair.shards]
            for path, kind in paths:
                try:
                    status = read_record(path, kind)
                except (TandemError, OSError):
                    continue
                if status is not None and status.state == "fail" and status.plan_digest == pair.digest:
                    found.append((key, status.reason))
        return found

    def _tell(self, news: News) -> None:
        if news.event not in self._config.events or not self._url:
            return
        name = self._work.root.name
        body = {
            "schema": SCHEMA,
            "text": text_of(name, self._daemon, news.event, news.reason),
            "event": news.event,
            "work_dir": name,
            "daemon": self._daemon,
            "host": socket.gethostname(),
            "reason": news.reason,
            "counts": dict(self._counters()),
            "time": utc(self._clock.time()),
        }
        fault = post(self._url, body, threading.Event().wait)
        if fault:
            self._log.warning("the webhook didn't take the news", news=news.event, reason=fault)
        else:
            self._log.debug("webhook told", news=news.event)


def _url(config: NotifyConfig, log: Any) -> str:
    """Where to tell it; "" where nobody is to be told. A hook that can't be told stops nothing."""
    if not config.url_env:
        return ""
    url = lookup(config.url_env, os.environ) or ""
    fault = url_fault(url) if url else f"the variable {config.url_env} isn't set here"
    if fault:
        log.warning("no webhook will be told", reason=fault)
        return ""
    return url
