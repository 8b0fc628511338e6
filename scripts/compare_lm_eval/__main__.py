"""scripts/compare-lm-eval: both sides over the same docs, as a table. Exits with 1 where the values differ, or what the
server was asked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks.peers.environments import NotInstalled
from scripts.benchmarks.table import markdown
from scripts.compare_lm_eval import docs, ours, theirs
from tests.likelihood_server import BOS, LikelihoodServer

TOLERANCE = 1e-9  # of the value
ASKED = {
    "choices": "multiple_choice",
    "shots": "multiple_choice, few-shot",
    "targets": "loglikelihood",
    "texts": "loglikelihood_rolling",
}


def main() -> int:
    argparse.ArgumentParser(prog="scripts/compare-lm-eval", description=__doc__).parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tandem-compare-") as name,
        LikelihoodServer(docs.LOG_PROBABILITIES) as server,
    ):
        folder = Path(name)
        for side in ("docs", "ours", "theirs"):
            (folder / side).mkdir()
        paths = docs.write(folder / "docs")
        try:
            print(f"installing {' '.join(theirs.peer().packages)}, unless it is there", file=sys.stderr)
            their = theirs.run(folder / "theirs", paths, server.url())
            their_prompts = _sent(server)
            server.reset()
            our = ours.run(folder / "ours", paths, server.url(), BOS)
            our_prompts = _sent(server)
        except (NotInstalled, theirs.Failed) as error:
            print(error, file=sys.stderr)
            return 1
    print("\n".join(_table(their, our)))
    print(
        f"\n{docs.CHOICES} + {docs.SHOT_CHOICES} docs of four choices, {docs.TARGETS} of a target, {docs.TEXTS} texts. "
        f"lm-eval sent {their_prompts.total()} prompts; Tandem, for {len(ours.WAYS)} models, {our_prompts.total()}."
    )
    faults = [*_unlike(their, our), *_alone(their_prompts, our_prompts)]
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


def _sent(server: LikelihoodServer) -> Counter[str]:
    """The prompts of all calls for likelihoods as texts, however they were sent."""
    prompts = [body["prompt"] for name, body in server.bodies if name == "completions"]
    batches = [prompt if isinstance(prompt, list) and isinstance(prompt[0], list) else [prompt] for prompt in prompts]
    return Counter(one if isinstance(one, str) else "".join(server.tokens(one)) for batch in batches for one in batch)


def _table(their: theirs.Values, our: dict[str, theirs.Values]) -> list[str]:
    head = ["task", "metric", theirs.label(), *(f"Tandem, {way}" for way in ours.WAYS), "off by at most"]
    rows = [
        [
            ASKED[task],
            metric,
            repr(their[task][metric]),
            *(repr(our[way][task][metric]) for way in ours.WAYS),
            f"{_off(their, our, task, metric):.1e}",
        ]
        for task, metric in _metrics()
    ]
    return markdown(head, rows)


def _unlike(their: theirs.Values, our: dict[str, theirs.Values]) -> Iterator[str]:
    for task, metric in _metrics():
        if (off := _off(their, our, task, metric)) > TOLERANCE:
            yield f"{task}, {metric}: they differ by {off:.1e} of the value; {TOLERANCE:.0e} is allowed"


def _alone(their: Counter[str], our: Counter[str]) -> Iterator[str]:
    expected = Counter({text: count * len(ours.WAYS) for text, count in their.items()})
    for side, more in (("lm-eval", expected - our), ("Tandem", our - expected)):
        for text in sorted(more)[:3]:
            yield f"sent by {side} alone: {text!r}"


def _metrics() -> Iterator[tuple[str, str]]:
    return ((task, metric) for task, metrics in theirs.METRICS.items() for metric in metrics)


def _off(their: theirs.Values, our: dict[str, theirs.Values], task: str, metric: str) -> float:
    """By how much the values differ, as a share of theirs."""
    value = their[task][metric]
    return max(abs(our[way][task][metric] - value) for way in ours.WAYS) / max(abs(value), sys.float_info.min)


sys.exit(main())
