"""What is taken from an answer, and that targets take the same form. Names in brackets are cases of
../shared/cases."""

from __future__ import annotations

import json
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evald.metrics import of_spec
from evald.post_process import POST_PROCESS, pipeline_of, target_fault
from shared.records import TaskSpec
from shared.scoring import Spec
from shared.vocabulary import NUMERIC, STEPS

REQUIRED: dict[str, dict[str, object]] = {
    "regex": {"pattern": "(?s)a(?:.*b)?|(x+)+$", "take": "last"},
    "one_of": {"labels": ["valid", "invalid"]},
    "json_field": {"path": "answer"},
    "replace": {"old": "a", "new": "bb"},
    "map": {"replacements": {"a": "b", "yes": "no"}, "default": "other"},
    "take_first_k": {"k": 1},
}
"""Parameters of the steps that need some."""

SPECS: dict[str, Spec] = {name: {"step": name, **REQUIRED.get(name, {})} for name in sorted(STEPS)}
CUTTING = {"regex", "marker", "boxed", "strip_reasoning", "json_field", "code_block", "replace"}
"""What these give may hold what they look for once more."""


def right(name: str, answer: str, target: str) -> bool:
    """Whether the answer counts as right under exact match."""
    step = pipeline_of(name)
    found = step.answer(answer)
    return found is not None and of_spec("exact_match").of(found, [step.target(target)]) == 1.0


def test_both_sides_name_the_same_steps() -> None:
    """The vocabulary that task files are checked against is the one that is scored with."""
    assert set(POST_PROCESS) == set(STEPS)
    assert all(step.name == name and step.version for name, step in POST_PROCESS.items())


@pytest.mark.parametrize("name", SPECS)
def test_an_answer_is_never_run(name: str, tmp_path: Path) -> None:
    """[math-scorer-executes] A program as an answer is a text like any other: wrong, and not executed."""
    mark = tmp_path / "pwned"
    answer = f"\\boxed{{__import__('os').system('touch {mark}')}}"
    step = pipeline_of(SPECS[name])
    found = step.answer(answer)
    assert found is None or of_spec("exact_match").of(found, [step.target("4")]) == 0.0
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("none", " A\r\n", " A\r\n"),
        ("none", "", ""),
        ("strip", " A b\r\n", "A b"),
        ("remove_whitespace", "\r\n A b \n", "A b \n"),
        ("lower", " Ab É\n", "ab é"),
        ("upper", " Ab é\n", "AB É"),
        ("first_line", "\r\n  one \r\ntwo\n", "one"),
        ("last_line", "one\ntwo \r\n \n", "two"),
        ("first_line", " \n\t\n", None),
        ("last_line", "", None),
    ],
)
def test_plain_steps(name: str, text: str, expected: str | None) -> None:
    """The steps that only cut; None where there is no line to take."""
    assert pipeline_of(name).answer(text) == expected


