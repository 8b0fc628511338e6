"""Where files lie: every pair has its own, nobody else's are taken for ours."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.layout import WorkDir
from shared.names import safe_name

CLAIM = "0123456789abcdef" * 2
OTHER = "f" * 32

names = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    st.lists(
        st.sampled_from(
            ["d", "tmp_", ".", "scores", "json", "jsonl", "lock", "owner", "/", "_0", "%2E", "shards", CLAIM]
        ),
        min_size=1,
        max_size=5,
    ).map("".join),
).filter(lambda name: _has_file_name(name))


def _has_file_name(name: str) -> bool:
    try:
        return bool(safe_name(name))
    except ValueError:
        return False


def _files(work: WorkDir, model: str, dataset: str) -> list[Path]:
    """Every file of one pair, with what `claims` puts beside a lock."""
    lock = work.shard_claim(model, dataset)
    return [
        work.infer_status(model, dataset),
        work.predictions(model, dataset),
        work.journal(model, dataset, CLAIM),
        work.eval_status(model, dataset),
        work.result(model, dataset),
        work.scores(model, dataset),
        lock,
        lock.with_name(lock.name + ".owner"),
    ]


def _shared(work: WorkDir) -> list[Path]:
    """The files that belong to no pair."""
    locks = [work.inferd_claim(), work.inferd_claim("x"), work.evald_claim, work.plan_claim]
    return [
        work.suite,
        work.plan,
        work.infer_heartbeat(),
        work.infer_heartbeat("x"),
        work.eval_heartbeat,
        work.report_json,
        work.report_md,
        work.leaderboard_csv,
        work.model_log("m"),
        work.log("inferd", "host"),
        *locks,
        *(lock.with_name(lock.name + ".owner") for lock in locks),
    ]


def test_it_only_joins() -> None:
    """A WorkDir of a folder that isn't there makes none, and its root is absolute."""
    work = WorkDir("no/such/folder")
    assert work.root == Path.cwd() / "no/such/folder"
    assert str(work) == str(work.root)
    assert work.journals("m", "d") == []
    assert work.finished_predictions() == set()
    assert all(path.is_relative_to(work.root) for path in [*_files(work, "m", "d"), *_shared(work)])
    assert not Path("no").exists()


@given(st.tuples(names, names), st.tuples(names, names))
@example(("m", "d"), ("m", "d.scores"))
@example(("m", "d.lock"), ("m", "d"))
@example(("m", "d"), ("m", f"d.{CLAIM}"))
@example(("m/d", "x"), ("m", "d/x"))
@example(("shards", "a"), ("a", "shards"))
@example(("m", "tmp_d"), ("m", "d"))
def test_pairs_never_share_a_file(one: tuple[str, str], two: tuple[str, str]) -> None:
    """Two pairs have no path in common, nor with what belongs to no pair; one pair's files are all different."""
    work = WorkDir("/w")
    first, second = _files(work, *one), _files(work, *two)
    assert len(set(first)) == len(first)
    assert not set(first) & set(_shared(work))
    if one != two:
        assert not set(first) & set(second)
    assert all(".." not in path.parts and path.is_relative_to(work.root) for path in first)


@given(names, names)
def test_tasks_files_are_apart(one: str, two: str) -> None:
    """Nor do two datasets, as planned or as staged."""
    work = WorkDir("/w")
    assert work.tasks(one) != work.staged_tasks(one)
    if one != two:
        assert not {work.tasks(one), work.staged_tasks(one)} & {work.tasks(two), work.staged_tasks(two)}


