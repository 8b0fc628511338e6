"""Answers of real models, read through pipelines as a user would write them, get the verdicts that others published."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from evald.metrics import of_spec
from evald.post_process import pipeline_of
from shared.scoring import Spec

BBH: dict[str, Spec] = {
    "boolean_expressions": {"step": "one_of", "labels": ["True", "False"]},
    "date_understanding": {"step": "choice_letter", "options": "ABCDEF"},
    "dyck_languages": "strip",
    "hyperbaton": {"step": "choice_letter", "options": "AB"},
    "multistep_arithmetic_two": "last_number",
    "object_counting": "last_number",
    "snarks": {"step": "choice_letter", "options": "AB"},
    "sports_understanding": "yes_no",
    "web_of_lies": "yes_no",
    "word_sorting": "strip",
}


@pytest.mark.parametrize("name", BBH)
def test_bbh_codex_direct(evaldata: Path, name: str) -> None:
    """Each task's accuracy, and each single verdict: the published ones compare the stripped texts."""
    expected = json.loads((evaldata / "bbh" / "EXPECTED.json").read_text())[f"codex_direct/{name}"]
    rows = json.loads((evaldata / "bbh" / "codex_direct" / f"{name}.json").read_text())["outputs"]
    pipeline, metric = pipeline_of(BBH[name]), of_spec("exact_match")
    verdicts = []
    for row in rows:
        assert pipeline.fault(row["target"]) is None
        found = pipeline.answer(row["prediction"])
        verdicts.append(found is not None and metric.of(found, [pipeline.target(row["target"])]) == 1.0)
    assert verdicts == [row["prediction"].strip() == row["target"].strip() for row in rows]
    assert len(verdicts) == expected["n"]
    assert 100 * sum(verdicts) / len(verdicts) == pytest.approx(expected["accuracy"])


def test_xquad_exact_match(evaldata: Path) -> None:
    """SQuAD's normalisation as a step gives XQuAD's published exact match, 0.69748."""
    folder = evaldata / "xquad_explainaboard"
    docs = json.loads((folder / "dataset-xquad-en.json").read_text())
    outputs = json.loads((folder / "output-xquad-en.json").read_text())
    pipeline, metric = pipeline_of("squad"), of_spec("exact_match")
    scores = [
        metric.of(
            pipeline.read(output["predicted_answers"]["text"]).answer or "",
            list(map(pipeline.target, doc["answers"]["text"])),
        )
        for doc, output in zip(docs, outputs, strict=True)
    ]
    assert sum(scores) / len(scores) == pytest.approx(
        json.loads((folder / "EXPECTED.json").read_text())["en"]["ExactMatch"]
    )


def test_mt_bench_ratings(evaldata: Path) -> None:
    """GPT-4's 800 judgments: the pattern finds the recorded score in each, and nothing in the one that has none."""
    pipeline = pipeline_of({"step": "regex", "pattern": r"\[\[(\d+(?:\.\d+)?)\]\]"})
    with (evaldata / "mt_bench" / "gpt-4_single_judgments.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    found = [pipeline.answer(row["judgment"]) for row in rows]
    assert [-1 if text is None else float(text) for text in found] == [row["score"] for row in rows]
    assert found.count(None) == 1


@pytest.mark.parametrize("step", ["last_number", "gsm8k"])
@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "#### {}",
        "The answer is {}.",
        "**{}**",
        "$\\boxed{{{}}}$",
        "答案是 {}。",
        "答案：{}元",
        "所以一共需要{}个苹果。",
    ],
)
def test_mgsm_answers_are_read_in_both_languages(evaldata: Path, step: str, form: str) -> None:
    """All 250 targets, the same number in English and Chinese, in the forms that models answer in."""
    targets = {}
    for language in ("en", "zh"):
        lines = (evaldata / "mgsm" / f"mgsm_{language}.tsv").read_text().splitlines()
        targets[language] = [line.split("\t")[1] for line in lines]
    pipeline = pipeline_of(step)
    wanted = [pipeline.target(target) for target in targets["en"]]
    assert len(wanted) == 250
    assert not any(map(pipeline.fault, targets["zh"]))
    assert [pipeline.answer(form.format(target)) for target in targets["zh"]] == wanted


MMLU_FORMS = [
    "{letter}", "({letter})", "{letter}. {text}", "({letter}) {text}", "**{letter}. {text}**",
    "The answer is {letter}: {text}", "The correct answer is ({letter}) {text}.", "Answer: {letter}\n\nBecause it is.",
    "{text} is right, so the answer is {letter}.", "Therefore, the best choice is {letter}.",
    "$\\boxed{{\\text{{{letter}}}}}$", "答案是（{letter}）{text}", "故选{letter}。",
]  # fmt: skip


@pytest.mark.parametrize("form", MMLU_FORMS)
def test_mmlu_letters_are_read(evaldata: Path, form: str) -> None:
    """The right letter of 1,120 questions, with the words of their own choices around it."""
    pipeline = pipeline_of({"step": "choice_letter", "options": "ABCD"})
    other, n = [], 0
    for path in sorted((evaldata / "mmlu" / "test").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                letter, text = "ABCD"[int(row["answer"])], row[f"choice{row['answer']}"]
                n += 1
                if (found := pipeline.answer(form.format(letter=letter, text=text))) != letter:
                    other.append((letter, text, found))
    assert n == 1120
    assert other == []
