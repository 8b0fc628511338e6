"""What runs in the machine: both daemons on two hosts, and what befalls the mount. Scenes tell `/out` what they found.

The daemons are forked from this process, which has imported them once: starting Python takes half a minute in there.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from evalctl import doctor
from evalctl.submit import submit
from evald import service as evald
from evald.results import PairResult
from inferd import service as inferd
from shared.layout import WorkDir
from shared.records import Generation, Prompt, TaskSpec
from shared.status import read_record
from tests.harness import faketime

ASKED = Path("/run/asked")  # what the model was asked, a line each: counted where no mount can lose it
OUT = Path("/out")
_libc = ctypes.CDLL(None, use_errno=True)
_NEW_UTS, _NEW_NET = 0x04000000, 0x40000000


class Model:
    """Answers right, after `seconds`, and writes down that it was asked."""

    def __init__(self, model_id: str, seconds: float = 0.0) -> None:
        self.model_id = model_id
        self._seconds = seconds

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        time.sleep(self._seconds)
        with ASKED.open("ab", buffering=0) as file:
            file.write(f"{task.task_id}\n".encode())
        return Generation(text=task.targets[0], finish_reason="stop")


class Daemon:
    """`run` in a process on one of the hosts."""

    def __init__(self, host: str, name: str, run: Callable[[], int]) -> None:
        self.log = OUT / f"{name}.txt"
        self.pid = os.fork()
        if self.pid == 0:
            status = 70
            try:
                _enter(host)
                output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(output, 1)
                os.dup2(output, 2)
                status = run()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 71
            except BaseException:  # noqa: BLE001  # the edge of a process
                traceback.print_exc()
            finally:
                os._exit(status)

    def wait(self) -> int:
        """Its exit status; minus the signal that killed it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()


def _enter(host: str) -> None:
    with open(f"/run/netns/{host}") as namespace:
        if _libc.setns(namespace.fileno(), _NEW_NET) or _libc.unshare(_NEW_UTS):
            raise OSError(ctypes.get_errno(), "setns, unshare")
    socket.sethostname(host)


class Scene:
    """One work_dir, as either host sees it."""

    def __init__(self, name: str, *, datasets: int = 3, tasks: int = 40, seconds: float = 0.05, more: str = "") -> None:
        self.name = name
        self.requests = datasets * tasks
        self._starts = Counter[str]()
        folder = Path("/run/suites") / name
        folder.mkdir(parents=True)
        lines = [
            "[[models]]",
            'abbr = "m"',
            'type = "tests.nfs.inside:Model"',
            f"options = {{ seconds = {seconds} }}",
            "max_workers = 4",
        ]
        for number in range(datasets):
            lines += ["[[datasets]]", f'abbr = "d{number}"', f'path = "d{number}.jsonl"']
            ids = [f"{name}-{number}-{task}" for task in range(tasks)]
            text = "".join(json.dumps({"task_id": one, "prompt": one, "targets": [one]}) + "\n" for one in ids)
            (folder / f"d{number}.jsonl").write_text(text)
        (folder / "suite.toml").write_text("\n".join([*lines, more]) + "\n")
        self.abbrs = [f"d{number}" for number in range(datasets)]
        submit(folder / "suite.toml", self.on("h1"))

    def on(self, host: str) -> WorkDir:
        return WorkDir(Path(f"/run/{host}/{self.name}"))

    def infer(self, host: str) -> Daemon:
        return self._start(host, "inferd", lambda: inferd.run(self.on(host), {}))

    def score(self, host: str) -> Daemon:
        return self._start(host, "evald", lambda: evald.run(self.on(host), {}))

    def score_by_another_clock(self, host: str, offset: str) -> Daemon:
        """As a program of its own: what turns its clock is loaded with it."""
        command = [sys.executable, "-m", "evald", "-w", str(self.on(host))]
        return self._start(
            host, "evald", lambda: os.execve(command[0], command, os.environ | faketime() | {"FAKETIME": offset})
        )

    def _start(self, host: str, what: str, run: Callable[[], int]) -> Daemon:
        self._starts[what] += 1
        return Daemon(host, f"{self.name}-{what}-{self._starts[what]}", run)

    def asked(self) -> Counter[str]:
        lines = ASKED.read_text().split() if ASKED.exists() else []
        return Counter(line for line in lines if line.startswith(f"{self.name}-"))

    def until_asked(self, count: int) -> None:
        deadline = time.monotonic() + 300
        while self.asked().total() < count:
            assert time.monotonic() < deadline, f"{self.name}: asked {self.asked().total()} of {count}"
            time.sleep(0.05)

    def found(self, **more: Any) -> None:
        """Leave what came of it, as the second host sees it."""
        work = self.on("h2")
        answered: Counter[str] = Counter()
        for abbr in self.abbrs:
            path = work.predictions("m", abbr)
            if path.exists():
                answered.update(json.loads(line)["task_id"] for line in path.read_bytes().splitlines())
        results = {abbr: read_record(work.result("m", abbr), PairResult) for abbr in self.abbrs}
        asked = self.asked()
        record = {
            "requests": self.requests,
            "answered": len(answered),
            "answered_twice": sum(count > 1 for count in answered.values()),
            "asked": len(asked),
            "asked_again": asked.total() - len(asked),
            "scored": {abbr: [one.n_scored, one.mean] for abbr, one in results.items() if one is not None},
            "leftovers": sorted(path.name for path in work.root.rglob(".nfs*")),
            **more,
        }
        (OUT / f"{self.name}.json").write_text(json.dumps(record))
        print(f"{self.name}: {record}", flush=True)


