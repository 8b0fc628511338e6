"""An inferd at work, to be struck: the server, a proxy before it, a work_dir, and the ledger over all."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from shared.layout import WorkDir
from tests.faults.daemon import FEW, Inferd
from tests.faults.endpoint import Endpoint
from tests.faults.ledger import Ledger
from tests.faults.proxy import Proxy
from tests.faults.shim import Shim
from tests.faults.suites import KEY_ENV, TRANSPORTS, models
from tests.harness import heartbeat, infer_status, submit, task, until, write_suite

WORKERS = 8  # of each model


class Scene:
    """A model for each transport, with `count` requests each over so many datasets: `d`, `d1` ... root: where the
    work_dir lies. shim: whether calls can be made to fail. host: the name under which the proxy is asked. The process
    is started by `start`. bound: the threads, and the sockets, that it needs at the most.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        latency: int = 20,
        workers: int = WORKERS,
        datasets: int = 1,
        root: Path | None = None,
        shim: bool = False,
        host: str = "127.0.0.1",
        connect_timeout: float = 10.0,
        **infer: Any,
    ) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self.count = count * len(TRANSPORTS)
        self.bound = workers * len(TRANSPORTS) + FEW
        self.endpoint = self._stack.enter_context(Endpoint(folder))
        self.proxy = self._stack.enter_context(Proxy(self.endpoint.port))
        url = f"http://{host}:{self.proxy.port}/d{latency}/v1"
        self.models = models(url, max_workers=workers, connect_timeout=connect_timeout)
        tasks = {
            f"d{name or ''}": [task(n, prompt=f"{name}: question {n} ANSWER={n}") for n in range(count // datasets)]
            for name in range(datasets)
        }
        settings = {"max_attempts": 1000, "unhealthy_after": 1000, "drain_timeout": 0.3, "attempt_timeout": 5.0}
        suite = write_suite(folder / "suite", self.models, tasks, infer=settings | infer)
        self.work = WorkDir((root or folder) / "work")
        submit(suite, self.work, env=KEY_ENV)
        self._shim = self._stack.enter_context(Shim(self.work.root, folder)) if shim else None
        self.ledger = Ledger(self.work, self.endpoint, self.models, tasks)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def shim(self) -> Shim:
        assert self._shim is not None
        return self._shim

    def start(self, prefix: tuple[str, ...] = ()) -> Inferd:
        """An inferd; killed at the latest with the scene."""
        self.ledger.begin_life()
        env = KEY_ENV | (self._shim.env if self._shim else {})
        return self._stack.enter_context(Inferd(self.work, self._folder / "inferd.said", env=env, prefix=prefix))

    def answered(self) -> int:
        """How many requests the server answered, those that it answered again included."""
        return self.endpoint.answered().total()

    def asked(self) -> int:
        return self.endpoint.asked().total()

    def until_answered(self, more: int) -> None:
        """So many answers more."""
        wanted = self.answered() + more
        until(lambda: self.answered() >= wanted, f"{more} more answers")

    def errors(self, kind: str) -> list[int]:
        """How many attempts of each model failed so, as its status tells."""
        statuses = [infer_status(self.work, model["abbr"]) for model in self.models]
        return [status.errors.get(kind, 0) if status is not None else 0 for status in statuses]

    def until_errors(self, kind: str, more: int) -> None:
        """So many more attempts of each model failed so."""
        wanted = [count + more for count in self.errors(kind)]
        until(
            lambda: all(is_ >= should for is_, should in zip(self.errors(kind), wanted, strict=True)),
            f"{more} x {kind}",
        )

    def until_saved(self) -> None:
        """What was answered by now is in the journal."""
        owed = self.ledger.owed()
        until(lambda: owed <= self.ledger.saved(), "what was answered is saved")

    def until_beats(self, times: int = 3) -> None:
        """So many beats more of the process that lives."""
        first = heartbeat(self.work.infer_heartbeat())
        assert first is not None

        def beaten() -> bool:
            now = heartbeat(self.work.infer_heartbeat())
            return now is not None and now.boot_id == first.boot_id and now.seq >= first.seq + times

        until(beaten, f"{times} more beats")

    def ends_well(self, process: Inferd) -> int:
        """Exit status 0, all is there and right, nothing is left open; returns how many answers were wasted."""
        assert process.wait() == 0, process.said[-3000:]
        until(lambda: not self.proxy.open and not self.endpoint.open(), "no connection is left open")
        assert self.ledger.check_predictions() == self.count
        self.ledger.check_life()
        return self.ledger.check_waste()
