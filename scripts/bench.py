#!/usr/bin/env python3
"""Measures the whole inferd (journal, hashing, status, heartbeat on) against a fake server on loopback.

Each run of inferd alternates with one of a bare pycurl loop over threads, which sends ready-made bodies and neither
parses nor writes anything: what this library can do on this machine in this minute. Times of one machine on one day say
little; ratios of one run do. ideal = ceil(N / C) x latency. wall: from `running` to `ended` in inferd's log, so with
opening, merging and the last status. CPU: user + system of the process from its first request on. foreign: the share of
the machine that went to processes which aren't measured here; above 10 % the row should be run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from inferd.adapters.openai import OpenAIAdapter  # noqa: E402  # after the path is set
from shared.config import ModelConfig  # noqa: E402
from shared.layout import WorkDir  # noqa: E402
from shared.records import Message, Prompt  # noqa: E402
from tests.harness import inferd, openai, submit, task, write_suite  # noqa: E402
from tests.server import FakeServer  # noqa: E402

INFER = {
    "commit_interval": 0.05,
    "status_interval": 1.0,
    "heartbeat_interval": 5.0,
    "poll_interval": 1.0,
    "attempt_timeout": 60.0,
}


@dataclass(frozen=True)
class Row:
    """A load. datasets x tasks requests, `workers` in flight, the server answers after `latency` ms."""

    name: str
    workers: int
    latency: int
    datasets: int
    tasks: int
    must: str

    @property
    def requests(self) -> int:
        return self.datasets * self.tasks

    @property
    def ideal(self) -> float:
        return math.ceil(self.requests / self.workers) * self.latency / 1000


ROWS = (
    Row("c256-200ms", 256, 200, 1, 10_240, "<= 1.03 x ideal"),
    Row("c256-50ms", 256, 50, 8, 1_000, "<= 1.15 x ideal"),
    Row("c256-0ms", 256, 0, 1, 8_192, ">= 6000/s"),
    Row("c1024-200ms", 1024, 200, 1, 20_480, "<= 1.15 x ideal"),
    Row("c4096-2s", 4096, 2000, 1, 16_384, "<= 1.25 x ideal"),
)


@dataclass(frozen=True)
class Run:
    """One measured run. wall and cpu in seconds, rss in MB."""

    wall: float
    cpu: float
    rss: float
    threads: int
    foreign: float


class Foreign:
    """The share of all processors that others took while a block ran."""

    def __init__(self) -> None:
        self._machine = psutil.cpu_times()
        self._started = time.monotonic()

    def share(self, own: float) -> float:
        """own: CPU seconds of the processes measured (inferd or the baseline, and the server)."""
        now = psutil.cpu_times()
        busy = sum(now[:3]) - sum(self._machine[:3]) + now.softirq - self._machine.softirq
        capacity = (time.monotonic() - self._started) * (os.cpu_count() or 1)
        return max(0.0, busy - own) / capacity


def measure_inferd(row: Row, server: FakeServer, folder: Path) -> Run:
    suite = write_suite(
        folder / "suite",
        [openai(_url(server, row), max_workers=row.workers)],
        {
            f"d{number}": [task(n, prompt=f"d{number} question {n} ANSWER={n}") for n in range(row.tasks)]
            for number in range(row.datasets)
        },
        infer=INFER,
        eval={"heartbeat_timeout": 60.0},
    )
    work = WorkDir(folder / "work")
    submit(suite, work)
    server.reset_stats()
    process = inferd(work)
    watched = psutil.Process(process.process.pid)
    log = work.log("inferd", socket.gethostname())
    while not (log.exists() and '"event": "running"' in log.read_text()):
        time.sleep(0.01)
    foreign, server_cpu = Foreign(), _cpu(server.pid)
    cpu = threads = rss = 0.0
    start_cpu = _cpu(process.process.pid)
    while process.running:
        try:
            with watched.oneshot():
                threads = max(threads, watched.num_threads())
                rss = max(rss, watched.memory_info().rss / 2**20)
                times = watched.cpu_times()
                cpu = times.user + times.system - start_cpu
        except psutil.Error:
            break
        time.sleep(0.05)
    share = foreign.share(cpu + _cpu(server.pid) - server_cpu)
    if process.wait() != 0:
        raise SystemExit(f"inferd failed:\n{process.err[-2000:]}")
    _check(server, row)
    events = {event["event"]: event["timestamp"] for event in map(json.loads, log.read_text().splitlines())}
    wall = (datetime.fromisoformat(events["ended"]) - datetime.fromisoformat(events["running"])).total_seconds()
    return Run(wall, cpu, rss, int(threads), share)


def measure_baseline(row: Row, server: FakeServer) -> Run:
    """The bare loop, in a process of its own."""
    server.reset_stats()
    foreign, server_cpu = Foreign(), _cpu(server.pid)
    done = subprocess.run(
        [sys.executable, __file__, "--baseline", _url(server, row), str(row.workers), str(row.requests)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    told = json.loads(done.stdout)
    share = foreign.share(told["cpu"] + _cpu(server.pid) - server_cpu)
    _check(server, row)
    return Run(told["wall"], told["cpu"], told["rss"], told["threads"], share)


def baseline(url: str, workers: int, requests: int) -> None:
    """What the subprocess does: pycurl handles on threads, bodies made before, answers thrown away."""
    import pycurl

    if workers >= 1024:
        sys.setswitchinterval(0.1)
    threading.stack_size(512 * 1024)
    adapter = OpenAIAdapter(ModelConfig(abbr="m", base_url=url), timeout=60.0, secret=lambda _: None)
    bodies: SimpleQueue[bytes] = SimpleQueue()
    for number in range(requests):
        bodies.put(adapter.body(Prompt(messages=(Message("user", f"d0 question {number} ANSWER={number}"),))))

    def work() -> None:
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, f"{url}/chat/completions")
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.HTTPHEADER, ["Content-Type: application/json", "Expect:"])
        curl.setopt(pycurl.WRITEFUNCTION, len)
        while True:
            try:
                body = bodies.get_nowait()
            except Empty:
                return
            curl.setopt(pycurl.POSTFIELDS, body)
            curl.perform()

    cpu, started = time.process_time(), time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - started
    rss = psutil.Process().memory_info().rss / 2**20
    print(json.dumps({"wall": wall, "cpu": time.process_time() - cpu, "rss": rss, "threads": workers}))


def _url(server: FakeServer, row: Row) -> str:
    return server.url(f"d{row.latency}" if row.latency else "")


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _check(server: FakeServer, row: Row) -> None:
    """A figure counts only if the server saw what was asked of us: each request once, C in flight, C connections."""
    stats = server.stats()
    seen = (stats["posts"], stats["distinct"])
    if seen != (row.requests, row.requests):
        raise SystemExit(f"{row.name}: the server saw {seen[0]} requests, {seen[1]} distinct, not {row.requests}")
    if row.latency >= 50 and stats["peak_in_flight"] != row.workers:
        raise SystemExit(f"{row.name}: at most {stats['peak_in_flight']} were in flight, not {row.workers}")


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def line(row: Row, own: Sequence[Run], bare: Sequence[Run]) -> str:
    """One row of the table: medians over the runs."""
    wall, bare_wall = _median([run.wall for run in own]), _median([run.wall for run in bare])
    cpu = _median([run.cpu for run in own]) / row.requests * 1e6
    bare_cpu = _median([run.cpu for run in bare]) / row.requests * 1e6
    ratio = f"{wall / row.ideal:.3f}" if row.ideal else "–"
    bare_ratio = f"{bare_wall / row.ideal:.3f}" if row.ideal else "–"
    cells = (
        row.name,
        f"{row.datasets} x {row.tasks}",
        f"{wall:.2f}",
        ratio,
        bare_ratio,
        f"{row.requests / wall:.0f}",
        row.must,
        f"{cpu:.0f}",
        f"{cpu / bare_cpu:.2f}",
        f"{max(run.rss for run in own):.0f}",
        str(max(run.threads for run in own)),
        f"{100 * max(run.foreign for run in (*own, *bare)):.0f} %",
    )
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| load | requests | wall s | / ideal | bare / ideal | per s | must "
    "| CPU us | / bare | RSS MB | threads | foreign |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--rows", default="", help=f"only these, by name: {','.join(row.name for row in ROWS)}")
    parser.add_argument("--save", type=Path, help="also write the table to this file")
    parser.add_argument("--baseline", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.baseline:
        url, workers, requests = options.baseline
        baseline(url, int(workers), int(requests))
        return
    wanted = set(filter(None, options.rows.split(",")))
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {options.runs} runs each, medians"
    lines = [f"{machine}:", "", HEAD]
    print("\n".join(lines), flush=True)
    for row in ROWS:
        if wanted and row.name not in wanted:
            continue
        own: list[Run] = []
        bare: list[Run] = []
        with FakeServer() as server:
            for _ in range(options.runs):
                with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
                    own.append(measure_inferd(row, server, Path(folder)))
                bare.append(measure_baseline(row, server))
        lines.append(line(row, own, bare))
        print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
