"""A pair's predictions as they are read for scoring: nothing of them is believed that doesn't agree with the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from pathlib import Path

import msgspec

from shared.atomic import open_regular
from shared.errors import TandemError
from shared.journal import split_lines
from shared.layout import WorkDir
from shared.records import SCHEMA, PlanPair, Prediction, check_schema


class Incomplete(TandemError):
    """The predictions as seen now aren't what the status says: look again later."""


class Predictions:
    """A pair's predictions over all its shards, each checked against its place in the plan and each file against its
    digest.
    """

    def __init__(self, work: WorkDir, pair: PlanPair, digests: tuple[str, ...]) -> None:
        self._where = f"{pair.model} x {pair.dataset}"
        self._rows = self._read(
            [
                (work.predictions(pair.model, shard.stem), digest)
                for shard, digest in zip(pair.shards, digests, strict=True)
            ]
        )

    def take(self, doc_id: int, instances: int, repeats: int) -> list[list[Prediction]]:
        """The doc's predictions: of each repeat those of its instances, in the order of their idx."""
        rows: list[list[Prediction]] = [[] for _ in range(repeats)]
        for idx in range(instances):
            for repeat in range(repeats):
                row = next(self._rows, None)
                if row is None or (row.doc_id, row.idx, row.repeat) != (doc_id, idx, repeat):
                    found = "the end" if row is None else f"({row.doc_id}, {row.idx}, {row.repeat})"
                    due = f"({doc_id}, {idx}, {repeat})"
                    raise Incomplete(f"{self._where}: predictions hold {found} where the plan has {due}")
                rows[repeat].append(row)
        return rows

    def finish(self) -> None:
        if next(self._rows, None) is not None:
            raise Incomplete(f"{self._where}: more predictions than the plan has requests")

    def close(self) -> None:
        self._rows.close()

    def _read(self, files: list[tuple[Path, str]]) -> Generator[Prediction, None, None]:
        decoder = msgspec.json.Decoder(Prediction)
        for path, digest in files:
            seen = hashlib.sha256()
            try:
                file = open_regular(path)
            except FileNotFoundError:
                raise Incomplete(f"{path}: not there yet") from None
            with file:
                for _, line in split_lines(file):
                    seen.update(line)
                    seen.update(b"\n")
                    try:
                        row = decoder.decode(line)
                        if row.schema != SCHEMA:
                            check_schema(line, str(path))
                        yield row
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        raise Incomplete(f"{path}: holds a line that is no prediction: {error}") from None
            if seen.hexdigest() != digest:
                raise Incomplete(f"{path}: its content isn't what the status names")
