"""The leaderboard out of results: who ranks, what stands beside the score, and that missing is never filled in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from evald import comparisons
from evald.account import Pair
from evald.calibration import CalibrationBuffer, CalibrationSums
from evald.comparisons import Comparisons, PairedRow, Scores, compare
from evald.leaderboard import Report, Standing, build_report
from evald.results import MetricResult, PairResult, ScoreError
from evald.stats import Clusters, Interval, mean_se, wilson
from shared.records import InferStatus, Plan, PlanDataset, PlanGroup, PlanPair, PlanShard, encode_record

NO_SUMS = CalibrationSums(n=(0,), confidence=(0.0,), correct=(0,), squared_error=0.0, n_missing=0)


def plan_of(models: list[str], sizes: Mapping[str, int]) -> Plan:
    return Plan(
        suite_digest="s",
        created_at="",
        datasets=tuple(PlanDataset(abbr=name, docs=docs, repeats=1, digest="d") for name, docs in sizes.items()),
        pairs=tuple(
            PlanPair(
                model=model, dataset=name, docs=docs, instances=docs, requests=docs, digest="p",
                shards=(PlanShard(stem=name, first=0, docs=docs, requests=docs),),
            )
            for model in models
            for name, docs in sizes.items()
        ),
    )  # fmt: skip


def result_of(right: int, scored: int, docs: int | None = None, **more: object) -> PairResult:
    """`right` of the `scored` docs are right; the rest of `docs` have no score."""
    docs = scored if docs is None else docs
    estimate = mean_se([1.0] * right + [0.0] * (scored - right))
    return replace(
        PairResult(
            model="m", dataset="d", metric="exact_match", n_docs=docs, n_scored=scored, n_missing=docs - scored,
            n_score_errors=0, mean=estimate.mean, stderr=estimate.stderr, interval=wilson(right, scored),
            bounds=Interval(right / docs, (right + docs - scored) / docs) if docs else None,
            coverage=scored / docs if docs else 0.0, instances=docs, requests=docs, answered=scored, attempts=docs,
            outcomes={}, unextracted=0, repeats=1, metrics=(), categories=(), score_errors=(), calibration=NO_SUMS,
            content="c", predictions_digest=("x",), dataset_digest="d", plan_digest="p", scorer="1",
        ),
        **more,
    )  # fmt: skip


def board(
    models: list[str], sizes: Mapping[str, int], results: Mapping[Pair, PairResult], reasons: Mapping[Pair, str] = {}
) -> Report:
    return report_of(plan_of(models, sizes), results, reasons)


def report_of(
    plan: Plan,
    results: Mapping[Pair, PairResult],
    reasons: Mapping[Pair, str] = {},
    found: Comparisons | None = None,
    statuses: Mapping[Pair, list[InferStatus]] = {},
) -> Report:
    buffers: dict[str, CalibrationBuffer] = {}
    for (model, _), result in results.items():
        part = CalibrationBuffer.from_record(result.calibration)
        if model in buffers:
            buffers[model].merge(part)
        else:
            buffers[model] = part
    calibration = {model: buffer.result() for model, buffer in buffers.items()}
    return build_report(plan, statuses, results, reasons, found or Comparisons(), calibration)


def ranks(report: Report) -> list[tuple[str, int | None]]:
    return [(standing.model, standing.rank) for standing in report.leaderboard]


def of(report: Report, model: str) -> Standing:
    return next(standing for standing in report.leaderboard if standing.model == model)


def test_ranks_and_ties() -> None:
    """Best first; equal scores share a rank and the next rank is skipped; the order among equals is by name."""
    results = {("a", "d"): 5, ("b", "d"): 7, ("c", "d"): 7, ("e", "d"): 9, ("z", "d"): 0}
    report = board(["a", "b", "c", "e", "z"], {"d": 10}, {key: result_of(n, 10) for key, n in results.items()})
    assert ranks(report) == [("e", 1), ("b", 2), ("c", 2), ("a", 4), ("z", 5)]


def test_no_number_never_ranks() -> None:
    """`nan-poisons-ranking`: a model whose docs all lack a score, and one that wasn't scored, stand last without a
    rank, each with its reason; a score of 0 ranks. The report holds neither NaN nor Infinity.
    """
    results = {("m1", "d"): result_of(7, 10), ("m2", "d"): result_of(0, 0, 10), ("m3", "d"): result_of(6, 10),
               ("m5", "d"): result_of(0, 10)}  # fmt: skip
    report = board(["m2", "m4", "m3", "m5", "m1"], {"d": 10}, results, {("m4", "d"): "inferd died"})
    assert ranks(report) == [("m1", 1), ("m3", 2), ("m5", 3), ("m2", None), ("m4", None)]
    assert of(report, "m2").score is None
    assert of(report, "m2").datasets["d"].reason == "no scorable samples"
    assert of(report, "m4").datasets["d"].reason == "inferd died"
    text = encode_record(report)
    assert b"NaN" not in text
    assert b"Infinity" not in text


def test_a_missing_pair_unranks_its_model_and_is_named() -> None:
    """A model that lacks one of its datasets isn't ranked against the others, whatever its others say."""
    results = {("a", "x"): result_of(10, 10), ("b", "x"): result_of(1, 10), ("b", "y"): result_of(1, 10)}
    report = board(["a", "b"], {"x": 10, "y": 10}, results, {("a", "y"): "incomplete: 7 of 10"})
    assert ranks(report) == [("b", 1), ("a", None)]
    assert of(report, "a").score is None
    assert of(report, "a").micro is None
    assert (of(report, "a").pairs_scored, of(report, "a").pairs, of(report, "a").complete) == (1, 2, False)
    assert of(report, "a").datasets["x"].mean == 1.0
    assert of(report, "a").datasets["y"].state == "missing"
    assert [(fault.model, fault.dataset, fault.reason) for fault in report.errors] == [
        ("a", "y", "incomplete: 7 of 10")
    ]
    assert (report.summary.pairs, report.summary.pairs_scored) == (4, 3)


