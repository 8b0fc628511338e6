"""The statistics from predictions on disk to the report: clusters, repeats, corpus values, groups of the suite, and
pairs of models compared from their scores files. Names in brackets are cases of ../shared/cases.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evald import summary
from evald.results import PairResult
from evald.score import ScoreJob, score_pair
from evald.stats import mean_se
from evald.summary import read_report, write_summary
from shared.clock import SystemClock
from shared.errors import SuiteError, WorkDirError
from shared.layout import WorkDir
from shared.plan import make_plan, read_plan
from shared.records import EvalStatus, InferStatus, Prediction, encode_record
from shared.status import write_record
from shared.suite import parse_suite
from tests.harness import task, write_suite
from tests.unit.test_score import answer, no_answer

Tasks = Sequence[dict[str, Any]]


def planned(folder: Path, models: Sequence[str], datasets: dict[str, Tasks], more: str = "", **options: Any) -> WorkDir:
    work = WorkDir(folder / "work")
    suite = write_suite(
        folder / "suite", [{"abbr": m, "type": "rule"} for m in models], datasets, dataset_options=options
    )
    text = suite.read_bytes() + more.encode()
    make_plan(work, parse_suite(text, "suite", suite.parent), text, SystemClock())
    return work


def score(work: WorkDir, model: str, dataset: str, rows: Sequence[Prediction]) -> PairResult:
    """The pair as if both daemons had been at work on it."""
    data = b"".join(encode_record(row) + b"\n" for row in rows)
    path = work.predictions(model, dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    plan = read_plan(work)
    assert plan is not None
    (pair,) = (pair for pair in plan.pairs if (pair.model, pair.dataset) == (model, dataset))
    (planned_dataset,) = (one for one in plan.datasets if one.abbr == dataset)
    digest = hashlib.sha256(data).hexdigest()
    job = ScoreJob(str(work), pair, planned_dataset, (digest,), 10)
    score_pair(job)
    done = InferStatus(
        model=model,
        dataset=dataset,
        stem=dataset,
        state="done",
        plan_digest=pair.digest,
        total=len(rows),
        digest=digest,
    )
    write_record(work.infer_status(model, dataset), done)
    scored = EvalStatus(model=model, dataset=dataset, state="done", plan_digest=pair.digest, content=job.content())
    write_record(work.eval_status(model, dataset), scored)
    return msgspec.json.decode(work.result(model, dataset).read_bytes(), type=PairResult)


def given(right: Sequence[bool]) -> list[Prediction]:
    return [answer(n, str(n) if one else "no") for n, one in enumerate(right)]


def test_a_clustered_dataset(tmp_path: Path) -> None:
    """Questions about one text go together: in the pair's error and interval, in those of each metric and category, and
    in the comparison of two models; McNemar's test, which knows no clusters, is left out.
    """
    tasks = [
        task(n, cluster=f"text{n // 5}", category="ab"[n // 30], metric_name=["exact_match", "f1"]) for n in range(60)
    ]
    work = planned(tmp_path, ["a", "b"], {"d": tasks})
    right = [(n // 5) % 3 > 0 for n in range(60)]
    found = score(work, "a", "d", given(right))
    score(work, "b", "d", given([n // 5 % 4 == 1 for n in range(60)]))
    texts = mean_se([float(right[5 * text]) for text in range(12)])
    assert found.clusters is not None
    assert (found.n_scored, found.clusters.count) == (60, 12)
    assert found.stderr == pytest.approx(texts.stderr)
    assert found.interval is not None
    assert found.interval.high - found.interval.low > 0.4
    assert {metric.stderr for metric in found.metrics} == {found.stderr}
    assert [category.stderr for category in found.categories] == pytest.approx(
        [mean_se([float(right[5 * text]) for text in texts]).stderr for texts in (range(6), range(6, 12))]
    )
    report = read_report(work)
    (row,) = report.pairwise
    assert row.p_mcnemar is None
    assert row.p is not None
    assert row.p > 0.01
    assert {standing.datasets["d"].clusters for standing in report.leaderboard} == {12}
    (micro,) = (standing.micro_stderr for standing in report.leaderboard if standing.model == "a")
    assert micro == pytest.approx(found.stderr)


def test_repeats_are_no_further_samples(tmp_path: Path) -> None:
    """Four equal answers to each of 20 tasks: n, error and interval are those of 20 docs, and so is BLEU's error."""
    tasks = [task(n, metric_name=["exact_match", {"metric": "bleu", "order": 1}]) for n in range(20)]
    right = [n % 4 > 0 for n in range(20)]
    once = score(planned(tmp_path / "one", ["m"], {"d": tasks}), "m", "d", given(right))
    rows = [msgspec.structs.replace(row, repeat=repeat) for row in given(right) for repeat in range(4)]
    often = score(planned(tmp_path / "four", ["m"], {"d": tasks}, repeats=4), "m", "d", rows)
    assert (often.n_scored, often.mean, often.stderr, often.interval) == (20, once.mean, once.stderr, once.interval)
    bleu = [next(metric for metric in found.metrics if metric.name == "bleu") for found in (once, often)]
    assert bleu[1].corpus_stderr == pytest.approx(bleu[0].corpus_stderr, rel=1e-6)
    assert bleu[0].corpus_interval is not None


