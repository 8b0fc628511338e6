"""The steps that take parameters, and how steps compose. Names in brackets are cases of ../shared/cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.metrics import of_spec
from evald.post_process import pipeline_of
from shared.scoring import Spec, spec_faults, steps_of
from shared.vocabulary import STEPS

FENCE = "```"
PROGRAM = "import os\n\n# go\ndef f(x: int) -> int:\n    return x\n\nx: int = f(1)\nprint(x)\n@a.b\nclass A:\n    pass"


def right(spec: Spec, answer: str, target: str) -> bool:
    """Whether the answer counts as right under exact match."""
    pipeline = pipeline_of(spec)
    found = pipeline.answer(answer)
    return found is not None and of_spec("exact_match").of(found, [pipeline.target(target)]) == 1.0


# --- pipelines --------------------------------------------------------------------------------------------------------


def test_steps_work_one_after_the_other() -> None:
    """Each step gets what the one before it took; a target passes through those that cut as it is."""
    pipeline = pipeline_of(("strip_reasoning", "boxed", {"step": "choice_letter", "options": "ABCDE"}))
    assert pipeline.answer("<think>\\boxed{A}?</think> So \\boxed{\\text{(E)}}.") == "E"
    assert pipeline.target("(E)") == "E"


def test_the_step_that_finds_nothing_is_named() -> None:
    """With its place, where a step comes more than once."""
    pipeline = pipeline_of(("strip_reasoning", "last_number"))
    assert pipeline.read("<think>42") == (None, "strip_reasoning")
    assert pipeline.read("<think>42</think> many") == (None, "last_number")
    assert pipeline.read("<think>42</think> 7") == ("7", None)
    twice = pipeline_of(({"step": "regex", "pattern": "a(.*)"}, {"step": "regex", "pattern": "b(.*)"}))
    assert twice.read("x a c") == (None, "regex[1]")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"step": "regex"}, "pattern"),
        ({"step": "regex", "pattern": "("}, "post_process: pattern: "),
        ({"step": "regex", "pattern": "(?<=a)b"}, "look-around"),
        ({"step": "regex", "pattern": "(a)\\1"}, "post_process"),
        ({"step": "regex", "pattern": "(a)", "group": 2}, "group 2: the pattern has 1"),
        ({"step": "regex", "pattern": "a", "take": "middle"}, "post_process.take"),
        ({"step": "regex", "pattern": "a", "patern": "b"}, "post_process.patern"),
        ({"step": "choice_letter", "options": "abc"}, 'options: expected the letters there are, such as "ABCD"'),
        ({"step": "one_of", "labels": []}, "post_process.labels"),
        ({"step": "marker", "markers": []}, "post_process.markers"),
        ({"step": "json_field"}, "path"),
        ({"step": "code_block", "take": "all"}, "post_process.take"),
        ({"step": "replace", "old": ""}, "post_process.old"),
        ({"step": "strip", "chars": "x"}, "post_process.chars"),
        (("strip", {"step": "regex", "pattern": "["}), "post_process[1]"),
    ],
)
def test_bad_parameters_are_told_when_the_task_is_read(spec: Spec, told: str) -> None:
    """An invalid pattern never reaches a worker: the task is refused, with the place and the reason."""
    faults = spec_faults(steps_of, spec, "post_process")
    assert faults
    assert told in " ".join(faults)


# --- regex ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "text", "expected"),
    [
        ({"pattern": r"= (\d+)"}, "1 = 2, 3 = 4", "2"),
        ({"pattern": r"= (\d+)", "take": "last"}, "1 = 2, 3 = 4", "4"),
        ({"pattern": r"\d+", "take": "last"}, "1 = 2, 3 = 45", "45"),
        ({"pattern": r"(\d+) = (\d+)", "group": 2}, "1 = 2", "2"),
        ({"pattern": r"(\d+) = (\d+)", "group": 0}, "1 = 2", "1 = 2"),
        ({"pattern": r"a(\d)|b(\d)", "take": "last"}, "a1 b2", "2"),  # the group that takes part
        ({"pattern": r"(\d*)"}, "ab12", "12"),  # an empty match is passed over
        ({"pattern": r"(\d*)"}, "ab", None),
        ({"pattern": r"answer: (.*)"}, "Answer: x", None),
        ({"pattern": r"answer: (.*)", "ignore_case": True}, "Answer:  x \ny", "x"),
        ({"pattern": r"(\d+)$"}, "1\n42\n", "42"),
        ({"pattern": r"(?m)(\d+)$"}, "1\n42\n", "1"),
        ({"pattern": r"(\d+)\n"}, "42\n", "42"),
        ({"pattern": r"\p{Han}+"}, "它是 北京", "它是"),
        ({"pattern": "é(.)"}, "aé中", "中"),
        ({"pattern": "x"}, "", None),
    ],
)
def test_regex(parameters: dict[str, object], text: str, expected: str | None) -> None:
    """The first or last match, of it a group, without white space around it."""
    pipeline = pipeline_of({"step": "regex", **parameters})
    assert pipeline.answer(text) == expected
    assert pipeline.target(text) == text


# --- boxed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Maybe \\boxed{2}. No, wait: \\boxed{3} {done}", "3"),  # [boxed-last-wins]
        ("$\\boxed{\\frac{1}{\\sqrt{2}}}$", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\boxed{7}}", "7"),
        ("{a \\boxed{3}", "3"),
        ("\\boxed{3}}}", "3"),
        ("\\boxed 42$.", "42"),
        ("\\boxed 42.", "42"),
        ("\\fbox{8}", "8"),
        ("\\\\boxed{5}", "5"),  # escaped once too often
        ("\\boxed{\\text{Paris}}", "Paris"),
        ("\\boxed{\\text{a} or \\text{b}}", "\\text{a} or \\text{b}"),
        ("\\boxed{2} and \\boxed{3", "2"),  # the last that is whole
        ("\\boxed{3", None),
        ("\\boxed{ }", None),
        ("boxed{3}", None),
        ("", None),
    ],
)
def test_boxed(text: str, expected: str | None) -> None:
    """[boxed-last-wins] What the last box holds, up to its own closing brace."""
    assert pipeline_of("boxed").answer(text) == expected


def test_boxed_last_wins() -> None:
    """[boxed-last-wins] The retracted box is no answer."""
    answer = "Maybe \\boxed{2}. No, wait: \\boxed{3} {done}"
    assert right("boxed", answer, "3")
    assert not right("boxed", answer, "2")
    assert right("boxed", answer, "so it is $\\boxed{3}$")  # a target may be a box


@given(
    st.recursive(
        st.text("ab+1 ", max_size=5),
        lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "x".join(parts) + "}"),
    )
)
def test_any_balanced_content_comes_out(content: str) -> None:
    """However braces are nested in a box."""
    assert pipeline_of("boxed").answer(f"so \\boxed{{{content}}}, {{which}} is it") == (content.strip() or None)


# --- answer markers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 3.5.", "3.5"),
        ("**Answer:** 5 apples.", "5 apples"),
        ("**Answer**: 5", "5"),
        ("Answer : 5", "5"),
        ("The final answer is: **B**.", "B"),
        ("Answer: 1\nNo.\nANSWER: 2\nI am sure.", "2"),
        ("The answer is:\n\n  42\nDone", "42"),
        ("#### 18", "18"),
        ("答案是：北京。", "北京"),
        ("答案：４２", "４２"),
        ("The answer is", None),
        ("Answer: 5\nWait. Answer:", None),  # left out: what stands elsewhere is no answer
        ("5", None),
    ],
)
def test_marker(text: str, expected: str | None) -> None:
    """What stands behind the last marker, to the end of its line."""
    assert pipeline_of("marker").answer(text) == expected


def test_markers_of_ones_own() -> None:
    """Plain texts: no pattern, any case."""
    pipeline = pipeline_of({"step": "marker", "markers": ["So:", "result (final) ="]})
    assert pipeline.answer("so: 1\nResult (final) = 2") == "2"
    assert pipeline.answer("The answer is 3") is None
    assert pipeline.target("U.S.") == pipeline.answer("So: U.S.")


# --- reasoning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>3*8=24, +48=72. Answer: 5?</think> The answer is 72.", "The answer is 72."),
        ("<think>...72...", None),
        ("<think>...72...</thi", None),
        ("reason... </think>\n72", "72"),
        ("<THINK>a</THINK>b", "b"),
        ("<thinking>a</thinking>b", "b"),
        ("[THINK]a[/THINK]b", "b"),
        ("◁think▷a◁/think▷b", "b"),
        ("<think>I may write <think> here</think>72", "72"),
        ("<think>a</think>x <think>b</think>y", "x y"),
        ("<think>a</think>x <think>b", None),
        ("<think>a</think>\n", None),
        ("72", "72"),
        ("1 < 2 and a thinker", "1 < 2 and a thinker"),
        ("", None),
    ],
)
def test_strip_reasoning(text: str, expected: str | None) -> None:
    """[answer-in-think] [length-cut-reasoning-only] The answer without the trace; of a trace that was cut, nothing."""
    assert pipeline_of("strip_reasoning").answer(text) == expected


def test_answer_in_think() -> None:
    """[answer-in-think] A number of the trace is never taken."""
    spec = ("strip_reasoning", "gsm8k")
    assert right(spec, "<think>3*8=24, +48=72. Answer: 5?</think> The answer is 72.", "72")
    assert not right(spec, "<think>3*8=24, +48=72", "72")
    assert right(spec, "reason... </think>\n72", "72")


def test_tags_of_ones_own() -> None:
    """By their names."""
    pipeline = pipeline_of({"step": "strip_reasoning", "tags": ["scratchpad"]})
    assert pipeline.answer("<scratchpad>a</scratchpad><think>b") == "<think>b"
    assert pipeline.answer("<scratchpad>a") is None


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_comments_in_json_are_bounded() -> None:
    """Of 500 characters at most, each of its own, and no search for an end is made twice."""
    step = pipeline_of({"step": "json_field", "path": "a"})
    for length, expected in ((0, "1"), (500, "1"), (501, None)):
        assert step.answer("{/*" + "x" * length + '*/ /**/ "a": /***/ 1 /* } */}') == expected
    assert step.answer('{/* {/* "a": 2 [/* ' + "{/*" * 300 + " " * 600 + '{"a": 1 /* one */}') == "1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"answer": "B"}', "B"),
        (f'Sure:\n{FENCE}json\n{{"answer": 12.50, "x": [1, 2,],}}\n{FENCE}\nDone.', "12.50"),
        (f'{FENCE}json\n{{"answer": "B"}}', "B"),
        ('{"answer": 1} or rather {"answer": 2}, see {"note": 3}', "2"),
        ("{'answer': 'it\\'s', 'ok': True}", "it's"),
        ("{“answer”: “yes”}", "yes"),
        ("{answer: B}", "B"),
        ('{"answer": "B" // sure\n "x": 2 /* ? */}', "B"),
        ('{"answer": 1,234}', "1234"),
        ('{"answer": true}', "true"),
        ('{"answer": None}', None),
        ('{"answer": ["a", 1.5]}', '["a", 1.5]'),
        ('{"answer": "two\nlines \\u00e9 \\ud83d\\ude00"}', "two\nlines é 😀"),
        ('{"answer": "\\(x\\)"}', "\\(x\\)"),
        ('$\\frac{1}{2}$, so {"answer": "1/2"}', "1/2"),
        ("{'s no JSON'} {\"answer\": 5}", "5"),
        # broken off
        ('{"answer": "B", "why": "because', "B"),
        ('{"answer": "B"', "B"),
        ('{"answer": "B", "steps": [{"answer": "x"}, {"ans', "B"),
        ('{"answer": "B', None),
        ('{"answer": 4', None),  # it may have become 42
        ('{"answer": ["a", "b"', None),
        # what the value is isn't told
        ('{"answer": "say "hi" now"}', None),
        ('{"answer": 42 apples}', None),
        ('{"Answer": 1}', None),
        ("42", None),
        ("", None),
    ],
)
def test_json_field(text: str, expected: str | None) -> None:
    """The field of the last object that has it, amid prose, between fences, and as broken as models write it."""
    assert pipeline_of({"step": "json_field", "path": "answer"}).answer(text) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("r.items.0.v", "1"),
        ("r.items.-1.v", "2"),
        ("r.items.2.v", None),
        ("r.v.w", "3"),
        ("r.x", None),
        ("r.items.a", None),
    ],
)
def test_json_path(path: str, expected: str | None) -> None:
    """Dots lead into objects, numbers into arrays; a key may hold dots itself."""
    text = '{"r": {"items": [{"v": 1}, {"v": 2}], "v.w": 3}}'
    assert pipeline_of({"step": "json_field", "path": path}).answer(text) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_any_sound_json_is_read_as_it_is(value: object, indent: int | None, ascii_only: bool) -> None:
    """Against the standard library: the same value, whatever it is, with prose around it."""
    text = f"Here: {json.dumps({'answer': value}, indent=indent, ensure_ascii=ascii_only)}\nDone."
    found = pipeline_of({"step": "json_field", "path": "answer"}).answer(text)
    if isinstance(value, str):
        assert found == value
    elif value is None:
        assert found is None
    else:
        assert found is not None
        assert json.loads(found) == value


# --- code -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "text", "expected"),
    [
        # [exec-unclosed-fence] (a) to (e)
        ({}, f"Sure!\n{FENCE}python\ndef f(x):\n    return x+1\n", "def f(x):\n    return x+1\n"),
        ({}, f"{FENCE}\npip install\n{FENCE}\nThen\n{FENCE}py\ndef f(x):\n    pass\n{FENCE}", "def f(x):\n    pass"),
        ({}, "~~~py\nx = 1\n~~~", "x = 1"),
        ({}, "def f(x):\n    return x\nThis works because it does.", None),
        ({}, f"{FENCE}python\r\nx = 1\r\n{FENCE}\r\n", "x = 1"),
        # which one
        ({}, f"{FENCE}\nlong one\n{FENCE}\n{FENCE}\nb\n{FENCE}", "long one"),
        ({"take": "first"}, f"{FENCE}\na\n{FENCE}\n{FENCE}\nbb\n{FENCE}", "a"),
        ({"take": "last"}, f"{FENCE}\naa\n{FENCE}\n{FENCE}\nb\n{FENCE}", "b"),
        ({"language": "python"}, f"{FENCE}bash\nlong long\n{FENCE}\n{FENCE}py\nx\n{FENCE}", "x"),
        ({"language": "c++"}, f"{FENCE}cpp\nint x;\n{FENCE}", "int x;"),
        ({"language": "python"}, f"{FENCE}\nx\n{FENCE}", "x"),
        ({"language": "python"}, f"{FENCE}bash\nx\n{FENCE}", None),
        # how fences are written
        ({}, f"Here it is: {FENCE}python\nreturn x{FENCE}", "return x"),
        ({}, f"- so\n  {FENCE}python\n  if x:\n    y\n  {FENCE}", "if x:\n  y"),
        ({}, f"{FENCE}{{.python .numberLines}}\nx\n{FENCE}", "x"),
        ({}, f"{FENCE}`md\n{FENCE}\nx\n{FENCE}\n{FENCE}`", f"{FENCE}\nx\n{FENCE}"),
        ({}, f"{FENCE}\n{FENCE}", None),
        # no fence
        ({}, PROGRAM, PROGRAM),
        ({}, "    return x + 1\n", "    return x + 1"),
        ({}, "SELECT a\nFROM b\nWHERE c = 1;", "SELECT a\nFROM b\nWHERE c = 1;"),
        ({}, "I can't do that.", None),
        ({}, "Here is the code:\nx = 1", None),
        ({}, "", None),
    ],
)  # fmt: skip
def test_code_block(parameters: dict[str, object], text: str, expected: str | None) -> None:
    """[exec-unclosed-fence] Where it says that the block defining the entry point wins or the longest prefix that
    compiles: this step knows neither, takes the longest block, and nothing where prose is unfenced; nothing is compiled
    here, and nothing found is counted apart from wrong.
    """
    assert pipeline_of({"step": "code_block", **parameters}).answer(text) == expected


@given(st.lists(st.text("abc =(){}\t '\"#`~"), max_size=6))
def test_any_fenced_lines_come_out(lines: list[str]) -> None:
    """As they were, between fences longer than any that they hold."""
    code = "\n".join(lines)
    assert pipeline_of("code_block").answer(f"Here:\n{'`' * 60}python\n{code}\n{'`' * 60}\nDone.") == (
        code if code.strip() else None
    )


# --- labels, letters, small ones --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "text", "expected"),
    [
        ({}, "It is INVALID.", "invalid"),
        ({}, "It is not valid", "not valid"),
        ({}, "valid, or invalid?", None),
        ({}, "**valid** - yes, valid", "valid"),
        ({}, "validity", None),
        ({}, "", None),
        ({"take": "first"}, "valid, no, invalid", "valid"),
        ({"take": "last"}, "valid, no, invalid", "invalid"),
        ({"ignore_case": False}, "Valid", None),
        ({"labels": ["正面", "负面"]}, "这是正面的评价", "正面"),
        ({"labels": ["正面", "负面"]}, "既有正面也有负面", None),
        ({"labels": ["C++", "C"]}, "I like C++.", "C++"),
        ({"labels": ["-1", "1"]}, "so 1", "1"),
    ],
)
def test_one_of(parameters: dict[str, object], text: str, expected: str | None) -> None:
    """The label that is named, as the task writes it; none where several differ, unless told which."""
    pipeline = pipeline_of({"step": "one_of", "labels": ["valid", "invalid", "not valid"], **parameters})
    assert pipeline.answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is E", None),
        ("E", None),
        ("I think so: B", None),
        ("E) x\nB) y", "B"),
        ("\\boxed{\\text{E}}", None),
        ("The answer is (d).", "D"),
        ("Let's see. Answer: C", "C"),
    ],
)
def test_only_options_are_choices(text: str, expected: str | None) -> None:
    """A letter that is no option is none of the answer, however plainly it is said."""
    assert pipeline_of({"step": "choice_letter", "options": "ABCD"}).answer(text) == expected


def test_a_target_that_is_no_option_is_a_fault() -> None:
    """It is told before anything is asked."""
    assert pipeline_of({"step": "choice_letter", "options": "ABCD"}).fault("E") == "choice_letter"
    assert pipeline_of({"step": "one_of", "labels": ["yes", "no"]}).fault("maybe") == "one_of"
    assert pipeline_of({"step": "regex", "pattern": "x"}).fault("E") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The  Cat, sat!", "cat sat"), ("U.S.A.", "usa"), ("A", "a"), ("+", "+"), ("", ""), ("an answer", "answer")],
)
def test_squad(text: str, expected: str) -> None:
    """As SQuAD compares; what would leave nothing stays."""
    assert pipeline_of("squad").answer(text) == expected


def test_replace() -> None:
    """Every one, in answers and targets."""
    pipeline = pipeline_of({"step": "replace", "old": "°", "new": " degrees"})
    assert pipeline.answer("90° and 45°") == "90 degrees and 45 degrees"
    assert pipeline.target("90°") == "90 degrees"
    assert pipeline_of({"step": "replace", "old": "°"}).answer("90°") == "90"


def test_every_step_is_documented() -> None:
    """With each of its parameters, in the table of docs/tasks.md."""
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("|")]
    for name, parameters in STEPS.items():
        told = [where for names, where in rows if f"`{name}`" in names]
        assert told, name
        assert all(f"`{field}`" in told[-1] for field in parameters.__struct_fields__), name