def test_incomplete_models_have_no_rank() -> None:
    """`nan-poisons-ranking`: 3 of 6 docs at 100 % say less than 6 at 50 %. A model that lacks a score anywhere stands
    below those that are complete, unranked, with its bounds, however good what it has is.
    """
    results = {
        ("half", "x"): result_of(3, 3, 6), ("half", "y"): result_of(6, 6),
        ("whole", "x"): result_of(3, 6), ("whole", "y"): result_of(2, 6),
        ("worse", "x"): result_of(1, 6), ("worse", "y"): result_of(1, 6),
        ("none", "x"): result_of(6, 6),
    }  # fmt: skip
    report = board(["none", "half", "worse", "whole"], {"x": 6, "y": 6}, results)
    assert ranks(report) == [("whole", 1), ("worse", 2), ("half", None), ("none", None)]
    half = of(report, "half")
    assert (half.score, half.complete, half.bounds) == (1.0, False, Interval(0.75, 1.0))


def test_missing_repeats_leave_the_rank_and_are_marked() -> None:
    """Every doc has a score, so the mean is over the same docs as the others': the model ranks. But it isn't complete,
    and where the missing repeats could turn its order with another one, no rank is called closed.
    """
    partial = result_of(140, 200, n_partial=20, coverage=0.95, bounds=Interval(0.70, 0.76))
    results = {("a", "d"): partial, ("b", "d"): result_of(150, 200), ("c", "d"): result_of(40, 200)}
    scores = {"a": pattern(140, 200), "b": pattern(150, 200), "c": pattern(40, 200)}
    chunks = [([""] * 200, np.array(list(scores.values())).T)]
    found = compare(list("abc"), results, [Scores("d", list("abc"), chunks)], {}, 512)
    report = report_of(plan_of(list("abc"), {"d": 200}), results, found=found)
    assert ranks(report) == [("b", 1), ("a", 2), ("c", 3)]
    assert [of(report, model).complete for model in "abc"] == [False, True, True]
    assert {s.model: s.could_flip for s in report.leaderboard} == {"a": ("b",), "b": ("a",), "c": ()}
    assert row_of(report, "a", "b").separable  # all of the docs with a difference are b's
    assert row_of(report, "a", "b").could_flip
    assert [(s.rank_best, s.rank_worst) for s in report.leaderboard] == [(1, 2), (1, 2), (3, 3)]
    assert comparisons.chosen(list("abc"), results, 2) == ["a", "b"]


