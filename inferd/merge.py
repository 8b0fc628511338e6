"""The merge of a shard's journals into its predictions file, in (doc_id, idx, repeat) order.

Most of it is done while the last requests are still in flight: `advance` writes as far as there are answers, `finish`
the rest. Until `finish` nobody sees anything of it. Disk work: on loader threads, one at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing

import msgspec
from msgspec.structs import replace

from inferd.feed import ANOTHER_JOURNAL, Asked, Failure, Where
from inferd.lines import Lines
from shared import atomic
from shared.answers import AnswerIndex, Fresh, key64, where_of
from shared.errors import WorkDirError
from shared.layout import WorkDir
from shared.plan import read_planned_ids
from shared.records import Outcome, PlanPair, PlanShard, Prediction, encode_record


class Merge:
    """asked: all requests of the shard, in their order. index: of what was journalled; it is this one's from now on."""

    def __init__(self, work: WorkDir, pair: PlanPair, shard: PlanShard, asked: Asked, index: AnswerIndex) -> None:
        self._path = work.predictions(pair.model, shard.stem)
        self._asked = asked
        self._requests = iter(asked)
        self._index = index
        self._ids = enumerate(read_planned_ids(work, pair.dataset, shard.first, shard.first + shard.docs), shard.first)
        self._doc = (-1, "")
        self._next: tuple[int, int] | None = next(self._requests, None)
        self._file: atomic.Replacement | None = None

    def advance(self, fresh: Fresh, failures: Mapping[Where, Failure]) -> None:
        """Write the lines of the next requests, up to the first that has no end yet. fresh: what was journalled since.

        Raises OSError; then it is to be abandoned, and another one made.
        """
        self._index.absorb(fresh)
        if self._file is None:
            atomic.sweep(self._path.parent, self._path.name)  # a merge that was killed may have left much
            self._file = atomic.Replacement(self._path)
        with closing(self._lines(failures)) as lines:  # it holds on to the index, which can't grow meanwhile
            self._file.write(lines)

    def finish(self, fresh: Fresh, failures: Mapping[Where, Failure]) -> str:
        """Write what is left, and give the file its name; returns its SHA-256.

        Every request that was asked gets exactly one line, by construction. Raises WorkDirError when one has neither an
        answer in the journals nor a known failure.
        """
        self.advance(fresh, failures)
        if self._next is not None:
            doc_id, _, repeat = where_of(self._next[0])
            raise WorkDirError(f"doc {doc_id} repeat {repeat} has no answer in the journal any more")
        assert self._file is not None
        file, self._file = self._file, None
        return file.commit()

    def abandon(self) -> None:
        """Leave nothing behind of what wasn't finished."""
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def _lines(self, failures: Mapping[Where, Failure]) -> Generator[bytes, None, None]:
        if self._next is None:
            return
        cursor = self._index.cursor(self._next[0])
        with ExitStack() as stack:
            files = [stack.enter_context(closing(Lines(path))) for path in self._index.paths]
            while self._next is not None:
                order, key = self._next
                key = key or self._asked.key_of(order)  # a later turn's, asked since
                while self._doc[0] < order >> 32:
                    self._doc = next(self._ids)
                task_id = self._doc[1]
                found = cursor.find_order(order, key)
                if found is not None:
                    file = files[found.file]
                    line = file.read(found.offset, found.length)
                    merged = file.path in self._index.merged
                    yield (_merged(task_id, line) if merged else _answered(task_id, line, key)) + b"\n"
                elif (failure := failures.get(where_of(order))) is not None:
                    yield encode_record(_failed(task_id, where_of(order), failure)) + b"\n"
                else:
                    return
                self._next = next(self._requests, None)


class _Answer(msgspec.Struct):
    """What a prediction takes from a journal line; the generation goes over as it is."""

    key: str
    doc_id: int
    attempt: int
    outcome: Outcome
    latency: float
    generation: msgspec.Raw
    idx: int = 0
    repeat: int = 0
    endpoint: str = ""
    cost: float = 0.0


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_prediction = msgspec.json.Decoder(Prediction).decode


def _answered(task_id: str, line: bytes, key: int) -> bytes:
    try:
        answer = _decode_answer(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = None
    if answer is None or key64(answer.key) != key:
        raise WorkDirError(ANOTHER_JOURNAL)
    return encode_record(
        Prediction(
            task_id=task_id,
            key=answer.key,
            doc_id=answer.doc_id,
            idx=answer.idx,
            repeat=answer.repeat,
            outcome=answer.outcome,
            attempts=answer.attempt,
            latency=answer.latency,
            endpoint=answer.endpoint,
            cost=answer.cost,
            generation=answer.generation,  # type: ignore[arg-type]  # the same JSON, which the index found sound
        )
    )


def _merged(task_id: str, line: bytes) -> bytes:
    """A line of the predictions as they were, under the name that the task has now."""
    prediction = _decode_prediction(line)
    return line if prediction.task_id == task_id else encode_record(replace(prediction, task_id=task_id))


def _failed(task_id: str, where: Where, failure: Failure) -> Prediction:
    doc_id, idx, repeat = where
    return Prediction(
        task_id=task_id,
        key=failure.key,
        doc_id=doc_id,
        idx=idx,
        repeat=repeat,
        outcome="error" if failure.error is not None else "not_run",
        error=failure.error,
        message=failure.message,
        attempts=failure.attempts,
        latency=failure.latency,
    )
