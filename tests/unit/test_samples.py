"""The sample log: a doc from its prompt to its scores, in the same pass as the scores and beside them."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from evalctl.main import main
from evald.predictions import Incomplete
from evald.samples import SampleLine, find_sample
from evald.score import ScoreJob, score_pair
from shared import requests
from shared.atomic import replace
from shared.clock import SystemClock
from shared.errors import SuiteError, UsageError
from shared.layout import WorkDir
from shared.plan import make_plan, read_planned_tasks
from shared.records import Generation, Prediction
from shared.suite import parse_suite
from tests.harness import task, write_suite
from tests.unit.test_score import answer, no_answer, runs, write

MODEL = {"abbr": "m", "type": "openai", "base_url": "http://127.0.0.1:9/v1", "headers": {"X-Team": "hush-hush"},
         "api_key_env": "SECRET_NAME", "generation": {"max_tokens": 16, "seed": 40}}  # fmt: skip


def planned(folder: Path, tasks: Sequence[dict[str, Any]], **options: Any) -> WorkDir:
    work = WorkDir(folder / "work")
    path = write_suite(folder / "suite", [MODEL], {"d": tasks}, dataset_options=options)
    replace(work.suite, path.read_bytes())
    suite = parse_suite(path.read_bytes(), "suite", path.parent)
    make_plan(work, suite, path.read_bytes(), SystemClock())
    return work


def logged(work: WorkDir, rows: Sequence[Prediction], *, wanted: bool = True) -> list[SampleLine]:
    score_pair(msgspec.structs.replace(write(work, rows), sample_log=wanted))
    lines = work.samples("m", "d").read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=SampleLine) for line in lines]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


FILTERS = {"strict": [{"step": "regex", "pattern": "#### (.+)"}, "take_first"], "loose": "last_number"}


def test_a_doc_from_its_prompt_to_its_scores(tmp_path: Path) -> None:
    """Two docs of two repeats, one of which failed: what was asked in the settings it was asked with, the predictions
    as they are, what each filter left, and the scores of the scores file.
    """
    raw = {key: value for key, value in task(0).items() if key not in ("post_process", "metric_name")}
    work = planned(tmp_path, [raw, raw | {"task_id": "t1", "targets": ["1", "1.0"]}], repeats=2, filters=FILTERS)
    rows = [answer(0, "#### 0"), answer(0, "so 0", repeat=1), answer(1, "x"),
            msgspec.structs.replace(no_answer(1), repeat=1)]  # fmt: skip
    first, second = logged(work, rows)
    assert (first.doc_id, first.task_id, first.target) == (0, "t0", ("0",))
    assert second.target == ("1", "1.0")
    assert [first.doc, second.doc] == list(read_planned_tasks(work, "d"))
    [asked] = first.arguments
    assert [prompt.messages[0].content for prompt in asked if prompt] == [raw["prompt"]] * 2
    settings = [prompt.generation for prompt in asked if prompt]
    assert [(one.seed, one.max_tokens) for one in settings] == [(40, 16), (41, 16)]
    assert [first.resps, second.resps] == [(tuple(rows[:2]),), (tuple(rows[2:]),)]
    assert first.filtered_resps == {"strict": ("0",), "loose": ("0", "0")}
    assert second.filtered_resps == {"strict": (None,), "loose": (None,)}
    assert first.metrics == {"exact_match,strict": 1.0, "exact_match,loose": 1.0}
    by_label = {(run["doc_id"], run["metric_name"]): run["score"] for run in runs(work)}
    for line in (first, second):
        assert line.metrics == {label: score for (doc_id, label), score in by_label.items() if doc_id == line.doc_id}


def test_hashes_can_be_made_again(tmp_path: Path) -> None:
    """Of the doc as it stands in the tasks file, of the prompt's messages, of the target: SHA-256 of what the line
    itself holds. The same doc has the same ones in another run.
    """
    work = planned(tmp_path / "a", [task(0), task(1)])
    lines = logged(work, [answer(0, "0"), answer(1, "1")])
    assert [line.doc_hash for line in lines] == [sha256(text) for text in work.tasks("d").read_text().splitlines()]
    content = json.dumps(task(0)["prompt"])
    assert lines[0].prompt_hash == sha256(f'[{{"role":"user","content":{content}}}]')
    assert lines[0].target_hash == sha256('["0"]')
    other = planned(tmp_path / "b", [task(1)])
    [again] = logged(other, [answer(0, "no")])
    assert (again.doc_hash, again.prompt_hash) == (lines[1].doc_hash, lines[1].prompt_hash)


def test_likelihoods(tmp_path: Path) -> None:
    """Of each choice what was asked and how likely it was; the target is the right one's text; nothing is filtered."""
    choice = {"task_id": "t0", "prompt": "Sky?", "choices": ["red", "blue"], "gold": [1],
              "request_type": "multiple_choice"}  # fmt: skip
    work = planned(tmp_path, [choice])
    rows = [answer(0, "", idx=n, generation=Generation(text="", loglikelihood=-1.0 - n)) for n in range(2)]
    [line] = logged(work, rows)
    assert [prompt.continuation for [prompt] in line.arguments if prompt] == [" red", " blue"]
    assert [row.generation.loglikelihood for [row] in line.resps if row.generation] == [-1.0, -2.0]
    assert (line.target, line.filtered_resps, line.metrics) == (("blue",), {}, {"acc": 0.0})
    assert line.prompt_hash == sha256("Sky?")


