"""An adapter and a metric as somebody writes them who is looking for a fault."""

from __future__ import annotations

from evald.metrics import Sample
from shared.records import Generation, Prompt, TaskSpec


class Adapter:
    """Calls the debugger at task `t1`, and has a defect at `t2`."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        if task.task_id == "t1":
            breakpoint()
        if task.task_id == "t2":
            self._broken()
        return Generation(text=task.targets[0], finish_reason="stop")

    def _broken(self) -> None:
        raise ValueError("an adapter's defect")


def metric(sample: Sample) -> float:
    """The same of a metric, at `t3` and `t4`."""
    if sample.task.task_id == "t3":
        breakpoint()
    if sample.task.task_id == "t4":
        raise ValueError("a metric's defect")
    return float(sample.answer == sample.targets[0])
