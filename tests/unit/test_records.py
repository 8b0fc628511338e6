"""The records on disk: each sample in a docstring is one, and what is no record is refused in words."""

from __future__ import annotations

import inspect
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET, Struct

from evald import calibration, results, samples
from evald.stats import means
from shared import records
from shared.errors import WorkDirError
from shared.records import (
    SCHEMA,
    Attempt,
    EvalRun,
    Generation,
    GenerationSettings,
    Heartbeat,
    InferStatus,
    Plan,
    Record,
    TaskSpec,
    decode_record,
    encode_record,
)
from shared.scoring import measures_of

WITHOUT_SAMPLE = {"Record", "Prompt"}  # the base of all, and what only goes from thread to thread


def _classes() -> list[type[Struct]]:
    modules = (records, results, samples, calibration, means)
    found = [
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Struct) and kind.__module__ == module.__name__ and not kind.__name__.startswith("_")
    ]
    on_disk = {"CalibrationSums", "Clusters"}
    whole = {records.__name__, results.__name__, samples.__name__}
    return [
        kind
        for kind in found
        if kind.__name__ not in WITHOUT_SAMPLE and (kind.__module__ in whole or kind.__name__ in on_disk)
    ]


def _sample(kind: type[Struct]) -> dict[str, Any]:
    """The first JSON object in the docstring. Its line breaks stand between tokens only."""
    text = (kind.__doc__ or "").replace("\n", " ")
    start = text.find("{")
    assert start >= 0, f"{kind.__name__} has no sample in its docstring"
    value, _ = json.JSONDecoder().raw_decode(text[start:])
    assert isinstance(value, dict)
    return value


def _holds(written: Any, sample: Any) -> bool:
    """Does what was written say all that the sample says? It may say more, and leave out a 0 where 0 is usual, but not
    the schema.
    """
    if isinstance(sample, dict):
        return isinstance(written, dict) and all(
            _holds(written[key], value) if key in written else value == 0 and key != "schema"
            for key, value in sample.items()
        )
    if isinstance(sample, list):
        return len(written) == len(sample) and all(map(_holds, written, sample))
    return bool(written == sample)


def test_all_records_are_found() -> None:
    """The list below isn't empty by accident: what lies on disk is in it."""
    names = {kind.__name__ for kind in _classes()}
    expected = {"TaskSpec", "Attempt", "Prediction", "Plan", "InferStatus", "Heartbeat", "EvalRun", "PairResult"}
    assert names >= expected


@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: kind.__name__)
def test_a_sample_is_such_a_record(kind: type[Struct]) -> None:
    """What the docstring shows is read, written and read again as the same; each of its keys is a field."""
    sample = _sample(kind)
    data = json.dumps(sample).encode()
    record = decode_record(data, kind, "sample") if issubclass(kind, Record) else msgspec.json.decode(data, type=kind)
    assert set(sample) <= set(kind.__struct_fields__), "the sample has a key that is no field"
    written = encode_record(record)
    assert b"\n" not in written
    assert msgspec.json.decode(written, type=kind) == record
    assert _holds(json.loads(written), sample)
    if issubclass(kind, Record):
        assert sample["schema"] == SCHEMA == json.loads(written)["schema"]


@pytest.mark.parametrize("schema", [0, 2, -1, 10**18])
@pytest.mark.parametrize("kind", [Plan, InferStatus, Heartbeat, TaskSpec], ids=lambda kind: kind.__name__)
def test_another_schema_fails_with_the_remedy(kind: type[Struct], schema: int) -> None:
    """The message names the place, both versions and what to do; what else is wrong with the record is not told."""
    with pytest.raises(WorkDirError) as caught:
        decode_record(json.dumps({"schema": schema, "strange": 1}), kind, "/w/plan.json")
    assert str(caught.value) == (
        f"/w/plan.json: written as schema {schema}, this program reads schema 1: "
        "use the version of tandem-eval that wrote it, or start a new work_dir"
    )


@given(st.binary(max_size=200) | st.text(max_size=100))
@example("\ud800")
@example(b"\xff")
@example(b"null")
@example(b"")
def test_noise_is_refused(data: bytes | str) -> None:
    """Whatever the bytes: no record, and said so with the place."""
    with pytest.raises(WorkDirError, match=r"^somewhere: "):
        decode_record(data, Plan, "somewhere")


@given(st.data())
def test_a_damaged_record_is_refused_or_another_one(data: st.DataObject) -> None:
    """Bytes overwritten in a real record: a WorkDirError or a record, never another error."""
    sound = bytearray(encode_record(decode_record(json.dumps(_sample(InferStatus)), InferStatus, "x")))
    for _ in range(data.draw(st.integers(1, 4))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_record(bytes(sound), InferStatus, "x")
    except WorkDirError:
        return
    assert isinstance(found, InferStatus)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"schema":1,"counters":' + b'{"a":' * 100_000,
        b'{"schema":1,"suite_digest":"x","created_at":"x","pairs":' + b"[" * 100_000,
        b'{"schema":' + b"9" * 1_000_000 + b"}",
        b'{"schema":1e400}',
        b'{"schema":1,"suite_digest":"' + b"x" * 10_000_000,
        b"\x00" * 1_000_000,
    ],
    ids=["arrays", "objects", "inside", "inside a list", "huge number", "huge float", "cut", "NULs"],
)
def test_monsters_are_refused(data: bytes) -> None:
    """100 000 levels deep, a million digits, ten megabytes without an end: refused, in few words."""
    for kind in (Plan, Heartbeat):
        with pytest.raises(WorkDirError, match=r"^x: ") as caught:
            decode_record(data, kind, "x")
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_become_null(value: float) -> None:
    """NaN and infinities are written as null, which other JSON tools can read, and come back as None."""
    run = EvalRun(model_id="m", task_id="t", doc_id=0, metric_name="exact_match", score=value, confidence=value)
    written = encode_record(run)
    assert json.loads(written)["score"] is None
    back = decode_record(written, EvalRun, "x")
    assert back.score is None
    assert back.confidence is None
    assert json.loads(encode_record(Generation(text="a", token_nll=value))) == {"text": "a", "token_nll": None}


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_stays_on_one_line(text: str) -> None:
    """Newlines, NULs and U+2028 in an answer never end a line of the journal."""
    attempt = Attempt(
        key="0" * 64,
        doc_id=0,
        attempt=1,
        outcome="ok",
        latency=0.0,
        ended_at="",
        generation=Generation(text=text, reasoning=text),
    )
    written = encode_record(attempt)
    assert b"\n" not in written
    assert decode_record(written, Attempt, "x") == attempt


def test_settings_lie_over_each_other() -> None:
    """What is set wins, what is unset lets the base through, and what neither sets stays unset."""
    base = GenerationSettings(temperature=0.5, max_tokens=10, stop=("a",))
    upper = GenerationSettings(temperature=0.0, seed=7)
    assert upper.over(base) == GenerationSettings(temperature=0.0, max_tokens=10, stop=("a",), seed=7)
    assert GenerationSettings().over(base) == base
    assert upper.over(GenerationSettings()) == upper
    assert upper.over(base).top_p is UNSET


def test_a_task_has_one_metric_or_several() -> None:
    """One name and a list of names come to the same thing."""
    one = TaskSpec(task_id="a", prompt="p", targets=("1",), metric_name="f1")
    two = TaskSpec(task_id="a", prompt="p", targets=("1",), metric_name=("f1", "bleu"))
    assert [measure.name for measure in measures_of(one.metric_name)] == ["f1"]
    assert [measure.name for measure in measures_of(two.metric_name)] == ["f1", "bleu"]