def test_ties_do_not_depend_on_the_order_of_the_docs() -> None:
    """The same scores in another order add up to another float; the rank is the same, the order that of the names."""
    scores = [0.1, 0.2, 0.3, 0.1, 0.2, 0.3]
    totals = {sum(order) for order in itertools.permutations(scores)}
    assert len(totals) > 1
    results = {
        (name, "d"): result_of(0, 6, mean=total / 6)
        for name, total in zip("ba", (min(totals), max(totals)), strict=True)
    } | {("c", "d"): result_of(0, 6, mean=0.1)}
    assert ranks(board(["c", "b", "a"], {"d": 6}, results)) == [("a", 1), ("b", 1), ("c", 3)]
    results[("b", "d")], results[("a", "d")] = results[("a", "d")], results[("b", "d")]
    assert ranks(board(["c", "b", "a"], {"d": 6}, results)) == [("a", 1), ("b", 1), ("c", 3)]


def test_group_mean_weights() -> None:
    """`group-mean-weights`: 9 of 10 and 495 of 990: macro 0.7, micro 0.504, each with a standard error of the same
    estimator; the report says which one ranks.
    """
    report = board(["m"], {"x": 10, "y": 990}, {("m", "x"): result_of(9, 10), ("m", "y"): result_of(495, 990)})
    standing = of(report, "m")
    assert standing.score == pytest.approx(0.7)
    assert standing.micro == pytest.approx(0.504)
    se1, se2 = math.sqrt(0.9 * 0.1 / 9), math.sqrt(0.25 / 989)
    assert standing.stderr == pytest.approx(0.5 * math.hypot(se1, se2))
    assert standing.micro_stderr == pytest.approx(math.sqrt(0.504 * 0.496 / 999))
    assert "macro" in report.ranked_by


@pytest.mark.parametrize(
    ("right", "n", "low", "high"), [(0, 25, 0.0, 0.133192), (25, 25, 0.866808, 1.0), (0, 5000, 0.0, 0.000768)]
)
def test_stderr_zero_at_boundary(right: int, n: int, low: float, high: float) -> None:
    """`stderr-zero-at-boundary`: 0 of 25 is less sure than 0 of 5000, on the leaderboard and in the cell."""
    standing = of(board(["m"], {"d": n}, {("m", "d"): result_of(right, n)}), "m")
    for interval in (standing.interval, standing.datasets["d"].interval):
        assert interval is not None
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-6)


def test_bootstrap_one_sample() -> None:
    """`bootstrap-one-sample`: of one doc the mean is known and its standard error isn't; of none nothing is."""
    report = board(["one", "none"], {"d": 1}, {("one", "d"): result_of(1, 1), ("none", "d"): result_of(0, 0, 1)})
    one, none = of(report, "one"), of(report, "none")
    assert (one.score, one.stderr, one.rank) == (1.0, None, 1)
    assert (none.score, none.stderr, none.rank, none.interval) == (None, None, None, None)
    assert none.datasets["d"].bounds == Interval(0.0, 1.0)
    assert msgspec.json.decode(encode_record(report))["leaderboard"][1]["score"] is None


def test_coverage_and_bounds() -> None:
    """Docs without a score are never filled in: the headline is marked, with the range they leave open."""
    report = board(["m"], {"x": 10, "y": 30}, {("m", "x"): result_of(6, 8, 10), ("m", "y"): result_of(30, 30)})
    standing = of(report, "m")
    assert standing.complete is False
    assert (standing.n_scored, standing.n_docs, standing.coverage) == (38, 40, 0.95)
    assert standing.datasets["x"].bounds == Interval(0.6, 0.8)
    assert standing.datasets["x"].mean == 0.75
    assert report.summary.coverage == 0.95
    whole = board(["m"], {"x": 10}, {("m", "x"): result_of(6, 10)})
    assert of(whole, "m").complete is True


