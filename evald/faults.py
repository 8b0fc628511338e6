"""What is wrong with a task that its form doesn't show: told when a suite is submitted, and again should such a task be
scored.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from evald import metrics
from evald.post_process import target_fault
from shared.config import DatasetConfig
from shared.errors import Problem
from shared.records import TaskSpec
from shared.scoring import measures_of, spec_faults


def task_fault(task: TaskSpec) -> str | None:
    """Why no answer could ever be right, or scored, in words. Imports a user's own metrics."""
    return target_fault(task) or metrics.task_fault(task)


def dataset_faults(dataset: DatasetConfig) -> Iterator[Problem]:
    """What is wrong with the metrics that a dataset names for its tasks: once, and not for each of them."""
    if dataset.metric is UNSET or spec_faults(measures_of, dataset.metric, "metric"):
        return  # the form's own check tells
    try:
        metrics.judges_of(dataset.metric)
    except metrics.MetricError as error:
        yield Problem("metric", str(error))