NUMBERS = [
    ("18.0", "18"),
    ("007", "7"),
    ("1.50", "1.5"),
    (".5", "0.5"),
    ("-.5", "-0.5"),
    ("-0.0", "0"),
    ("100", "100"),
    ("1e5", "100000"),
    ("1.5E-3", "0.0015"),
    ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),  # no float in between
    # grouped
    ("1,234", "1234"),
    ("1,234,567.80", "1234567.8"),
    ("1,00,000", "100000"),
    ("1\u202f234\u00a0567", "1234567"),
    ("1{,}234", "1234"),
    ("1\\,234", "1234"),
    ("1.234", "1.234"),
    ("1.234.567", "1234567"),
    ("1.234,50", "1234.5"),
    ("1,2,3", "3"),
    # a comma before decimals
    ("0,5", "0.5"),
    ("0,500", "0.5"),
    ("€5,00", "5"),
    ("5,00 €", "5"),
    ("12,5%", "12.5"),
    ("-1,5", "-1.5"),
    ("\\boxed{0,5}", "0.5"),
    ("(1,2)", "2"),
    ("[0,5]", "5"),
    ("\\{1,2\\}", "2"),
    ("1, 2", "2"),
    ("10，20", "20"),
    ("１，２３４", "1234"),
    ("1'234", "1234"),
    ("1’234’567.5", "1234567.5"),
    ("5'11", "11"),
    # powers of ten
    ("1.5 \\times 10^{3}", "1500"),
    ("1.5×10³", "1500"),
    ("6 x 10^-2", "0.06"),
    ("3 × 4 = 12", "12"),
    ("x × 10^3", None),
    # signed
    ("-3", "-3"),
    ("\u22123", "-3"),
    ("–3", "-3"),
    ("－１２", "-12"),
    ("+5", "5"),
    ("$-3", "-3"),
    ("-$3", "-3"),
    ("-\\$1,234.50", "-1234.5"),
    ("-US$3", "-3"),
    ("$-3$", "-3"),
    ("**-3**", "-3"),
    ("(-3)", "-3"),
    ("x = - 3", "-3"),
    ("答案是-3", "-3"),
    ("(2)", "2"),
    ("2-3", "3"),
    ("2–3", "3"),
    ("5 - 3", "3"),
    ("5-$3", "3"),
    ("- 3 apples", "3"),  # an item of a list
    # with things around
    ("20%", "20"),
    ("$29.00.", "29"),
    ("29 dollars", "29"),
    ("30cm", "30"),
    ("答案是４２个", "42"),
    ("٤٢", "42"),
    ("`42`", "42"),
    ("_42_", "42"),
    # no numbers
    ("", None),
    ("none at all", None),
    ("42abc", None),
    ("x42", None),
    ("5e", None),
    ("3rd", None),
    ("5G", None),
    ("GPT-4", None),
    ("10^9", None),
    ("10^{-9}", None),
    ("x_2", None),
    ("10²", None),
    ("½", None),
    ("1.2.3", None),
    ("1e1000000000", None),
    ("9" * 401, None),
]


@pytest.mark.parametrize(("text", "expected"), NUMBERS)
def test_canonical_numbers(text: str, expected: str | None) -> None:
    """One number has one form, however it is written; what is no number is none."""
    assert pipeline_of("last_number").answer(text) == expected


def test_first_and_last() -> None:
    """The two ends of a text with several numbers."""
    text = "From 3 apples to -1,200.0 pears."
    assert pipeline_of("first_number").answer(text) == "3"
    assert pipeline_of("last_number").answer(text) == "-1200"


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        # [decimal-point-eaten]
        ("1.0", "10", False),
        ("314", "3.14", False),
        ("1", "1.0", True),
        # [gsm8k-dollar-cents]
        ("...her delivery order is $29.00.", "29", True),
        ("#### 29", "29", True),
        ("The answer is 29.", "29", True),
        ("**29**", "29", True),
        ("29 dollars", "29", True),
        ("1234.", "1,234", True),
        ("1,234.00", "1,234", True),
        ("$29.50", "29", False),
        ("1.234", "1,234", False),
        ("290", "29", False),
        # [number-with-punctuation]
        ("The answer is 42!", "42", True),
        ("(42).", "42", True),
        ("[42]", "42", True),
        ("42?", "42", True),
        ("42:", "42", True),
        ("`42`", "42", True),
        ("42abc", "42", False),
        ("x42", "42", False),
        # [percent-sign]: percent is a unit like any other, so 20% is 20
        ("Of 100 students, the answer is 20%", "20%", True),
        ("Of 100 students, the answer is 20%", "20", True),
        ("Of 100 students, the answer is 20%", "0.2", False),
        ("Of 100 students, the answer is 20%", "100", False),
        # [gsm8k-negative-gold]
        ("-3", "-3", True),
        ("-1234.5", "-1,234.5", True),
        ("3", "-3", False),
    ],
)
@pytest.mark.parametrize("name", ["last_number", "gsm8k"])
def test_numbers_compare_by_value(name: str, answer: str, target: str, expected: bool) -> None:
    """Numbers are equal when their values are, whatever is around them."""
    assert right(name, answer, target) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<<80000+50000=130000>>\r\n####  70000 \r\n", "70000"),  # [gsm8k-gold-unparsed]
        ("from 2 to -3 ... #### -3", "-3"),  # [gsm8k-negative-gold]
        ("So the profit is 70000", "70000"),
        ("3 + 4 = 7\nA: 7 apples for 2 people", "7"),
        ("Answer: 5? No. The answer is 72.", "72"),  # [answer-in-think], after its tags are gone
        ("The answer is 20% of all 100.", "20"),
        ("**Final answer:** $1,200", "1200"),
        ("Maybe \\boxed{2}. No, wait: \\boxed{3} {done} in 4 steps", "3"),  # [boxed-last-wins]
        ("共有 100 人。答案是：20 人，见第 3 页", "20"),
        ("#### Step\nIt is 12", "12"),  # a Markdown heading is no mark
        ("It is 12. The answer is:", None),
        ("It is 12.\nA:", None),
        ("no number", None),
    ],
)
def test_gsm8k_takes_the_marked_number(text: str, expected: str | None) -> None:
    """The number after the last mark; the last number where there is none; nothing where the mark stands alone."""
    assert pipeline_of("gsm8k").answer(text) == expected