def test_calibration_is_over_all_of_a_models_answers() -> None:
    """Buffers of a model's pairs are merged; a model without a scored pair has no entry."""
    first, second = CalibrationBuffer(2), CalibrationBuffer(2)
    first.add(0.9, True)
    first.add(None, True)
    second.add(0.8, False)
    results = {("a", "x"): result_of(1, 2, calibration=first.to_record()),
               ("a", "y"): result_of(0, 1, calibration=second.to_record())}  # fmt: skip
    report = board(["a", "b"], {"x": 2, "y": 1}, results)
    assert set(report.calibration) == {"a"}
    assert (report.calibration["a"].n, report.calibration["a"].n_missing) == (2, 1)
    assert report.calibration["a"].ece == pytest.approx(abs(1.7 / 2 - 0.5))


def test_counts_and_faults() -> None:
    """Docs, instances, requests and attempts are told apart; a failed pair is named once, with inferd's reason; each
    doc that could not be scored is named.
    """
    plan = plan_of(["a", "b"], {"d": 4})
    status = InferStatus(
        model="a", dataset="d", stem="d", state="done", plan_digest="p", total=4, outcomes={"ok": 3, "empty": 1},
        errors={"timeout": 2}, attempts=6, prompt_tokens=40, completion_tokens=8, cost=0.5,
        spans=(("2026-11-30T12:00:00.000Z", "2026-11-30T12:00:10.000Z"),),
    )  # fmt: skip
    failed = replace(
        status, model="b", state="fail", outcomes={"ok": 1}, errors={"auth": 3}, attempts=4, reason="3 of 4: no key",
        spans=(
            ("2026-11-30T12:00:05.000Z", "2026-11-30T12:00:20.000Z"),
            ("2026-12-01T09:00:00.000Z", "2026-12-01T09:00:40.000Z"),
        ),
    )  # fmt: skip
    result = result_of(2, 3, 4, n_missing=0, n_score_errors=1, score_errors=(ScoreError("t3", "ValueError: x"),))
    report = report_of(
        plan,
        {("a", "d"): result},
        {("b", "d"): "skipped"},
        statuses={("a", "d"): [status], ("b", "d"): [failed]},
    )
    counts = report.summary
    assert (counts.models, counts.datasets, counts.tasks, counts.pairs, counts.docs) == (2, 1, 4, 2, 8)
    assert (counts.instances, counts.requests, counts.attempts, counts.answered) == (8, 8, 10, 5)
    assert counts.outcomes == {"empty": 1, "ok": 4}
    assert counts.errors == {"auth": 3, "timeout": 2}
    assert (counts.prompt_tokens, counts.completion_tokens, counts.cost) == (80, 16, 1.0)
    assert counts.wall_seconds == 60.0
    assert [(fault.model, fault.stage, fault.reason) for fault in report.errors] == [
        ("a", "task", "t3: ValueError: x"), ("b", "infer", "3 of 4: no key"),
    ]  # fmt: skip


def test_a_clock_set_back_gives_no_wall_time() -> None:
    """An end before the start is a clock that was set: no figure rather than a negative one."""
    status = InferStatus(
        model="m", dataset="d", stem="d", state="done", plan_digest="p", total=1,
        spans=(("2026-11-30T12:00:00.000Z", "2026-11-30T11:00:00.000Z"),),
    )  # fmt: skip
    report = report_of(plan_of(["m"], {"d": 1}), {}, statuses={("m", "d"): [status]})
    assert report.summary.wall_seconds is None


# --- models against each other ----------------------------------------------------------------------------------------


def pattern(right: int, n: int, start: int = 0) -> list[float]:
    """n docs of which `right` are right, those from `start` on."""
    return [float((doc - start) % n < right) for doc in range(n)]


def compared(scores: Mapping[str, Mapping[str, list[float]]]) -> Report:
    """The report over scores by dataset and model, `math.nan` where a doc has none."""
    models = list(dict.fromkeys(model for of_models in scores.values() for model in of_models))
    sizes = {name: len(next(iter(of_models.values()))) for name, of_models in scores.items()}
    results = {
        (model, name): result_of(found.count(1.0), sum(not math.isnan(one) for one in found), len(found))
        for name, of_models in scores.items()
        for model, found in of_models.items()
    }
    some = comparisons.chosen(models, results)
    datasets = []
    for name, of_models in scores.items():
        taking = [model for model in some if model in of_models]
        chunk = ([""] * sizes[name], np.array([of_models[model] for model in taking]).T)
        datasets.append(Scores(name, taking, [chunk]))
    return report_of(plan_of(models, sizes), results, {}, compare(models, results, datasets, {}, 512))