def two_hosts() -> None:
    """evald waits on one host before there is anything; inferd is killed on the other, and goes on beside evald."""
    scene = Scene("two-hosts")
    scoring = scene.score("h2")
    time.sleep(2)  # so that names have been looked for in vain: such answers are kept for 30 s
    killed = scene.infer("h1")
    scene.until_asked(scene.requests // 3)
    status = killed.kill()
    going_on = scene.infer("h2")
    scene.found(killed=status, inferd=going_on.wait(), evald=scoring.wait())


def clocks_apart() -> None:
    """evald's clock is ten minutes ahead. Somebody on inferd's host holds a status open that inferd replaces: the old
    one lives on as `.nfs...` among the names until it is closed.
    """
    scene = Scene("clocks-apart")
    scoring, asking = scene.score_by_another_clock("h2", "+600s"), scene.infer("h1")
    scene.until_asked(scene.requests // 4)
    with scene.on("h1").infer_status("m", "d0").open("rb"):
        inferd = asking.wait()
        silly = [path.name for path in scene.on("h1").infer_status_of("m").glob(".nfs*")]
        scored = scoring.wait()
    scene.found(inferd=inferd, evald=scored, silly=len(silly))


def server_restarts() -> None:
    """The server is gone for some seconds while both work; calls hang meanwhile, and through its grace period."""
    scene = Scene("server-restarts")
    scoring, asking = scene.score("h2"), scene.infer("h1")
    scene.until_asked(scene.requests // 4)
    subprocess.run(["rpc.nfsd", "0"], check=True)
    time.sleep(5)
    subprocess.run(["rpc.nfsd", "4"], check=True)
    scene.found(inferd=asking.wait(), evald=scoring.wait())


def mount_hangs() -> None:
    """inferd's host is cut off for 30 s, and comes back."""
    scene = Scene("mount-hangs")
    scoring, asking = scene.score("h2"), scene.infer("h1")
    scene.until_asked(scene.requests // 4)
    subprocess.run(["ip", "link", "set", "v1", "down"], check=True)
    time.sleep(30)
    subprocess.run(["ip", "link", "set", "v1", "up"], check=True)
    scene.found(inferd=asking.wait(), evald=scoring.wait())


def never_back() -> None:
    """inferd's host is cut off for longer than evald waits: nothing incomplete is scored. Then it comes back."""
    scene = Scene("never-back", more="[eval]\nheartbeat_timeout = 8.0\nwatch_interval = 1.0")
    scoring, asking = scene.score("h2"), scene.infer("h1")
    scene.until_asked(scene.requests // 4)
    subprocess.run(["ip", "link", "set", "v1", "down"], check=True)
    first = scoring.wait()
    partly = {abbr: scene.on("h2").result("m", abbr).exists() for abbr in scene.abbrs}
    subprocess.run(["ip", "link", "set", "v1", "up"], check=True)
    asked = asking.wait()
    scene.found(evald_first=first, scored_first=sum(partly.values()), inferd=asked, evald=scene.score("h2").wait())


def disk_full() -> None:
    """The export fills up, which shows at fsync; then there is room again, and the same commands go on."""
    scene = Scene("disk-full", seconds=0.5)
    asking = scene.infer("h1")
    scene.until_asked(scene.requests // 4)
    filler = Path("/run/export/filler")
    _fill(filler)
    first = asking.wait()
    filler.unlink()
    scene.found(inferd_first=first, inferd=scene.infer("h1").wait(), evald=scene.score("h2").wait())


def _fill(path: Path) -> None:
    """To the last block, at once."""
    with path.open("wb") as file:
        end = 0
        for step in (1 << 24, 1 << 20, 1 << 16, 1 << 12, 1 << 10):
            try:
                while True:
                    os.posix_fallocate(file.fileno(), end, step)
                    end += step
            except OSError:
                continue


def root_squashed() -> None:
    """The server takes root for nobody: the work_dir belongs to nobody, and root can do no more than that."""
    subprocess.run(
        ["exportfs", "-o", "rw,root_squash,sync,no_subtree_check,fsid=0", "10.99.0.0/24:/run/export"], check=True
    )
    scene = Scene("root-squashed")
    scoring, asking = scene.score("h2"), scene.infer("h1")
    owners = {path.stat().st_uid for path in Path("/run/export", scene.name).rglob("*")}
    scene.found(inferd=asking.wait(), evald=scoring.wait(), owners=sorted(owners))


def doctor_of_two_hosts() -> None:
    """`evalctl doctor --peer` on both hosts at once."""
    hosts = ("h1", "h2")
    Path("/run/h1/doctor").mkdir()
    start = time.monotonic()
    doctors = {
        host: Daemon(host, f"doctor-{host}", partial(doctor.main, [f"/run/{host}/doctor", "--peer", "--json"]))
        for host in hosts
    }
    found = {
        "status": {host: one.wait() for host, one in doctors.items()},
        "said": {host: json.loads(one.log.read_text().splitlines()[-1]) for host, one in doctors.items()},
        "left": sorted(os.listdir("/run/export/doctor")),
        "seconds": time.monotonic() - start,
    }
    (OUT / "doctor.json").write_text(json.dumps(found))
    print(f"doctor: {found}", flush=True)


SCENES = (
    doctor_of_two_hosts,  # while there is room for it to be content
    two_hosts,
    clocks_apart,
    server_restarts,
    mount_hangs,
    never_back,
    disk_full,
    root_squashed,
)


def main(names: list[str]) -> int:
    failed = 0
    for scene in SCENES:
        if names and scene.__name__ not in names:
            continue
        print(f"-- {scene.__name__}", flush=True)
        try:
            scene()
        except BaseException:  # noqa: BLE001  # the other scenes have their turn
            failed += 1
            traceback.print_exc()
            sys.stderr.flush()
    return int(failed > 0)


if __name__ == "__main__":
    from tests.nfs import inside  # so that the adapter's module is this one, and not a second copy under another name

    sys.exit(inside.main(sys.argv[1:]))
