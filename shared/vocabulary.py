"""The closed vocabularies of task files, and the parameters that go with each name: what isn't here is refused when a
task is read, before anything is asked.

What each name does lives in `evald` (metrics/, post_process/); a test holds that both sides name the same things.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]


class Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a step or a metric can be told beside its name."""


class NoParameters(Parameters, frozen=True, kw_only=True):
    """It takes none."""


# --- steps of post-processing -----------------------------------------------------------------------------------------

STEPS: Mapping[str, type[Parameters]] = {
    "none": NoParameters,  # the answer as it is
    "strip": NoParameters,  # without white space around it
    "lower": NoParameters,  # stripped and lower-cased
    "first_line": NoParameters,  # the first line that isn't blank
    "last_line": NoParameters,  # the last line that isn't blank
    "first_number": NoParameters,  # the first number in the text, in one canonical form
    "last_number": NoParameters,  # the last number in the text, in one canonical form
    "gsm8k": NoParameters,  # the number after the last answer mark (`A:`, `####` ...); else the last number
    "choice_letter": NoParameters,  # the letter of a multiple-choice answer, A to Z
    "yes_no": NoParameters,  # "yes" or "no"
}

NUMERIC: frozenset[str] = frozenset({"first_number", "last_number", "gsm8k"})
"""Steps that make numbers comparable: targets must hold one, which is checked when the task is read."""


# --- metrics ----------------------------------------------------------------------------------------------------------

Reducer = Literal["mean", "best", "majority", "pass_at_k", "pass_hat_k"]


class MetricParameters(Parameters, frozen=True, kw_only=True):
    """What every metric can be told. label: its name in results (default: its own, with the reducer where that isn't
    the mean). reduce: how a task's repeats become one score. k: of how many repeats; with `mean`, `best` and `majority`
    by default of all there are.
    """

    label: Text | None = None
    reduce: Reducer = "mean"
    k: Count | None = None


class CustomParameters(MetricParameters, frozen=True, kw_only=True):
    """Of a user's own metric, `module:function` or an entry point of the group `tandem.metrics`. params: keyword
    arguments of the function. version: change it when the function's rule changes, and results are computed anew.
    """

    params: dict[str, Any] = {}
    version: str = "1"


UNTARGETED: frozenset[str] = frozenset()
"""Metrics that look at a task's metadata and at no target."""

METADATA: Mapping[str, type[Struct]] = {}
"""What a metric needs of a task's metadata, which is checked when the task is read."""

METRICS: Mapping[str, type[MetricParameters]] = {
    "exact_match": MetricParameters,
    "accuracy": MetricParameters,
    "f1": MetricParameters,
    "bleu": MetricParameters,
    "rouge_l": MetricParameters,
}