def row_of(report: Report, first: str, second: str) -> PairedRow:
    return next(row for row in report.pairwise if (row.first, row.second) == (first, second))


def test_what_is_not_separable_is_marked() -> None:
    """Two models that are close and one far below: the leaderboard says which ranks are open."""
    report = compared({"d": {"a": pattern(150, 200), "b": pattern(148, 200, 5), "c": pattern(60, 200, 20)}})
    assert [row.separable for row in report.pairwise] == [False, True, True]
    assert [(s.model, s.rank, s.rank_best, s.rank_worst) for s in report.leaderboard] == [
        ("a", 1, 1, 2), ("b", 2, 1, 2), ("c", 3, 3, 3),
    ]  # fmt: skip
    row = row_of(report, "a", "b")
    assert row.p == row.p_mcnemar
    assert row.p_holm is not None
    assert row.p is not None
    assert row.p_holm >= row.p
    assert (row.n, row.datasets) == (200, 1)
    assert row.detectable is not None
    assert row.detectable > abs(row.difference or 0.0)
    assert not row.could_flip
    assert report.draws == 512


def test_holm_is_over_all_pairs() -> None:
    """What is significant alone needn't be among many."""
    pair = {"a": pattern(100, 100), "b": pattern(94, 100)}
    alone = compared({"d": pair})
    assert row_of(alone, "a", "b").p_holm == pytest.approx(2 * 0.5**6)
    assert row_of(alone, "a", "b").separable is True
    among = compared({"d": pair | {f"c{n}": pattern(97, 100, 3) for n in range(3)}})
    assert row_of(among, "a", "b").p_holm == pytest.approx(10 * 2 * 0.5**6)
    assert row_of(among, "a", "b").separable is False


def test_what_missing_docs_could_flip_is_marked() -> None:
    """Three points ahead with five docs missing is no safe lead; ahead by more than is missing is."""
    a, b, c = pattern(60, 100), pattern(57, 100), pattern(30, 100)
    a[50:55] = [math.nan] * 5
    report = compared({"d": {"a": a, "b": b, "c": c}})
    row = row_of(report, "a", "b")
    assert row.bounds is not None
    assert (row.bounds.low, row.bounds.high) == pytest.approx((0.55 - 0.57, 0.60 - 0.57))
    assert (row.n, row.could_flip) == (95, True)
    assert not row_of(report, "a", "c").could_flip
    assert {s.model: s.could_flip for s in report.leaderboard} == {"a": ("b",), "b": ("a",), "c": ()}
    assert of(report, "a").bounds == Interval(0.55, 0.60)


def test_models_over_several_datasets() -> None:
    """The difference is the mean over common datasets; where models share none there is no number and no mark."""
    report = compared(
        {
            "x": {"a": pattern(8, 10), "b": pattern(4, 10)},
            "y": {"a": pattern(50, 100), "b": pattern(50, 100, 50)},
            "z": {"c": pattern(3, 10)},
        }
    )
    row = row_of(report, "a", "b")
    assert row.difference == pytest.approx(0.2)
    assert (row.n, row.datasets) == (110, 2)
    assert row.p == row.p_permutation
    for other in (row_of(report, "a", "c"), row_of(report, "b", "c")):
        assert (other.n, other.difference, other.p, other.p_holm, other.separable) == (0, None, None, None, None)
    assert all(standing.rank is None for standing in report.leaderboard)


