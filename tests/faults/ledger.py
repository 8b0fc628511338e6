"""Who asked what, what was saved, and which requests a fault may have cost: by request, from the server's own logs and
the journals.

A fault may cost the answers that were under way or not yet durable while it lasted: given to the process that was
struck, and not in the journal when it began. Whatever else the server answers twice was paid for twice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferd.adapters.openai import OpenAIAdapter
from shared.config import ModelConfig
from shared.layout import WorkDir
from shared.records import ANSWERS, Message, Prompt
from tests.faults.endpoint import Endpoint
from tests.harness import journal, predictions

Tasks = Sequence[Mapping[str, Any]]


class Violation(AssertionError):
    """What must hold didn't."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


@dataclass(frozen=True)
class Loss:
    """A fault that may have cost answers. open: how many requests were begun and not saved: in flight, waiting for
    their retry, on their way to the disk. unsaved: those of them that the server had answered.
    """

    what: str
    open: int
    unsaved: frozenset[str]


class Ledger:
    """Of one work_dir. Requests go by the SHA-256 of their bodies, which are distinct."""

    def __init__(
        self, work: WorkDir, endpoint: Endpoint, models: Sequence[Mapping[str, Any]], datasets: Mapping[str, Tasks]
    ) -> None:
        self._work = work
        self._endpoint = endpoint
        self._models = [str(model["abbr"]) for model in models]
        self._datasets = datasets
        self._digests = {
            (str(model["abbr"]), abbr, doc_id): _digest(model, str(task["prompt"]))
            for model in models
            for abbr, tasks in datasets.items()
            for doc_id, task in enumerate(tasks)
        }
        must(len(set(self._digests.values())) == len(self._digests), "two requests have the same body")
        self.losses: list[Loss] = []
        self._lost_before = 0
        self._asked_before: Counter[str] = Counter()
        self._answered_before: Counter[str] = Counter()
        self._saved_before: set[str] = set()

    def begin_life(self) -> None:
        """A process is about to start, and nothing of its predecessor's is under way any more."""
        self._asked_before = self._endpoint.asked()
        self._answered_before = self._endpoint.answered()
        self._lost_before = len(self.losses)
        self._saved_before = self.saved()

    def saved(self) -> set[str]:
        """The requests whose answer is in a journal."""
        return {
            self._digests[model, dataset, line.doc_id]
            for model, dataset in self._pairs()
            for line in journal(self._work, model, dataset)
            if line.outcome in ANSWERS
        }

    def lose(self, what: str, saved: set[str]) -> Loss:
        """Something struck the process that lives, or ended it. saved: what was saved before that."""
        loss = Loss(
            what,
            len(_more(self._endpoint.asked(), self._asked_before) - saved),
            frozenset(self._given() - saved),
        )
        self.losses.append(loss)
        return loss

    def _given(self) -> set[str]:
        """What the server answered since the process began."""
        return _more(self._endpoint.answered(), self._answered_before)

    def owed(self) -> set[str]:
        """What the server answered by now to the process that lives, less what a fault may have cost it: what inferd
        owes the journal.
        """
        return self._given().difference(*(loss.unsaved for loss in self.losses[self._lost_before :]))

    def check_life(self) -> None:
        """What was saved before the process began was not asked again by it."""
        asked = self._endpoint.asked()
        again = [digest for digest in self._saved_before if asked[digest] > self._asked_before[digest]]
        must(not again, f"{len(again)} requests were asked again although their answers were in the journal")

    def check_waste(self) -> int:
        """Each request was answered, and again only as often as a fault may have cost it its answer. Returns how many
        answers were wasted so.
        """
        answered = self._endpoint.answered()
        allowed = Counter(digest for loss in self.losses for digest in loss.unsaved)
        missing = [where for where, digest in self._digests.items() if not answered[digest]]
        must(not missing, f"the server never answered {missing[:5]}")
        again = {where: answered[digest] - 1 for where, digest in self._digests.items() if answered[digest] > 1}
        unexplained = [
            (*where, count, allowed[self._digests[where]])
            for where, count in again.items()
            if count > allowed[self._digests[where]]
        ]
        what = "requests were answered again (model, dataset, doc_id, how often, how often a fault explains it)"
        must(not unexplained, f"{len(unexplained)} {what}: {unexplained[:5]}")
        return sum(again.values())

    def wasted(self, loss: Loss) -> int:
        """How many of the requests whose answer was not saved then the server answered again."""
        answered = self._endpoint.answered()
        return sum(answered[digest] > 1 for digest in loss.unsaved)

    def check_predictions(self) -> int:
        """Each request of the plan has exactly one line in the predictions, and the right answer in it; returns how
        many that are.
        """
        count = 0
        for model, dataset in self._pairs():
            rows = predictions(self._work, model, dataset)
            told = [(row.doc_id, row.repeat, row.outcome, row.generation and row.generation.text) for row in rows]
            right = [
                (doc_id, 0, "ok", task["prompt"].rpartition("ANSWER=")[2])
                for doc_id, task in enumerate(self._datasets[dataset])
            ]
            wrong = [(is_, should) for is_, should in zip(told, right, strict=False) if is_ != should]
            must(told == right, f"{model}/{dataset}: {len(told)} lines for {len(right)} requests; wrong: {wrong[:3]}")
            count += len(rows)
        return count

    def _pairs(self) -> Iterator[tuple[str, str]]:
        return ((model, dataset) for model in self._models for dataset in self._datasets)


def _more(now: Counter[str], before: Counter[str]) -> set[str]:
    return {digest for digest, count in now.items() if count > before[digest]}


def _digest(model: Mapping[str, Any], prompt: str) -> str:
    adapter = OpenAIAdapter(ModelConfig(**model), timeout=1.0, secret=lambda name: "x" * 20)
    return hashlib.sha256(adapter.body(Prompt(messages=(Message("user", prompt),)))).hexdigest()
