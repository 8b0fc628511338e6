"""Commands by files: what is taken in, what is left alone and told of once, and what evalctl refuses to give."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from evalctl.control import Refusal, Wanted, Word, give, prepare
from evalctl.control_commands import COMMANDS
from evalctl.runs import read_runs
from shared import claims, control
from shared.clock import ManualClock, SystemClock
from shared.config import InferConfig
from shared.control import Inbox, Refused, answer
from shared.errors import UsageError
from shared.heartbeat import ACKNOWLEDGED, HeartbeatWriter
from shared.layout import WorkDir
from shared.records import Acknowledgement, Command, encode_record
from shared.reload import INFER_FIXED, merge, read_again
from shared.status import read_record
from shared.suite import asked_for
from tests.daemons.by_hand import planned
from tests.harness import heartbeat

BOOT = "b00t"


def command(command_id: str = "1-a", boots: tuple[str, ...] = (BOOT,), name: str = "pause") -> Command:
    return Command(id=command_id, command=name, boots=boots, time="", by="ann@h1")  # type: ignore[arg-type]


def put(work: WorkDir, *commands: Command) -> None:
    work.control.mkdir(parents=True, exist_ok=True)
    for one in commands:
        work.command(one.id).write_bytes(encode_record(one))


class Told:
    """Of what was refused."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.reasons: list[str] = []

    def __call__(self, name: str, reason: str) -> None:
        self.names.append(name)
        self.reasons.append(reason)


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    made = WorkDir(tmp_path / "work")
    made.control.mkdir(parents=True)
    return made


# --- what a daemon takes in -------------------------------------------------------------------------------------------


def test_a_command_is_taken_once_by_whom_it_is_for(work: WorkDir) -> None:
    told = Told()
    mine, theirs = Inbox(work, BOOT, told), Inbox(work, "another", told)
    put(work, command("2-b"), command("1-a"), command("3-c", boots=("another", BOOT)), command("0-old", boots=("old",)))
    assert [one.id for one in mine.look()] == ["1-a", "2-b", "3-c"]
    assert [one.id for one in theirs.look()] == ["3-c"]
    assert mine.look() == theirs.look() == []
    assert told.names == []


def test_hostile_files_are_refused_once_and_hold_nothing_up(work: WorkDir, tmp_path: Path) -> None:
    """Garbage, huge and nested JSON, another schema, links, pipes, folders, names that lead elsewhere, ids that aren't
    theirs. (Cases lock-file-is-fifo, lock-file-garbage.)
    """
    folder = work.control
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0")
    (folder / "garbage.json").write_bytes(b"\x00\xff{[")
    (folder / "empty.json").write_bytes(b"")
    (folder / "nested.json").write_bytes(b'{"schema":1,"id":' + b"[" * 60_000)
    (folder / "schema.json").write_bytes(encode_record(command("schema")).replace(b'"schema":1', b'"schema":99'))
    (folder / "extra.json").write_bytes(encode_record(command("extra"))[:-1] + b',"run":"rm"}')
    (folder / "unknown.json").write_bytes(encode_record(command("unknown")).replace(b"pause", b"explode"))
    (folder / "other.json").write_bytes(encode_record(command("another")))
    (folder / "escape.json").write_bytes(encode_record(command("escape")).replace(b"ann@h1", b"\\u001b[2J"))
    (folder / "name with spaces.json").write_bytes(b"{}")
    (folder / "no-json").write_bytes(b"{}")
    with (folder / "huge.json").open("wb") as file:
        file.truncate(2 << 30)
    os.symlink(secret, folder / "link.json")
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    put(work, command("good"))
    told = Told()
    inbox = Inbox(work, BOOT, told)
    assert [one.id for one in inbox.look()] == ["good"]
    assert set(told.names) == set(os.listdir(folder)) - {"good.json"}
    assert inbox.look() == []
    assert len(told.names) == len(set(told.names)) == 14
    assert "root:x" not in "".join(told.reasons)


def test_a_half_written_file_is_left_to_its_writer(work: WorkDir) -> None:
    told = Told()
    (work.control / ".1-a.json.0badcafe-1.new").write_bytes(b"{")
    assert Inbox(work, BOOT, told).look() == []
    assert told.names == []


