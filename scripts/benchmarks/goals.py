"""What inferd must reach and what it aims at, and the verdict on what came out. Pure.

The first eight tests are the project's performance requirements, the last four those of full load. A figure that
wasn't measured has no verdict: that counts neither for nor against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Figures = Mapping[str, Mapping[str, float]]  # by row, then by name


@dataclass(frozen=True)
class Goal:
    """One figure of one row. must, aim: bounds; the upper ones, or with at_least the lower ones. form: how a value is
    shown, as in str.format.
    """

    test: str
    row: str
    figure: str
    must: float
    aim: float | None = None
    at_least: bool = False
    form: str = "{:.3f} x ideal"

    def meets(self, value: float, bound: float) -> bool:
        return value >= bound if self.at_least else value <= bound

    def bound(self, value: float | None) -> str:
        """A bound as text."""
        if value is None:
            return "–"
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.form.format(value)}"


def verdict(goal: Goal, value: float | None) -> str:
    if value is None:
        return "not measured"
    if goal.aim is not None and goal.meets(value, goal.aim):
        return "reaches the aim"
    if goal.meets(value, goal.must):
        return "reaches must"
    return f"FALLS SHORT by {goal.form.format(abs(value - goal.must)).removesuffix(' x ideal')}"


def value_of(goal: Goal, figures: Figures) -> float | None:
    return figures.get(goal.row, {}).get(goal.figure)


def row_verdict(row: str, figures: Figures) -> str:
    """The verdicts on all goals of one row in a few words: the worst of them."""
    told = [(goal, verdict(goal, value_of(goal, figures))) for goal in GOALS if goal.row == row]
    short = [f"{goal.figure.replace('_', ' ')} {text}" for goal, text in told if text.startswith("FALLS")]
    if short:
        return "; ".join(short)
    texts = {text for _, text in told if text != "not measured"}
    return max(texts, default="–", key=("reaches the aim", "reaches must").index) if texts else "–"


GOALS = (
    Goal("C=256, 200 ms, N=10,240", "c256-200ms", "ratio", 1.03, 1.015),
    Goal("C=256, 50 ms, 8 x 1,000", "c256-50ms", "ratio", 1.15, 1.10),
    Goal("C=256, 0 ms, N=8,192", "c256-0ms", "per_second", 6_000, 10_000, at_least=True, form="{:,.0f}/s"),
    Goal("... against the openai client in threads", "c256-0ms", "openai_times", 10, at_least=True, form="{:.1f} x"),
    Goal("CPU a sample at C=256", "c256-200ms", "cpu_us", 200, 120, form="{:.0f} us"),
    Goal("... against the bare loop", "c256-200ms", "cpu_ratio", 2.5, form="{:.2f} x"),
    Goal("C=1024, 200 ms, N=20,480", "c1024-200ms", "ratio", 1.15, 1.05),
    Goal("C=4096, 2 s, N=16,384", "c4096-2s", "ratio", 1.25, 1.15),
    Goal("RSS at C=1024", "c1024-200ms", "peak_mb", 150, 100, form="{:.0f} MB"),
    Goal(
        "20 datasets x 100, settings of their own, C=128, 50 ms with 1 % at 2 s", "distinct-settings", "ratio", 1.3, 1.1
    ),
    Goal("500 datasets of 2: workers busy", "datasets-500", "busy", 0.90, at_least=True, form="{:.1%}"),
    Goal("... `running` to the first request", "datasets-500", "stall", 0.5, form="{:.2f} s"),
    Goal("1,000,000 tasks against 10,000: peak memory", "rows-1m", "memory_growth", 100, form="{:+.0f} MB"),
    Goal("... CPU a row", "rows-1m", "cpu_growth", 1.1, form="{:.2f} x"),
    Goal("Resume over 1,000,000 journalled rows", "resume-1m", "whole", 30, form="{:.1f} s"),
    Goal("... peak memory against 10,000 tasks", "resume-1m", "memory_growth", 100, form="{:+.0f} MB"),
    Goal("... asked again", "resume-1m", "asked_again", 0, form="{:.0f}"),
    Goal("Tail: workers busy while the last 5 % are sent", "tail", "tail_busy", 0.95, at_least=True, form="{:.1%}"),
    Goal("... stragglers named in status", "tail", "named", 1, at_least=True, form="{:.0f}"),
)
