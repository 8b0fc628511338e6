"""Filters: named pipelines over all responses of a doc, and metrics under several of them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.doc import Doc
from evald.metrics import judges_of
from evald.post_process import Filtered, Response, pipeline_of, target_fault
from evald.reducers import reduced
from shared.errors import SuiteError
from shared.records import TaskSpec
from shared.scoring import Spec, filter_faults, measures_of, pipelines_of, spec_faults, steps_of, use_faults
from shared.suite import dataset_path, parse_suite
from shared.tasks import read_tasks
from tests.harness import task, write_suite
from tests.unit.test_score import answer, no_answer, planned, runs, scored, write

STRICT = {"step": "regex", "pattern": "#### (-?[0-9.,]+)"}
FILTERS: dict[str, Any] = {"strict": [STRICT, "take_first"], "vote": ["last_number", "majority_vote"]}


# --- pipelines over all responses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "texts", "left"),
    [
        ("last_number", ["a 1", "2"], [(0, "1"), (1, "2")]),
        (["last_number", "take_first"], ["x", "2"], [(0, None)]),  # what found nothing is taken as well
        (["last_number", {"step": "take_first_k", "k": 2}], ["1", "2", "3"], [(0, "1"), (1, "2")]),
        (["last_number", "majority_vote"], ["x", "it is 2", "x", "2."], [(1, "2")]),  # nothing has no vote
        (["last_number", "majority_vote"], ["1", "2"], [(0, "1")]),  # equally frequent: the first to come
        (["last_number", "majority_vote"], ["x", "y"], [(0, None)]),
        ([{"step": "take_first_k", "k": 3}, "last_number", "majority_vote", "take_first"], ["1", "2", "2", "1", "1"],
         [(1, "2")]),  # as in gsm8k-cot-self-consistency
        (["majority_vote", "upper"], ["a", "b", "b"], [(1, "B")]),
    ],
)  # fmt: skip
def test_steps_over_all_responses(spec: Spec, texts: list[str], left: list[tuple[int, str | None]]) -> None:
    """They keep some, each with its place among those that were given; other steps work on each by itself."""
    found = pipeline_of(spec if isinstance(spec, str) else tuple(spec)).filter(texts)
    assert found.responses == [Response(*one) for one in left]


def test_what_found_nothing_is_counted_whether_it_is_kept_or_not() -> None:
    """And once: not again at each further step."""
    found = pipeline_of(("last_number", "strip", "take_first")).filter(["x", "2", "y"])
    assert found == Filtered([Response(0, None)], ["last_number", "last_number"])
    assert pipeline_of(("take_first", "last_number")).filter(["1", "y"]).failed_at == []


def test_fewer_than_k() -> None:
    """What isn't there is not invented."""
    with pytest.raises(ValueError, match="take_first_k needs 3 responses, and there are 2"):
        pipeline_of({"step": "take_first_k", "k": 3}).filter(["1", "2"])


MAP = {"step": "map", "replacements": {"A": "yes", "B": "no"}}


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [(MAP, "A", "yes"), (MAP, "yes", None), (MAP, "a", None), (MAP | {"default": "none"}, "C", "none")],
)
def test_map(spec: Spec, text: str, expected: str | None) -> None:
    """As in lm-evaluation-harness: what the table has for exactly this text, else the default, else nothing."""
    assert pipeline_of(spec).answer(text) == expected


@pytest.mark.parametrize(
    ("target", "canonical", "fault"),
    [("yes", "yes", None), ("A", "yes", None), ("other", "other", None), ("C", "C", "map")],
)
def test_a_target_of_map(target: str, canonical: str, fault: str | None) -> None:
    """One that answers can become stays, one that the table replaces is replaced; the default is never put in the place
    of a target, else every unknown answer would be right.
    """
    pipeline = pipeline_of(MAP | {"default": "other"})
    assert (pipeline.target(target), pipeline.fault(target)) == (canonical, fault)


# --- names and labels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "filters", "labels"),
    [
        ("f1", (), ["f1"]),
        ("f1", ("strict", "vote"), ["f1,strict", "f1,vote"]),
        (({"metric": "f1", "filters": ["vote", "none"]}, "accuracy"), ("vote",), ["f1,vote", "f1", "accuracy,vote"]),
        ({"metric": "f1", "label": "mine", "reduce": "best", "filters": ["vote"]}, ("vote",), ["mine,vote"]),
        ({"metric": "f1", "reduce": "pass_at_k", "k": 2}, ("vote",), ["f1 pass@2,vote"]),
        ({"metric": "f1", "filters": ["vote"]}, None, ["f1"]),  # the task's filters aren't known yet
    ],
)  # fmt: skip
def test_the_filter_is_part_of_the_label(metric: Spec, filters: tuple[str, ...] | None, labels: list[str]) -> None:
    """`metric,filter`; the unnamed one adds nothing. Without a word of its own a metric is computed under all named
    ones; the first metric under its first filter is the headline.
    """
    assert [measure.label for measure in measures_of(metric, filters)] == labels
    assert [judged.label for judged in judges_of(metric, filters)] == labels


