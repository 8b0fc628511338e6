"""ifeval: the 25 instructions by example, strict and loose, and GPT-4's published verdicts one by one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.metrics import Sample, SampleCorpus, judges_of, of_spec
from evald.metrics.ifeval import CHECKS, loose_forms, verdicts
from evald.metrics.ifeval.sentences import count_sentences
from shared.instructions import INSTRUCTIONS, Instructions
from shared.records import TaskSpec
from shared.tasks.native import task_faults

WORDS = {"relation": "at least", "num_words": 3}

EXAMPLES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("keywords:existence", {"keywords": ["Cat", "dog"]}, ["CAT and doghouse"], ["cat", "dog"]),
    ("keywords:existence", {"keywords": ["c++ (2nd)"]}, ["C++ (2nd) edition"], ["c+ 2nd", "ccc 2nd"]),
    ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "at least"}, ["A a", "banana"], ["a", "b"]),
    ("keywords:frequency", {"keyword": "aa", "frequency": 2, "relation": "less than"}, ["aaa", "b"], ["aaaa"]),
    ("keywords:forbidden_words", {"forbidden_words": ["rock", "c++"]}, ["rocket", "c+"], ["Rock!", "in C++."]),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": "at least"},
        ["# a\n## b", "##"],
        ["#", "a"],
    ),
    ("keywords:letter_frequency", {"letter": "N", "let_frequency": 2, "let_relation": "less than"}, ["one"], ["Nun"]),
    (
        "language:response_language",
        {"language": "de"},
        ["Der Hund läuft über die Straße und bellt.", "1234"],
        ["The dog runs across the street and barks."],
    ),
    (
        "language:response_language",
        {"language": "hi"},
        ["यह एक छोटा सा वाक्य है जो हिंदी में लिखा गया है।"],
        ["La frase è scritta in italiano."],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        ["One. Two! Three?", "1. One.\n2. Two.\n3. Three."],
        ["One... two. Three.", "Mr. A. Smith came. He left."],
    ),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, ["One"], ["One. Two"]),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, ["a\n***\nb", "***\na *** b\n***"],
     ["a", "a *** *** b", "a *** b *** c"]),
    ("length_constraints:number_words", WORDS, ["one two, three", "don't stop"], ["one two", "— … !"]),
    ("length_constraints:number_words", {"relation": "less than", "num_words": 3}, ["one two"], ["one two three"]),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Weekend"},
        ["a\n\n\"weekend's here", "a\n\n\n\nWEEKEND, b"],
        ["weekend", "a\n\nb\n\nweekend", "a\n\nweekends", "a\nweekend"],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[a] [b]", "[[a]\n[b]"], ["[a]", "[a\n] [b]"]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["a\np. s. b", "P.S."], ["PS b"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.P.S b", "p. p. s b"], ["P.S. b"]),
    ("detectable_content:postscript", {"postscript_marker": "NB:"}, ["a nb: b"], ["nb b"]),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, ["* a\n  - b", "- a\n\n* b"],
     ["* a", "* a\n* b\n* c", "** a\n* b"]),
    ("detectable_format:constrained_response", {}, ["Well. My answer is maybe."], ["My answer is yes", "yes"]),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and **b**", "* a *b* c*"],
        ["*a*", "** ** *a*", "*a\nb* *c*"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\na\nSection 2\nb", "Section1 Section\n2"],
        ["Section 1", "SECTION 1 SECTION 2", "Section A Section B"],
    ),
    ("detectable_format:json_format", {}, ['{"a": [1e999, -1]}', "```json\n[]\n```", "```\n1\n```", "9" * 9000],
     ["{a: 1}", "NaN", "here: {}", "[" * 100_000, "```json"]),
    ("detectable_format:title", {}, ["<<a>>", "x <<<a b>>> y"], ["<<>>", "<< >>", "<a>", "<<a\nb>>", ">><<"]),
    ("combination:two_responses", {}, ["a ****** b", "******a\n******\nb******"],
     ["a", "a ****** a", "a ****** b ****** c", "a ************ b"]),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it. "}, [" say IT.\nit"], ["it. Say it."]),
    ("startend:end_checker", {"end_phrase": "That is all."}, ['"x. that is all."\n'], ["That is all. x"]),
    ("startend:quotation", {}, ['"a"', ' "" '], ['"', "'a'", '"a" b', "a"]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["I'm in the U.S.", "(NASA), ESA!", "CD-ROM X1"],
        ["I am", "Nasa Esa", "1 2 3"],
    ),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "less than"}, ["a"], ["A"]),
    ("change_case:english_capital", {}, ["THIS IS AN ENGLISH SENTENCE, ISN'T IT?"],
     ["This is an English sentence.", "DAS IST EIN DEUTSCHER SATZ UND NICHTS ANDERES"]),
    ("change_case:english_lowercase", {}, ["this is an english sentence, isn't it?"],
     ["This is an English sentence.", "das ist ein deutscher satz und nichts anderes"]),
    ("punctuation:no_comma", {}, ["a. b"], ["a, b"]),
]  # fmt: skip


def instructions(*told: tuple[str, dict[str, Any]]) -> Instructions:
    names, kwargs = [name for name, _ in told], [told_ for _, told_ in told]
    return msgspec.convert({"instruction_id_list": names, "kwargs": kwargs}, Instructions)


def task(*told: tuple[str, dict[str, Any]], metric: Any = "ifeval", **more: Any) -> TaskSpec:
    metadata = {"instruction_id_list": [name for name, _ in told], "kwargs": [kwargs for _, kwargs in told]}
    return TaskSpec(task_id="t", prompt="p", targets=(), metric_name=metric, metadata=metadata | more)


def score(metric: Any, text: str | None, of: TaskSpec) -> float:
    return of_spec(metric).score(Sample(text, (), text or "", of))


def test_both_sides_name_the_same_instructions() -> None:
    """What a task may name is what can be checked, and each is shown by an example here."""
    assert set(CHECKS) == set(INSTRUCTIONS) == {name for name, _, _, _ in EXAMPLES}
    assert len(CHECKS) == 25


@pytest.mark.parametrize(("name", "told", "yes", "no"), EXAMPLES)
def test_each_instruction(name: str, told: dict[str, Any], yes: list[str], no: list[str]) -> None:
    """What follows it, and what doesn't; an empty answer never does."""
    asked = instructions((name, told))
    assert [verdicts(text, asked, "strict") for text in yes] == [[True]] * len(yes)
    assert [verdicts(text, asked, "strict") for text in (*no, "", " \n")] == [[False]] * (len(no) + 2)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("Hello", 1),
        ("Hello. — ***", 1),
        ("Dr. Smith paid $3.50 at 5 p.m. on Jan. 3. He left.", 2),
        ('He said "Stop!" Then she left. (It rained.)', 3),
        ("He works at Acme Inc. They sell it.", 2),
        ("Wait... what? No.", 2),
        ("It was 1999. Then came 2000.", 2),
        ("A heading\n\nIts text.", 1),
        ("你好。世界！\n再见", 3),
        ("यह एक है। यह दो है।", 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    """Abbreviations, initials, decimals and list numbers end no sentence; what is left at the end is one."""
    assert count_sentences(text) == count


def test_levels_and_modes() -> None:
    """Prompt level wants all instructions, instruction level counts them; loose forgives a preamble and asterisks."""
    followed = ("punctuation:no_comma", {}), ("startend:quotation", {}), ("detectable_format:json_format", {})
    asked = task(*followed)
    text = 'Sure, here it is:\n*"a"*'
    assert score("ifeval", text, asked) == 0.0
    assert score({"metric": "ifeval", "level": "instruction"}, text, asked) == 0.0
    assert score({"metric": "ifeval", "mode": "loose"}, text, asked) == 1.0
    assert score({"metric": "ifeval", "level": "instruction"}, '"a, b"', asked) == 2 / 3
    assert score("ifeval", None, asked) == 0.0  # nothing was extracted
    assert [*loose_forms("a\n*b*\nc")] == [
        "a\n*b*\nc", "*b*\nc", "a\n*b*", "*b*", "a\nb\nc", "b\nc", "a\nb", "b",
    ]  # fmt: skip


def test_the_dataset_counts_instructions() -> None:
    """At instruction level a task with more instructions weighs more in the dataset's value than in the mean."""
    scorer = of_spec({"metric": "ifeval", "level": "instruction"})
    corpus = scorer.corpus()
    assert isinstance(corpus, SampleCorpus)
    assert corpus.result() == {"value": None, "followed": 0, "instructions": 0}
    one, two = task(("punctuation:no_comma", {})), task(("punctuation:no_comma", {}), ("startend:quotation", {}))
    for asked, text in ((one, "a"), (two, "a, b")):
        corpus.add_sample(Sample(text, (), text, asked))
    assert corpus.result() == {"value": 1 / 3, "followed": 1, "instructions": 3}
    assert of_spec("ifeval").corpus() is None  # there the mean is all


def test_a_task_is_checked_when_it_is_read() -> None:
    """Every fault at once: unknown ids, missing and wrong kwargs, a count that doesn't fit; nulls count as not told."""
    good = task(("punctuation:no_comma", {"num_words": None}), ("length_constraints:number_words", WORDS))
    assert task_faults(good) == []
    faults = "; ".join(
        task_faults(
            task(
                ("punctuation:no_coma", {}),
                ("length_constraints:number_words", {"relation": "at most"}),
                ("startend:quotation", {"num_words": 3}),
            )
        )
    )
    assert "did you mean punctuation:no_comma?" in faults
    assert 'length_constraints:number_words.relation: expected one of "at least", "less than"' in faults
    assert "length_constraints:number_words.num_words: is required" in faults
    assert "startend:quotation.num_words" in faults
    assert "for ifeval" in faults
    assert task_faults(TaskSpec(task_id="t", prompt="p", targets=(), metric_name="ifeval"))
    (uneven,) = task_faults(task(("punctuation:no_comma", {}), kwargs=[]))
    assert "1 in instruction_id_list and 0 in kwargs" in uneven


def test_a_language_that_cannot_be_told_is_no_wrong_answer() -> None:
    """The detector not knowing a language is a fault of ours, and raises."""
    with pytest.raises(ValueError, match="can't be told"):
        score("ifeval", "text", task(("language:response_language", {"language": "xx"})))


def test_what_decides_is_recorded() -> None:
    """Level, mode and the detector with its version stand in the result."""
    (judged,) = judges_of({"metric": "ifeval", "mode": "loose"})
    assert judged.scorer.params["level"] == "prompt"
    assert judged.scorer.params["mode"] == "loose"
    assert judged.scorer.params["languages"].startswith("py3langid ")


ALL = instructions(*{name: (name, told) for name, told, _, _ in EXAMPLES}.values())


@given(st.text())
def test_every_check_is_total(text: str) -> None:
    """Any text has a verdict under every instruction; what is followed strictly is followed loosely."""
    strict, loose = verdicts(text, ALL, "strict"), verdicts(text, ALL, "loose")
    assert len(strict) == 25
    assert all(b or not a for a, b in zip(strict, loose, strict=True))


@pytest.mark.parametrize(
    "text", ["[" * 300_000, "*" * 300_000, "<<" * 150_000, "* " * 150_000, '"' * 300_000, "\n" * 300_000, "{" * 300_000,
             "1.\n" * 100_000, "p. p. " * 50_000, "Section " * 40_000, "\t" * 300_000, "\ud800a" * 100_000]
)  # fmt: skip
def test_hostile_answers_take_no_time(text: str) -> None:
    """[scorer-raises-on-answer] Hundreds of kilobytes of anything are judged within seconds."""
    start = time.process_time()
    verdicts(text, ALL, "loose")
    assert time.process_time() - start < 20


# --- the published verdicts -------------------------------------------------------------------------------------------

DIFFER = {
    # The published detector, langdetect (here 1.0.9), errs on short texts and lists of names: in each of 300 runs.
    ("strict", 1843, "change_case:english_lowercase"): (True, '"coastal elegance properties" isn\'t Spanish'),
    ("loose", 1843, "change_case:english_lowercase"): (True, "the same"),
    ("strict", 3456, "change_case:english_capital"): (True, "a hundred English names aren't German"),
    ("loose", 3456, "change_case:english_capital"): (True, "the same"),
    # Ours errs too. Without its first line the text is told to be English, so loosely both agree.
    ("strict", 3617, "change_case:english_capital"): (False, '"pixel prodigy, code construct" is taken for Aragonese'),
    # The published program replaces a letter that isn't one of a-z by one that it draws, another one each time
    # (LetterFrequencyChecker.build_description in google-research at 83282e4): the same answer with its four # is right
    # in the strict file and wrong in the loose one. Ours counts the #.
    ("loose", 1122, "keywords:letter_frequency"): (True, "four # stand in the answer, at least four are asked for"),
}


def test_gpt4_verdict_by_verdict(evaldata: Path) -> None:
    """1,664 published verdicts, all but six as ours; each of the six is explained above. So ours come to 418 and 698
    where 417 and 697 are published (strict), and 433 and 715 where 430 and 712 are (loose).
    """
    folder = evaldata / "ifeval"
    expected = json.loads((folder / "EXPECTED.json").read_text("utf-8"))["gpt4"]
    rows = {row["prompt"]: row for row in lines(folder / "input_data.jsonl")}
    differ: dict[tuple[str, int, str], bool] = {}
    for mode, ours in (("strict", (418, 698)), ("loose", (433, 715))):
        prompts = followed = asked = 0
        published: list[list[bool]] = []
        for answer in lines(folder / "gpt4" / f"eval_results_{mode}.jsonl"):
            row = rows[answer["prompt"]]
            published.append(answer["follow_instruction_list"])
            found = verdicts(
                answer["response"],
                msgspec.convert(row, Instructions),
                "loose" if mode == "loose" else "strict",
            )
            for name, own, theirs in zip(row["instruction_id_list"], found, published[-1], strict=True):
                if own != theirs:
                    differ[mode, row["key"], name] = own
            prompts, followed, asked = prompts + all(found), followed + sum(found), asked + len(found)
        assert (len(published), asked) == (expected[mode]["n"], expected[mode]["instr_n"]) == (540, 832)
        assert sum(map(all, published)) == expected[mode]["prompt_level"]
        assert sum(map(sum, published)) == expected[mode]["instr_level"]
        assert (prompts, followed) == ours
    assert differ == {place: own for place, (own, _) in DIFFER.items()}


def test_every_published_task_is_sound(evaldata: Path) -> None:
    """All 541 rows pass as metadata as they are, and every language they ask for can be told."""
    for row in lines(evaldata / "ifeval" / "input_data.jsonl"):
        told = list(zip(row["instruction_id_list"], row["kwargs"], strict=True))
        assert task_faults(task(*told)) == []
        score("ifeval", "text", task(*told))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text("utf-8").split("\n") if line)
