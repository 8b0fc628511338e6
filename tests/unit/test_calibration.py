"""The calibration buffer. Names in brackets are cases of /work/shared/cases."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.calibration import Calibration, CalibrationBuffer, CalibrationSums, ReliabilityRow

Items = list[tuple[float | None, bool]]
items = st.lists(st.tuples(st.none() | st.floats(), st.booleans()) | st.tuples(st.floats(0, 1), st.booleans()))


def filled(given_items: Items, bins: int = 10) -> CalibrationBuffer:
    buffer = CalibrationBuffer(bins)
    for confidence, correct in given_items:
        buffer.add(confidence, correct)
    return buffer


def test_published_report(evaldata: Path) -> None:
    """The bins, ECE and MCE of another system's report on 100 predictions come out of their confidences."""
    folder = evaldata / "calibration_absa"
    expected = json.loads((folder / "EXPECTED.json").read_text(encoding="utf-8"))
    report = json.loads((folder / "absa-confidence-report.json").read_text(encoding="utf-8"))
    labels = [row.split("\t")[-1] for row in (folder / "absa-dataset.tsv").read_text(encoding="utf-8").splitlines()]
    output = json.loads((folder / "absa-example-output-confidence.json").read_text(encoding="utf-8"))["examples"]
    result = filled(
        [(one["confidence"], one["predicted_label"] == label) for one, label in zip(output, labels, strict=True)]
    ).result()
    assert (result.n, result.accuracy) == (expected["n"], expected["accuracy"])
    assert result.ece == pytest.approx(expected["expected_calibration_error"], abs=1e-12)
    assert result.mce == pytest.approx(expected["maximum_calibration_error"], abs=1e-12)
    (analysis,) = (a for a in report["results"]["analyses"] if a["name"] == "confidence")
    for row, published in zip(result.table, analysis["bucket_performances"], strict=True):
        assert row.n == published["n_samples"]
        assert row.accuracy == pytest.approx(published["performances"]["Accuracy"]["value"])


def test_confidences_of_zero_and_one() -> None:
    """[ece-conf-zero] They fall in the end bins; 0.8 |1 - 0.5| + 0.2 |0 - 1| = 0.6."""
    result = filled([(1.0, False), (1.0, False), (1.0, True), (1.0, True), (0.0, True)], bins=2).result()
    assert result.ece == pytest.approx(0.6)
    assert result.mce == 1.0
    assert result.brier == pytest.approx(3 / 5)
    assert [row.n for row in result.table] == [1, 4]


def test_missing_confidences_are_counted_apart() -> None:
    """[logprobs-null] Of 100, 30 have none: the figures are over 70, and nothing missing counts as 0 or 1."""
    result = filled([(0.9, True)] * 70 + [(None, True)] * 30).result()
    assert (result.n, result.n_missing, result.populated_bins) == (70, 30, 1)
    assert result.ece == pytest.approx(0.1)


@pytest.mark.parametrize("confidence", [None, math.nan, math.inf, -math.inf, -1e-9, 1.0000001])
def test_no_figures_without_confidences(confidence: float | None) -> None:
    """What isn't in [0, 1] is left out; with nothing left every figure is None."""
    result = filled([(confidence, True)]).result()
    assert result == Calibration(
        n=0,
        n_missing=1,
        bins=10,
        populated_bins=0,
        ece=None,
        mce=None,
        brier=None,
        mean_confidence=None,
        accuracy=None,
        table=tuple(ReliabilityRow(k / 10, (k + 1) / 10, 0, None, None) for k in range(10)),
    )


@given(st.integers(1, 100), st.data())
def test_edges_belong_to_the_bin_that_they_open(bins: int, data: st.DataObject) -> None:
    """A confidence is in the bin whose printed edges hold it, however the float came about."""
    confidence = data.draw(st.integers(0, bins).map(lambda k: k / bins) | st.floats(0, 1) | st.just(0.1 * 3))
    (row,) = (row for row in filled([(confidence, True)], bins).result().table if row.n)
    assert row.lo <= confidence < row.hi or confidence == row.hi == 1.0


@given(items, items)
def test_pairs_merge_through_their_records(one: Items, two: Items) -> None:
    """Sums that were written and read merge exactly as the live ones, and as if all had been added to one buffer."""
    live, stored = filled(one), filled(one)
    live.merge(filled(two))
    record = msgspec.json.decode(msgspec.json.encode(filled(two).to_record()), type=CalibrationSums)
    stored.merge(CalibrationBuffer.from_record(record))
    assert stored.result() == live.result()
    together = filled(one + two).result()
    assert [row.n for row in together.table] == [row.n for row in live.result().table]
    assert together.n_missing == live.result().n_missing
    assert (together.ece or 0.0) == pytest.approx(live.result().ece or 0.0, abs=1e-9)


@given(items)
def test_figures_are_in_range(given_items: Items) -> None:
    """ECE <= MCE <= 1, Brier in [0, 1], all None or finite; every answer is counted once."""
    result = filled(given_items).result()
    assert result.n + result.n_missing == len(given_items)
    if result.ece is not None and result.mce is not None and result.brier is not None:
        assert 0 <= result.ece <= result.mce + 1e-12
        assert result.mce <= 1
        assert 0 <= result.brier <= 1
    assert b"NaN" not in msgspec.json.encode(result)


def test_sums_that_no_buffer_holds_are_refused() -> None:
    """A damaged record isn't merged."""
    good = filled([(0.5, True)], bins=2).to_record()
    for change in ({"n": (1,)}, {"correct": (0, 2)}, {"confidence": (0.0, 1.5)}, {"n": (-1, 1)}):
        with pytest.raises(ValueError, match="calibration sums"):
            CalibrationBuffer.from_record(msgspec.structs.replace(good, **change))
    with pytest.raises(ValueError, match="2 bins into 10"):
        CalibrationBuffer().merge(CalibrationBuffer.from_record(good))
    with pytest.raises(ValueError, match="at least one bin"):
        CalibrationBuffer(0)
