"""The calibration buffer. Names in brackets are cases of ../shared/cases."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.calibration import Calibration, CalibrationBuffer, CalibrationSums, ReliabilityRow, _cell

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
    assert result == Calibration(  # what has a default is none too
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
    assert stored.to_record() == live.to_record()
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
    for points in ([(0.5, 2, 1, 1.0)], [(0.5, 1, 2, 0.5)], [(1.5, 1, 1, 0.5)], []):
        with pytest.raises(ValueError, match="calibration sums"):
            CalibrationBuffer.from_record(msgspec.structs.replace(good, points=tuple(points)))


# --- what needs the order of the confidences --------------------------------------------------------------------------

known = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def noise(n: int) -> list[tuple[float, bool]]:
    """Confidences crowded towards 1 as models' are, with what is right depending on them; the same each time."""
    found = []
    for number in range(n):
        one, two = (number * 0.6180339887498949) % 1.0, (number * 0.7548776662466927) % 1.0
        confidence = 1.0 - one**3
        found.append((confidence, two < confidence * confidence))
    return found


def auroc_of(given_items: list[tuple[float, bool]]) -> float | None:
    """By comparing every right answer with every wrong one."""
    right = [confidence for confidence, correct in given_items if correct]
    wrong = [confidence for confidence, correct in given_items if not correct]
    if not right or not wrong:
        return None
    won = sum((a > b) + (a == b) / 2 for a in right for b in wrong)
    return won / len(right) / len(wrong)


@given(known)
def test_auroc(given_items: list[tuple[float, bool]]) -> None:
    """The share of (right, wrong) pairs in which the right one is surer, ties by half; exact, and None where there is
    no such pair.
    """
    result, expected = filled(list(given_items)).result(), auroc_of(given_items)
    assert result.auroc == (None if expected is None else pytest.approx(expected, abs=1e-12))
    assert result.auroc_error == 0.0


@given(known, st.integers(1, 12))
def test_brier_is_the_sum_of_its_parts(given_items: list[tuple[float, bool]], bins: int) -> None:
    """reliability - resolution + uncertainty + within_bins; each of the three is a mean of squares."""
    r = filled(list(given_items), bins).result()
    assert r.reliability is not None
    assert r.resolution is not None
    assert r.uncertainty is not None
    assert r.within_bins is not None
    assert r.reliability - r.resolution + r.uncertainty + r.within_bins == pytest.approx(r.brier, abs=1e-12)
    assert min(r.reliability, r.resolution, r.uncertainty) >= 0.0
    assert r.resolution <= r.uncertainty + 1e-12


def test_brier_parts_of_murphy() -> None:
    """Where a bin's confidences are equal nothing is within bins. 4 at 0.1 of which 1 is right, 6 at 0.8 of which 3:
    reliability (4 0.15^2 + 6 0.3^2) / 10, resolution (4 0.15^2 + 6 0.1^2) / 10, uncertainty 0.4 0.6.
    """
    given_items: Items = [(0.1, n < 1) for n in range(4)]
    given_items += [(0.8, n < 3) for n in range(6)]
    r = filled(given_items).result()
    assert (r.reliability, r.resolution, r.uncertainty) == (
        pytest.approx(0.063), pytest.approx(0.015), pytest.approx(0.24),
    )  # fmt: skip
    assert r.within_bins == pytest.approx(0.0, abs=1e-12)
    assert r.brier == pytest.approx(0.288)


@given(known, st.integers(1, 12))
def test_bins_of_equal_mass(given_items: list[tuple[float, bool]], bins: int) -> None:
    """Every answer is in one of at most so many bins, none of which holds more than its share and one point beyond;
    equal confidences are never parted.
    """
    rows = filled(list(given_items), bins).result().mass_table
    assert sum(row.n for row in rows) == len(given_items)
    assert 1 <= len(rows) <= bins
    assert all(before.hi < row.lo <= row.hi for before, row in itertools.pairwise(rows)) or len(rows) == 1
    most = max(Counter(confidence + 0.0 for confidence, _ in given_items).values())
    assert all(row.n < len(given_items) / bins + most for row in rows)


