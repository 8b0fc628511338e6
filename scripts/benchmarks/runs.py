"""One run of inferd on a load, and one of the bare loop. Each is checked against what the server saw."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scripts.benchmarks.ideal import list_schedule
from scripts.benchmarks.loads import Load
from scripts.benchmarks.measuring import SAMPLE, Child, Foreign, Usage, cpu_seconds
from scripts.benchmarks.server import ROOT, Server
from scripts.benchmarks.suites import write_suite
from shared.layout import WorkDir

CONNECTIONS_OVER = 4  # more than the workers: the bench asks the server too
LONGEST = 900.0  # seconds a run may take
START_LOOK = 0.005  # seconds between looks at the log until inferd runs


class BenchError(Exception):
    """What was measured isn't what was to be measured."""


@dataclass(frozen=True)
class Run:
    """What one run came to. Seconds and MB; shares between 0 and 1.

    wall: inferd from `running` to `ended` in its log, so with opening, merging and the last status; the bare loop from
    its first request to its last answer. asked: from the first request to the last answer, at the server. cpu: user +
    system in `wall`. ideal: the shortest time for this load, in the order in which its requests came. busy, tail_busy,
    fill: see counts.Stats. sent: bytes of all bodies. stall: from `running` to the first request at the server. first,
    whole: from the start of the process to its first request and to its end.
    """

    wall: float
    asked: float
    cpu: float
    ideal: float
    peak_mb: float
    threads: int
    connections: int
    foreign: float
    busy: float
    tail_busy: float
    fill: float
    sent: int
    stall: float
    first: float
    whole: float


def prepare(load: Load, server: Server, folder: Path, model_lines: tuple[str, ...] = ()) -> tuple[WorkDir, float]:
    """A work_dir with the load's suite submitted, and how long submitting took."""
    suite = write_suite(folder / "suite", load, server.url(*load.path), model_lines)
    work = WorkDir(folder / "work")
    child = Child(command("evalctl", "submit", suite, "-w", work), cwd=ROOT, output=folder / "submit.txt")
    usage = child.wait(LONGEST)
    if usage is None or usage.status:
        raise BenchError(f"{load.name}: evalctl submit failed:\n{child.said()}")
    return work, child.ended - child.started


def run_inferd(
    load: Load,
    server: Server,
    work: WorkDir,
    output: Path,
    *,
    requests: int | None = None,
    look: Callable[[], float] = lambda: 0.0,
) -> Run:
    """inferd on a work_dir, to its end. requests: how many it still has to ask. look: called between looks
    at it; returns the CPU seconds of what it started."""
    requests = load.requests if requests is None else requests
    server.reset(requests=requests, workers=load.workers)
    log = work.log("inferd", socket.gethostname())
    before = log.read_text().count("\n") if log.exists() else 0
    child = Child(command("inferd", "-w", work), cwd=ROOT, output=output)
    deadline = time.monotonic() + LONGEST
    try:
        while "running" not in _events(log, before) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(START_LOOK)
        foreign = Foreign(server.pid)
        start_cpu = cpu_seconds(child.pid) if child.poll() is None else 0.0
        looking = 0.0
        while (usage := child.poll()) is None and time.monotonic() < deadline:
            looking += look()
            time.sleep(SAMPLE)
    finally:
        child.kill()
    if usage is None or usage.status:
        raise BenchError(f"{load.name}: inferd failed or didn't end:\n{child.said()}")
    cpu = usage.cpu - start_cpu
    share = foreign.share(cpu + looking)
    seen = server.stats()
    check(load, requests, seen, "inferd")
    events = _events(log, before)
    return _run(
        load,
        server,
        seen,
        wall=events["ended"] - events["running"],
        cpu=cpu,
        usage=usage,
        foreign=share,
        stall=seen["first_at"] - events["running"],
        first=seen["first_at"] - child.started,
        whole=child.ended - child.started,
    )


def run_bare(load: Load, server: Server, output: Path) -> Run:
    server.reset(requests=load.requests, workers=load.workers)
    foreign = Foreign(server.pid)
    child = Child(command("scripts.benchmarks.baseline", load.name, server.url(*load.path)), cwd=ROOT, output=output)
    usage = child.wait(LONGEST)
    if usage is None or usage.status:
        raise BenchError(f"{load.name}: the bare loop failed or didn't end:\n{child.said()}")
    share = foreign.share(usage.cpu)
    seen = server.stats()
    check(load, load.requests, seen, "the bare loop")
    told = json.loads(child.said())
    return _run(load, server, seen, wall=told["wall"], cpu=told["cpu"], usage=usage, foreign=share)


def check(load: Load, requests: int, seen: dict[str, float], who: str) -> None:
    """A figure counts only if the server saw what was to be asked: each request once, C in flight, C connections."""
    if not seen["requests"] == seen["distinct"] == seen["answered"] == requests:
        raise BenchError(
            f"{load.name}: of {who} the server saw {seen['requests']} requests, {seen['distinct']} distinct, "
            f"{seen['answered']} answered; {requests} were to come"
        )
    if seen["peak_in_flight"] > load.workers or (
        load.ms >= 50 and seen["peak_in_flight"] < min(load.workers, requests)
    ):
        raise BenchError(f"{load.name}: {who} had {seen['peak_in_flight']} requests in flight, not {load.workers}")
    if seen["peak_connections"] > load.workers + CONNECTIONS_OVER:
        raise BenchError(f"{load.name}: {who} had {seen['peak_connections']} connections for {load.workers} workers")


def _run(
    load: Load,
    server: Server,
    seen: dict[str, float],
    *,
    wall: float,
    cpu: float,
    usage: Usage,
    foreign: float,
    stall: float = 0.0,
    first: float = 0.0,
    whole: float = 0.0,
) -> Run:
    ideal = load.ideal
    return Run(
        wall=wall,
        asked=seen["seconds"],
        cpu=cpu,
        ideal=list_schedule(server.latencies(), load.workers) if ideal is None else ideal,
        peak_mb=usage.peak_mb,
        threads=usage.threads,
        connections=int(seen["peak_connections"]),
        foreign=foreign,
        busy=seen["busy"],
        tail_busy=seen["tail_busy"],
        fill=seen["fill"],
        sent=int(seen["bytes"]),
        stall=stall,
        first=first,
        whole=whole,
    )


def command(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def _events(log: Path, before: int) -> dict[str, float]:
    """When each event of the log was last told, in seconds since the epoch. before: lines of earlier runs."""
    try:
        lines = log.read_text().splitlines()[before:]
    except FileNotFoundError:
        return {}
    found: dict[str, float] = {}
    for line in lines:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # still being written
        found[event["event"]] = datetime.fromisoformat(event["timestamp"]).timestamp()
    return found
