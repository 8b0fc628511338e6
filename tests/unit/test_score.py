"""Scoring one pair: one pass, nothing from missing data, and every doc accounted for."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evald import metrics, text
from evald.predictions import Incomplete
from evald.results import PairResult
from evald.sandbox.choice import Choice
from evald.score import ScoreJob, score_pair
from evald.summary import write_summary
from evald.totals import KEPT_NAMES
from shared.clock import SystemClock
from shared.errors import WorkDirError
from shared.layout import WorkDir
from shared.plan import make_plan, read_plan
from shared.records import ANSWERS, EvalStatus, Generation, InferStatus, Prediction, encode_record
from shared.status import write_record
from shared.suite import parse_suite
from tests.harness import task, write_suite


def planned(folder: Path, tasks: Sequence[dict[str, Any]], **options: Any) -> WorkDir:
    work = WorkDir(folder / "work")
    path = write_suite(folder / "suite", [{"abbr": "m", "type": "rule"}], {"d": tasks}, dataset_options=options)
    text = path.read_bytes()
    make_plan(work, parse_suite(text, "suite", path.parent), text, SystemClock())
    return work


def answer(doc_id: int, text: str, **more: Any) -> Prediction:
    fields = {"outcome": "ok", "attempts": 1, "generation": Generation(text=text, confidence=0.9)} | more
    return Prediction(task_id=f"t{doc_id}", key=f"k{doc_id}", doc_id=doc_id, **fields)


def no_answer(doc_id: int) -> Prediction:
    return answer(doc_id, "", outcome="error", error="timeout", message="late", attempts=5, generation=None)


def write(work: WorkDir, rows: Sequence[Prediction]) -> ScoreJob:
    """The rows as the pair's predictions, and the job that their status leads to."""
    data = b"".join(encode_record(row) + b"\n" for row in rows)
    path = work.predictions("m", "d")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return job_of(work, data)


def job_of(work: WorkDir, data: bytes, bins: int = 10) -> ScoreJob:
    plan = read_plan(work)
    assert plan is not None
    return ScoreJob(str(work), plan.pairs[0], plan.datasets[0], (hashlib.sha256(data).hexdigest(),), bins)


def scored(work: WorkDir, job: ScoreJob) -> PairResult:
    score_pair(job)
    return msgspec.json.decode(work.result("m", "d").read_bytes(), type=PairResult)


def runs(work: WorkDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in work.scores("m", "d").read_bytes().split(b"\n")[:-1]]


def test_outcomes_are_never_folded_into_right_or_wrong(tmp_path: Path) -> None:
    """`two-bad-of-2000-kills-report`: every kind of answer is scored; errors are missing: no score, counted, and the
    mean is over the rest.
    """
    work = planned(tmp_path, [task(n) for n in range(9)])
    rows = [
        answer(0, "0"), answer(1, "1", outcome="truncated"), answer(2, "", outcome="empty"),
        answer(3, "I can't", outcome="refused"), no_answer(4), answer(5, "5"), answer(6, "6", outcome="filtered"),
        answer(7, "", outcome="tool_call"), answer(8, "", outcome="reasoning_only"),
    ]  # fmt: skip
    found = scored(work, write(work, rows))
    assert (found.n_docs, found.n_scored, found.n_missing, found.n_score_errors) == (9, 8, 1, 0)
    assert found.mean == pytest.approx(4 / 8)
    assert found.outcomes == {"ok": 2, "error": 1} | dict.fromkeys(ANSWERS - {"ok"}, 1)
    assert (found.answered, found.attempts, found.coverage) == (8, 13, 8 / 9)
    assert found.bounds is not None
    assert (found.bounds.low, found.bounds.high) == pytest.approx((4 / 9, 5 / 9))
    assert [run["score"] for run in runs(work)] == [1.0, 1.0, 0.0, 0.0, None, 1.0, 1.0, 0.0, 0.0]
    assert runs(work)[4]["error"] == "no answer"