def test_models_on_each_dataset() -> None:
    """Beside the mean over datasets stands each dataset's own difference, with interval, p (McNemar's, of right and
    wrong) and Holm over all rows of the table. With one dataset there is nothing to add.
    """
    scores = {
        "x": {"a": pattern(80, 100), "b": pattern(40, 100), "c": pattern(41, 100)},
        "y": {"a": pattern(50, 100), "b": pattern(50, 100, 50)},
        "z": {"c": pattern(3, 10)},
    }
    report = compared(scores)
    rows = {(row.dataset, row.first, row.second): row for row in report.pairwise_by_dataset}
    assert list(rows) == [("x", "a", "b"), ("x", "a", "c"), ("x", "b", "c"), ("y", "a", "b")]
    assert [row.difference for row in rows.values()] == pytest.approx([0.4, 0.39, -0.01, 0.0])
    assert [(row.n, row.datasets, row.separable) for row in rows.values()] == [
        (100, 1, True), (100, 1, True), (100, 1, False), (100, 1, False),
    ]  # fmt: skip
    first = rows["x", "a", "b"]
    assert first.p == first.p_mcnemar == pytest.approx(2 * 0.5**40)
    assert first.p_holm == pytest.approx(4 * 2 * 0.5**40)
    assert first.interval is not None
    assert first.interval.low < 0.4 < first.interval.high
    alone = compared({"x": scores["x"]})
    assert alone.pairwise_by_dataset == ()
    assert replace(first, dataset="", p_holm=None) == replace(row_of(alone, "a", "b"), p_holm=None)
    assert report.dataset_pairs_not_compared == alone.dataset_pairs_not_compared == 0


def test_rows_of_single_datasets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the best models have them, and only so many datasets; the rest is counted. The figures are those that all
    models beside each other give.
    """
    scores = {name: {f"m{n}": pattern(n + at, 20, n) for n in (1, 9, 5, 7)} for at, name in enumerate("xyz")}
    whole = compared(scores)
    assert (len(whole.pairwise_by_dataset), whole.dataset_pairs_not_compared) == (18, 0)
    monkeypatch.setattr(comparisons, "MAX_CORPUS_COMPARED", 3)
    monkeypatch.setattr(comparisons, "MAX_DATASET_ROWS", 7)
    report = compared(scores)
    assert {row.dataset for row in report.pairwise_by_dataset} == {"x", "y"}
    assert (len(report.pairwise_by_dataset), report.dataset_pairs_not_compared) == (6, 12)
    plain = {(row.dataset, row.first, row.second): replace(row, p_holm=None) for row in whole.pairwise_by_dataset}
    for row in report.pairwise_by_dataset:
        assert replace(row, p_holm=None) == plain[row.dataset, row.first, row.second]


def test_not_all_of_many_models_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit only the best are, in the suite's order; how many pairs are left out is said, and no rank is
    called open or closed.
    """
    monkeypatch.setattr(comparisons, "MAX_COMPARED", 3)
    report = compared({"d": {f"m{n}": pattern(n, 10) for n in (1, 9, 5, 7)}})
    assert [(row.first, row.second) for row in report.pairwise] == [("m9", "m5"), ("m9", "m7"), ("m5", "m7")]
    assert report.pairs_not_compared == 3
    assert {standing.rank_best for standing in report.leaderboard} == {None}
    results = {(f"m{n}", "d"): result_of(n, 9 if n == 9 else 10, 10) for n in (1, 9, 5, 7)}
    assert comparisons.chosen(["m1", "m9", "m5", "m7"], results) == ["m1", "m5", "m7"]  # m9 lacks a doc: it has no rank


def test_the_same_comparisons_to_the_byte() -> None:
    """Bootstrap and permutation have fixed draws."""
    scores = {"d": {name: pattern(n, 50, n) for name, n in (("a", 30), ("b", 28), ("c", 9))}}
    assert encode_record(compared(scores)) == encode_record(compared(scores))


def test_corpus_values_are_compared() -> None:
    """Resamples of a metric over the whole dataset give a paired difference; not where docs or repeats are missing, nor
    where the two were scored by other rules.
    """

    def metric(value: float, version: str = "1", n_docs: int = 10, n_partial: int = 0) -> MetricResult:
        resamples = tuple(value + (n % 20 - 9.5) / 200 + (value * 37 * n % 1 - 0.5) / 1000 for n in range(200))
        return MetricResult(
            name="bleu", version=version, params={}, n=10, n_docs=n_docs, n_partial=n_partial, mean=0.5,
            stderr=0.1, interval=None, correct=1, threshold=0.5, corpus={"value": value}, corpus_stderr=0.03,
            resamples=resamples,
        )  # fmt: skip

    results = {
        ("a", "d"): result_of(5, 10, metrics=(metric(0.31),)),
        ("b", "d"): result_of(5, 10, metrics=(metric(0.30),)),
        ("c", "d"): result_of(5, 9, 10, metrics=(metric(0.40, n_docs=11),)),
        ("e", "d"): result_of(5, 10, metrics=(metric(0.40, "2"),)),
        ("f", "d"): result_of(5, 10, metrics=(metric(0.40, n_partial=1),)),
    }
    (row,) = compare(["a", "b", "c", "e", "f"], results, [], results).corpus
    assert (row.dataset, row.metric, row.first, row.second) == ("d", "bleu", "a", "b")
    assert row.difference == pytest.approx(0.01)
    assert row.interval is not None
    assert row.interval.low > 0
    assert row.p_holm == row.p < 0.05


