"""The records that scoring a pair leaves: `results/<model>/<dataset>.json`.

They hold no time of day: scored again, from the same predictions by the same rules, they come out the same to the byte.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from evald.calibration import CalibrationSums
from evald.stats import Clusters, Interval
from shared.records import Limit, Record


class MetricResult(Struct, frozen=True, kw_only=True):
    """One metric over the docs of a pair that name it.

    {"name":"exact_match","version":"1","params":{},"n":100,"mean":0.42,"stderr":0.0496,"interval":{"low":0.33,"high":0.52},
    "n_docs":102,"n_partial":0,"coverage":0.9804,"bounds":{"low":0.4118,"high":0.4314},"correct":42,"threshold":1.0,
    "failures":{},"n_errors":0,"reason":"","corpus":null,"corpus_stderr":null,"corpus_interval":null,"resamples":[]}

    n: docs scored, of the n_docs that name the metric; with none every figure is null. n_partial, coverage, bounds: as
    in PairResult, over those docs. n_errors: docs with an answer that this metric has no score of; reason: why not, of
    the first of them. mean, stderr, interval: over docs; interval 95 %. correct: docs whose score reached the
    threshold. failures: answers by why they are wrong, of metrics that tell (code_exec).
    corpus: the value over the whole dataset, of metrics where that isn't the mean (BLEU). corpus_stderr,
    corpus_interval: of that value, by bootstrap. resamples: that value in each draw, null where one drew no doc; draw k
    has drawn the same docs for every model, so the differences of two models' resamples are those of their difference.
    """

    name: str
    version: str
    params: dict[str, Any]
    n: int
    mean: float | None
    stderr: float | None
    interval: Interval | None
    n_docs: int = 0
    n_partial: int = 0
    coverage: float = 0.0
    bounds: Interval | None = None
    correct: int
    threshold: float
    failures: dict[str, int] = {}
    n_errors: int = 0
    reason: str = ""
    corpus: dict[str, Any] | None = None
    corpus_stderr: float | None = None
    corpus_interval: Interval | None = None
    resamples: tuple[float | None, ...] = ()

    @property
    def percent(self) -> bool:
        """Whether its value for a dataset is a share, which tables show in percent."""
        return bool((self.corpus or {}).get("percent", True))


class ScoreError(Struct, frozen=True):
    """A task that could not be scored, and why: a fault of the system, never a wrong answer.

    {"task_id":"add-1","reason":"ValueError: no target"}
    """

    task_id: str
    reason: str


class CategoryResult(Struct, frozen=True, kw_only=True):
    """The headline score over the docs of one category.

    {"category":"arithmetic","n":40,"mean":0.5,"stderr":0.08,"interval":{"low":0.35,"high":0.65},"n_docs":41,
    "n_partial":0,"coverage":0.9756,"bounds":{"low":0.4878,"high":0.5122}}

    n: docs scored, of the category's n_docs; one of which none is stands here too, with a mean of null. n_partial,
    coverage, bounds: as in PairResult.
    """

    category: str
    n: int
    mean: float | None
    stderr: float | None = None
    interval: Interval | None = None
    n_docs: int = 0
    n_partial: int = 0
    coverage: float = 0.0
    bounds: Interval | None = None


class Served(Struct, frozen=True, kw_only=True):
    """What the endpoint called its model, or the build behind it, over the answers of a pair.

    {"names":{"m-2026-01":60,"m-2026-02":38},"others":0,"untold":1}

    names: answers by name, the most first; of the first 16 names that came, cut to 100 characters. others: answers
    under further names. untold: answers that named none.
    """

    names: dict[str, int] = {}
    others: int = 0
    untold: int = 0

    @property
    def changed(self) -> bool:
        """More than one name: what answered changed within the pair."""
        return len(self.names) + (self.others > 0) > 1


class PairResult(Record, frozen=True, kw_only=True):
    """`results/<model>/<dataset>.json`.

    {"schema":1,"model":"m","dataset":"gsm8k","metric":"exact_match","n_docs":100,"n_scored":99,"n_missing":1,
    "n_partial":0,"n_score_errors":0,"mean":0.42,"stderr":0.0498,"interval":{"low":0.33,"high":0.52},"bounds":{"low":0.42,"high":0.43},
    "clusters":null,"coverage":0.99,"instances":100,"requests":100,"answered":99,"attempts":104,"outcomes":{"ok":98,"truncated":1,"error":1},
    "served_models":{"names":{"m-2026-01":99},"others":0,"untold":0},
    "system_fingerprints":{"names":{"fp_1":99},"others":0,"untold":0},
    "unextracted":2,"unextracted_at":{"last_number":2},"repeats":1,"metrics":[],"categories":[],"uncategorised":0,"score_errors":[],
    "calibration":{"n":[99],"confidence":[90.0],"correct":[42],"squared_error":30.0,"n_missing":0},
    "content":"aa11","predictions_digest":["bb22"],"dataset_digest":"ab12","plan_digest":"cd34","scorer":"1"}

    metric: the headline metric's name, or `mixed` where the tasks' own differ. mean and what goes with it: over the
    n_scored docs under each doc's headline metric. n_docs = n_scored + n_missing + n_score_errors. n_partial: of the
    n_scored, docs of which some repeats have no answer; their score is of the others. bounds: the mean if all docs
    without a score, and all such repeats, were wrong, and if they were right. clusters: where tasks name some; stderr
    and interval are then over those. coverage: n_scored / n_docs, but of a partial doc only the share of its repeats
    that were answered. unextracted: answers in which the headline's filter found nothing; they score 0 and are counted
    apart. unextracted_at: by the step that found nothing; of all filters, those with a name as `strict: regex`.
    score_errors: the first of them; n_score_errors counts all. metrics: all that the tasks name, those without a single
    score too. categories: the first 4,096; uncategorised: docs of further ones. served_models, system_fingerprints:
    over all answers; more than one name is drift. limit, rows: of the dataset, as in PlanDataset: where there is a
    limit, n_docs are a part of so many rows.
    content: digest of all that decides this record.
    """

    model: str
    dataset: str
    metric: str
    n_docs: int
    n_scored: int
    n_missing: int
    n_partial: int = 0
    n_score_errors: int
    mean: float | None
    stderr: float | None
    interval: Interval | None
    bounds: Interval | None
    clusters: Clusters | None = None
    coverage: float
    instances: int
    requests: int
    answered: int
    attempts: int
    outcomes: dict[str, int]
    served_models: Served = Served()
    system_fingerprints: Served = Served()
    unextracted: int
    unextracted_at: dict[str, int] = field(default_factory=dict)
    repeats: int
    metrics: tuple[MetricResult, ...]
    categories: tuple[CategoryResult, ...]
    uncategorised: int = 0
    score_errors: tuple[ScoreError, ...]
    calibration: CalibrationSums
    limit: Limit | None = None
    rows: int | None = None
    content: str
    predictions_digest: tuple[str, ...]
    dataset_digest: str
    plan_digest: str
    scorer: str

    @property
    def pythons(self) -> dict[str, str]:
        """The interpreters that its metrics name for programs, with the versions that ran them."""
        told = (metric.params for metric in self.metrics)
        return {one["python"]: one["python_version"] for one in told if one.get("python") and "python_version" in one}
