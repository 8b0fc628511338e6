"""Builds `summary/` from what lies in the work_dir. Nothing in it but what is there: deleted, it comes back
the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace as change

from evald.account import Pair
from evald.calibration import CalibrationBuffer, CalibrationSums
from evald.comparisons import MAX_CORPUS_COMPARED, Comparisons, Scores, chosen, compare
from evald.leaderboard import Report, build_report
from evald.report.csv import leaderboard_csv
from evald.report.markdown import markdown
from evald.results import PairResult
from evald.stats.draws import Floats
from shared.atomic import open_regular, replace
from shared.errors import WorkDirError
from shared.journal import split_lines
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import EvalStatus, InferStatus, Plan, PlanDataset, PlanPair, encode_record
from shared.status import read_record

CHUNK = 1024  # docs whose scores are compared at once
RESULT_LIMIT = 64 << 20

NO_CALIBRATION = CalibrationSums(n=(), confidence=(), correct=(), squared_error=0.0, n_missing=0)


def write_summary(root: str) -> None:
    work = WorkDir(root)
    report = read_report(work)
    replace(work.report_json, msgspec.json.format(encode_record(report), indent=1) + b"\n")
    replace(work.report_md, markdown(report).encode())
    replace(work.leaderboard_csv, leaderboard_csv(report).encode())


def read_report(work: WorkDir) -> Report:
    """The report of what is scored so far. Raises WorkDirError when there is no plan, or a result is damaged."""
    plan = read_plan(work)
    if plan is None:
        raise WorkDirError(f"{work}: no plan here yet: start inferd, or `evalctl submit` a suite")
    statuses = {(pair.model, pair.dataset): _statuses(work, pair) for pair in plan.pairs}
    results: dict[Pair, PairResult] = {}
    reasons: dict[Pair, str] = {}
    buffers: dict[str, CalibrationBuffer] = {}
    for pair in plan.pairs:
        key = (pair.model, pair.dataset)
        result = _current_result(work, pair, statuses[key])
        if isinstance(result, PairResult):
            _merge_calibration(work, buffers, result)
            results[key] = _slim(result)
        else:
            reasons[key] = result
    calibration = {model: buffer.result() for model, buffer in buffers.items()}
    return build_report(plan, statuses, results, reasons, _comparisons(work, plan, results), calibration)


def _merge_calibration(work: WorkDir, buffers: dict[str, CalibrationBuffer], result: PairResult) -> None:
    try:
        part = CalibrationBuffer.from_record(result.calibration)
        if result.model in buffers:
            buffers[result.model].merge(part)
        else:
            buffers[result.model] = part
    except ValueError as error:  # damage, or other bins than those of the pairs that were scored since
        raise WorkDirError(f"{work.result(result.model, result.dataset)}: {error}: start evald again") from None


def _slim(result: PairResult) -> PairResult:
    """Without the two parts that can be long: ten thousand results are held at once."""
    metrics = tuple(change(metric, resamples=()) if metric.resamples else metric for metric in result.metrics)
    return change(result, calibration=NO_CALIBRATION, metrics=metrics)


def _statuses(work: WorkDir, pair: PlanPair) -> list[InferStatus]:
    """Those of the pair's shards' statuses that are there and speak of this plan."""
    found = []
    for shard in pair.shards:
        try:
            status = read_record(work.infer_status(pair.model, shard.stem), InferStatus)
        except WorkDirError:
            continue
        if status is not None and status.plan_digest == pair.digest:
            found.append(status)
    return found


def _current_result(work: WorkDir, pair: PlanPair, statuses: list[InferStatus]) -> PairResult | str:
    """The pair's result, if it belongs to the plan and to the predictions that stand; else why there is none."""
    try:
        status = read_record(work.eval_status(pair.model, pair.dataset), EvalStatus)
        result = read_record(work.result(pair.model, pair.dataset), PairResult, RESULT_LIMIT)
    except WorkDirError as error:
        return f"{error}: start evald again"
    if status is None or status.plan_digest != pair.digest or status.state != "done":
        failed = next((f"inference failed: {s.reason}" for s in statuses if s.state == "fail"), "")
        known = status.reason if status is not None and status.plan_digest == pair.digest else ""
        return known or failed
    if result is None:
        return "its result is missing: start evald again"
    standing = (status.content, pair.digest, tuple(s.digest for s in statuses))
    if (result.content, result.plan_digest, result.predictions_digest) != standing:
        return "its result belongs to other predictions: start evald again"
    return result


def _comparisons(work: WorkDir, plan: Plan, results: Mapping[Pair, PairResult]) -> Comparisons:
    models = list(dict.fromkeys(pair.model for pair in plan.pairs))
    some = chosen(models, results)
    resampled: dict[Pair, PairResult] = {}
    best = set(chosen(models, results, MAX_CORPUS_COMPARED))
    for (model, dataset), result in results.items():
        if model in best and any(metric.corpus_stderr is not None for metric in result.metrics):
            whole = read_record(work.result(model, dataset), PairResult, RESULT_LIMIT)
            if whole is not None and whole.content == result.content:
                resampled[model, dataset] = whole

    def by_dataset() -> Iterator[Scores]:
        for dataset in plan.datasets:
            scored = [model for model in some if (model, dataset.abbr) in results]
            if len(scored) > 1:
                yield Scores(dataset.abbr, scored, _chunks(work, dataset, scored))

    return compare(models, results, by_dataset(), resampled)


class _ScoreHead(Struct):
    doc_id: int
    score: float | None
    cluster: str = ""


def _chunks(work: WorkDir, dataset: PlanDataset, models: Sequence[str]) -> Iterator[tuple[list[str], Floats]]:
    """The models' headline scores of the dataset beside each other, so many docs at once."""
    with ExitStack() as stack:
        readers = [_Headlines(work.scores(model, dataset.abbr), stack) for model in models]
        for first in range(0, dataset.docs, CHUNK):
            size = min(CHUNK, dataset.docs - first)
            clusters = [""] * size
            scores = np.full((size, len(models)), np.nan)
            for column, reader in enumerate(readers):
                for head in reader.until(first + size):
                    if head.score is not None:
                        scores[head.doc_id - first, column] = head.score
                    clusters[head.doc_id - first] = head.cluster
            yield clusters, scores


class _Headlines:
    """Reads a scores file; each doc's line under its headline metric, which comes first of the doc's lines."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        try:
            self._lines = split_lines(stack.enter_context(open_regular(path)))
        except OSError as error:
            raise self._damaged(error) from None
        self._decode = msgspec.json.Decoder(_ScoreHead).decode
        self._ahead: _ScoreHead | None = None
        self._last = -1

    def until(self, end: int) -> Iterator[_ScoreHead]:
        """Those of the docs before `end` that are still to come."""
        while (head := self._ahead or self._next()) is not None:
            if head.doc_id >= end:
                self._ahead = head
                return
            self._ahead = None
            yield head

    def _next(self) -> _ScoreHead | None:
        try:
            for _, line in self._lines:
                head = self._decode(line)
                if head.doc_id < self._last:
                    raise self._damaged("its lines are out of order")
                if head.doc_id > self._last:
                    self._last = head.doc_id
                    return head
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(error) from None
        return None

    def _damaged(self, why: object) -> WorkDirError:
        return WorkDirError(f"{self._path}: can't be read ({why}): delete it and start evald again")