def test_gsm8k_agrees_with_published_flags(evaldata: Path) -> None:
    """Four models' 5,276 solutions get OpenAI's own verdicts, each one of them."""
    step, metric = pipeline_of("gsm8k"), of_spec("exact_match")
    correct: Counter[str] = Counter()
    other = []
    with (evaldata / "gsm8k" / "example_model_solutions.jsonl").open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            target = step.target(line["ground_truth"])
            for model in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"):
                answer = step.answer(line[model]["solution"])
                verdict = answer is not None and metric.of(answer, [target]) >= metric.threshold
                correct[model] += verdict
                if verdict != line[model]["is_correct"]:
                    other.append((model, target, answer))
    assert other == []
    assert correct == {"6b_finetuning": 286, "6b_verification": 515, "175b_finetuning": 458, "175b_verification": 742}


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**15), max_value=10**15, places=3))
@example(Decimal("-0.000"))
def test_any_number_is_read_back(value: Decimal) -> None:
    """Plain, grouped or with words around it, a number keeps its value, and its form doesn't depend on the writing."""
    for name in sorted(NUMERIC):
        forms = {
            pipeline_of(name).answer(text) for text in (f"{value:f}", f"{value:,f}", f"= {value:,f}.", f"({value:f})")
        }
        assert len(forms) == 1
        form = forms.pop()
        assert form is not None
        assert Decimal(form) == value
        assert pipeline_of(name).target(form) == form


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("**B**", "B"),
        ("$B$", "B"),
        ("B. Paris", "B"),
        ("**B) Paris**", "B"),
        ("(B) Paris, since A) is in Spain", "B"),
        ("C\n\nBecause B is wrong.", "C"),
        ("Let me think.\nB: Paris", "B"),
        ("Thus it must be option G", "G"),
        # [mcq-boxed-text]
        ("\\boxed{\\text{E}}", "E"),
        ("\\boxed{E: A polygenic risk score}", "E"),
        ("\\boxed{ E }", "E"),
        ("\\boxed{C} ... \\boxed{E}", "E"),
        ("\\boxed{Every}", None),
        ("\\boxed{\\textbf{(C) Paris}}", "C"),
        # [mcq-chinese-only-x]
        ("选项A不成立，选项B也不对，只有选项C是对的。", "C"),
        ("故选D", "D"),
        ("答案：Ｂ", "B"),
        # one for each pattern
        ("A is wrong. The answer is (J).", "J"),
        ("I'd go with option **C** here, not D", "C"),
        ("The correct option is: K", "K"),
        ("(A) seems fine, but B) is the correct one", "B"),
        ("答案是B", "B"),
        ("因此，正确的选项是 C。", "C"),
        ("综上，应选 C。", "C"),
        ("只有B正确", "B"),
        ("正解はＢです", "B"),
        # and their variants
        ("The correct choice would be B", "B"),
        ("**Answer**: B", "B"),
        ("The answer must be (C).", "C"),
        ("答案为 (B)", "B"),
        ("答案应为A", "A"),
        ("答案是选项D", "D"),
        ("所以答案选择D", "D"),
        ("B项正确", "B"),
        ("综上所述，A、B错误，C正确。", "C"),
        # the last word counts
        ("The answer is A. No: the answer is C.", "C"),
        ("The answer is not B, but C is correct.", "C"),
        ("The answer is A because it fits", "A"),
        ("The answer is option A when it rains", "A"),
        ("The answer is:\n\n**C**", "C"),
        ("the answer is (d)", "D"),
        # no choice
        ("", None),
        ("Let's see", None),
        ("A dog is an animal.", None),
        ("The answer is a dog", None),
        ("Answer: A dog", None),
        ("I think so", None),
        ("J. K. Rowling", None),
        ("不选A", None),
        ("不应选A", None),
        ("Don't choose B", None),
        ("A) x\nB) y\nC) z", None),
        ("Option A or option B", None),
        # several
        ("A, B", None),
        ("A or B", None),
        ("A,B", None),
        ("(A) and (B)", None),
        ("A) and B)", None),
        ("A, B, C", None),
        ("The answer is A, B", None),
        ("The answer is A or B.", None),
        ("Answer: (A) / (B)", None),
        ("\\boxed{A, C}", None),
        ("\\boxed{A} or \\boxed{C}", "C"),  # two answers, the last of which counts
        ("答案是A、B", None),
        ("答案是A和B。", None),
        # but one, with something after it
        ("The answer is B, A is wrong", "B"),
        ("The answer is A, I think", "A"),
        ("A, Because it fits", "A"),
        ("The answer is B and a dog", "B"),
    ],
)
def test_choice_letter(text: str, expected: str | None) -> None:
    """The letter that is given as the answer; none where it is a word or where several are."""
    assert pipeline_of("choice_letter").answer(text) == expected


