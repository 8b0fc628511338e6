"""Builds `summary/` from what lies in the work_dir. Nothing in it but what is there: deleted, it comes back
the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from evald.leaderboard import Pair, PairedRow, Report, Scores, build_report, paired_rows
from evald.report.csv import leaderboard_csv
from evald.report.markdown import markdown
from evald.results import PairResult
from shared.atomic import replace
from shared.errors import WorkDirError
from shared.journal import split_lines
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import EvalStatus, InferStatus, Plan, PlanPair, encode_record
from shared.status import read_record

RESULT_LIMIT = 64 << 20


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
    for pair in plan.pairs:
        key = (pair.model, pair.dataset)
        result = _current_result(work, pair, statuses[key])
        if isinstance(result, PairResult):
            results[key] = result
        else:
            reasons[key] = result
    return build_report(plan, statuses, results, reasons, _pairwise(work, plan, results))


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


def _pairwise(work: WorkDir, plan: Plan, results: dict[Pair, PairResult]) -> list[PairedRow]:
    models = list(dict.fromkeys(pair.model for pair in plan.pairs))

    def by_dataset() -> Iterator[dict[str, Scores]]:
        for dataset in plan.datasets:
            scored = [model for model in models if (model, dataset.abbr) in results]
            yield {model: _headline_scores(work, model, dataset.abbr) for model in scored} if len(scored) > 1 else {}

    return paired_rows(models, by_dataset())


class _ScoreHead(Struct, frozen=True):
    task_id: str
    score: float | None


def _headline_scores(work: WorkDir, model: str, dataset: str) -> dict[str, float]:
    """task_id -> score under the task's headline metric, which comes first of the task's lines."""
    decoder = msgspec.json.Decoder(_ScoreHead)
    path = work.scores(model, dataset)
    scores: dict[str, float] = {}
    last = None
    try:
        with path.open("rb") as file:
            for _, line in split_lines(file):
                row = decoder.decode(line)
                if row.task_id != last and row.score is not None:
                    scores[row.task_id] = row.score
                last = row.task_id
    except (OSError, msgspec.DecodeError) as error:
        raise WorkDirError(f"{path}: can't be read ({error}): delete it and start evald again") from None
    return scores