def test_corpus_bleu_has_an_error_and_comparisons(tmp_path: Path) -> None:
    """By bootstrap, with resamples that pair up between models; a model with a missing doc isn't compared on it."""
    words = "the cat sat on the mat and looked at a small red bird in the tree".split()  # noqa: SIM905
    tasks = [task(n, targets=[" ".join(words[n % 5 :])], metric_name="bleu") for n in range(30)]
    work = planned(tmp_path, ["a", "b", "c"], {"d": tasks})

    def texts(lost: int) -> list[Prediction]:
        return [answer(n, " ".join(words[n % 5 : len(words) - (n * lost) % 7])) for n in range(30)]

    found = score(work, "a", "d", texts(1))
    score(work, "b", "d", texts(3))
    score(work, "c", "d", [*texts(2)[:29], no_answer(29)])
    (metric,) = found.metrics
    assert metric.corpus is not None
    assert metric.corpus_stderr is not None
    assert metric.corpus_interval is not None
    assert metric.corpus_interval.low < metric.corpus["value"] < metric.corpus_interval.high
    assert len(metric.resamples) == 1000
    report = read_report(work)
    (row,) = report.corpus_pairwise
    assert (row.dataset, row.metric, row.first, row.second) == ("d", "bleu", "a", "b")
    assert 0 < row.p <= 1
    (cell,) = (standing.datasets["d"] for standing in report.leaderboard if standing.model == "a")
    assert cell.metrics[0].corpus == metric.corpus["value"]


def test_a_ratio_over_the_whole_dataset_has_an_error(tmp_path: Path) -> None:
    """IFEval's instruction level: prompts with more instructions weigh more, so its error isn't that of the mean."""
    kinds = [["punctuation:no_comma"], ["punctuation:no_comma", "change_case:english_lowercase"]]
    tasks = [
        task(
            n,
            metric_name={"metric": "ifeval", "level": "instruction"},
            post_process="none",
            metadata={"instruction_id_list": kinds[n % 2], "kwargs": [{} for _ in kinds[n % 2]]},
        )
        for n in range(40)
    ]
    work = planned(tmp_path, ["m"], {"d": tasks})
    texts = ["one, two" if n % 3 else "one and two" for n in range(40)]
    found = score(work, "m", "d", [answer(n, text) for n, text in enumerate(texts)])
    (metric,) = found.metrics
    assert metric.corpus is not None
    assert metric.corpus_interval is not None
    assert metric.corpus_interval.low < metric.corpus["value"] < metric.corpus_interval.high
    assert metric.corpus_stderr != pytest.approx(metric.stderr, rel=0.02)


def test_models_are_compared_over_common_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the scores files, a few docs at once: the first line of a doc is its headline; docs without a score are left
    out of the pair and open its bounds.
    """
    monkeypatch.setattr(summary, "CHUNK", 4)
    tasks = [task(n, metric_name=["exact_match", "f1"]) for n in range(11)]
    work = planned(tmp_path, ["a", "b"], {"d": tasks})
    rows = given([True] * 11)
    score(work, "a", "d", [*rows[:3], no_answer(3), *rows[4:]])
    score(work, "b", "d", given([n in (0, 3, 9) for n in range(11)]))
    (row,) = read_report(work).pairwise
    assert (row.n, row.only_first, row.only_second) == (10, 8, 0)
    assert row.difference == pytest.approx(0.8)
    assert row.p == row.p_mcnemar == pytest.approx(2 * 0.5**8)
    assert row.bounds is not None
    assert (row.bounds.low, row.bounds.high) == pytest.approx((10 / 11 - 3 / 11, 1 - 3 / 11))


def test_a_damaged_scores_file_is_refused(tmp_path: Path) -> None:
    """With the remedy: no comparison is made of what can't be read."""
    work = planned(tmp_path, ["a", "b"], {"d": [task(n) for n in range(3)]})
    for model in ("a", "b"):
        score(work, model, "d", given([True] * 3))
    path = work.scores("a", "d")
    lines = path.read_bytes().split(b"\n")
    for damage in (b"noise\n" + path.read_bytes(), b"\n".join([lines[2], lines[0], b""]), None):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        with pytest.raises(WorkDirError, match="delete it and start evald again"):
            read_report(work)