def served(*names: tuple[str | None, str | None]) -> list[Prediction]:
    return [
        answer(n, str(n), generation=Generation(text=str(n), served_model=model, system_fingerprint=fingerprint))
        for n, (model, fingerprint) in enumerate(names)
    ]


def test_served_models_and_fingerprints_are_counted(tmp_path: Path) -> None:
    """From the predictions themselves: answers by name, the most first; one name is no change, two are; what an
    endpoint doesn't tell is counted and is no change.
    """
    work = planned(tmp_path, [task(n) for n in range(5)])
    rows = served(("a", "f"), ("b", None), ("b", "f"), (None, "f"), ("", ""))
    found = scored(work, write(work, rows))
    assert list(found.served_models.names.items()) == [("b", 2), ("a", 1)]
    assert (found.served_models.untold, found.served_models.others, found.served_models.changed) == (2, 0, True)
    assert (found.system_fingerprints.names, found.system_fingerprints.changed) == ({"f": 3}, False)
    told = scored(work, write(work, served(*[("b", "f")] * 5)))
    assert (told.served_models.changed, told.served_models.names) == (False, {"b": 5})


def test_a_new_name_with_each_answer_takes_no_memory(tmp_path: Path) -> None:
    """A hostile endpoint names another model each time, at length: sixteen are kept, cut, the rest counted."""
    count = KEPT_NAMES + 14
    work = planned(tmp_path, [task(n) for n in range(count)])
    found = scored(work, write(work, served(*[(f"{n}-" * 10_000, f"fp{n}") for n in range(count)])))
    for kept in (found.served_models, found.system_fingerprints):
        assert (len(kept.names), sum(kept.names.values()), kept.others, kept.changed) == (16, 16, 14, True)
    assert max(map(len, found.served_models.names)) == 100
    assert work.result("m", "d").stat().st_size < 20_000


def test_all_failed_and_one_sample(tmp_path: Path) -> None:
    """`bootstrap-one-sample`: with no scorable sample every figure is null; of one sample the standard error is."""
    work = planned(tmp_path, [task(0)])
    none = scored(work, write(work, [no_answer(0)]))
    assert (none.mean, none.stderr, none.interval, none.n_scored) == (None, None, None, 0)
    one = scored(work, write(work, [answer(0, "0")]))
    assert (one.mean, one.stderr, one.n_scored) == (1.0, None, 1)
    text = work.result("m", "d").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_repeats_are_averaged_by_doc(tmp_path: Path) -> None:
    """The denominator is docs: of two repeats one right is 0.5; a repeat without an answer is left out of its doc's
    mean; calibration looks at each answer.
    """
    work = planned(tmp_path, [task(0), task(1)], repeats=2)
    rows = [answer(0, "0"), answer(0, "no", repeat=1), answer(1, "1"), msgspec.structs.replace(no_answer(1), repeat=1)]
    found = scored(work, write(work, rows))
    assert (found.n_docs, found.n_scored, found.mean, found.repeats) == (2, 2, 0.75, 2)
    assert [(run["score"], run.get("answers", 0)) for run in runs(work)] == [(0.5, 2), (1.0, 1)]
    assert sum(found.calibration.n) == 3


@pytest.fixture
def other_metrics() -> Iterator[None]:
    """A test may put others in their place: metrics are looked up once a spec."""
    metrics._judges.cache_clear()
    yield
    metrics._judges.cache_clear()


