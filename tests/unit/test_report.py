"""The report's texts: digits, marks, and that names and reasons from files and models do no harm."""

from __future__ import annotations

import csv
import io
import json

import pytest
from msgspec.structs import replace
from rich.console import Console

from evalctl.tables import clean, leaderboard_table, plain
from evald.account import Fault
from evald.calibration import CalibrationBuffer
from evald.leaderboard import Report
from evald.report import numbers
from evald.report.csv import COLUMNS, leaderboard_csv
from evald.report.markdown import markdown
from evald.results import CategoryResult, MetricResult, Served
from evald.stats import Interval
from shared.records import ANSWER_KINDS, PlanGroup, encode_record
from tests.unit.test_leaderboard import board, compared, pattern, plan_of, report_of, result_of

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


def test_what_is_no_ordinary_answer_stands_beside_the_score() -> None:
    """A pair whose requests didn't all end `ok` has a line with the counts, in Markdown and CSV; others have none."""
    odd = result_of(2, 3, outcomes={"ok": 2, "filtered": 1})
    fine = result_of(3, 3, outcomes={"ok": 3})
    report = board(["a", "b"], {"d": 3}, {("a", "d"): odd, ("b", "d"): fine})
    page = markdown(report)
    assert "| model | dataset | ok | filtered |" in page
    assert "| a | d | 2 | 1 |" in page
    assert "| b | d |" not in page
    rows = {row["model"]: row for row in csv.DictReader(io.StringIO(leaderboard_csv(report)))}
    assert [rows["a"][name] for name in ("ok", "filtered", "refused", "error")] == ["2", "1", "0", "0"]
    assert "## Outcomes" not in markdown(board(["b"], {"d": 3}, {("b", "d"): fine}))


def test_each_outcome_that_lists_a_pair_has_a_column() -> None:
    """Requests that nobody made too: a line of nothing but `ok` says nothing."""
    for outcome in (*ANSWER_KINDS, "error", "not_run"):
        if outcome != "ok":
            report = board(["a"], {"d": 3}, {("a", "d"): result_of(2, 2, 3, outcomes={"ok": 2, outcome: 1})})
            page = markdown(report)
            assert f"| model | dataset | ok | {outcome} |" in page.replace("\\", "")
            assert "| a | d | 2 | 1 |" in page
            (row,) = csv.DictReader(io.StringIO(leaderboard_csv(report)))
            assert (row["ok"], row[outcome]) == ("2", "1")


def test_a_model_that_lacks_scores_stands_unranked_below() -> None:
    """`nan-poisons-ranking`: in Markdown, CSV and on a terminal 3 of 6 docs at 100 % have a dash for a rank, below a
    complete 50 %, and it is said why.
    """
    report = board(["part", "full"], {"d": 6}, {("part", "d"): result_of(3, 3, 6), ("full", "d"): result_of(3, 6)})
    page, screen = markdown(report), shown(report)
    assert page.index("| 1 | full |") < page.index("| \u2013 | part |")
    for text in (page, screen):
        flat = " ".join(text.replace("\\", "").split())
        assert "* part: no rank, for want of scores; with them its score lies in 50.0 to 100.0" in flat
        assert "models without a rank lack scores of docs and aren't ranked against the others" in flat
    rows = list(csv.DictReader(io.StringIO(leaderboard_csv(report))))
    assert [(row["model"], row["rank"], row["complete"]) for row in rows] == [
        ("full", "1", "True"), ("part", "", "False"),
    ]  # fmt: skip
    alone = board(["full"], {"d": 6}, {("full", "d"): result_of(3, 6)})
    assert "no rank" not in markdown(alone)
    assert "without a rank" not in markdown(alone)


@pytest.mark.parametrize("text", ["m-2", *HOSTILE])
def test_a_changed_served_model_is_marked(text: str) -> None:
    """The pair is marked in the record and told in words, with how many answers each gave; whatever an endpoint calls
    itself does no harm.
    """
    drifted = result_of(3, 3, served_models=Served(names={text: 60, "m-1": 40}))
    still = result_of(3, 3, served_models=Served(names={"m-1": 100}), system_fingerprints=Served(names={"f": 1}))
    report = board(["a", "b"], {"d": 3}, {("a", "d"): drifted, ("b", "d"): still})
    cells = {standing.model: standing.datasets["d"] for standing in report.leaderboard}
    assert (cells["a"].served_changed, cells["b"].served_changed) == (True, False)
    page = markdown(report)
    assert all(char.isprintable() or char == "\n" for char in page)
    assert "<script>" not in page
    assert len([line for line in page.split("\n") if "a x d: served by" in line]) == 1
    assert "b x d: served" not in page
    out = io.StringIO()
    Console(file=out, force_terminal=False, width=300).print(leaderboard_table(report))
    assert all(char.isprintable() or char == "\n" for char in out.getvalue())
    assert f"a x d: served by {clean(text)[:60]} (60), m-1 (40)" in out.getvalue()
    assert "True" in leaderboard_csv(report)