def test_what_cant_be_read_now_is_read_later(work: WorkDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """ESTALE and the like end nothing; what never can be read is told of at last. (Case lock-estale.)"""
    told = Told()
    inbox = Inbox(work, BOOT, told)
    put(work, command())
    real = read_record

    def fails(*_: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(control, "read_record", fails)
    assert [inbox.look() for _ in range(control.TRIES - 1)] == [[]] * (control.TRIES - 1)
    assert told.names == []
    monkeypatch.setattr(control, "read_record", real)
    assert [one.id for one in inbox.look()] == ["1-a"]
    put(work, command("2-b"))
    monkeypatch.setattr(control, "read_record", fails)
    for _ in range(2 * control.TRIES):
        assert inbox.look() == []
    assert told.names == ["2-b.json"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """A folder that somebody planted gets no file; where a file lies in its place, daemons hear nothing, and go on."""
    work, elsewhere = planned(tmp_path, {"d": 1}), tmp_path / "elsewhere"
    elsewhere.mkdir()
    work.control.symlink_to(elsewhere)
    beat = HeartbeatWriter(work.infer_heartbeat(), SystemClock(), 60.0)
    beat.start()
    claim = claims.take(work.inferd_claim())
    assert claim is not None
    with claim:
        with pytest.raises(Refusal, match="a link"):
            give(work, Wanted("pause"), SystemClock(), wait=lambda _: None, timeout=0.0)
        assert list(elsewhere.iterdir()) == []
        work.control.unlink()
        work.control.write_text("not a folder")
        with pytest.raises(Refusal, match="must be a folder that"):
            give(work, Wanted("pause"), SystemClock(), wait=lambda _: None, timeout=0.0)
    beat.finish("finished")
    with pytest.raises(OSError, match="control"):
        Inbox(work, BOOT, Told()).look()  # the listener looks again later


def test_a_flooded_folder_is_told_of_once(work: WorkDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LISTED", 10)
    monkeypatch.setattr(control, "AT_ONCE", 4)
    put(work, *(command(f"{n:03}") for n in range(30)))
    told = Told()
    inbox = Inbox(work, BOOT, told)
    taken = [one.id for _ in range(5) for one in inbox.look()]
    assert len(taken) == len(set(taken)) == 10
    assert len(told.names) == 1


@settings(max_examples=300)
@given(st.binary(max_size=300), st.booleans())
def test_no_content_breaks_a_daemon(tmp_path_factory: pytest.TempPathFactory, data: bytes, damaged: bool) -> None:
    """Random bytes, and a good command with random bytes in it."""
    work = WorkDir(tmp_path_factory.getbasetemp() / "fuzz")
    work.control.mkdir(parents=True, exist_ok=True)
    good = encode_record(command())
    cut = len(data) % len(good)
    work.command("1-a").write_bytes(good[:cut] + data + good[cut:] if damaged else data)
    told = Told()
    assert len(Inbox(work, BOOT, told).look()) + len(told.names) <= 1


def test_a_refusal_is_an_answer() -> None:
    def refuse(_: Command) -> str:
        raise Refused("it is paused already")

    assert answer(command(), lambda one: one.command + "d") == Acknowledgement(
        id="1-a", command="pause", obeyed=True, text="paused"
    )
    word = answer(command(), refuse)
    assert (word.obeyed, word.text) == (False, "it is paused already")


def test_a_beat_tells_the_last_commands(tmp_path: Path) -> None:
    beat = HeartbeatWriter(tmp_path / "beat", SystemClock(), 60.0)
    for number in range(ACKNOWLEDGED + 3):
        beat.acknowledge(Acknowledgement(id=str(number), command="pause", obeyed=True))
    beat.start()
    beat.finish("finished")
    written = heartbeat(tmp_path / "beat")
    assert written is not None
    assert [word.id for word in written.acknowledged] == [str(number) for number in range(3, ACKNOWLEDGED + 3)]


# --- what evalctl gives -----------------------------------------------------------------------------------------------


def test_what_cant_be_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """Unknown names, nobody at work, already so: with the reason, and nothing in the folder."""
    work = planned(tmp_path, {"d": 1})
    clock = SystemClock()
    with pytest.raises(Refusal, match="no inferd is at work"):
        prepare(work, Wanted("pause"), clock)
    with pytest.raises(UsageError, match="did you mean m/d"):
        prepare(work, Wanted("cancel", pair="m/dd"), clock)
    with pytest.raises(UsageError, match="no such model"):
        prepare(work, Wanted("retune", model="x", max_workers=3), clock)
    with pytest.raises(UsageError, match="one line"):
        prepare(work, Wanted("cancel", pair="m/d", reason="two\nlines"), clock)
    with pytest.raises(UsageError, match="no plan"):
        prepare(WorkDir(tmp_path / "nowhere"), Wanted("pause"), clock)
    beat = HeartbeatWriter(work.infer_heartbeat(), clock, 60.0)
    beat.start()
    with pytest.raises(Refusal, match="no inferd is at work"):  # its beat says so, its claim doesn't
        prepare(work, Wanted("pause"), clock)
    claim = claims.take(work.inferd_claim())
    assert claim is not None
    with claim:
        assert prepare(work, Wanted("pause"), clock).command.boots == (beat.boot_id,)
        with pytest.raises(Refusal, match="isn't paused"):
            prepare(work, Wanted("resume"), clock)
    beat.finish("finished")
    assert not work.control.exists()


def test_a_command_that_nobody_heeds_is_said_to_be_so(tmp_path: Path) -> None:
    """It stays for who may yet come to see it; the next command sweeps it away once that daemon is gone."""
    work, clock = planned(tmp_path, {"d": 1}), ManualClock()
    beat = HeartbeatWriter(work.infer_heartbeat(), SystemClock(), 60.0)
    beat.start()
    claim = claims.take(work.inferd_claim())
    assert claim is not None
    with claim:
        ended = give(work, Wanted("pause"), clock, wait=clock.advance, timeout=5.0)
        assert (ended.obeyed, [word.outcome for word in ended.daemons]) == (False, ["silent"])
        path = work.command(ended.command.id)
        assert json.loads(path.read_bytes())["command"] == "pause"
        assert path.stat().st_mode & 0o444 == 0o444  # daemons are often another user
    died = give_after(work, beat, clock)
    assert [word.outcome for word in died] == ["ended"]
    assert not path.exists()


def give_after(work: WorkDir, first: HeartbeatWriter, clock: ManualClock) -> tuple[Word, ...]:
    """A command to a second start, which ends before it acknowledges."""
    second = HeartbeatWriter(work.infer_heartbeat(), SystemClock(), 60.0)
    second.start()
    claim = claims.take(work.inferd_claim())
    assert claim is not None

    def wait(seconds: float) -> None:
        claim.release()
        clock.advance(seconds)

    words = give(work, Wanted("drain"), clock, wait=wait, timeout=5.0).daemons
    first.finish("aborted")
    second.finish("aborted")
    return words


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_each_command_explains_itself(command: click.Command) -> None:
    """With an example, and with what it shares with the others."""
    shown = CliRunner().invoke(command, ["--help"], terminal_width=200).output
    assert f"Example: evalctl {command.name} " in shown
    assert all(option in shown for option in ("--dry-run", "--json", "--timeout", "--work-dir"))


# --- what may change while it runs ------------------------------------------------------------------------------------

SUITE = b'[[models]]\nabbr = "m"\ntype = "rule"\nmax_workers = 2\n[[datasets]]\nabbr = "d"\npath = "d.jsonl"\n'


def test_a_plan_hangs_on_what_is_asked_alone() -> None:
    same = [
        SUITE.replace(b"max_workers = 2\n", b""),
        SUITE + b"[infer]\npoll_interval = 9.0\n[eval]\nwatch_interval = 1.0\n",
        b"# a comment\n" + SUITE,
    ]
    assert {asked_for(text) for text in same} == {asked_for(SUITE)}
    for text in (SUITE.replace(b'"d"', b'"e"'), SUITE + b"[budget]\nusd = 1.0\n", SUITE.replace(b"rule", b"noisy")):
        assert asked_for(text) != asked_for(SUITE)


def test_settings_are_taken_over_or_named() -> None:
    wanted = InferConfig(poll_interval=9.0, attempt_timeout=9.0, drain_timeout=30.0)
    merged, change = merge(InferConfig(), wanted, INFER_FIXED)
    assert merged == InferConfig(poll_interval=9.0)
    assert str(change) == "poll_interval = 9.0; at the next start: attempt_timeout"
    assert str(merge(merged, merged, INFER_FIXED)[1]) == "nothing changed"


def test_a_suite_that_is_wrong_or_another_changes_nothing(work: WorkDir) -> None:
    with pytest.raises(Refused, match="can't be read"):
        read_again(work, SUITE)
    work.suite.write_bytes(SUITE + b"[infer]\npoll_interval = -1\n")
    with pytest.raises(Refused, match=r"infer\.poll_interval"):
        read_again(work, SUITE)
    work.suite.write_bytes(SUITE.replace(b'"d"', b'"e"'))
    with pytest.raises(Refused, match="evalctl submit"):
        read_again(work, SUITE)
    assert read_again(work, None).datasets[0].abbr == "e"


# --- many work_dirs ---------------------------------------------------------------------------------------------------


def test_every_work_dir_below_a_folder_is_found(tmp_path: Path) -> None:
    """States by claim and by change: a beat that lies there is nobody's life."""
    clock = ManualClock()
    stopped = planned(tmp_path / "a", {"d": 2})
    alive = planned(tmp_path / "b" / "c", {"d": 2})
    (tmp_path / "b" / "not-one").mkdir()
    os.symlink(tmp_path / "a", tmp_path / "loop")
    beat = HeartbeatWriter(alive.infer_heartbeat(), SystemClock(), 60.0)
    beat.start()
    assert [run.state for run in read_runs(tmp_path, clock, clock.advance).runs] == ["stopped", "gone"]
    claim = claims.take(alive.inferd_claim())
    assert claim is not None
    with claim:
        found = read_runs(tmp_path, clock, clock.advance)
        assert [(run.work_dir, run.state, run.requests) for run in found.runs] == [
            (str(stopped), "stopped", 2),
            (str(alive), "starting", 2),
        ]
        watched = read_runs(tmp_path, clock, clock.advance, observe=150.0).runs[1]
        assert watched.state == "stalled"
        assert watched.beat_seconds == pytest.approx(150.0, abs=1.0)
    beat.finish("finished")
    with pytest.raises(UsageError, match="no such folder"):
        read_runs(tmp_path / "nowhere", clock, clock.advance)
