"""Evaluation from Python, for notebooks and tests: `run_eval` asks and scores, `infer` asks alone.

Both compose the parts of the daemons in this process and on the caller's thread, which may be any. They set no signal
handler, configure no log (what there is to tell goes to the logger `tandem`), and leave no thread and no open file.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from evalctl.given import Given, Model, Tasks, given
from evalctl.serial import OneProcess, ask, defects, with_workers
from evald.account import Counts, Fault
from evald.calibration import Calibration
from evald.comparisons import PairedRow
from evald.leaderboard import Report, Standing
from evald.report.markdown import markdown
from evald.summary import read_report
from inferd.desk import Desk
from inferd.inference import Ended, Inference, with_local_servers
from shared import claims
from shared.clock import SystemClock
from shared.config import EvalConfig, InferConfig, Suite
from shared.daemon import StopSignal
from shared.errors import Fatal, UsageError
from shared.journal import split_lines
from shared.layout import WorkDir
from shared.records import EvalRun, EvalStatus, InferStatus, Plan, Prediction
from shared.status import read_record

__all__ = ["EvalReport", "Model", "Progress", "Tasks", "infer", "run_eval"]

Progress = Callable[[int, int], object]
"""Told how many requests have ended, and how many there are."""
T = TypeVar("T")

logging.getLogger("tandem").addHandler(logging.NullHandler())  # a library is silent until somebody asks


@dataclass(frozen=True)
class EvalReport:
    """What `run_eval` came to. report: as in `summary/report.json`. scores: of each (model, dataset) that was scored,
    one record a task and metric. work_dir: where all of it lies; None where that was a temporary folder.
    """

    report: Report
    scores: Mapping[tuple[str, str], tuple[EvalRun, ...]]
    work_dir: Path | None

    @property
    def runs(self) -> tuple[EvalRun, ...]:
        """All records, by model, dataset, task and metric, in the order in which these were given."""
        return tuple(run for runs in self.scores.values() for run in runs)

    @property
    def leaderboard(self) -> tuple[Standing, ...]:
        """The models, best first; of those that aren't complete, each dataset's `reason` says why."""
        return self.report.leaderboard

    @property
    def pairwise(self) -> tuple[PairedRow, ...]:
        """Every two models compared."""
        return self.report.pairwise

    @property
    def calibration(self) -> dict[str, Calibration]:
        """By model, over all its answers."""
        return self.report.calibration

    @property
    def summary(self) -> Counts:
        """Docs, instances, requests, attempts, tokens, cost and outcomes, counted apart."""
        return self.report.summary

    @property
    def errors(self) -> tuple[Fault, ...]:
        """What failed, where and why."""
        return self.report.errors

    @property
    def complete(self) -> bool:
        """Whether every pair was scored."""
        return self.summary.pairs_scored == self.summary.pairs

    def markdown(self) -> str:
        """As in `summary/report.md`."""
        return markdown(self.report)

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown()


def run_eval(
    adapters: Model | Iterable[Model],
    tasks: Tasks | Mapping[str, Tasks],
    *,
    parallel: bool = True,
    repeats: int = 1,
    max_workers: int | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    infer: InferConfig | None = None,
    eval: EvalConfig | None = None,  # the table's own name
) -> EvalReport:
    """Ask every model every task, score the answers, and compare the models.

    adapters: whom to ask, each with a `model_id` of its own. An adapter whose answers may change (another prompt
    around the task, other weights) says so by another `version`, a string: answers are reused as long as it stays.
    tasks: one dataset, or several by name. parallel: all at once, up to `max_workers` requests in flight a model; else
    one request at a time, in order, on this thread, so that a debugger works inside an adapter. The records are the
    same. repeats: samples a task, but of a DatasetConfig, which has its own. work_dir: a folder to keep everything in,
    where a later call, or `evalctl run`, goes on; a temporary one by default. infer, eval: settings, as in a suite.

    What an adapter raises ends that request as an error, never the call: by default a pair with an error has no score,
    and `errors` tells why (`infer=InferConfig(max_error_rate=0.1)` allows some). Raises SuiteError or UsageError for
    what can't be asked, Fatal when the disk refuses, KeyboardInterrupt once all that was answered is kept.

    >>> from inferd.adapters.builtin import NoisyAdapter, RuleAdapter
    >>> tasks = [{"task_id": f"t{n}", "prompt": f"{n} + {n}?", "targets": [str(2 * n)]} for n in range(40)]
    >>> report = run_eval([RuleAdapter("rule"), NoisyAdapter("noisy")], tasks)
    >>> [(standing.model, standing.rank) for standing in report.leaderboard]
    [('rule', 1), ('noisy', 2)]
    >>> len(report.runs), report.runs[0].task_id, report.runs[0].score
    (80, 't0', 1.0)
    >>> [row.separable for row in report.pairwise]
    [True]
    """
    asked = given(adapters, tasks, repeats)
    with _folder(work_dir) as folder:
        work = WorkDir(folder)
        suite, plan = asked.plan(work, infer or InferConfig(), eval or EvalConfig())
        workers = max_workers if parallel else 1
        if workers is not None:
            suite = with_workers(suite, workers)
        stop = StopSignal()
        process = OneProcess(work, suite, plan, stop, _logger(), asked.instances)
        process.run([plan.pairs] if parallel else [[pair] for pair in plan.pairs])
        if stop.event.is_set():
            raise KeyboardInterrupt
        if process.fatal:
            raise Fatal(f"{work}: {process.fatal}")
        return EvalReport(read_report(work), dict(_scores(work, plan)), None if work_dir is None else work.root)


def infer(
    adapter: Model,
    tasks: Tasks,
    *,
    max_infer_workers: int = 16,
    repeats: int = 1,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    config: InferConfig | None = None,
) -> list[Prediction]:
    """Ask one model every task of one dataset; the answers in the order of (task, instance, repeat).

    max_infer_workers: requests in flight; with one they are made in order and on this thread. journal: a file to which
    each answer is appended as it comes, in the form of a work_dir's journals: a later call with the same file asks only
    what has no answer there. progress: called on this thread with the requests that have ended so far, and with all
    there are. config: settings, as in a suite's [infer].

    Nothing ends the call early: what an adapter raises is an outcome, `error` or, of a chat's later turns, `not_run`,
    and is asked again by the next call with the same journal. Raises SuiteError or UsageError for what can't be asked
    (a journal that another process writes to, too), Fatal when the journal can't be written, and KeyboardInterrupt once
    all that was answered is kept.

    >>> from inferd.adapters.builtin import RuleAdapter
    >>> tasks = [{"task_id": f"t{n}", "prompt": f"{n} + {n}?", "targets": [str(2 * n)]} for n in range(3)]
    >>> [answer.generation.text for answer in infer(RuleAdapter("rule"), tasks)]
    ['0', '2', '4']
    """
    if max_infer_workers < 1:
        raise UsageError(f"max_infer_workers: {max_infer_workers} is less than 1")
    asked = given(adapter, tasks, repeats)
    if len(asked.models) != 1 or len(asked.datasets) != 1:
        raise UsageError("infer takes one model and one dataset: for more there is run_eval")
    asked = asked.in_one_shard()
    with ExitStack() as stack:
        own = Path(journal).absolute() if journal is not None else None
        if own is not None:
            stack.enter_context(_claim(own))
        work = WorkDir(stack.enter_context(_folder(None)), own_journal=own)
        suite, plan = asked.plan(work, config or InferConfig(), EvalConfig())
        stop = StopSignal()
        suite = with_local_servers(with_workers(suite, max_infer_workers), stack, work, stop.event, _logger())
        ended = _infer(work, suite, plan, asked, stop, progress)
        if stop.event.is_set():
            raise KeyboardInterrupt
        pair = plan.pairs[0]
        status = read_record(work.infer_status(pair.model, pair.shards[0].stem), InferStatus)
        if status is None or status.state != "done":
            raise Fatal(ended.reason or (status.reason if status is not None else "its status was not written"))
        return list(_read(work.predictions(pair.model, pair.shards[0].stem), Prediction))


def _infer(work: WorkDir, suite: Suite, plan: Plan, asked: Given, stop: StopSignal, progress: Progress | None) -> Ended:
    total = sum(pair.requests for pair in plan.pairs)
    # Every request is asked to its end, however many fail.
    never = {"max_error_rate": 1.0, "unhealthy_after": sys.maxsize, "fail_fast_after": sys.maxsize}
    config = replace(suite.infer, **never)
    alone = config.max_workers == 1
    desk, logger, told = Desk(), _logger(), -1

    def tick() -> None:
        nonlocal told
        done = inference.completed
        if progress is not None and done != told:
            told = done
            desk.post(lambda: progress(done, total))

    inference = Inference(
        work,
        suite,
        plan,
        config,
        SystemClock(),
        logger,
        tick,
        adapters=asked.instances,
        desk=desk if alone else None,
        on_defect=defects(logger, alone=alone),
    )
    try:
        inference.reset(lambda: None)
        inference.offer(plan.pairs)
        ask(inference, desk, stop, lambda: None, alone=alone)
    finally:
        ended = inference.close()
    return ended


def _scores(work: WorkDir, plan: Plan) -> Iterator[tuple[tuple[str, str], tuple[EvalRun, ...]]]:
    """Of the pairs that are scored."""
    for pair in plan.pairs:
        status = read_record(work.eval_status(pair.model, pair.dataset), EvalStatus)
        if status is not None and status.state == "done":
            yield (pair.model, pair.dataset), tuple(_read(work.scores(pair.model, pair.dataset), EvalRun))


def _read(path: Path, kind: type[T]) -> Iterator[T]:
    decode = msgspec.json.Decoder(kind).decode
    with path.open("rb") as file:
        for _, line in split_lines(file):
            yield decode(line)


@contextmanager
def _folder(given: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder, or a temporary one."""
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="tandem-") as scratch:
        yield Path(scratch)


def _claim(journal: Path) -> claims.Claim:
    path = journal.with_name(f"{journal.name}.lock")
    claim = claims.take(path)
    if claim is None:
        raise UsageError(f"{journal}: {claims.owner(path)} writes to it: wait for its end, or name another journal")
    return claim


def _logger() -> Any:
    """To the standard library's logger, whatever structlog's own settings are."""
    processors: list[structlog.typing.Processor] = [
        structlog.stdlib.filter_by_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True),
    ]
    return structlog.wrap_logger(
        logging.getLogger("tandem"), processors=processors, wrapper_class=structlog.stdlib.BoundLogger
    )