def test_names_in_words() -> None:
    """The names with the most answers, the others in one number; without counts where they aren't known yet."""
    many = Served(names={f"m{n}": 10 - n for n in range(6)}, others=3)
    assert numbers.drift(many, Served()) == "served by m0 (10), m1 (9), m2 (8), m3 (7), others (14)"
    unknown = Served(names=dict.fromkeys("abcdef", 0))
    assert numbers.drift(unknown, many).startswith("served by a, b, c, d, 2 others; fingerprints m0 (10), ")
    assert numbers.drift(Served(names={"a": 1}, untold=5), Served()) == ""
    assert numbers.wasted(0, 0) == ""
    assert numbers.wasted(2, 3) == "late answers dropped: 2, paid for twice: 3"
    assert numbers.errors({"timeout": 2, "auth": 1, "new": 3}) == "auth 1 (account), new 3, timeout 2 (endpoint)"


def test_failed_attempts_name_whose_fault_they_are() -> None:
    """Below the leaderboard, in Markdown and on a terminal; nothing where nothing failed."""
    report = board(["a"], {"d": 3}, {("a", "d"): result_of(3, 3)})
    failed = replace(report, summary=replace(report.summary, errors={"quota": 1}, late_answers=2, duplicates=2))
    said = "ailed attempts: quota 1 (account), late answers dropped: 2, paid for twice: 2"
    out = io.StringIO()
    Console(file=out, force_terminal=False, width=300).print(leaderboard_table(failed))
    assert said in out.getvalue()
    assert said in markdown(failed)
    assert "ailed attempts" not in markdown(report)


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


# --- statistics -------------------------------------------------------------------------------------------------------


def shown(report: Report) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=False, width=300).print(leaderboard_table(report))
    return out.getvalue()


def test_scores_stand_with_their_errors_and_open_ranks() -> None:
    """In Markdown and on a terminal: score, standard error, interval, and the ranks that comparisons leave open; a row
    for each two models, the one that ranks higher first.
    """
    report = compared({"d": {"c": pattern(60, 200, 20), "a": pattern(148, 200, 5), "b": pattern(150, 200)}})
    page, screen = markdown(report), shown(report)
    assert "| 1 | b | 75.0 ± 3.1 | 68.6 to 80.5 | 1 to 2 |" in page
    assert "| 3 | c | 30.0 ± 3.2 | 24.1 to 36.7 | 3 |" in page
    assert "| b | a | +1.0 ± " in page
    assert "| b | c | +45.0 ± " in page
    assert "| <0.001 | <0.001 | yes |" in page.replace("&lt;", "<")
    for text in ("75.0 ± 3.1", "1 to 2", "+45.0 ± ", "yes", "Holm over all pairs"):
        assert text in screen


def test_what_missing_docs_could_turn_is_told() -> None:
    """A star in the pair table, and a line that names whose order is open."""
    a = pattern(60, 100)
    a[50:55] = [float("nan")] * 5
    report = compared({"d": {"a": a, "b": pattern(57, 100)}})
    assert "a: missing scores could turn its order with b" in markdown(report)
    assert "a: missing scores could turn its order with b" in shown(report)
    assert "no\\* |" in markdown(report) or "yes\\* |" in markdown(report)


def test_what_is_not_compared_or_not_shown_is_said() -> None:
    """Nothing is left out silently: pairs that nobody compared, and rows that only report.json has."""
    report = compared({"d": {f"m{n:02}": pattern(n, 20, n) for n in range(11)}})
    assert "10 more in report.json" in markdown(report)
    assert "... and 45 more rows in report.json" in shown(report)
    fewer = replace(report, pairs_not_compared=7)
    assert "7 more pairs are not compared: only the best models are." in markdown(fewer)
    assert "7 pairs of models are not compared, only the best 40 models" in shown(fewer)


