"""The report's texts: digits, marks, and that names and reasons from files and models do no harm."""

from __future__ import annotations

import csv
import io
import json

import pytest
from msgspec.structs import replace
from rich.console import Console

from evalctl.tables import clean, leaderboard_table, plain
from evald.leaderboard import Fault, Report
from evald.report import numbers
from evald.report.csv import COLUMNS, leaderboard_csv
from evald.report.markdown import markdown
from evald.stats import Interval
from shared.records import encode_record
from tests.unit.test_leaderboard import board, result_of

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "a\r\nb\x00c\x08",
    "[bold]markup[/bold] [link=http://x]y[/link]",
    "| cell | <script>alert(1)</script> `code` ![i](http://x) **b** \\",
    "\u202egnp.exe\u2028next\u0085line",
    "\x9b31m",
    "_it_ __bold__ @someone me@example.org http://x.example www.x.example",
    "# heading",
    "- item",
    "+ item",
    "> quotation",
    "1. item",
]


def hostile(text: str) -> Report:
    """A report in which model, dataset and reasons are that text."""
    name = f"m{text}"
    report = board([name, "ok"], {text: 2}, {("ok", text): result_of(1, 2)}, {(name, text): text})
    return replace(report, errors=(*report.errors, Fault(model=name, dataset=text, stage="task", reason=text)))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_harmless_on_a_terminal(text: str) -> None:
    """No control character reaches the terminal but rich's own colours, and markup is shown as it is."""
    out = io.StringIO()
    Console(file=out, force_terminal=False, width=300).print(leaderboard_table(hostile(text)))
    assert all(char.isprintable() or char == "\n" for char in out.getvalue())
    assert clean(text).split()[0] in out.getvalue()
    assert plain(text).plain == clean(text)
    assert len(clean(text)) == len(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_harmless_in_markdown(text: str) -> None:
    """One line each, no control character, no HTML, no cell more than the head has, no link or code."""
    page = markdown(hostile(text))
    assert all(char.isprintable() or char == "\n" for char in page)
    assert "<script>" not in page
    assert "![i]" not in page
    table = [line for line in page.split("\n") if line.startswith("| ")]
    leaderboard = table[:4]
    assert len({line.replace("\\|", "").count("|") for line in leaderboard}) == 1
    assert not any(line.startswith(("next", "b", "cell")) for line in page.split("\n"))


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("# h", "\\# h"),
        ("- x", "\\- x"),
        ("+ x", "\\+ x"),
        ("> x", "&gt; x"),
        ("1. x", "1\\. x"),
        ("12) x", "12\\) x"),
        ("---", "\\---"),
        ("_x_ __y__", "\\_x\\_ \\_\\_y\\_\\_"),
        ("@x", "@&#8203;x"),
        ("http://x", "http:&#8203;//x"),
        ("www.x.org", "www&#8203;.x.org"),
        ("my_model-1.5", "my_model-1.5"),
        ("-3.4", "-3.4"),
        ("+1.2", "+1.2"),
    ],
)
def test_markdown_acts_on_nothing_in_a_cell(text: str, harmless: str) -> None:
    """What would begin a block, mark or link is kept from it; ordinary names and numbers stand as they are."""
    page = markdown(board([text], {"d": 2}, {(text, "d"): result_of(1, 2)}))
    assert f"| {harmless} |" in page


@pytest.mark.parametrize("text", [*HOSTILE, "=1+1", "+cmd", "-2", "@x", "\t=1", " =1"])
def test_hostile_texts_are_harmless_in_csv(text: str) -> None:
    """A row stays a row, no cell begins a formula, and `cat` shows no control character."""
    page = leaderboard_csv(hostile(text))
    assert all(char.isprintable() or char == "\n" for char in page)
    rows = list(csv.reader(io.StringIO(page)))
    assert [len(row) for row in rows] == [len(COLUMNS)] * 3
    assert not any(cell.lstrip().startswith(("=", "+", "-", "@")) for row in rows for cell in row)


def test_csv_leaves_empty_what_is_not_known() -> None:
    """`nan-poisons-ranking`: None is an empty cell; numbers stand in full."""
    report = board(["a", "b"], {"d": 3}, {("a", "d"): result_of(1, 3)}, {("b", "d"): "gone"})
    rows = list(csv.DictReader(io.StringIO(leaderboard_csv(report))))
    assert (rows[0]["rank"], rows[0]["mean"], rows[0]["n"], rows[0]["state"]) == ("1", str(1 / 3), "3", "scored")
    assert [rows[1][name] for name in ("rank", "mean", "stderr", "low", "high")] == [""] * 5
    assert (rows[1]["state"], rows[1]["reason"], rows[1]["n_docs"]) == ("missing", "gone", "3")


def test_marks_are_explained() -> None:
    """A star says that docs are missing, a dash that the pair is; below the table stands what and why."""
    report = board(["a", "b"], {"d": 10}, {("a", "d"): result_of(6, 8, 10)}, {("b", "d"): "inferd died"})
    page = markdown(report)
    assert "75.0\\*" in page
    assert "a x d: 2 of 10 docs have no score; with them it lies in 60.0 to 80.0" in page
    assert "b x d (score): inferd died" in page
    assert "Ranked by score: mean over datasets" in page
    assert "\u2013" in page


def test_json_is_strict() -> None:
    """A strict parser reads report.json's text, and an empty run has one too."""
    for report in (hostile("x"), board([], {}, {}), board(["m"], {"d": 0}, {("m", "d"): result_of(0, 0)})):
        text = encode_record(report).decode()
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        markdown(report)
        leaderboard_csv(report)


def test_numbers() -> None:
    """A share is never rounded to all or none when it isn't; what isn't known is a dash."""
    assert [numbers.share(x) for x in (0.0, 0.0001, 0.5, 0.99951, 1.0)] == [
        "0.0%",
        "<0.1%",
        "50.0%",
        ">99.9%",
        "100.0%",
    ]
    assert numbers.score(None) == numbers.span(None) == numbers.plain(None) == numbers.seconds(None) == "\u2013"
    assert numbers.score(0.4213) == "42.1"
    assert numbers.span(Interval(0.0, 0.133192)) == "0.0 to 13.3"
