"""How a pair's docs are cut into shards. Pure.

Shards follow each other without a gap and hold each doc once; none is empty. The cut depends on the dataset's docs
alone, so all models have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shared.config import DatasetConfig
from shared.errors import Problem
from shared.names import collisions, safe_name
from shared.records import PlanDataset, PlanShard

MAX_SHARDS = 1000
"""Of one pair: each is a claim, a journal, a status file and a predictions file."""


def is_cut(dataset: DatasetConfig) -> bool:
    return dataset.num_shards is not None or dataset.max_shard_size is not None


def count_of(dataset: DatasetConfig, docs: int) -> int:
    """How many shards: num_shards, but never more than docs; or as few as max_shard_size allows."""
    if dataset.num_shards is not None:
        return max(min(dataset.num_shards, docs), 1)
    return -(-docs // dataset.max_shard_size) if dataset.max_shard_size is not None else 1


def firsts_of(dataset: DatasetConfig, docs: int) -> list[int]:
    """Each shard's first doc. With num_shards their sizes differ by one at most. With max_shard_size all but the last
    are full, so that docs added at the end leave what is before them where it is.
    """
    count = count_of(dataset, docs)
    if dataset.max_shard_size is not None:
        return [number * dataset.max_shard_size for number in range(count)]
    return [number * docs // count for number in range(count)]


def cut(dataset: DatasetConfig, docs: int, requests: int, per_doc: Sequence[int]) -> tuple[PlanShard, ...]:
    """requests: of all docs. per_doc: the instances of each, where the dataset is to be cut."""
    firsts = firsts_of(dataset, docs)
    if len(firsts) == 1:
        return (PlanShard(stem=dataset.abbr, first=0, docs=docs, requests=requests),)
    return tuple(
        PlanShard(
            stem=f"{dataset.abbr}_{number}",
            first=first,
            docs=end - first,
            requests=sum(per_doc[first:end]) * dataset.repeats,
        )
        for number, (first, end) in enumerate(pairwise([*firsts, docs]))
    )


def cut_faults(planned: Sequence[tuple[DatasetConfig, PlanDataset]]) -> list[Problem]:
    """Shards that are too many, and names that would be one file: of datasets, in shards or not, and of shards."""
    problems: list[Problem] = []
    owners: dict[str, str] = {}  # stem: dataset
    for config, dataset in planned:
        count = count_of(config, dataset.docs)
        if count > MAX_SHARDS:
            key, remedy = "num_shards", f"at most {MAX_SHARDS} shards"
            if config.max_shard_size is not None:
                key, remedy = "max_shard_size", f"at least {-(-dataset.docs // MAX_SHARDS)} for these docs"
            text = f"{dataset.docs} docs would be {count} shards: {key} must be {remedy}"
            problems.append(Problem(dataset.abbr, text))
            continue
        stems = [dataset.abbr]  # in shards too: what another sharding left goes there (`shared.regroup`)
        stems += [f"{dataset.abbr}_{number}" for number in range(count)] if count > 1 else []
        try:
            safe_name(stems[-1])
        except ValueError as error:
            problems.append(Problem(dataset.abbr, f"its shards' names are too long: {error}"))
            continue
        for stem in stems:
            if stem in owners:
                problems.append(_shared(stem, owners[stem], dataset.abbr))
            owners.setdefault(stem, dataset.abbr)
    for group in collisions(owners):
        names = sorted({owners[stem] for stem in group})
        if set(names) == set(group):
            problems.append(Problem(" and ".join(group), "these names collide as file names"))
        elif len(names) > 1:
            problems.append(_shared(group[0], names[0], names[1]))
    return problems


def _shared(stem: str, one: str, two: str) -> Problem:
    text = f"both would have a shard in files named {stem}: rename one, or change its num_shards or max_shard_size"
    return Problem(f"{one} and {two}", text)
