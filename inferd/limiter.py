"""How much may be asked of an endpoint now: permits, health, budget. Pure: time comes in as a parameter.

The dispatcher alone calls these, so there is nothing to lock: it takes the permit before it hands a request to a
worker.
"""

from __future__ import annotations

from shared.config import BudgetConfig
from shared.errors import AttemptError


class Permits:
    """The semaphore of one model, shared by all its datasets."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0

    def take(self) -> bool:
        if self.in_use >= self.limit:
            return False
        self.in_use += 1
        return True

    def give_back(self) -> None:
        self.in_use -= 1


class Health:
    """Whether an endpoint is worth asking. After so many failures in a row, with no answer between, it is only probed:
    one request at a time, at growing intervals. When `timeout` seconds of that brought no answer, it is given up.

    Refusals that no waiting mends (a wrong key, a wrong address, a used-up quota) give it up as soon as they fill the
    row.
    """

    PROBE_FIRST, PROBE_MAX = 1.0, 15.0
    COUNTED = frozenset({"connection", "timeout", "server_error", "bad_response", "auth", "not_found", "quota"})
    FINAL = frozenset({"auth", "not_found", "quota"})

    def __init__(self, after: int, timeout: float, final_after: int) -> None:
        self._after = after
        self._timeout = timeout
        self._final_after = final_after
        self._row = 0
        self._final_row = 0
        self._since: float | None = None
        self._next_probe = 0.0
        self._interval = self.PROBE_FIRST
        self.given_up = False
        self.reason = ""

    @property
    def healthy(self) -> bool:
        return self._since is None

    def on_answer(self) -> None:
        """It works: asked as usual again."""
        self._row = self._final_row = 0
        self._since = None
        self._interval = self.PROBE_FIRST
        self.reason = ""

    def on_error(self, error: AttemptError, now: float) -> None:
        if error.kind not in self.COUNTED:
            self.on_answer()  # 429s and refusals of single requests come from an endpoint that works
            return
        self._row += 1
        self._final_row = self._final_row + 1 if error.kind in self.FINAL else 0
        if self._final_row >= self._final_after:
            self.given_up = True
            self.reason = f"given up: {self._final_row} refusals in a row: {error.kind}: {error.message}"
        elif self._row >= self._after:
            if self._since is None:
                self._since = now
                self._next_probe = now + self._interval
            elif now - self._since >= self._timeout:
                self.given_up = True
            what = "given up" if self.given_up else "unhealthy, only probed"
            self.reason = f"{what}: {self._row} failures in a row: {error.kind}: {error.message}"

    def may_probe(self, now: float, in_flight: int) -> bool:
        """Whether an unhealthy endpoint may be asked one request now; says yes once an interval."""
        if in_flight > 0 or now < self._next_probe:
            return False
        self._interval = min(self._interval * 2, self.PROBE_MAX)
        self._next_probe = now + self._interval
        return True

    def next_look(self) -> float | None:
        """When an unhealthy endpoint may be probed next; None for a healthy one."""
        return self._next_probe if self._since is not None else None


class Budget:
    """Ceilings over the whole run. What is in flight is reckoned at the mean of what was settled, so that the ceiling
    is met closely; it can be overshot by what the last requests cost more than the mean.
    """

    def __init__(self, ceilings: BudgetConfig) -> None:
        self._ceilings = ceilings
        self.requests = 0
        self.tokens = 0
        self.usd = 0.0
        self._in_flight = 0

    def load(self, attempts: int, tokens: int, usd: float) -> None:
        """Count what earlier runs spent."""
        self.requests += attempts
        self.tokens += tokens
        self.usd += usd

    def reserve(self) -> None:
        self.requests += 1
        self._in_flight += 1

    def settle(self, tokens: int, usd: float) -> None:
        self._in_flight -= 1
        self.tokens += tokens
        self.usd += usd

    def exhausted(self) -> str | None:
        """Which ceiling is reached, in words; None while there is room for one more request."""
        limits = self._ceilings
        ahead = self._in_flight / max(self.requests - self._in_flight, 1)
        if limits.requests is not None and self.requests >= limits.requests:
            return f"budget reached: {self.requests} of {limits.requests} requests"
        if limits.tokens is not None and self.tokens * (1 + ahead) >= limits.tokens:
            return f"budget reached: {self.tokens} of {limits.tokens} tokens"
        if limits.usd is not None and self.usd * (1 + ahead) >= limits.usd:
            return f"budget reached: {self.usd:.4f} of {limits.usd} USD"
        return None