@pytest.mark.parametrize("target", ["B", "(B)", "b", " B.\n", "B) Paris"])
def test_choice_target(target: str) -> None:
    """A target is a letter however it is written."""
    assert pipeline_of("choice_letter").target(target) == "B"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes", "yes"),
        ("No, there is water.", "no"),
        ("**NO**", "no"),
        ("It depends. So the answer is: **Yes**.", "yes"),
        ("No doubt. The answer is yes", "yes"),
        ("Thinking about it ... so yes.", "yes"),
        ("There is no reason to think so", None),
        ("no-one knows", None),
        ("Not at all", None),
        ("Nope", None),
        ("", None),
    ],
)
def test_yes_no(text: str, expected: str | None) -> None:
    """Yes or no, where it is the answer and not a word of a sentence."""
    assert pipeline_of("yes_no").answer(text) == expected


def test_targets_without_what_is_wanted_equal_no_answer() -> None:
    """Such a target is only stripped, so nothing that is extracted can equal it."""
    assert pipeline_of("last_number").target(" many ") == "many"
    assert pipeline_of("choice_letter").target(" 2 ") == "2"
    assert pipeline_of("yes_no").target(" YES ") == "yes"


HOSTILE = [
    "(" * 100_000,  # [scorer-raises-on-answer]
    "9**9**9**9",
    "9" * 1_000_000,
    "1," * 300_000,
    "1." * 300_000,
    "1e" + "9" * 1_000_000,
    "-" * 500_000,
    "$" * 500_000,
    "*" * 500_000,
    "#" * 500_000,
    "#### " * 100_000,
    " " * 500_000,
    "\n" * 300_000,
    "A" * 500_000,
    "(A)" * 100_000,
    "A" + " " * 500_000 + "x",
    "B" + "." * 500_000 + "x",
    "answer is" + " " * 300_000,
    "answer " * 70_000,
    "\\boxed{" * 70_000,
    "\\text{" * 70_000,
    "答案" * 200_000,
    "½" * 300_000,
    "\x00\ud800",
    "{" * 100_000,
    "[" * 100_000,
    '{"answer":' * 30_000,
    '{"answer":"' * 30_000,
    "{'a':“" * 30_000,
    "{/*" * 160_000,
    "{/*" * 160_000 + "*/",
    "\\frac{" * 60_000,
    "A, " * 160_000,
    '{"answer":"' + '\\"' * 100_000,
    "{a:" + "[{a:" * 30_000,
    "<think>" * 30_000,
    "</think>" * 30_000,
    "<think" + " " * 300_000,
    "```" * 100_000,
    "```\n" * 50_000,
    "`" * 300_000 + "x",
    "```" + " " * 300_000 + "`",
    "\\boxed " * 30_000,
    "\\boxed" + " " * 300_000,
    "\\boxed{" + "\\text{" * 30_000 + "}" * 30_001,
    "answer " + "*" * 300_000,
    "x = " * 50_000,
    "valid " * 50_000,
    "1'" * 100_000,
    "1" + "×" * 300_000,
    "a" * 300_000 + "c",
]


