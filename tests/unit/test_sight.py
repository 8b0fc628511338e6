"""`evalctl metrics` and `evalctl top`: the exposition format whatever names say, the file, loopback; a line each."""

from __future__ import annotations

import json
import re
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from evalctl.exposition import CONTENT_TYPE, exposition
from evalctl.main import main
from evalctl.metrics_server import metrics_server
from evalctl.state import State
from evalctl.top import rows_of
from shared.errors import WorkDirError
from shared.layout import WorkDir
from tests.daemons.by_hand import planned, say
from tests.unit.test_why import daemon, pair, scene

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})\{{((?:{NAME}="(?:[^"\\\n]|\\["\\n])*",?)*)\}} (\S+)')
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"')


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples, as the format's grammar has them; each family's HELP and TYPE come before, and no series twice."""
    assert text.endswith("\n")
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    family = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
        elif line.startswith("#"):
            assert line.split(" ")[1:3] == ["TYPE", family]
            assert line.split(" ")[3] in ("gauge", "counter")
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == family
            labels = tuple((key, re.sub(r"\\(.)", _unescaped, value)) for key, value in LABEL.findall(match[2]))
            assert (family, labels) not in found
            found[family, labels] = float(match[3])
    return found


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n"}.get(match[1], match[1])


def busy() -> State:
    one = pair(
        total=9, completed=4, answered=3, attempts=8, in_flight=2, errors={"rate_limited": 5}, failed={"auth": 1},
        outcomes={"ok": 3}, prompt_tokens=70, completion_tokens=30, cost=0.25, rate=1.5, eta_seconds=4.0,
    )  # fmt: skip
    counters = {"in_flight": 2.0, "limit": 4.0, "retries_waiting": 1.0}
    return scene(
        one, pair("e", infer="done", eval="fail"), inferd=daemon(counters=counters), evald=daemon("gone"),
        errors={"rate_limited": 5}, requests=9, answered=3, rate=1.5, eta_seconds=4.0,
    )  # fmt: skip


def test_every_figure_is_there() -> None:
    """Counts, errors by class, tokens, cost, states, beats and counters, by model, dataset and daemon."""
    found = parsed(exposition(busy()))
    of = (("model", "m"), ("dataset", "d"))
    for name, value in {
        "requests": 9, "completed": 4, "answered": 3, "attempts_total": 8, "in_flight": 2, "prompt_tokens_total": 70,
        "completion_tokens_total": 30, "cost_usd_total": 0.25, "rate": 1.5, "eta_seconds": 4.0,
    }.items():  # fmt: skip
        assert found[f"tandem_pair_{name}", of] == value
    assert found["tandem_pair_failed_attempts_total", (*of, ("error", "rate_limited"))] == 5
    assert found["tandem_pair_failed_requests", (*of, ("error", "auth"))] == 1
    assert found["tandem_pair_answers", (*of, ("outcome", "ok"))] == 3
    assert found["tandem_pair_state", (*of, ("stage", "infer"), ("state", "running"))] == 1
    assert found["tandem_pair_state", (*of, ("stage", "infer"), ("state", "done"))] == 0
    who = (("daemon", "inferd"), ("host", "h1"), ("pid", "7"))
    assert found["tandem_daemon_up", who] == 1
    assert found["tandem_daemon_up", (("daemon", "evald"), *who[1:])] == 0
    assert found["tandem_daemon_beats_total", who] == 1
    assert found["tandem_daemon_counter", (*who, ("name", "limit"))] == 4


@given(st.text(st.characters(codec=None), max_size=30), st.dictionaries(st.text(max_size=5), st.floats(), max_size=3))
def test_names_cannot_forge_a_series(name: str, counters: dict[str, float]) -> None:
    """Quotes, newlines, backslashes and halves of surrogate pairs in names and counters: the grammar holds, the name
    comes out as it was, and the series are as many as ever.
    """
    state = busy()
    hostile = structs.replace(
        state,
        pairs=(structs.replace(state.pairs[0], dataset=name),),
        inferd=(structs.replace(state.inferd[0], host=name, counters=counters),),
    )
    text = exposition(hostile)
    text.encode()
    found = parsed(text)
    shown = name.encode(errors="replace").decode()
    assert ("tandem_pair_requests", (("model", "m"), ("dataset", shown))) in found
    assert sum(family == "tandem_daemon_counter" for family, _ in found) == len(counters)


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    made = planned(tmp_path, {"d": 2})
    say(made, b"", state="running", completed=1, attempts=3)
    return made


def test_the_file_is_replaced_whole(work: WorkDir, tmp_path: Path) -> None:
    """What is printed without --file; readable for others; nothing half-written is left beside it."""
    folder = tmp_path / "textfile"
    folder.mkdir()
    file = folder / "tandem.prom"
    file.write_text("old")
    said = CliRunner().invoke(main, ["metrics", "-w", str(work), "--file", str(file)])
    assert (said.exit_code, said.output) == (0, "")
    printed = CliRunner().invoke(main, ["metrics", "-w", str(work)])
    assert file.read_text() == printed.output
    assert parsed(printed.output)["tandem_pair_attempts_total", (("model", "m"), ("dataset", "d"))] == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--file", "f", "--serve", "0"], "not both"),
        (["--watch"], "--watch needs --file"),
        (["--serve", "70000"], "70000"),
    ],
)
def test_bad_usage(work: WorkDir, options: list[str], told: str) -> None:
    """Exit status 2, and how it would be."""
    said = CliRunner().invoke(main, ["metrics", "-w", str(work), *options])
    assert said.exit_code == 2
    assert told in said.output


@contextmanager
def served(look: Any) -> Iterator[str]:
    with metrics_server(0, look) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://{server.server_address[0]}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def fetched(url: str) -> tuple[int, str, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_served_on_loopback() -> None:
    """/metrics anew each time, 503 with the reason while the folder can't be read, 404 elsewhere; no other address."""
    said: list[Any] = ["a 1\n", WorkDirError("the mount is away"), "a 2\n"]

    def look() -> str:
        if isinstance(found := said.pop(0), Exception):
            raise found
        return str(found)

    with served(look) as url:
        assert url.startswith("http://127.0.0.1:")
        assert fetched(f"{url}/metrics") == (200, CONTENT_TYPE, "a 1\n")
        assert fetched(f"{url}/metrics")[::2] == (503, "the mount is away\n")
        assert fetched(f"{url}/metrics?x=1")[::2] == (200, "a 2\n")
        assert fetched(f"{url}/../../etc/passwd")[0] == 404