def test_journals_are_taken_by_exact_name(tmp_path: Path) -> None:
    """Dataset `a` doesn't take the journals of `a.b`, `a_0` or `tmp_a`, nor files that only look like a journal."""
    work = WorkDir(tmp_path)
    own = [work.journal("m", "a", CLAIM), work.journal("m", "a", OTHER)]
    others = [work.journal("m", name, CLAIM) for name in ("a.b", "a_0", "tmp_a", "A", f"a.{OTHER}", "aa")]
    folder = work.predictions_folder("m")
    strange = [
        folder / f"tmp_a.{name}"
        for name in ("jsonl", f"{CLAIM}.json", f"{CLAIM}.jsonl.bak", f"{CLAIM[:-1]}.jsonl", f"{CLAIM.upper()}.jsonl")
    ]
    folder.mkdir(parents=True)
    for path in [*own, *others, *strange, work.predictions("m", "a"), folder / f".tmp_a.{CLAIM}.jsonl"]:
        path.write_bytes(b"")
    assert work.journals("m", "a") == sorted(own)
    for name in ("a.b", "a_0", "tmp_a", "A", f"a.{OTHER}"):
        assert work.journals("m", name) == [work.journal("m", name, CLAIM)]
    assert work.journals("m", "b") == []
    assert work.journals("other", "a") == []


@given(st.sets(st.tuples(names, names), min_size=1, max_size=4))
def test_finished_predictions_come_back_as_names(pairs: set[tuple[str, str]]) -> None:
    """Whatever the names: listing the folders gives back the pairs, and no journal or temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        work = WorkDir(folder)
        for model, dataset in pairs:
            work.predictions_folder(model).mkdir(parents=True, exist_ok=True)
            work.predictions(model, dataset).write_bytes(b"")
            work.journal(model, dataset, CLAIM).write_bytes(b"")
            work.predictions(model, dataset).with_name(f".{safe_name(dataset)}.jsonl.123.new").write_bytes(b"")
        assert work.finished_predictions() == pairs
        for model, dataset in pairs:
            assert work.journals(model, dataset) == [work.journal(model, dataset, CLAIM)]


def test_foreign_names_are_passed_over(tmp_path: Path) -> None:
    """What somebody else put there is nobody's predictions, whatever its name."""
    work = WorkDir(tmp_path)
    work.predictions_folder("m").mkdir(parents=True)
    work.predictions("m", "d").write_bytes(b"")
    for name in (
        "notes.txt",
        "a b.jsonl",
        "é.jsonl",
        ".hidden.jsonl",
        "con.jsonl",
        "%41.jsonl",
        "x..jsonl",
        "TMP_x.jsonl",
    ):
        (work.predictions_folder("m") / name).write_bytes(b"")
    (work.predictions_root / "a b").mkdir()
    (work.predictions_root / "a b" / "d.jsonl").write_bytes(b"")
    (work.predictions_root / "file").write_bytes(b"")
    with open(bytes(work.predictions_folder("m")) + b"/\xff\xfe.jsonl", "wb"):
        pass
    assert work.finished_predictions() == {("m", "d")}


def test_heartbeats_are_found_by_listing(tmp_path: Path) -> None:
    """Of each inferd, in the order of their names; not evald's, nor one that is just being written."""
    work = WorkDir(tmp_path)
    own = [work.infer_heartbeat(), work.infer_heartbeat("a1"), work.infer_heartbeat("b2")]
    for path in [*own, work.eval_heartbeat, tmp_path / ".infer_heartbeat.12.new", tmp_path / "infer_heartbeats"]:
        path.write_bytes(b"")
    assert work.infer_heartbeats() == sorted(own)


def test_log_files_are_apart_by_daemon_and_host() -> None:
    """Two hosts that append to one file over NFS lose lines."""
    work = WorkDir("/w")
    files = {work.log(daemon, host) for daemon in ("inferd", "evald") for host in ("h1", "h2", "h/1")}
    assert len(files) == 6
    assert {path.parent for path in files} == {work.logs}


@pytest.mark.parametrize("name", ["", "x" * 151, "\ud800"])
def test_a_name_without_a_file_is_refused(name: str) -> None:
    """No path is made up for it."""
    with pytest.raises(ValueError, match="name"):
        WorkDir("/w").predictions(name, "d")
