"""inferd and the peers on the same prompts: for each condition one client after the other, so that all meet the same
minute of the machine. What counts is taken at the server.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scripts.benchmarks.ideal import waves
from scripts.benchmarks.loads import Load
from scripts.benchmarks.measuring import Child, Foreign
from scripts.benchmarks.peers.environments import NotInstalled, python_of, read_pins
from scripts.benchmarks.rows import NOISY
from scripts.benchmarks.runs import BenchError, command, prepare
from scripts.benchmarks.server import ROOT, Server
from scripts.benchmarks.table import markdown

PEERS = read_pins()
OWN = "Tandem"
LIMIT = 120.0  # seconds a run may take
DRIVERS = Path(__file__).with_name("drivers")
LOAD = Load("peers", 0, 0, 1, 2_000)
CONDITIONS = tuple((ms, workers) for ms in (200, 50) for workers in (32, 128, 256))
FULL = (0, 256)  # the rate alone, of inferd and of the openai client in threads
FULL_CLIENTS = (OWN, "openai-threads")


@dataclass(frozen=True)
class Lap:
    """One client under one condition. seconds: from the first request to the last answer. start: from the process's
    start to its first request. cpu: of all its processes, whole. state: `late` when it took longer than LIMIT; why: in
    words.
    """

    seconds: float = 0.0
    ideal: float = 0.0
    start: float = 0.0
    cpu: float = 0.0
    peak_mb: float = 0.0
    requests: int = 0
    distinct: int = 0
    answered: int = 0
    foreign: float = 0.0
    state: Literal["ended", "late", "failed"] = "ended"
    why: str = ""

    @property
    def complete(self) -> bool:
        return self.state == "ended" and self.answered == self.distinct == LOAD.requests

    @property
    def per_second(self) -> float:
        return self.answered / self.seconds if self.seconds else 0.0


def run(
    names: list[str], model_lines: tuple[str, ...], found: dict[str, dict[str, float]], say: Callable[[str], None]
) -> list[str]:
    """The lines of the table. Adds `openai_times` to the figures found for full load."""
    pythons: dict[str, Path] = {}
    notes: list[str] = []
    for name in names:
        say(f"{name}: installing {' '.join(PEERS[name].packages)}, unless it is there")
        try:
            pythons[name] = python_of(PEERS[name])
        except NotInstalled as error:
            notes.append(f"{name} couldn't be installed: {str(error).strip().splitlines()[-1]}")
    laps: dict[tuple[str, tuple[int, int]], Lap] = {}
    with Server() as server:
        for condition in (*CONDITIONS, FULL):
            for client in (OWN, *pythons):
                if condition == FULL and client not in FULL_CLIENTS:
                    continue
                with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
                    try:
                        lap = _lap(client, pythons.get(client), condition, server, Path(folder), model_lines)
                    except BenchError as error:
                        lap = Lap(state="failed", why=str(error).partition("\n")[0])
                laps[client, condition] = lap
                say(f"{client} {_words(condition)}: {lap.seconds:.2f} s, {lap.answered} answers {lap.why}")
                if lap.why:
                    notes.append(f"{client} {_words(condition)}: {lap.why}")
    own = found.get("c256-0ms", {})
    if ("openai-threads", FULL) in laps and "per_second" in own:
        own["openai_times"] = own["per_second"] / laps["openai-threads", FULL].per_second
    return [
        f"{LOAD.requests:,} short prompts; time from the first request to the last answer / ideal, at the server. A "
        f"run may take {LIMIT:.0f} s.",
        "",
        *table([OWN, *pythons], laps),
        *(line for note in notes for line in ("", note)),
    ]


def table(clients: list[str], laps: dict[tuple[str, tuple[int, int]], Lap]) -> list[str]:
    head = ["client", *map(_words, CONDITIONS), f"per s, {_words(FULL)}"]
    head += ["CPU s", "peak MB", "start s", "answered / distinct", "foreign"]
    rows = []
    for client in clients:
        own = [lap for (name, _), lap in laps.items() if name == client]
        rows.append(
            [
                PEERS[client].label if client in PEERS else client,
                *(_cell(laps[client, condition]) for condition in CONDITIONS),
                f"{laps[client, FULL].per_second:,.0f}" if (client, FULL) in laps else "–",
                _span([lap.cpu for lap in own]),
                f"{max(lap.peak_mb for lap in own):.0f}",
                _span([lap.start for lap in own if lap.requests]),
                "all"
                if all(lap.complete for lap in own)
                else " ".join(f"{lap.answered}/{lap.distinct}" for lap in own),
                f"{max(lap.foreign for lap in own):.0%}" + (" (!)" if any(lap.foreign > NOISY for lap in own) else ""),
            ]
        )
    return markdown(head, rows)


def _cell(lap: Lap) -> str:
    if lap.complete:
        return f"{lap.seconds / lap.ideal:.2f}"
    if lap.state == "ended":
        return f"{lap.seconds / lap.ideal:.2f} ({lap.answered} answered)"
    return f"{'did not end' if lap.state == 'late' else 'failed'} ({lap.answered} answered)"


def _words(condition: tuple[int, int]) -> str:
    ms, workers = condition
    return f"{ms} ms C={workers}"


def _span(values: list[float]) -> str:
    return f"{min(values):.1f}–{max(values):.1f}" if values else "–"


def _lap(
    client: str,
    python: Path | None,
    condition: tuple[int, int],
    server: Server,
    folder: Path,
    model_lines: tuple[str, ...],
) -> Lap:
    ms, workers = condition
    load = replace(LOAD, ms=ms, workers=workers)
    cpu = 0.0
    if python is None:
        work, _ = prepare(load, server, folder, model_lines)
        commands = [command("inferd", "-w", work), command("evald", "-w", work)]  # the peers score too
    else:
        prompts = folder / "prompts.jsonl"
        lines = (json.dumps({"prompt": prompt, "target": "4"}) + "\n" for prompt in load.prompts(0))
        prompts.write_text("".join(lines), "utf-8")
        driver = DRIVERS / f"drive_{client}.py"
        commands = [[str(python), str(driver), str(prompts), server.url(*load.path), str(workers), str(folder)]]
    server.reset(requests=load.requests, workers=workers)
    foreign = Foreign(server.pid)
    started = 0.0
    peak = 0.0
    state: Literal["ended", "late", "failed"] = "ended"
    why = ""
    for number, line in enumerate(commands):
        output = folder / f"output{number}.txt"
        # some write to HOME, and find there what an earlier run left
        child = Child(line, cwd=ROOT if python is None else folder, output=output, HOME=str(folder))
        started = started or child.started
        usage = child.wait(LIMIT)
        if usage is None:
            state, why = "late", f"did not end within {LIMIT:.0f} s"
            usage = child.poll()
        elif usage.status:
            last = (child.said().strip().splitlines() or [""])[-1]
            state, why = "failed", f"ended with exit status {usage.status}: {last[:200]}"
        assert usage is not None
        cpu += usage.cpu
        peak = max(peak, usage.peak_mb)
    share = foreign.share(cpu)
    seen = server.stats()
    return Lap(
        seconds=seen["seconds"],
        ideal=waves(load.requests, workers, ms / 1000),
        start=seen["first_at"] - started if seen["requests"] else 0.0,
        cpu=cpu,
        peak_mb=peak,
        requests=int(seen["requests"]),
        distinct=int(seen["distinct"]),
        answered=int(seen["answered"]),
        foreign=share,
        state=state,
        why=why,
    )