def test_a_row_a_daemon() -> None:
    """Host, state, in flight and limit, rate, errors and ETA; a beat that doesn't change is silent."""
    state = busy()
    asks, scores = rows_of(state)
    assert (asks.daemon, asks.host, asks.state, asks.in_flight, asks.limit) == ("inferd", "h1", "running", 2, 4)
    assert (asks.rate, asks.errors, asks.eta_seconds, asks.retries_waiting) == (1.5, 5, 4.0, 1)
    assert (scores.daemon, scores.state, scores.in_flight, scores.errors) == ("evald", "gone", 0, 1)
    hung = structs.replace(state, inferd=(structs.replace(state.inferd[0], beat_seconds=16.0),))
    assert rows_of(hung)[0].state == "silent"


def test_top_over_a_root(work: WorkDir, tmp_path: Path) -> None:
    """Every work_dir below, one that can't be read with its reason; text and JSON; no such root: exit status 2."""
    broken = tmp_path / "deep" / "broken"
    broken.mkdir(parents=True)
    (broken / "plan.json").write_text("{")
    said = CliRunner().invoke(main, ["top", str(tmp_path), "--once"], env={"COLUMNS": "200"})
    assert said.exit_code == 0, said.output
    assert "unreadable" in said.output
    found = json.loads(CliRunner().invoke(main, ["top", str(tmp_path), "--once", "--json"]).output)
    assert set(found) == {"schema", "root", "as_of", "rows"}
    assert [(Path(row["work_dir"]).name, row["daemon"], row["state"]) for row in found["rows"]] == [
        ("broken", "", "unreadable"), ("work", "inferd", "not started"), ("work", "evald", "not started"),
    ]  # fmt: skip
    assert CliRunner().invoke(main, ["top", str(tmp_path / "missing"), "--once"]).exit_code == 2
