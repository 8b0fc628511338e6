"""What is measured of evald in a process of its own: scoring one pair, looking for what is ready, judging programs.
Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from evald.sandbox import choice, pool
from evald.sandbox.contract import Limits, SandboxUnavailable
from evald.sandbox.interpreter import interpreter
from evald.sandbox.trial import judge_python
from evald.score import ScoreJob, score_pair
from evald.watch import Watch
from scripts.benchmarks.evald_work import answer, same
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import InferStatus, Plan
from shared.status import read_record

SCANS = 5
NEW = 5  # pairs that become ready between two scans


def main() -> None:
    mode, root = sys.argv[1], Path(sys.argv[2])
    if mode == "programs":
        print(json.dumps(programs(int(sys.argv[3]))))
        return
    found = read_plan(WorkDir(root))
    assert found is not None
    print(json.dumps({"score": score, "scan": scan}[mode](root, found)))


def score(root: Path, plan: Plan) -> dict[str, float]:
    """Seconds, and CPU seconds, that the one pair takes."""
    work, (pair,), (dataset,) = WorkDir(root), plan.pairs, plan.datasets
    told = read_record(work.infer_status(pair.model, pair.dataset), InferStatus)
    assert told is not None
    return _timed(lambda: score_pair(ScoreJob(str(root), pair, dataset, (told.digest,), 10)))


def scan(root: Path, plan: Plan) -> dict[str, float]:
    """The first sweep over all statuses; then what a scan takes in which a few pairs more are done: the median."""
    watch = Watch(WorkDir(root), plan)
    first = _timed(lambda: [watch.handled((pair.model, pair.dataset)) for pair, _ in watch.sweep()])
    waiting = [pair for pair in plan.pairs if (pair.model, pair.dataset) in watch.waiting]
    times = []
    for number in range(SCANS):
        new = waiting[number * NEW : (number + 1) * NEW]
        for pair in new:
            answer(root, pair, same)
        seen: list[object] = []
        times.append(_timed(lambda: seen.extend(pair for pair, _ in watch.scan())))  # noqa: B023  # called at once
        if len(seen) != NEW:
            raise SystemExit(f"a scan found {len(seen)} pairs, {NEW} are ready")
        for pair in new:
            watch.handled((pair.model, pair.dataset))
    return {
        "wall": median(one["wall"] for one in times),
        "cpu": median(one["cpu"] for one in times),
        "sweep": first["wall"],
    }


def programs(count: int) -> dict[str, float | str]:
    """How long so many programs take that pass; `skipped` says why none can be judged here. The sandbox's self-test
    comes before the clock.
    """
    try:
        sandbox = choice.chosen()
    except SandboxUnavailable as error:
        return {"skipped": str(error)}
    python, limits = interpreter(), Limits(wall=60.0)

    def one(number: int) -> bool:
        program, test = f"def f(x):\n    return x + {number}\n", f"assert f(1) == {number + 1}\n"
        return judge_python(sandbox, python, "", program, test, "f", limits).passed

    passed: list[bool] = []
    times = _timed(lambda: passed.extend(pool.each(one, range(count))))
    if not all(passed):
        raise SystemExit(f"{passed.count(False)} of {count} programs that are right didn't pass")
    return {**times, "count": count}


def _timed(call: Callable[[], object]) -> dict[str, float]:
    began, cpu = time.perf_counter(), time.process_time()
    call()
    return {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}


if __name__ == "__main__":
    main()