def test_ece_of_equal_mass() -> None:
    """Where all confidences differ it is that of the sorted answers cut into ten equal parts."""
    given_items = sorted(noise(500))
    parts = [given_items[start : start + 50] for start in range(0, 500, 50)]
    expected = sum(abs(sum(c - correct for c, correct in part)) for part in parts) / 500
    result = filled(list(given_items)).result()
    assert result.ece_mass == pytest.approx(expected, abs=1e-12)
    assert [row.n for row in result.mass_table] == [50] * 10


def test_selective_accuracy() -> None:
    """The surest 50, 80 and 90 %; of equal confidences at the edge each counts with its share."""
    given_items: Items = [(n / 10, n in (3, 5, 7, 8, 9, 10)) for n in range(1, 11)]
    found = filled(given_items).result().selective
    assert [(one.coverage, one.n, one.confidence) for one in found] == [(0.5, 5, 0.6), (0.8, 8, 0.3), (0.9, 9, 0.2)]
    assert [one.accuracy for one in found] == pytest.approx([4 / 5, 6 / 8, 6 / 9])
    tied = filled([(0.7, True), (0.7, False), (0.7, False), (0.7, False)]).result().selective
    assert [one.accuracy for one in tied] == [0.25] * 3


def test_memory_is_bounded_and_the_error_is_told() -> None:
    """Of 60,000 different confidences cells are kept, few however many come; the bins of equal width don't change, and
    the AUROC is off by no more than is said, which is little.
    """
    given_items = noise(60_000)
    buffer = filled(list(given_items))
    record, result = buffer.to_record(), buffer.result()
    assert record.coarse
    assert len(record.points) < 6000
    assert sum(n for _, n, _, _ in record.points) == 60_000
    ranked = sorted(given_items)
    right = [rank for rank, (_, correct) in enumerate(ranked) if correct]
    wrong = 60_000 - len(right)
    exact = (sum(right) - len(right) * (len(right) - 1) / 2) / (len(right) * wrong)
    assert result.auroc is not None
    assert 0 < result.auroc_error < 0.001
    assert abs(result.auroc - exact) <= result.auroc_error
    parts = [ranked[start : start + 6000] for start in range(0, 60_000, 6000)]
    mass = sum(abs(sum(c - correct for c, correct in part)) for part in parts) / 60_000
    assert result.ece_mass == pytest.approx(mass, abs=0.001)
    # Mean confidence and accuracy of the surest half.
    assert result.selective[0].accuracy == pytest.approx(sum(c for _, c in ranked[30_000:]) / 30_000, abs=0.001)


@given(st.floats(0, 1) | st.floats(0, 1e-6) | st.floats(0, 1e-6).map(lambda x: 1.0 - x))
def test_cells(confidence: float) -> None:
    """A cell's lower edge is in the cell, not above the confidence, and near it: within 1/128 of the distance to the
    nearer end, or 2^-24.
    """
    edge = _cell(confidence)
    assert 0.0 <= edge <= confidence
    assert _cell(edge) == edge
    assert confidence - edge <= max(min(confidence, 1 - edge) / 64, 2.0**-24)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40), st.integers(0, 40))
def test_coarse_and_fine_merge(given_items: list[tuple[float, bool]], cut: int) -> None:
    """Whichever of two buffers got coarse first, or only their sum did: the same points."""
    fine, late = filled(list(given_items)), filled(list(given_items[:cut]))
    fine._coarsen()
    rest = filled(list(given_items[cut:]))
    rest._coarsen()
    late.merge(rest)
    one, two = fine.to_record(), late.to_record()
    assert [point[:3] for point in one.points] == [point[:3] for point in two.points]
    assert [point[3] for point in one.points] == pytest.approx([point[3] for point in two.points])


def test_the_same_to_the_byte() -> None:
    """The same answers in the same order leave the same record."""
    records = [msgspec.json.encode(filled(list(noise(3000))).to_record()) for _ in range(2)]
    assert records[0] == records[1]
