"""What another sharding of a pair left, put where every shard finds it.

Whoever plans calls this before the plan is written. A file of a stem that can hold docs of other shards than the stem's
own goes to the pair's own name: journals as journals of the dataset (`tmp_<dataset>.<claim>.jsonl`), predictions as
merged ones (`tmp_<dataset>.<token>.merged.jsonl`). So do the files of a pair in shards that is planned no more. A shard
reads those of its stem and those of the dataset, so no journal of a shard of this plan is read by another one. Statuses
of such a stem are removed: nobody would believe them.

Nothing is deleted that could hold an answer, each file is moved by one rename, and where it is killed in between the
next planning goes on: what was moved is found under the old plan as well. A stem that another process has claimed is
left alone.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from shared import claims
from shared.atomic import promote, remove
from shared.layout import WorkDir, claim_of
from shared.records import Plan, PlanPair

_NUMBERED = re.compile(r"(.+)_([0-9]+)", re.DOTALL)


class _Span(NamedTuple):
    """Docs first <= doc < end that a stem's files hold. end: None of a pair's last shard: what an earlier, longer
    dataset left counts as its.
    """

    first: int
    end: int | None

    def within(self, other: _Span) -> bool:
        return self.first >= other.first and (other.end is None or (self.end is not None and self.end <= other.end))


def regroup(work: WorkDir, old: Plan | None, new: Plan) -> None:
    """old: the plan that the files there were made by, None where that isn't known."""
    was = {(pair.model, pair.dataset): _spans(pair) for pair in old.pairs} if old is not None else {}
    planned = {(pair.model, pair.dataset): _spans(pair) for pair in new.pairs}
    # First what is known: also of pairs that are planned no more, or nobody would know whose it is when they come back.
    for pair in old.pairs if old is not None else ():
        key = (pair.model, pair.dataset)
        now = planned.get(key, {})
        for stem, span in was[key].items():
            if not (stem in now and span.within(now[stem])) and (key in planned or stem != pair.dataset):
                _move(work, pair, stem)
    taken: dict[str, set[str]] = {}  # by model: stems that are some pair's, or were
    for plan in (new, *([old] if old is not None else [])):
        for pair in plan.pairs:
            taken.setdefault(pair.model, set()).update(shard.stem for shard in pair.shards)
    by_model: dict[str, list[PlanPair]] = {}
    for pair in new.pairs:
        by_model.setdefault(pair.model, []).append(pair)
    for model, pairs in by_model.items():
        there = _numbered(work.stems(model))
        for pair in pairs:
            key = (model, pair.dataset)
            # Such a name may be a dataset's own, of this plan or of one long ago.
            own = {
                stem
                for stem in there.get(pair.dataset, ())
                if stem in planned[key] or (stem not in taken[model] and not work.tasks(stem).is_file())
            }
            if len(pair.shards) > 1:
                own.add(pair.dataset)  # unsharded before, perhaps
            for stem in sorted(own - was.get(key, {}).keys()):
                _move(work, pair, stem)


def _spans(pair: PlanPair) -> dict[str, _Span]:
    last = pair.shards[-1].stem
    return {
        shard.stem: _Span(shard.first, None if shard.stem == last else shard.first + shard.docs)
        for shard in pair.shards
    }


def _numbered(stems: Iterable[str]) -> dict[str, list[str]]:
    """Stems that may be shards, by the dataset whose."""
    found: dict[str, list[str]] = {}
    for stem in stems:
        if match := _NUMBERED.fullmatch(stem):
            found.setdefault(match[1], []).append(stem)
    return found


def _move(work: WorkDir, pair: PlanPair, stem: str) -> None:
    journals = work.journals(pair.model, stem) if stem != pair.dataset else []
    predictions, status = work.predictions(pair.model, stem), work.infer_status(pair.model, stem)
    if not journals and not predictions.is_file() and not status.is_file():
        return
    claim = claims.take(work.shard_claim(pair.model, stem))
    if claim is None:
        return
    with claim:
        for journal in journals:
            target = work.journal(pair.model, pair.dataset, claim_of(journal))
            if target.exists():  # a copy that somebody made: a claim is a token of its own
                target = work.journal(pair.model, pair.dataset, uuid.uuid4().hex)
            promote(journal, target)
        if predictions.is_file():
            promote(predictions, work.merged(pair.model, pair.dataset, uuid.uuid4().hex))
        remove(status)
