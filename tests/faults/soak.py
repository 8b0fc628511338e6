"""The soak: faults of all kinds at random, at an inferd that works, for as long as one likes; then all must be well.

It goes in rounds. In each, inferd works on a fresh work_dir until that is done; whatever ends it, it is started again.
What must hold:

    each request has exactly one line in the predictions, with the right answer
    what was in the journal when a process began was not asked again by it
    the server answered a request again only if it was in flight, or not yet saved, while a fault struck; and on a disk
    that is well, no more than a few answers a worker are not yet saved
    inferd goes on after each fault, beats, and ends with 0; with 1 or 3 only if its disk failed
    threads and sockets of the process stay within its workers and a few more; it leaves no connection behind
    the key that it asks with is in no file and no line it wrote

The seed decides which faults come and how long they last, so a run that failed can be had again, as nearly as two runs
of many processes are alike.
"""

from __future__ import annotations

import errno
import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.layout import WorkDir
from tests.faults.daemon import FEW, Inferd
from tests.faults.disk import SmallDisk
from tests.faults.endpoint import Endpoint
from tests.faults.ledger import Ledger, must
from tests.faults.means import Missing
from tests.faults.proxy import Proxy
from tests.faults.report import Report
from tests.faults.resolver import NAME, Resolver
from tests.faults.shim import Shim
from tests.faults.suites import KEY, KEY_ENV, TRANSPORTS, models
from tests.harness import heartbeat, submit, task, until, write_suite

DATASETS = 3
UNSAVED = 8  # answers of each worker that may wait for their fsync, on a disk that is well
NESTED = 0.3  # the share of lasting faults in which a kill falls
GRACE = 5.0  # seconds after an attempt's deadline at which inferd gives its call up as hung
STORMS = ("429-ms200", "503-ms100", "500", "502-text", "midclose", "reset", "shut", "hang", "drip")


@dataclass(frozen=True)
class Options:
    """seconds: how long faults come; all kinds come once even if that takes longer. workers: of each model. requests:
    of each round. latency: of an answer, in ms.
    """

    seconds: float = 600.0
    seed: int = 0
    workers: int = 16
    requests: int = 6000
    latency: int = 40
    attempt_timeout: float = 2.0
    long_stops: bool = True  # SIGSTOP for so long that calls are given up as hung