def test_groups_and_categories_stand_with_their_errors() -> None:
    """A row a group and model; a row a category, with n, error and interval for each model; with the bounds where docs
    or repeats are missing, also where all of its docs are.
    """
    plan = replace(plan_of(["a"], {"x": 10, "y": 30}), groups=(PlanGroup(name="both", datasets=("x", "y")),))
    categories = (
        CategoryResult(
            category="logic", n=4, n_docs=5, mean=0.5, stderr=0.288675, interval=Interval(0.15, 0.85),
            coverage=0.8, bounds=Interval(0.4, 0.6),
        ),
        CategoryResult(category="", n=6, n_docs=6, mean=1.0, stderr=0.0, interval=Interval(0.61, 1.0), coverage=1.0),
        CategoryResult(category="lost", n=0, n_docs=3, mean=None, bounds=Interval(0.0, 1.0)),
        CategoryResult(
            category="part", n=2, n_docs=2, n_partial=1, mean=0.5, stderr=0.5, interval=Interval(0.1, 0.9),
            coverage=0.75, bounds=Interval(0.25, 0.75),
        ),
    )  # fmt: skip
    results = {("a", "x"): result_of(8, 10, categories=categories), ("a", "y"): result_of(15, 30)}
    report = report_of(plan, results)
    page = markdown(report)
    assert "| both | a | 2/2 | 40 | 65.0 ± 8.1 | 57.5 ± 7.9 | – |" in page
    assert "| x | logic | 50.0 ± 28.9 \\[15.0 to 85.0\\] of 4/5, bounds 40.0 to 60.0 |" in page
    assert "| x | lost | – of 0/3, bounds 0.0 to 100.0 |" in page
    assert "| x | part | 50.0 ± 50.0 \\[10.0 to 90.0\\] of 2\\*, bounds 25.0 to 75.0 |" in page
    assert "| x | – | 100.0 ± 0.0 \\[61.0 to 100.0\\] of 6 |" in page
    assert "both" in shown(report)
    assert "## Groups" not in markdown(board(["a"], {"d": 2}, {("a", "d"): result_of(1, 2)}))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_of_groups_categories_and_metrics(text: str) -> None:
    """They come from suites and task files, and do no harm either."""
    plan = replace(plan_of([text, "ok"], {"x": 2}), groups=(PlanGroup(name=text, datasets=("x",)),))
    metric = MetricResult(
        name=text, version="1", params={}, n=2, mean=0.5, stderr=0.5, interval=None, correct=1, threshold=1.0,
        corpus={"value": 0.5},
    )  # fmt: skip
    categories = (
        CategoryResult(category=text, n=1, n_docs=1, mean=0.5),
        CategoryResult(category="", n=1, n_docs=1, mean=0.5),
    )
    results = {(model, "x"): result_of(1, 2, metrics=(metric,), categories=categories) for model in (text, "ok")}
    for page in (markdown(report_of(plan, results)),
                 shown(report_of(plan, results))):  # fmt: skip
        assert all(char.isprintable() or char == "\n" for char in page)
    page = markdown(report_of(plan, results))
    assert "<script>" not in page
    assert "![i]" not in page


def test_what_metrics_lack_is_told() -> None:
    """Docs with a score of those that name the metric, and the bounds; a value over the whole dataset that isn't over
    all of it has a star.
    """
    whole = MetricResult(
        name="bleu", version="1", params={}, n=8, n_docs=8, mean=0.5, stderr=0.1, interval=Interval(0.2, 0.8),
        coverage=1.0, bounds=Interval(0.5, 0.5), correct=4, threshold=0.5, corpus={"value": 0.4},
    )  # fmt: skip
    lacking = replace(whole, name="chrf", n=6, n_docs=8, coverage=0.75, bounds=Interval(0.375, 0.625))
    partial = replace(whole, name="ter", n_partial=2, coverage=0.875, bounds=Interval(0.4, 0.6))
    report = board(["m"], {"d": 8}, {("m", "d"): result_of(6, 8, metrics=(whole, lacking, partial))})
    page = markdown(report).replace("\\", "")
    assert "| m | d | bleu | 8 | 50.0 ± 10.0 | 20.0 to 80.0 | – | 40.0 | – |  |" in page
    assert "| m | d | chrf | 6/8 | 50.0 ± 10.0 | 20.0 to 80.0 | 37.5 to 62.5 | 40.0* | – |  |" in page
    assert "| m | d | ter | 8* | 50.0 ± 10.0 | 20.0 to 80.0 | 40.0 to 60.0 | 40.0* | – |  |" in page
    figures = report.leaderboard[0].datasets["d"].metrics[1]
    assert (figures.n, figures.n_docs, figures.coverage, figures.bounds) == (6, 8, 0.75, Interval(0.375, 0.625))


