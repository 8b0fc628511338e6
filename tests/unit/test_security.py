"""What docs/security.md says is held, where no other test shows it; and that the page names only tests that exist."""

from __future__ import annotations

import ast
import gzip
import os
import re
import signal
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from shared import claims
from shared.config import DatasetConfig, ModelConfig
from shared.errors import SuiteError, TandemError
from shared.layout import WorkDir
from shared.reload import read_again
from shared.suite import submitted_suite
from shared.tasks import read_tasks, rows
from shared.tasks.mapping import RowError, compile_template
from tests.daemons.by_hand import beating, planned, publish, right
from tests.fuzz.readers import READERS, Reader
from tests.harness import evald, inferd, submit, task, write_suite

ROOT = Path(__file__).parents[2]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What hangs is broken off and fails."""

    def late(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"hung for {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- what is planted in a work_dir ------------------------------------------------------------------------------------

PLANTED: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
    "device without end": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to nowhere": lambda path: path.symlink_to(path.parent / "nowhere"),
}
FROM_THE_WORK_DIR = [reader for reader in READERS if reader.name != "mounts"]


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("reader", FROM_THE_WORK_DIR, ids=lambda reader: reader.name)
def test_what_is_no_file_holds_no_reader_up(reader: Reader, kind: str, tmp_path: Path) -> None:
    """Case lock-file-is-fifo: each reader goes on or says so; none waits for a writer, or reads what never ends."""
    path = tmp_path / reader.path
    path.parent.mkdir(parents=True, exist_ok=True)
    PLANTED[kind](path)
    with within(5):
        try:
            reader.read(tmp_path)
        except (TandemError, OSError):
            pass  # what the place says to its caller


@pytest.mark.parametrize(
    "name", ["Plan", "Heartbeat", "InferStatus", "Command", "owner of a claim", "suite", "control"]
)
def test_a_huge_file_is_not_read_into_memory(name: str, tmp_path: Path) -> None:
    """Case lock-file-is-fifo: 2 GB that take no room on the disk."""
    reader = next(reader for reader in READERS if reader.name == name)
    path = tmp_path / reader.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, 2 << 30)
    tracemalloc.start()
    try:
        with within(20):
            try:
                reader.read(tmp_path)
            except TandemError:
                pass  # it says so
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_claim_writes_through_no_link(tmp_path: Path) -> None:
    """Case lock-file-is-fifo: what a planted link points to keeps its content."""
    victim = tmp_path / "precious"
    victim.write_text("precious")
    path = WorkDir(tmp_path / "work").evald_claim
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    path.with_name(path.name + ".owner").symlink_to(victim)
    with within(5):
        try:
            claim = claims.take(path)
        except OSError:
            claim = None
    if claim is not None:
        claim.release()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["FIFO", "folder"])
def test_a_claim_that_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "claims" / "evald.lock"
    path.parent.mkdir()
    PLANTED[kind](path)
    with within(5):
        assert claims.held(path) in (None, False)


def test_an_owner_nested_without_end_is_another_process(tmp_path: Path) -> None:
    path = tmp_path / "evald.lock"
    path.with_name("evald.lock.owner").write_bytes(b'{"x":' + b"[" * 4000)
    assert claims.owner(path) == "another process"


@pytest.mark.parametrize("kind", ["FIFO", "device without end"])
def test_a_planted_suite_is_no_settings(tmp_path: Path, kind: str) -> None:
    """The daemons read their settings from the work_dir's suite, again when they are told to reload."""
    work = WorkDir(tmp_path)
    PLANTED[kind](work.suite)
    with within(5):
        with pytest.raises(SuiteError, match="not a regular file"):
            submitted_suite(work.suite)
        with pytest.raises(TandemError, match="not a regular file"):
            read_again(work, None)


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    """Whatever a model or dataset is called, its files lie in the work_dir."""
    work = WorkDir(tmp_path)
    for name in (
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        ".",
        "a/../../b",
        "a\\..\\b",
        "\u2025/x",
        "%2e%2e/x",
        "a\nb\x00",
    ):
        for path in (
            *(work.predictions(name, name), work.infer_status(name, name), work.result(name, name)),
            *(work.tasks(name), work.samples(name, name), work.shard_claim(name, name), work.log("inferd", name)),
        ):
            assert path.is_relative_to(tmp_path)
            assert Path(os.path.normpath(path)) == path
            assert path.name.isascii()
            assert path.name.isprintable()