GROUPS = """
[[groups]]
name = "both"
datasets = ["x", "y"]
weights = [3, 1]
"""


def test_groups_of_a_suite(tmp_path: Path) -> None:
    """They go from the suite through the plan into the report, and change nothing of what is asked."""
    datasets = {"x": [task(n) for n in range(10)], "y": [task(n) for n in range(20)]}
    plain = read_plan(planned(tmp_path / "plain", ["m"], datasets))
    work = planned(tmp_path / "groups", ["m"], datasets, GROUPS)
    plan = read_plan(work)
    assert plan is not None
    assert plain is not None
    assert [pair.digest for pair in plan.pairs] == [pair.digest for pair in plain.pairs]
    assert plan.groups[0].weights == (3.0, 1.0)
    score(work, "m", "x", given([n < 5 for n in range(10)]))
    score(work, "m", "y", given([n < 20 for n in range(20)]))
    (row,) = read_report(work).groups
    assert (row.group, row.model, row.n) == ("both", "m", 30)
    assert row.weighted is not None
    assert (row.macro.mean, row.micro.mean, row.weighted.mean) == pytest.approx((0.75, 25 / 30, 0.625))
    write_summary(str(work))
    assert "| both | m | 2/2 | 30 | 75.0 ± " in work.report_md.read_text("utf-8")


@pytest.mark.parametrize(
    ("groups", "place"),
    [
        ('[[groups]]\nname = "g"\ndatasets = ["x", "z"]\n', r"groups\[0\]\.datasets\[1\]: no dataset has this abbr"),
        ('[[groups]]\nname = "g"\ndatasets = ["x", "x"]\n', r"groups\[0\]\.datasets\[1\]: .*already"),
        ('[[groups]]\nname = "g"\ndatasets = []\n', r"groups\[0\]\.datasets: .*at least 1 item"),
        ('[[groups]]\nname = "g"\ndatasets = ["x"]\nweights = [1, 2]\n', r"groups\[0\]\.weights: .*1, got 2"),
        ('[[groups]]\nname = "g"\ndatasets = ["x"]\nweights = [0]\n', r"groups\[0\]\.weights\[0\]: "),
        ('[[groups]]\nname = "g"\ndatasets = ["x"]\n' * 2, r"groups\[1\]\.name: .*another group"),
        ('[[groups]]\nname = "g"\n', r"groups\[0\]\.datasets: is required"),
        ('[[groups]]\nname = "g"\ndatasets = ["x"]\nweight = 1\n', r"groups\[0\]\.weight: unknown"),
    ],
)
def test_a_wrong_group_is_refused(tmp_path: Path, groups: str, place: str) -> None:
    """Before anything is asked, with its place."""
    with pytest.raises(SuiteError, match=place):
        planned(tmp_path, ["m"], {"x": [task(0)]}, groups)


def test_every_published_number_has_its_error(tmp_path: Path) -> None:
    """[stderr-zero-at-boundary] [bootstrap-one-sample] 0 of 25 has an interval and one doc has no error, in results,
    report.json and report.md; no file holds NaN.
    """
    work = planned(tmp_path, ["m"], {"none": [task(n) for n in range(25)], "one": [task(0)], "lost": [task(0)]})
    found = score(work, "m", "none", given([False] * 25))
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (0.0, pytest.approx(0.133192, abs=1e-6))
    assert (score(work, "m", "one", given([True])).stderr, score(work, "m", "lost", [no_answer(0)]).mean) == (
        None,
        None,
    )
    write_summary(str(work))
    for path in (work.report_json, work.result("m", "one"), work.result("m", "lost")):
        json.loads(path.read_bytes(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert math.isclose(read_report(work).leaderboard[0].datasets["none"].mean or 0.0, 0.0)