def test_only_what_is_used_is_a_pipeline_of_the_task() -> None:
    one = TaskSpec(task_id="t", prompt="?", targets=("1",), filters={"vote": "last_number"})
    assert pipelines_of(one) == {"vote": "last_number"}
    both = msgspec.structs.replace(one, metric_name={"metric": "f1", "filters": ["none", "vote"]}, post_process="strip")
    assert pipelines_of(both) == {"none": "strip", "vote": "last_number"}


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (["take_first", "majority_vote"], "[1]: majority_vote has nothing to choose from"),
        (["majority_vote", {"step": "take_first_k", "k": 2}], "[1]: take_first_k has nothing to choose from"),
        ([{"step": "take_first_k", "k": 2}, {"step": "take_first_k", "k": 3}], "[1]: take_first_k needs 3, and"),
        ("take_first_k", ".k: is required"),
        ({"step": "map", "replacements": {}}, "replacements"),
        ({"step": "map", "replacements": {"a": 1}}, "replacements.a"),
        ("uppercase", "did you mean upper?"),
    ],
)
def test_steps_that_make_no_sense(spec: Spec, told: str) -> None:
    [fault] = spec_faults(steps_of, spec if isinstance(spec, str | dict) else tuple(spec), "filters.x")
    assert told in fault
    assert fault.startswith("filters.x")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"metric_name": {"metric": "f1", "filters": ["strct"]}}, 'unknown "strct"; did you mean strict?'),
        ({"metric_name": {"metric": "f1", "filters": ["strict"]}}, "filters.vote: no metric uses it"),
        ({"post_process": "lower"}, 'post_process: no metric uses it beside the filters: add "none"'),
        ({"metric_name": {"metric": "f1", "filters": []}}, "filters: expected"),
        ({"metric_name": {"metric": "f1", "filters": ["vote", "vote"]}}, "f1,vote is named twice"),
        ({"filters": {"none": "strip"}}, "filters.none: is the name of post_process"),
        ({"filters": {"a,b": "strip"}}, 'filters."a,b": expected a name of letters'),
        ({"filters": {"strict": "last_nmber"}}, "filters.strict: unknown"),
        ({"filters": {"strict": ["strip", {"step": "regex", "pattern": "("}]}}, "filters.strict[1]: pattern"),
        ({"filters": {"strict": "take_first"}, "metric_name": {"metric": "f1", "reduce": "pass_at_k", "k": 2}},
         "metric_name: f1 pass@2,strict needs 2 responses, and filters.strict leaves 1"),
        ({"filters": {"x": "last_number"}, "targets": ["many"]}, "targets[0]: filters.x last_number needs a number"),
        ({"request_type": "loglikelihood", "metric_name": "acc"}, "filters: are for request_type generate_until"),
    ],
)  # fmt: skip
def test_faults_are_told_when_the_task_is_read(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    """With file and line; nothing is asked then."""
    path = write_suite(tmp_path, [{"abbr": "m", "type": "rule"}], {"d": [RAW | {"filters": FILTERS} | more]})
    suite = parse_suite(path.read_bytes(), "suite", path.parent)
    with pytest.raises(SuiteError) as error:
        list(read_tasks(suite.datasets[0], dataset_path(suite, suite.datasets[0])))
    assert told in str(error.value)
    assert "d.jsonl:1" in str(error.value)


RAW = {key: value for key, value in task(0).items() if key not in ("post_process", "metric_name")}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"filters": {"x": "last_nmber"}}, "datasets[0].filters.x: unknown"),
        ({"filters": FILTERS, "metric": [{"metric": "f1", "filters": ["strict"]}]}, "[0].filters.vote: no metric"),
        ({"filters": FILTERS, "metric": [{"metric": "f1", "filters": ["strct"]}]}, "[0].metric[0]: filters: unk"),
        ({"filters": FILTERS, "post_process": "strip"}, "datasets[0].post_process: no metric uses it"),
        ({"filters": {"x": "take_first"}, "metric": [{"metric": "f1", "reduce": "pass_at_k", "k": 2}]},
         "datasets[0].metric: f1 pass@2,x needs 2 responses"),
        ({"metric": "acc"}, "datasets[0].metric: acc scores loglikelihood and multiple_choice tasks, not generate_un"),
        ({"request_type": "loglikelihood", "metric": "f1"}, "[0].metric: f1 scores generate_until tasks, not loglik"),
        ({"request_type": "loglikelihood", "filters": FILTERS}, "[0].filters: request_type loglikelihood brings no te"),
        ({"request_type": "loglikelihood", "post_process": "lower"}, "[0].post_process: request_type loglikelihood "),
    ],
)  # fmt: skip
def test_faults_of_a_dataset_of_rows_are_told_once(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    """In the suite's own place, not for each row."""
    mapped = {"fields": {"target": "targets"}, "prompt": "{{ prompt }}"}
    path = write_suite(tmp_path, [{"abbr": "m", "type": "rule"}], {"d": [task(0)]}, dataset_options=mapped | options)
    with pytest.raises(SuiteError) as error:
        parse_suite(path.read_bytes(), "suite", path.parent)
    assert len(error.value.problems) == 1
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"filters": {"x": {"step": "take_first_k", "k": 3}}}, "filters.x: take_first_k needs 3 repeats, and"),
        ({"metric_name": {"metric": "f1", "reduce": "pass_at_k", "k": 3}}, "f1 pass@3 needs 3 repeats, and"),
        ({"request_type": "loglikelihood", "metric_name": {"metric": "acc", "k": 3}}, "acc mean@3 needs 3 repeats"),
    ],
)
def test_more_repeats_needed_than_are_asked(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    """For the headline that is refused when the plan is made: every answer would be paid for, and no task scored. With
    a file of answers the number isn't known yet when its tasks are read.
    """
    with pytest.raises(SuiteError, match=told):
        planned(tmp_path / "two", [RAW | more], repeats=2)
    planned(tmp_path / "three", [RAW | more], repeats=3)


def test_the_dataset_s_filters_hold_for_tasks_without_their_own(tmp_path: Path) -> None:
    """A task's own take their place as a whole; one that asks for likelihoods has none."""
    tasks = [RAW, RAW | {"task_id": "own", "filters": {"x": "strip"}},
             RAW | {"task_id": "sure", "request_type": "loglikelihood"}]  # fmt: skip
    work = planned(tmp_path, tasks, filters=FILTERS)
    lines = [json.loads(line) for line in work.tasks("d").read_text().splitlines()]
    assert [line.get("filters") for line in lines] == [FILTERS, {"x": "strip"}, None]


def test_a_target_in_which_a_filter_finds_nothing() -> None:
    one = TaskSpec(task_id="t", prompt="?", targets=("maybe",), filters={"raw": "none", "x": "yes_no"})
    fault = target_fault(one)
    assert fault is not None
    assert fault.endswith("filters.x yes_no finds nothing in it")


# --- scores -----------------------------------------------------------------------------------------------------------


def test_a_metric_under_several_filters(tmp_path: Path) -> None:
    """Worked by hand. Of doc 0 the first answer is strictly wrong and the vote right; of doc 1 the other way round."""
    work = planned(tmp_path, [RAW | {"targets": ["7"]}, RAW | {"task_id": "t1", "targets": ["7"]}],
                   repeats=3, filters=FILTERS)  # fmt: skip
    said = [["#### 8", "7", "it is 7"], ["#### 7", "none", "2, then 3"]]
    rows = [answer(doc, text, repeat=n) for doc, texts in enumerate(said) for n, text in enumerate(texts)]
    rows[4] = msgspec.structs.replace(rows[4], outcome="truncated")
    found = scored(work, write(work, rows))
    means = {metric.name: metric.mean for metric in found.metrics}
    assert means == {"exact_match,strict": 0.5, "exact_match,vote": 1.0}
    assert (found.metric, found.mean, found.n_docs) == ("exact_match,strict", 0.5, 2)
    by_label = {(run["doc_id"], run["metric_name"]): run["extracted"] for run in runs(work)}
    assert by_label[0, "exact_match,strict"] == ["8"]
    assert by_label[0, "exact_match,vote"] == ["7"]
    assert by_label[1, "exact_match,vote"] == ["7"]
    # The headline's in one number, those of both by step.
    assert found.unextracted == 4
    assert found.unextracted_at == {"strict: regex": 4, "vote: last_number": 1}


def test_post_process_is_the_filter_named_none(tmp_path: Path) -> None:
    """The same pipeline under either name gives the same numbers; only the label tells."""
    spec = ["last_number", "majority_vote"]
    rows = [answer(0, text, repeat=n) for n, text in enumerate(["1", "0", "x 0"])]
    unnamed = planned(tmp_path / "a", [RAW | {"post_process": spec}], repeats=3)
    named = planned(tmp_path / "b", [RAW | {"filters": {"vote": spec}}], repeats=3)
    one, two = scored(unnamed, write(unnamed, rows)), scored(named, write(named, rows))
    assert (one.metric, two.metric) == ("exact_match", "exact_match,vote")
    assert (one.mean, one.unextracted) == (two.mean, two.unextracted) == (1.0, 0)
    first = [{**run, "metric_name": ""} for run in runs(unnamed)]
    assert first == [{**run, "metric_name": ""} for run in runs(named)]


def test_both_the_unnamed_and_a_named_one(tmp_path: Path) -> None:
    metric = [{"metric": "exact_match", "filters": ["none", "vote"]}]
    lines = [RAW | {"metric_name": metric, "post_process": "last_number", "filters": {"vote": FILTERS["vote"]}}]
    work = planned(tmp_path, lines, repeats=2)
    found = scored(work, write(work, [answer(0, "0"), answer(0, "1", repeat=1)]))
    assert {metric.name: metric.mean for metric in found.metrics} == {"exact_match": 0.5, "exact_match,vote": 1.0}
    assert [metric.params for metric in found.metrics] == [{}, {}]  # the label tells the filter


def test_a_filter_that_needs_more_responses_than_were_answered(tmp_path: Path) -> None:
    """An error of that filter's metrics on that doc, and of no other; never a score of fewer."""
    filters = {"two": ["last_number", {"step": "take_first_k", "k": 2}], "all": "last_number"}
    work = planned(tmp_path, [RAW], repeats=2, filters=filters)
    found = scored(work, write(work, [answer(0, "0"), msgspec.structs.replace(no_answer(0), repeat=1)]))
    by_label = {metric.name: metric for metric in found.metrics}
    assert (by_label["exact_match,two"].mean, by_label["exact_match,two"].n_errors) == (None, 1)
    assert by_label["exact_match,two"].reason == "ValueError: take_first_k needs 2 responses, and there are 1"
    assert by_label["exact_match,all"].mean == 1.0


def test_what_is_missing_could_be_what_a_filter_takes(tmp_path: Path) -> None:
    """Of a doc that lacks a repeat, the first that was answered is taken; what the score could be is anything."""
    work = planned(tmp_path, [RAW], repeats=2, filters={"x": ["last_number", "take_first"]})
    found = scored(work, write(work, [no_answer(0), answer(0, "0", repeat=1)]))
    assert (found.mean, found.n_partial, found.coverage) == (1.0, 1, 0.5)
    assert found.bounds is not None
    assert (found.bounds.low, found.bounds.high) == (0.0, 1.0)


TEXTS = st.sampled_from(["0", "it is 0", "1", "x", "#### 0"])


@given(st.lists(TEXTS, min_size=1, max_size=5), st.sampled_from(["exact_match", "f1"]))
def test_take_first_is_scoring_without_repeats(texts: list[str], metric: str) -> None:
    """take_first and the mean of what it leaves: the score that the first repeat alone would have; and take_first_k of
    them all, followed by nothing, the mean over all.
    """

    def score_of(filters: Spec, said: list[str]) -> float:
        spec = TaskSpec(task_id="t0", prompt="?", targets=("0",), metric_name=metric, filters={"x": filters})
        doc = Doc(0, spec, [[answer(0, text, repeat=n)] for n, text in enumerate(said)])
        [judged] = doc.judges
        samples = doc.under(judged.filter).samples
        scores = [score for score in judged.scorer.score_all(samples) if isinstance(score, float)]
        assert len(scores) == len(samples)
        return reduced(judged.parameters, scores, doc.taken(judged), judged.scorer.threshold)

    assert score_of(("last_number", "take_first"), texts) == score_of("last_number", texts[:1])
    everything = ({"step": "take_first_k", "k": len(texts)}, "last_number")
    assert score_of(everything, texts) == score_of("last_number", texts)


def test_filters_are_part_of_what_results_are_keyed_by(tmp_path: Path) -> None:
    """Another pipeline is another dataset digest, and the pair is scored anew; answers stay, since adapters over HTTP
    are sent nothing of it.
    """
    one = write(planned(tmp_path / "a", [RAW], filters=FILTERS), [answer(0, "0")])
    two = write(planned(tmp_path / "b", [RAW], filters=FILTERS | {"vote": "last_number"}), [answer(0, "0")])
    assert one.digests == two.digests
    assert one.dataset.digest != two.dataset.digest
    assert one.content() != two.content()


def test_sound_pipelines_have_no_fault() -> None:
    assert use_faults("f1", "none", {}) == []
    assert use_faults("f1", "none", {"a": "strip"}) == []
    assert use_faults({"metric": "f1", "filters": ["none", "a"]}, "lower", {"a": "strip"}) == []


def test_the_example_of_the_docs() -> None:
    """docs/tasks.md, Filters: sound, and with the names that the page says."""
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text("utf-8")
    text = page.partition("### Filters")[2].partition("```toml")[2].partition("```")[0]
    [dataset] = tomllib.loads(text)["datasets"]
    metric, filters = tuple(dataset["metric"]), dataset["filters"]
    assert filter_faults(filters) + use_faults(metric, "none", filters) == []
    for measure in measures_of(metric, filters):
        assert f"`{measure.label}`" in page