@pytest.mark.usefixtures("other_metrics")
def test_a_scorer_that_raises_costs_its_doc_and_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`samples-silently-dropped`: the doc is counted and named, with a bounded reason; another metric of the same doc
    still has its score, whichever of the two comes first; scores outside [0, 1] are errors as well.
    """

    def broken(text: str, targets: Sequence[str]) -> float:
        if text == "raise":
            raise ValueError("x" * 10_000)
        return {"nan": float("nan"), "two": 2.0}.get(text, 1.0)

    monkeypatch.setitem(metrics.METRICS, "f1", metrics.of_text("f1", "1", 0.5, broken))
    both = [["f1", "exact_match"], ["exact_match", "f1"], ["f1", "exact_match"], ["f1"], ["f1"]]
    work = planned(tmp_path, [task(n, metric_name=names) for n, names in enumerate(both)])
    rows = [answer(n, text) for n, text in enumerate(["raise", "raise", "2", "nan", "two"])]
    found = scored(work, write(work, rows))
    assert (found.n_docs, found.n_scored, found.n_score_errors) == (5, 2, 3)
    assert [error.task_id for error in found.score_errors] == ["t0", "t3", "t4"]
    assert found.score_errors[0].reason.startswith("ValueError: xxx")
    assert all(len(error.reason) <= 500 for error in found.score_errors)
    by_name = {(run["task_id"], run["metric_name"]): run["score"] for run in runs(work)}
    assert by_name["t0", "exact_match"] == 0.0
    assert by_name["t1", "exact_match"] == 0.0
    assert by_name["t1", "f1"] is None
    assert {metric.name: metric.n for metric in found.metrics} == {"exact_match": 3, "f1": 1}
    (f1,) = (metric for metric in found.metrics if metric.name == "f1")
    assert f1.n_errors == 4
    assert f1.reason.startswith("ValueError: xxx")


def test_several_metrics_categories_and_bins(tmp_path: Path) -> None:
    """The first metric is the headline; where tasks differ in it, it is `mixed`. Categories have their own means."""
    work = planned(tmp_path, [task(0, category="a"), task(1, category="b", metric_name="f1"), task(2, category="b")])
    rows = [answer(0, "0"), answer(1, "1"), answer(2, "no")]
    found = scored(work, write(work, rows))
    assert found.metric == "mixed"
    assert [(c.category, c.n, c.mean) for c in found.categories] == [("a", 1, 1.0), ("b", 2, 0.5)]
    data = b"".join(encode_record(row) + b"\n" for row in rows)
    assert len(scored(work, job_of(work, data, bins=3)).calibration.n) == 3


def test_the_same_to_the_byte(tmp_path: Path) -> None:
    """Results hold no time: scored again they come out the same; so does the summary out of them."""
    work = planned(tmp_path, [task(n) for n in range(50)])
    job = write(work, [answer(n, str(n if n % 3 else "no")) for n in range(50)])
    write_record(
        work.infer_status("m", "d"),
        InferStatus(
            model="m", dataset="d", stem="d", state="done", plan_digest=job.pair.digest, total=50, digest=job.digests[0]
        ),
    )
    scored = EvalStatus(model="m", dataset="d", state="done", plan_digest=job.pair.digest, content=job.content())
    write_record(work.eval_status("m", "d"), scored)
    paths = [
        work.result("m", "d"), work.scores("m", "d"), work.report_json, work.report_md, work.leaderboard_csv
    ]  # fmt: skip
    score_pair(job)
    write_summary(str(work))
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    score_pair(job)
    write_summary(str(work))
    assert [path.read_bytes() for path in paths] == before
    assert json.loads(before[2])["leaderboard"][0]["rank"] == 1


@pytest.mark.parametrize("fault", ["short", "long", "swapped", "twice", "digest", "noise", "gone", "idx"])
def test_nothing_is_written_of_incomplete_predictions(tmp_path: Path, fault: str) -> None:
    """`finished-seen-before-rows`: whatever isn't exactly the plan's rows under the status's digest is Incomplete, and
    leaves neither a result nor a scores file.
    """
    work = planned(tmp_path, [task(n) for n in range(3)])
    rows = [answer(n, str(n)) for n in range(3)]
    match fault:
        case "short":
            rows = rows[:2]
        case "long":
            rows.append(answer(3, "3"))
        case "swapped":
            rows = [rows[1], rows[0], rows[2]]
        case "twice":
            rows[2] = rows[1]
        case "idx":
            rows[1] = answer(1, "1", idx=1)
    job = write(work, rows)
    if fault == "digest":
        job = job_of(work, b"other")
    if fault == "noise":
        data = work.predictions("m", "d").read_bytes().replace(b'"t1"', b'"t\xff"')
        work.predictions("m", "d").write_bytes(data)
        job = job_of(work, data)
    if fault == "gone":
        work.predictions("m", "d").unlink()
    with pytest.raises(Incomplete, match="m"):
        score_pair(job)
    assert not work.result("m", "d").exists()
    assert not work.scores("m", "d").exists()
    assert list(work.result("m", "d").parent.glob(".*")) == [] if work.result("m", "d").parent.exists() else True


def test_tasks_that_are_not_the_planned_ones(tmp_path: Path) -> None:
    """A tasks file that changed since the plan is refused with the remedy: old answers never meet new targets."""
    work = planned(tmp_path, [task(0)])
    job = write(work, [answer(0, "0")])
    work.tasks("d").write_bytes(work.tasks("d").read_bytes().replace(b'["0"]', b'["9"]'))
    with pytest.raises(WorkDirError, match="submit the suite again"):
        score_pair(job)
    assert not work.result("m", "d").exists()


def test_content_follows_all_that_decides_a_result(tmp_path: Path) -> None:
    """Other predictions, tasks, bins or rules: another content; the same of all: the same."""
    work = planned(tmp_path, [task(0)])
    job = job_of(work, b"a")
    assert job.content() == job_of(work, b"a").content()
    other = [
        job_of(work, b"b"),
        job_of(work, b"a", bins=11),
        msgspec.structs.replace(job, dataset=msgspec.structs.replace(job.dataset, digest="x")),
        msgspec.structs.replace(job, pair=msgspec.structs.replace(job.pair, digest="x")),
    ]
    assert len({job.content(), *(one.content() for one in other)}) == 5


def test_content_follows_what_rules_stand_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts of programs that nothing confined are others, while the sandboxes agree; so is what another Python says,
    which is the one that they run in. Versions of what metrics stand on are part of their own.
    """
    job = job_of(planned(tmp_path, [task(0)]), b"a")
    kinds: list[Choice] = ["auto", "bubblewrap", "namespaces", "unsafe-subprocess"]
    contents = [msgspec.structs.replace(job, sandbox=kind).content() for kind in kinds]
    assert len(set(contents[:3])) == 1
    assert contents[3] != contents[0]
    assert job.content({"/opt/python": "3.11.2"}) not in contents
    assert job.content({"/opt/python": "3.11.2"}) != job.content({"/opt/python": "3.12.0"})
    with monkeypatch.context() as patched:
        patched.setattr("evald.score.ENGINE", "google-re2 0")
        assert job.content() not in contents
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    assert job.content() not in contents
    versions = {name: metric.version for name, metric in metrics.METRICS.items()}
    assert versions["ifeval"].endswith(f"py3langid{importlib.metadata.version('py3langid')}")
    monkeypatch.setattr(text, "VERSION", "99")
    for name in ("exact_match", "f1", "contains", "rouge", "bleu", "ter"):
        module = importlib.util.find_spec(f"evald.metrics.{name}")
        assert module is not None
        assert module.loader is not None
        fresh = importlib.util.module_from_spec(module)
        module.loader.exec_module(fresh)
        assert ".99" in fresh.VERSION, name


def test_tasks_that_all_have_their_own_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them at once than metrics are remembered: each is judged by its own."""
    monkeypatch.setattr("evald.score.CHUNK", 300)
    tasks = [
        task(n, metric_name=[{"metric": "numeric", "tolerance": 1 + n, "label": f"l{n}"}], targets=["0"])
        for n in range(300)
    ]
    work = planned(tmp_path, tasks)
    found = scored(work, write(work, [answer(n, str(n + 1 + n % 2)) for n in range(300)]))
    assert (found.n_scored, found.mean) == (300, 0.5)
