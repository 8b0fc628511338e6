"""A state as metrics in Prometheus' text format 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format). Pure.

Names of models and datasets, hosts and reasons come from files: each label's value is escaped, and every number is one
that the format knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from evalctl.state import AT_WORK, DaemonView, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("pending", "running", "done", "fail")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Metric(NamedTuple):
    """One family. samples: labels and value of each."""

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def exposition(state: State) -> str:
    """Ends with a newline, as the format asks."""
    lines = []
    for metric in _metrics(state):
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        # Each series once, whatever two files say of themselves.
        series = {_labels(labels): value for labels, value in metric.samples}
        lines += [f"{metric.name}{labels} {_number(value)}" for labels, value in series.items()]
    return "\n".join(lines) + "\n"


def _metrics(state: State) -> Iterator[Metric]:
    """Counts stand as gauges where a changed plan may lower them."""
    pairs = [({"model": pair.model, "dataset": pair.dataset}, pair) for pair in state.pairs]

    def of_pairs(name: str, kind: str, text: str) -> Metric:
        field = name.removeprefix("tandem_pair_").removesuffix("_total")
        values = [(labels, getattr(pair, field)) for labels, pair in pairs]
        return Metric(name, kind, text, [(labels, value) for labels, value in values if value is not None])

    def by_kind(name: str, kind: str, text: str, label: str, field: str) -> Metric:
        samples = [
            (labels | {label: key}, number) for labels, pair in pairs for key, number in getattr(pair, field).items()
        ]
        return Metric(name, kind, text, samples)

    yield Metric("tandem_pair_requests", "gauge", "Requests planned.", [(labels, pair.total) for labels, pair in pairs])
    yield of_pairs("tandem_pair_completed", "gauge", "Requests answered, or failed for good.")
    yield of_pairs("tandem_pair_answered", "gauge", "Requests answered.")
    yield of_pairs("tandem_pair_reused", "gauge", "Answers of earlier runs.")
    yield of_pairs("tandem_pair_in_flight", "gauge", "Requests in flight.")
    yield of_pairs("tandem_pair_attempts_total", "counter", "Calls made.")
    yield of_pairs("tandem_pair_prompt_tokens_total", "counter", "Prompt tokens.")
    yield of_pairs("tandem_pair_completion_tokens_total", "counter", "Completion tokens.")
    cost = [(labels, pair.cost) for labels, pair in pairs]
    yield Metric("tandem_pair_cost_usd_total", "counter", "US dollars by the suite's prices.", cost)
    yield of_pairs("tandem_pair_late_answers_total", "counter", "Answers dropped because they came too late.")
    yield of_pairs("tandem_pair_duplicates_total", "counter", "Answers paid for twice.")
    yield of_pairs("tandem_pair_rate", "gauge", "Answers a second of this run.")
    yield of_pairs("tandem_pair_eta_seconds", "gauge", "Seconds left at that rate.")
    yield by_kind("tandem_pair_answers", "gauge", "Answers by outcome.", "outcome", "outcomes")
    errors = "Failed attempts by error class (429s: rate_limited)."
    yield by_kind("tandem_pair_failed_attempts_total", "counter", errors, "error", "errors")
    yield by_kind("tandem_pair_failed_requests", "gauge", "Requests failed for good.", "error", "failed")
    stages = [
        (labels | {"stage": stage, "state": name}, float(name == told))
        for labels, pair in pairs
        for stage, told in (("infer", pair.infer), ("eval", pair.eval))
        for name in STATES
    ]
    yield Metric("tandem_pair_state", "gauge", "1 for the state that the pair is in.", stages)
    daemons = [(_daemon(view, "inferd"), view) for view in state.inferd] + [
        (_daemon(state.evald, "evald"), state.evald)
    ]
    up = [(labels, float(view.state in AT_WORK)) for labels, view in daemons]
    yield Metric("tandem_daemon_up", "gauge", "1 while the daemon holds its claim and hasn't ended.", up)
    now = [(labels | {"state": view.state}, 1.0) for labels, view in daemons]
    yield Metric("tandem_daemon_state", "gauge", "The state that the daemon is in.", now)
    beats = [(labels, float(view.seq)) for labels, view in daemons if view.boot_id]
    yield Metric("tandem_daemon_beats_total", "counter", "Beats since its start: a live daemon's change.", beats)
    counters = [
        (labels | {"name": name}, value) for labels, view in daemons for name, value in sorted(view.counters.items())
    ]
    yield Metric("tandem_daemon_counter", "gauge", "What its last beat told, by name.", counters)


def _daemon(view: DaemonView, name: str) -> dict[str, str]:
    """pid tells several inferds of one host apart."""
    return {"daemon": name, "host": view.host, "pid": str(view.pid)}


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_value(text)}"' for name, text in labels.items()) + "}"


def _value(text: str) -> str:
    """Escaped as the format asks; half of a surrogate pair, which no UTF-8 can hold, as a question mark."""
    return text.translate(_ESCAPES).encode(errors="replace").decode()


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
