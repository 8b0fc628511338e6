"""`summary/leaderboard.csv`: one row a model and dataset, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io

from evald.leaderboard import Report
from shared.records import ANSWER_KINDS

OUTCOMES = (*ANSWER_KINDS, "error")
COLUMNS = (
    "rank", "model", "dataset", "state", "metric", "mean", "stderr", "low", "high", "n", "n_docs", "coverage", "reason",
    *OUTCOMES, "unextracted", "served_changed", "bound_low", "bound_high", "clusters", "rank_best", "rank_worst",
    "complete", "not_run",
    "n_partial", "limit", "rows", "instances", "requests", "attempts",
)  # fmt: skip


def leaderboard_csv(report: Report) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    limited = {one.dataset: one for one in report.limited}
    for standing in report.leaderboard:
        for dataset, cell in standing.datasets.items():
            low, high = (cell.interval.low, cell.interval.high) if cell.interval is not None else (None, None)
            row = (
                standing.rank, standing.model, dataset, cell.state, cell.metric, cell.mean, cell.stderr, low, high,
                cell.n, cell.n_docs, cell.coverage, cell.reason,
                *(cell.outcomes.get(outcome, 0) if cell.state == "scored" else None for outcome in OUTCOMES),
                cell.unextracted if cell.state == "scored" else None,
                cell.served_changed if cell.state == "scored" else None,
                *((cell.bounds.low, cell.bounds.high) if cell.bounds is not None else (None, None)),
                cell.clusters, standing.rank_best, standing.rank_worst, standing.complete,
                cell.outcomes.get("not_run", 0) if cell.state == "scored" else None,
                cell.n_partial if cell.state == "scored" else None,
                *((str(part.limit), part.rows) if (part := limited.get(dataset)) is not None else (None, None)),
                cell.instances, cell.requests, cell.attempts if cell.state == "scored" else None,
            )  # fmt: skip
            writer.writerow([_harmless(value) if isinstance(value, str) else value for value in row])
    return out.getvalue()


def _harmless(value: str) -> str:
    """On one line, without what a terminal would act on, and no formula: spreadsheets run cells that begin like one
    (OWASP, "CSV Injection").
    """
    flat = "".join(char if char.isprintable() else " " for char in value)
    return "'" + flat if flat.lstrip()[:1] in ("=", "+", "-", "@") else flat