@pytest.mark.parametrize("name", SPECS)
def test_hostile_text_costs_linear_time(name: str) -> None:
    """[scorer-raises-on-answer] No text raises or takes seconds; no power is worked out."""
    step = pipeline_of(SPECS[name])
    for text in HOSTILE:
        start = time.process_time()
        step.answer(text)
        assert time.process_time() - start < 4, text[:20]


PIECES = [
    "\\boxed{", "\\text{", "{", "}", "[", "]", ",", ":", '"', "'", "“", "”", "\\", "```", "~~~", "python", "answer",
    "is:", "<think>", "</think>", "\n", "####", "x=1", "1'000", "1.5×10^3", "valid",
]  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@given(
    text=st.text()
    | st.text("ABab01239.,-−$%^_eE \n#:(){}[]\\答案是选对")
    | st.lists(st.sampled_from(PIECES)).map(" ".join)
)
def test_any_text_is_taken(name: str, text: str) -> None:
    """Nothing raises, and an answer that was found is its own target: extracting again changes nothing."""
    step = pipeline_of(SPECS[name])
    found = step.answer(text)
    if found is not None and name not in CUTTING:
        assert step.target(found) == found


@pytest.mark.parametrize(
    ("post_process", "target"),
    [("last_number", "42abc"), ("gsm8k", "no number here 4th"), ("choice_letter", "2"), ("yes_no", "maybe")],
)
def test_a_target_that_no_answer_can_match_is_a_fault(post_process: str, target: str) -> None:
    """`gsm8k-gold-unparsed`, `gsm8k-negative-gold`: a gold that can't be read is told, never held against the model."""
    task = TaskSpec(task_id="t", prompt="?", targets=(target,), post_process=post_process)
    fault = target_fault(task)
    assert fault is not None
    assert target in fault


def test_targets_that_can_be_matched_have_no_fault() -> None:
    for post_process, target in [
        ("last_number", "-1,234.5"),
        ("gsm8k", "#### 70000 "),
        ("choice_letter", "(B)"),
        ("none", ""),
    ]:
        assert target_fault(TaskSpec(task_id="t", prompt="?", targets=(target,), post_process=post_process)) is None


@pytest.mark.parametrize(
    ("post_process", "target", "step"),
    [
        ({"step": "replace", "old": "B", "new": ""}, "B", "replace"),
        (["strip", {"step": "replace", "old": "()", "new": " "}], "()", "replace"),
    ],
)
def test_a_step_that_leaves_nothing_of_a_target_is_a_fault(post_process: Spec, target: str, step: str) -> None:
    """An empty answer would be right then."""
    assert pipeline_of(post_process).fault(target) == step
    assert pipeline_of(post_process).fault("A") is None