# --- groups -----------------------------------------------------------------------------------------------------------


def test_groups() -> None:
    """`group-mean-weights`: macro, micro and weighted means of the datasets that a group names, each with the error of
    its own estimator; nothing where a dataset is missing.
    """
    plan = plan_of(["m", "n"], {"x": 10, "y": 990, "z": 10})
    plan = replace(
        plan,
        groups=(PlanGroup(name="g", datasets=("x", "y"), weights=(3.0, 1.0)), PlanGroup(name="h", datasets=("z",))),
    )
    results = {("m", "x"): result_of(9, 10), ("m", "y"): result_of(495, 990), ("n", "z"): result_of(2, 10)}
    rows = {(row.group, row.model): row for row in report_of(plan, results).groups}
    first = rows["g", "m"]
    se1, se2 = math.sqrt(0.9 * 0.1 / 9), math.sqrt(0.25 / 989)
    assert (first.macro.mean, first.micro.mean) == (pytest.approx(0.7), pytest.approx(0.504))
    assert first.weighted is not None
    assert first.weighted.mean == pytest.approx(0.8)
    assert first.macro.stderr == pytest.approx(0.5 * math.hypot(se1, se2))
    assert first.micro.stderr == pytest.approx(math.sqrt(0.504 * 0.496 / 999))
    assert first.weighted.stderr == pytest.approx(math.hypot(0.75 * se1, 0.25 * se2))
    assert first.weighted.interval is not None
    assert (first.datasets, first.datasets_scored, first.n) == (2, 2, 1000)
    assert rows["h", "n"].weighted is None
    for row in (rows["g", "n"], rows["h", "m"]):
        assert (row.macro.mean, row.micro.mean, row.datasets_scored) == (None, None, 0)


@pytest.mark.parametrize("right", [0, 3, 25])
def test_a_group_of_one_dataset_shows_its_own_interval(right: int) -> None:
    """Not that of a mean of means: 25 of 25 is 86.7 to 100 % in the cell, on the leaderboard and in the group."""
    plan = replace(plan_of(["m"], {"x": 25}), groups=(PlanGroup(name="g", datasets=("x",), weights=(2.0,)),))
    report = report_of(plan, {("m", "x"): result_of(right, 25)})
    cell = of(report, "m").datasets["x"]
    assert cell.interval == wilson(right, 25)
    (row,) = report.groups
    assert row.weighted is not None
    for figure in (row.macro, row.micro, row.weighted):
        assert (figure.mean, figure.stderr, figure.interval) == (cell.mean, cell.stderr, cell.interval)


@pytest.mark.parametrize("clusters", [None, Clusters(1, 100.0, 0.0)])
def test_corpus_values_of_too_few_docs(clusters: Clusters | None) -> None:
    """One doc, or one cluster, has no p: neither in a row, nor among those that Holm counts."""
    docs = 1 if clusters is None else 10
    results = {
        (model, "d"): result_of(0, docs, clusters=clusters, metrics=(
            MetricResult(
                name="chrf", version="1", params={}, n=docs, n_docs=docs, mean=value, stderr=None, interval=None,
                correct=0, threshold=0.5, corpus={"value": value}, corpus_stderr=0.0, resamples=(value,) * 200,
            ),
        ))
        for model, value in (("a", 0.9), ("b", 0.4))
    }  # fmt: skip
    (row,) = compare(["a", "b"], results, [], results).corpus
    assert (row.difference, row.stderr, row.interval, row.p, row.p_holm) == (0.5, None, None, None, None)