def test_a_chat_s_later_turns_are_told_as_they_were_asked(tmp_path: Path) -> None:
    """Behind the model's own answers, which differ by repeat; null where the turn before has none."""
    chat = {"task_id": "t0", "messages": [{"role": "user", "content": "a?"}, {"role": "user", "content": "b?"}],
            "targets": ["b"], "chat_mode": "every"}  # fmt: skip
    work = planned(tmp_path, [chat], repeats=2)
    rows = [answer(0, "A"), msgspec.structs.replace(no_answer(0), repeat=1), answer(0, "b", idx=1),
            msgspec.structs.replace(no_answer(0), idx=1, repeat=1)]  # fmt: skip
    [line] = logged(work, rows)
    [asked, lost] = line.arguments[1]
    assert asked is not None
    assert [message.content for message in asked.messages] == ["a?", "A", "b?"]
    assert lost is None
    assert [[row.repeat for row in of_turn] for of_turn in line.resps] == [[0, 1], [0, 1]]


def test_what_is_told_is_what_was_sent(tmp_path: Path) -> None:
    """Its request_key, made of the prompt that the log tells, is the one that inferd asks by."""
    work = planned(tmp_path, [task(0, few_shot=[{"prompt": "1?", "target": "1"}])], repeats=2)
    [model] = parse_suite(work.suite.read_bytes(), "suite", work.root, check_files=False).models
    [spec] = read_planned_tasks(work, "d")
    known = requests.identity(model)
    keys = [one.key for one in requests.requests_of(spec, 0, model, known, 2) if isinstance(one, requests.Request)]
    [line] = logged(work, [answer(0, "0"), answer(0, "0", repeat=1)])
    assert [requests.request_key(known, prompt, None) for prompt in line.arguments[0] if prompt] == keys


def test_no_secret_stands_in_it(tmp_path: Path) -> None:
    """Nor anything else of how the endpoint is reached."""
    work = planned(tmp_path, [task(0)])
    logged(work, [answer(0, "0")])
    text = work.samples("m", "d").read_text()
    for told in ("hush", "SECRET_NAME", "X-Team"):
        assert told not in text