class Soak:
    """folder: for all that it needs; its `disk` may be a mount. tell: takes each line as it happens."""

    def __init__(self, folder: Path, options: Options, tell: Callable[[str], None] = print) -> None:
        self._folder = folder
        self._options = options
        self._tell = tell
        self._rng = random.Random(options.seed)
        self.report = Report(options.seed)
        self._stack = ExitStack()
        self._disk: SmallDisk | None = None
        self._shim: Shim | None = None
        self._resolver: Resolver | None = None
        self._inferd: Inferd | None = None
        self._disk_failed = False  # since the process that lives was started
        self._disk_ill = False  # now
        self._started = time.monotonic()

    def run(self) -> Report:
        """Until the time is over and each kind of fault came; never raises for what didn't hold: the report tells."""
        with self._stack:
            work: WorkDir | None = None
            try:
                self._set_up()
                deck = self._shuffled()
                while deck or self._time_left():
                    work = self._begin_round()
                    deck = self._play(deck)
                    self._finish_round(work)
            except AssertionError as error:  # a Violation, or something that was waited for in vain
                self.report.violation = str(error)
                self._keep(work)
                if work is not None:
                    self._count_losses()
            except BaseException:
                self._keep(work)
                raise
            finally:
                if self._inferd is not None:
                    self._inferd.kill()
        return self.report

    # --- what it stands on ----------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        scratch = self._folder / "scratch"
        scratch.mkdir(parents=True)
        self._endpoint = self._stack.enter_context(Endpoint(scratch))
        self._proxy = self._stack.enter_context(Proxy(self._endpoint.port))
        root = self._folder / "disk"
        self._disk = self._try_for(("disk full",), lambda: SmallDisk(root, "64m"))
        root.mkdir(exist_ok=True)
        kinds = ("disk fails", "disk fails once", "disk slow", "clock set")
        self._shim = self._try_for(kinds, lambda: Shim(root, scratch))
        self._resolver = self._try_for(("no DNS",), lambda: Resolver(scratch))
        self._root = root
        self._said = self._folder / "inferd.said"
        host = NAME if self._resolver else "127.0.0.1"
        self._url = f"http://{host}:{self._proxy.port}/d{self._options.latency}/v1"
        if self._shim is not None:
            try:
                self._shim.set_clock(0)
            except Missing as missing:
                self.report.skipped["clock set"] = str(missing)

    def _try_for(self, kinds: Sequence[str], make: Callable[[], Any]) -> Any:
        try:
            return self._stack.enter_context(make())
        except Missing as missing:
            self.report.skipped |= dict.fromkeys(kinds, str(missing))
            return None

    def _shuffled(self) -> list[str]:
        """Each kind of fault that can be had, those that matter most more often."""
        kinds = [kind for kind in FAULTS if kind not in self.report.skipped]
        deck = [*kinds, "kill", "kill", "storm", "storm"]
        self._rng.shuffle(deck)
        return deck

    def _time_left(self) -> bool:
        return time.monotonic() - self._started < self._options.seconds

    # --- a round --------------------------------------------------------------------------------------------------

    def _begin_round(self) -> WorkDir:
        number = self.report.rounds
        each = max(1, self._options.requests // (DATASETS * len(TRANSPORTS)))
        datasets = {
            f"d{name}": [task(n, prompt=f"round {number} of {name}, question {n} ANSWER={n}") for n in range(each)]
            for name in range(DATASETS)
        }
        chosen = models(self._url, max_workers=self._options.workers)
        suite = write_suite(
            self._folder / f"suite{number}",
            chosen,
            datasets,
            infer={
                "attempt_timeout": self._options.attempt_timeout,
                "max_attempts": 1000,
                "unhealthy_timeout": 3600.0,
                "backoff_max": 0.5,
                "drain_timeout": 3.0,
                "commit_interval": 0.05,
            },
        )
        work = WorkDir(self._root / f"work{number}")
        submit(suite, work, env=KEY_ENV)
        self._work = work
        self._ledger = Ledger(work, self._endpoint, chosen, datasets)
        self._start()
        return work

    def _play(self, deck: list[str]) -> list[str]:
        """Faults, until the round's requests are done or there are none left to come; returns those that are left."""
        while deck or self._time_left():
            if not self._keep_running():
                return deck
            deck = deck or self._shuffled()
            kind = deck.pop()
            self.report.faults[kind] += 1
            self._disk_ill = kind.startswith("disk")
            FAULTS[kind](self, kind)
            if self._keep_running():
                self._goes_on(kind)
                self._at_rest()
            self._disk_ill = False
            self._hold(self._rng.uniform(0.05, 0.4))
        return deck

    def _finish_round(self, work: WorkDir) -> None:
        deadline = time.monotonic() + 180
        while self._keep_running():
            must(time.monotonic() < deadline, "inferd doesn't come to an end, although nothing ails it")
            self._hold(0.2)
        self.report.rounds += 1
        self.report.answered_once += self._ledger.check_predictions()
        self.report.requests += self._options.requests // (DATASETS * len(TRANSPORTS)) * DATASETS * len(TRANSPORTS)
        self._ledger.check_life()
        self.report.wasted += self._ledger.check_waste()
        self._no_key(work)
        self._count_losses()
        shutil.rmtree(work.root)

    def _count_losses(self) -> None:
        self.report.losses += [(loss, self._ledger.wasted(loss)) for loss in self._ledger.losses]

    def _no_key(self, work: WorkDir) -> None:
        files = [self._said, *(path for path in work.root.rglob("*") if path.is_file())]
        found = [str(path) for path in files if KEY.encode() in path.read_bytes()]
        must(not found, f"the key is in {found}")

    # --- the process ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._ledger.begin_life()
        self._disk_failed = False
        self.report.processes += 1
        env = KEY_ENV | (self._shim.env if self._shim else {}) | {"NO_PROXY": "*"}
        prefix = self._resolver.prefix if self._resolver else ()
        self._inferd = Inferd(self._work, self._said, env=env, prefix=prefix)

    @property
    def _process(self) -> Inferd:
        assert self._inferd is not None
        return self._inferd

    def _keep_running(self) -> bool:
        """Start it again if it ended; False when it ended because all is done."""
        if self._process.running:
            return True
        if self._is_done():
            return False
        self._start()
        return True

    def _is_done(self) -> bool:
        """Of a process that ended: whether all is done, or its disk ended it. Nothing else may."""
        status = self._process.wait()
        expected = (0, 1, 3) if self._disk_failed else (0,)
        must(status in expected, f"inferd ended with {status}; it said:\n{self._process.said[-1500:]}")
        if status == 0:
            self._settle()
        else:
            self._bury(f"ended by its disk ({status})")
        return status == 0

    def _kill(self, what: str) -> None:
        if self._process.running:
            self._process.kill()
            self._bury(what)
        else:
            self._is_done()

    def _bury(self, what: str) -> None:
        """Take stock of what a process left that ended."""
        self._settle()
        self._ledger.check_life()
        saved = self._ledger.saved()
        late = len(self._ledger.owed() - saved)
        bound = UNSAVED * self._options.workers * len(TRANSPORTS)
        must(self._disk_ill or late <= bound, f"{late} answers were not saved, on a disk that is well")
        loss = self._ledger.lose(what, saved)
        self._tell(f"    {what}: {loss.open} requests open, {len(loss.unsaved)} of them answered")

    def _settle(self) -> None:
        """The server has seen all that the process ever sent, and no connection is left."""
        until(lambda: not self._proxy.open and self._endpoint.open() <= 0, "no connection is left open", 30)

    def _hold(self, seconds: float) -> None:
        """Random moments are what this is about; there is nothing to wait for but the process's end."""
        ends = time.monotonic() + seconds
        while self._process.running and time.monotonic() < ends:
            time.sleep(0.01)

    def _goes_on(self, after: str) -> None:
        """It asks, saves all that it was answered, and beats; or it is done."""
        process = self._process
        answered, owed = self._endpoint.answered().total(), self._ledger.owed()
        beat = heartbeat(self._work.infer_heartbeat())

        def moves() -> bool:
            now = heartbeat(self._work.infer_heartbeat())
            return not process.running or (
                self._endpoint.answered().total() > answered
                and now is not None
                and (beat is None or (now.boot_id, now.seq) != (beat.boot_id, beat.seq))
                and owed <= self._ledger.saved()
            )

        until(moves, f"inferd goes on after: {after}", 60)

    def _at_rest(self) -> None:
        """Nothing ails it now: its threads and sockets come down to what it needs."""
        process = self._process
        bound = self._options.workers * len(TRANSPORTS) + FEW

        def few() -> bool:
            try:
                has = process.has()
            except ProcessLookupError:
                return True
            if has.threads > bound or has.sockets > bound:
                return False
            self.report.most_threads = max(self.report.most_threads, has.threads)
            self.report.most_sockets = max(self.report.most_sockets, has.sockets)
            return True

        until(few, f"no more than {bound} threads and sockets", 10)

    def _keep(self, work: WorkDir | None) -> None:
        """Off the mount, which goes."""
        if work is not None and work.root.exists():
            kept = self._folder / "kept"
            shutil.copytree(work.root, kept / work.root.name, dirs_exist_ok=True)
        self.report.kept = str(self._folder)

    # --- the faults -----------------------------------------------------------------------------------------------

    def _last(
        self,
        kind: str,
        seconds: float,
        begin: Callable[[], None],
        end: Callable[[], None],
        *,
        costs: bool = False,
        nested: bool = True,
    ) -> None:
        """A fault that lasts, now and then with a kill in it. costs: answers may be lost by it, though nobody dies."""
        killed = nested and self._rng.random() < NESTED
        self._tell(f"{kind} for {seconds:.2f} s{', with a kill' if killed else ''}")
        saved = self._ledger.saved()
        begin()
        try:
            self._hold(seconds / 2)
            if killed:
                self._kill(f"kill ({kind})")
                self._start()
                self._disk_failed = kind.startswith("disk")
            self._hold(seconds / 2)
        finally:
            end()
        if costs:
            self._take_stock(kind, saved)

    def _take_stock(self, kind: str, saved: set[str]) -> None:
        """Of what a fault may have cost the process that lives: once that goes on, as it may send what it was about to
        send before it learns that it has been given up.
        """
        if self._process.running:
            self._goes_on(kind)
        self._endpoint.open()  # once it has answered this, it has taken in what came before
        self._ledger.lose(kind, saved)

    def kill(self, kind: str) -> None:
        self._tell(kind)
        self._kill(kind)
        self._start()

    def kill_early(self, kind: str) -> None:
        """Somewhere between its start and its first requests."""
        self._tell(kind)
        self._kill("kill")
        for _ in range(2):
            self._start()
            self._hold(self._rng.uniform(0.0, 0.8))
            self._kill(kind)
        self._start()

    def stop(self, kind: str) -> None:
        """SIGSTOP and SIGCONT; often for longer than an attempt may take."""
        timeout = self._options.attempt_timeout
        seconds = self._rng.choice([self._rng.uniform(0.05, timeout / 2), timeout + 0.5])
        if self._options.long_stops and self._rng.random() < 0.2:
            seconds = timeout + GRACE + 1
        process = self._process
        self._last(kind, seconds, self._guarded(process.stop), self._guarded(process.go_on), costs=True, nested=False)

    def _guarded(self, what: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            try:
                what()
            except (ProcessLookupError, ChildProcessError):
                pass  # it is done already

        return call

    def disk_full(self, kind: str) -> None:
        assert self._disk is not None
        self._disk_failed = True
        self._last(kind, self._rng.uniform(0.3, 3.0), self._disk.fill, self._disk.make_room)

    def disk_fails(self, kind: str) -> None:
        """Every call of one or two kinds, on all files or on the journals alone."""
        shim = self._shim
        assert shim is not None
        calls = self._rng.sample(("write", "sync", "rename", "truncate", "create"), 2)
        only = self._rng.choice(("", "tmp_"))
        number = self._rng.choice((errno.EIO, errno.ENOSPC, errno.EROFS))
        torn = self._rng.random() < 0.5
        self._disk_failed = True

        def begin() -> None:
            for call in calls:
                shim.fail(call, number, torn=torn, only=only)

        self._tell(f"{kind}: {errno.errorcode[number]} at {' and '.join(calls)}{' of journals' if only else ''}")
        self._last(kind, self._rng.uniform(0.2, 2.0), begin, shim.heal)

    def disk_fails_once(self, kind: str) -> None:
        """One call, or the next few."""
        shim = self._shim
        assert shim is not None
        call = self._rng.choice(("write", "sync", "rename", "create"))
        times = self._rng.randint(1, 3)
        self._disk_failed = True
        before = shim.failed(call)
        process = self._process
        self._tell(f"{kind}: {times} x {call}")
        shim.fail(call, errno.EIO, times=times, torn=self._rng.random() < 0.5)
        until(lambda: shim.failed(call) >= before + times or not process.running, f"{call} fails", 60)
        shim.heal()

    def disk_slow(self, kind: str) -> None:
        """Each fsync takes 0.5 to 2 s; inferd goes on sending."""
        shim = self._shim
        assert shim is not None
        seconds = self._rng.uniform(0.5, 2.0)
        self._last(kind, 2 * seconds, lambda: shim.slow("sync", seconds), shim.heal)

    def reset(self, kind: str) -> None:
        """All connections or some, once or a few times."""
        self._tell(kind)
        for _ in range(self._rng.randint(1, 3)):
            saved = self._ledger.saved()
            self._proxy.reset(self._rng.choice((0.3, 1.0)))
            self._endpoint.open()
            self._ledger.lose(kind, saved)
            self._hold(self._rng.uniform(0.0, 0.3))

    def refuse(self, kind: str) -> None:
        self._last(kind, self._rng.uniform(0.2, 1.5), self._proxy.refuse, self._proxy.restore, costs=True)

    def swallow(self, kind: str) -> None:
        """Connections stay and nothing passes, longer than an attempt may take."""
        seconds = self._options.attempt_timeout + self._rng.uniform(0.2, 1.0)
        self._last(kind, seconds, self._proxy.swallow, self._proxy.restore, costs=True)

    def no_dns(self, kind: str) -> None:
        """While inferd starts, as names are asked for then."""
        resolver = self._resolver
        assert resolver is not None
        how = self._rng.choice(("unknown", "failing", "silent"))
        self._tell(f"{kind}: {how}")
        self._kill("kill")
        asked, resolver.how = resolver.asked, how
        self._start()
        process = self._process
        until(lambda: resolver.asked > asked or not process.running, "the name is asked for")
        self._hold(self._rng.uniform(0.2, 1.0))
        resolver.how = "well"

    def storm(self, kind: str) -> None:
        """The server answers everything so."""
        how = self._rng.choice(STORMS) if self.report.faults[kind] > 1 else STORMS[0]
        self._tell(f"{kind}: {how}")
        costly = how in ("midclose", "hang", "drip")
        self._last(
            kind,
            self._rng.uniform(0.3, 2.0),
            lambda: self._endpoint.behave(how),
            lambda: self._endpoint.behave(),
            costs=costly,
        )

    def restart(self, kind: str) -> None:
        """The server is killed, and comes back at once or after a while."""

        def end() -> None:
            self._endpoint.start()

        seconds = self._rng.choice((0.0, self._rng.uniform(0.2, 1.5)))
        self._last(kind, seconds, self._endpoint.kill, end, costs=True, nested=False)

    def clock(self, kind: str) -> None:
        """Set by minutes, hours or days, back or ahead, and left so."""
        assert self._shim is not None
        offset = self._rng.choice((-1, 1)) * self._rng.choice((90, 3600, 86_400 * 40))
        self._tell(f"{kind}: {offset:+d} s")
        self._shim.set_clock(offset)


FAULTS: dict[str, Callable[[Soak, str], None]] = {
    "kill": Soak.kill,
    "kill early": Soak.kill_early,
    "stop": Soak.stop,
    "disk full": Soak.disk_full,
    "disk fails": Soak.disk_fails,
    "disk fails once": Soak.disk_fails_once,
    "disk slow": Soak.disk_slow,
    "connections reset": Soak.reset,
    "connections refused": Soak.refuse,
    "network swallows": Soak.swallow,
    "no DNS": Soak.no_dns,
    "storm": Soak.storm,
    "server restarted": Soak.restart,
    "clock set": Soak.clock,
}