def test_a_umask_takes_away_and_gives_nothing(tmp_path: Path) -> None:
    """Of a real run: with umask 077 all of it is its user's alone."""
    suite = write_suite(tmp_path / "suite", [{"abbr": "r", "type": "rule"}], {"d": [task(0)]})
    work = WorkDir(tmp_path / "work")
    before = os.umask(0o077)
    try:
        submit(suite, work)
        assert inferd(work).wait() == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in work.root.rglob("*")}
    assert len(modes) > 5
    assert {name for name, mode in modes.items() if mode & 0o077} == set()


@pytest.mark.parametrize("kind", ["FIFO", "folder", "device without end"])
def test_planted_predictions_are_not_scored(tmp_path: Path, kind: str) -> None:
    """evald ends, with the pair that isn't scored told, and no number."""
    work = planned(tmp_path, {"d": 2}, eval={"startup_timeout": 1.0, "heartbeat_timeout": 1.0, "watch_interval": 0.2})
    publish(work, right(2))
    path = work.predictions("m", "d")
    path.unlink()
    PLANTED[kind](path)
    with beating(work):
        pass
    process = evald(work)
    assert process.wait(40) == 3, process.err
    assert not work.result("m", "d").exists()


# --- what is written elsewhere: prompts, datasets, texts of models ----------------------------------------------------

ESCAPES = [
    "{{ q.__class__ }}",
    "{{ q|attr('__class__') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ '{0.__class__.__mro__}'.format(q) }}",
    "{{ '%s'|format(q)|attr('__init__') }}",
    "{{ self.__init__.__globals__ }}",
    "{% import 'os' as os %}{{ os }}",
    "{% include '/etc/passwd' %}",
    "{{ lipsum.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace.__init__.__globals__ }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_prompt_template_gets_at_nothing(template: str) -> None:
    """Templates come with suites, which may come from elsewhere."""
    with pytest.raises((RowError, SuiteError, ValueError)):
        compile_template(template)({"q": "x"})


def test_a_row_is_no_template() -> None:
    """A dataset's text is put into the prompt as it is."""
    text = "{{ 7 * 7 }}{% for x in range(9) %}y{% endfor %}"
    assert compile_template("Q: {{ q }}")({"q": text}) == f"Q: {text}"


@pytest.mark.parametrize(
    ("name", "start"), [("d.jsonl.gz", b'{"q": "'), ("d.csv.gz", b'question\n"'), ("d.json.gz", b"[")]
)
def test_a_packed_dataset_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, start: bytes
) -> None:
    """A bomb: what is unpacked has a largest row, and a largest array."""
    monkeypatch.setattr(rows, "MAX_ROW", 1 << 20)
    monkeypatch.setattr(rows, "MAX_ARRAY", 1 << 20)
    path = tmp_path / name
    with gzip.open(path, "wb", 1) as file:
        file.write(start)
        for _ in range(256):
            file.write(b" " * (1 << 20))
    assert path.stat().st_size < 2 << 20
    tracemalloc.start()
    try:
        with within(20), pytest.raises(SuiteError, match="longer than 1,048,576 bytes"):
            list(read_tasks(DatasetConfig(abbr="d", path=name), path))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


# --- what leaves the machine ------------------------------------------------------------------------------------------


def test_nothing_turns_the_check_of_certificates_off() -> None:
    """libcurl checks by default (tests/real/test_transport.py sees it refuse); no option and no code says otherwise."""
    sources = [path for package in ("shared", "inferd", "evald", "evalctl") for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 100
    off = re.compile(r"SSL_VERIFY|CERT_NONE|_create_unverified_context|check_hostname\s*=\s*False|verify\s*=\s*False")
    assert [str(path) for path in sources if off.search(path.read_text("utf-8"))] == []
    assert not {name for name in ModelConfig.__struct_fields__ if "verify" in name or "insecure" in name}


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_names_tests_that_exist() -> None:
    """A line of the threat model without a test is a wish."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    named = re.findall(r"`(tests/[a-z_/]+\.py)(?:::(test_\w+))?`", page)
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not name or name in there, f"{file}::{name}"
    lines = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| threat", "| -"))]
    assert len(lines) > 15
    assert [line for line in lines if "`tests/" not in line] == []