def test_the_log_changes_nothing_about_the_scores(tmp_path: Path) -> None:
    """With and without it, results and scores are the same to the byte. Without it an old log goes: what lies there is
    always of the same answers as the scores.
    """
    work = planned(tmp_path, [task(n) for n in range(3)])
    rows = [answer(n, str(n % 2)) for n in range(3)]
    logged(work, rows)
    paths = [work.result("m", "d"), work.scores("m", "d")]
    before = [path.read_bytes() for path in paths]
    log = work.samples("m", "d").read_bytes()
    score_pair(write(work, rows))
    assert [path.read_bytes() for path in paths] == before
    assert not work.samples("m", "d").exists()
    logged(work, rows)
    assert work.samples("m", "d").read_bytes() == log


@pytest.mark.parametrize("fault", ["rows", "model", "suite"])
def test_nothing_is_left_of_a_log_that_breaks_off(tmp_path: Path, fault: str) -> None:
    """Neither where the predictions turn out to be incomplete, nor where the suite isn't the planned one."""
    work = planned(tmp_path, [task(0), task(1)])
    job: ScoreJob = msgspec.structs.replace(
        write(work, [answer(n, "0") for n in range(1 if fault == "rows" else 2)]), sample_log=True
    )
    if fault != "rows":
        text = work.suite.read_text().replace('abbr = "m"', 'abbr = "other"' if fault == "model" else "abbr = ")
        replace(work.suite, text.encode())
    with pytest.raises(SuiteError if fault == "suite" else Incomplete):
        score_pair(job)
    folder = work.samples("m", "d").parent
    assert not folder.exists() or list(folder.iterdir()) == []


def test_the_log_takes_no_memory_for_each_doc(tmp_path: Path) -> None:
    """Lines of long answers, 4 MB together, are written and let go."""
    work = planned(tmp_path, [task(n) for n in range(1024)])
    job = write(work, [answer(n, "x" * 4000) for n in range(1024)])

    def peak(wanted: bool) -> int:
        tracemalloc.start()
        score_pair(msgspec.structs.replace(job, sample_log=wanted))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(True)  # what is loaded once
    assert peak(True) < peak(False) + 1_000_000


def test_one_task_is_found(tmp_path: Path) -> None:
    """By its id, also where another's text holds it; a log that isn't there is told with the remedy."""
    work = planned(tmp_path, [task(0, prompt='of "t1"'), task(1)])
    with pytest.raises(UsageError, match="sample_log = true"):
        find_sample(work, "m", "d", "t1")
    logged(work, [answer(0, '"t1"'), answer(1, "1")])
    assert find_sample(work, "m", "d", "t1").doc_id == 1
    with pytest.raises(UsageError, match='no task "t2"'):
        find_sample(work, "m", "d", "t2")


def test_evalctl_shows_one_sample(tmp_path: Path) -> None:
    """For people, with nothing in it that a terminal would act on, and as JSON; an unknown task is bad usage."""
    work = planned(tmp_path, [task(0), task(1)], repeats=2)
    rows = [answer(0, "first\n\x1b]0;owned\x07 0"), answer(0, "0", repeat=1), answer(1, "1"),
            msgspec.structs.replace(no_answer(1), repeat=1)]  # fmt: skip
    logged(work, rows)
    told = ["sample", "-w", str(work), "--model", "m", "--dataset", "d"]
    page = CliRunner().invoke(main, [*told, "t0"])
    assert (page.exit_code, "\x1b" in page.output, "\x07" in page.output) == (0, False, False)
    lines = [line.strip() for line in page.output.splitlines()]
    for line in ("task t0, doc 0", task(0)["prompt"], "first", "filter none:", "exact_match: 0.5"):
        assert line in lines
    assert "timeout: late" in CliRunner().invoke(main, [*told, "t1"]).output
    as_json = CliRunner().invoke(main, [*told, "t1", "--json"]).output
    assert msgspec.json.decode(as_json, type=SampleLine) == find_sample(work, "m", "d", "t1")
    assert CliRunner().invoke(main, [*told, "t9"]).exit_code == 2