def test_missing_repeats_are_told_as_such() -> None:
    """A model that lacks repeats has a rank and a star; nothing says that it lacks scores or a rank."""
    partial = result_of(3, 6, n_partial=2, coverage=0.75, bounds=Interval(0.25, 0.75))
    report = board(["a", "b"], {"d": 6}, {("a", "d"): partial, ("b", "d"): result_of(2, 6)})
    for text in (" ".join(page.replace("\\", "").split()) for page in (markdown(report), shown(report))):
        assert "a x d: 2 of 6 docs lack some of their repeats; with them it lies in 25.0 to 75.0" in text
        assert "50.0*" in text
        assert "no rank" not in text
        assert "without a rank" not in text


def test_differences_on_each_dataset_stand_in_the_report() -> None:
    """Below those over all of them, with the dataset's name; not where there is one dataset."""
    scores = {"a": pattern(80, 100), "b": pattern(40, 100)}
    page = markdown(compared({"x": scores, "y": {"b": pattern(30, 100), "a": pattern(60, 100)}}))
    assert "## Paired differences by dataset" in page
    assert "| x | a | b | +40.0 ± " in page
    assert "| y | a | b | +30.0 ± " in page
    assert "by dataset" not in markdown(compared({"x": scores}))


def test_why_programs_fail_is_counted() -> None:
    """A table of the pairs whose metric tells, a column for each reason that occurs."""
    one = MetricResult(
        name="code_exec", version="1", params={}, n=4, n_docs=4, mean=0.25, stderr=0.25, interval=None, correct=1,
        threshold=1.0, failures={"timeout": 1, "assertion": 2},
    )  # fmt: skip
    other = replace(one, failures={"memory": 3})
    page = markdown(board(["a", "b", "c"], {"d": 4}, {
        ("a", "d"): result_of(1, 4, metrics=(one,)), ("b", "d"): result_of(1, 4, metrics=(other,)),
        ("c", "d"): result_of(1, 4),
    }))  # fmt: skip
    assert "| model | dataset | metric | assertion | timeout | memory |" in page
    assert "| a | d | code_exec | 2 | 1 | 0 |" in page.replace("\\", "")
    assert "| b | d | code_exec | 0 | 0 | 3 |" in page.replace("\\", "")
    assert "| c | d | code_exec" not in page.replace("\\", "")


def test_calibration_says_what_is_left_out() -> None:
    """`logprobs-null`: 30 of 100 answers without a confidence are counted, named and left out; with none at all every
    figure is a dash and nothing fails.
    """
    buffer, nothing = CalibrationBuffer(), CalibrationBuffer()
    for n in range(100):
        buffer.add(None if n < 30 else 0.05 + n % 10 / 10, n % 3 > 0)
        nothing.add(None, True)
    report = board(
        ["a", "b"],
        {"d": 100},
        {
            ("a", "d"): result_of(66, 100, calibration=buffer.to_record()),
            ("b", "d"): result_of(100, 100, calibration=nothing.to_record()),
        },
    )
    page = markdown(report)
    assert "a: 30 of 100 answers have no confidence and are left out" in page
    assert "b: 100 of 100 answers have no confidence and are left out" in page
    assert page.count("| 0.90 to 1.00 |") == 1
    (row,) = (line for line in page.split("\n") if line.startswith("| b |") and line.endswith("| 0 | 100 |"))
    assert row.count("–") == 9


def test_digits() -> None:
    """p-values never round to 0, a difference of nothing has no minus sign, and spans turn with their sign."""
    assert [numbers.chance(p) for p in (None, 1.0, 0.0499, 0.001, 0.00099, 1e-30)] == [
        "–", "1.000", "0.050", "0.001", "<0.001", "<0.001",
    ]  # fmt: skip
    assert numbers.span(Interval(-0.0001, 0.2), sign=-1) == "-20.0 to 0.0"
    assert numbers.points(0.012, 0.03) == "+1.2 ± 3.0"
    assert numbers.with_error(0.5, None) == "50.0"
