"""Work_dirs as inferd leaves them, for evald to score: planned by the plan's own code, predictions written outright.

Nothing is flushed to disk here: what is measured comes later, and reads from memory either way.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shared.clock import SystemClock
from shared.layout import WorkDir
from shared.plan import make_plan
from shared.records import Generation, InferStatus, Plan, PlanPair, Prediction, encode_record
from shared.suite import parse_suite

CHARACTERS = 200  # of an answer, and of a target
WORDS = [
    f"{first}{second}"
    for first in ("an", "be", "co", "du", "el", "fo", "gra", "hu", "in", "ju")
    for second in ("t", "ll", "rn", "sed", "ver", "ming", "talo", "pens", "quil", "zoric")
]


def text(chance: random.Random) -> str:
    """Some 200 characters of words."""
    words: list[str] = []
    length = 0
    while length < CHARACTERS:
        words.append(chance.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:CHARACTERS].strip()


def other(target: str, chance: random.Random) -> str:
    """A text with much of the target in it."""
    words = target.split()
    for _ in range(len(words) // 3):
        words[chance.randrange(len(words))] = chance.choice(WORDS)
    return " ".join(words)


def same(target: str, chance: random.Random) -> str:
    """The target itself, every other time."""
    return target if chance.random() < 0.5 else other(target, chance)


def plan(root: Path, models: Sequence[str], datasets: Sequence[str], rows: int, metric: str) -> Plan:
    """Plan every model over every dataset; each dataset has so many tasks."""
    source = root / "source.jsonl"
    root.mkdir(parents=True)
    chance = random.Random(1)
    with source.open("w", encoding="utf-8") as file:
        for number in range(rows):
            task = {"task_id": str(number), "prompt": "p", "targets": [text(chance)], "metric_name": metric}
            file.write(json.dumps(task) + "\n")
    suite = [f'[[models]]\nabbr = "{model}"\ntype = "rule"\n' for model in models]
    suite += [f'[[datasets]]\nabbr = "{dataset}"\npath = "source.jsonl"\n' for dataset in datasets]
    work, frozen = WorkDir(root), f"base_dir = {json.dumps(str(root))}\n" + "".join(suite)
    work.suite.write_text(frozen, "utf-8")
    return make_plan(work, parse_suite(frozen, "suite", root), frozen.encode(), SystemClock())


def answer(root: Path, pair: PlanPair, how: Callable[[str, random.Random], str]) -> str:
    """Write a pair's predictions, and its status `done`; the digest of the predictions."""
    work, seen = WorkDir(root), hashlib.sha256()
    path = work.predictions(pair.model, pair.dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for line in _lines(work, pair, how):
            seen.update(line)
            file.write(line)
    status(root, pair, "done", seen.hexdigest())
    return seen.hexdigest()


def status(root: Path, pair: PlanPair, state: str, digest: str = "") -> None:
    work = WorkDir(root)
    record = InferStatus(
        model=pair.model,
        dataset=pair.dataset,
        stem=pair.dataset,
        state="done" if state == "done" else "running",
        plan_digest=pair.digest,
        total=pair.requests,
        completed=pair.requests if state == "done" else 0,
        digest=digest,
    )
    work.infer_status(pair.model, pair.dataset).write_bytes(encode_record(record))


def _lines(work: WorkDir, pair: PlanPair, how: Callable[[str, random.Random], str]) -> Iterator[bytes]:
    chance = random.Random(2)
    with work.tasks(pair.dataset).open("rb") as file:
        for doc_id, line in enumerate(file):
            generation = Generation(text=how(json.loads(line)["targets"][0], chance), confidence=chance.random())
            row = Prediction(
                task_id=str(doc_id), key=f"{doc_id:064x}", doc_id=doc_id, outcome="ok", attempts=1, latency=0.2,
                generation=generation,
            )  # fmt: skip
            yield encode_record(row) + b"\n"
