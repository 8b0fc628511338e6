"""The journal: what was committed is read back whatever happened to the file around it."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared import answers, journal
from shared.answers import AnswerIndex, key64, order_of
from shared.atomic import AppendFile
from shared.errors import WorkDirError
from shared.journal import MAX_NAMES, JournalWriter, Target, split_lines
from shared.layout import WorkDir
from shared.records import ANSWER_KINDS, ANSWERS, Attempt, Generation, Outcome, Prediction, Usage, encode_record

CLAIM = "0123456789abcdef" * 2
texts = st.text(st.characters(codec="utf-8")) | st.text(st.sampled_from('a\n\r\u2028\u2029\x85\x00\\"é😀'), max_size=20)


def key_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def attempt_of(doc_id: int = 0, *, text: str = "x", outcome: Outcome = "ok", key: str = "", **more: Any) -> Attempt:
    return Attempt(
        key=key or key_of(str(doc_id)),
        doc_id=doc_id,
        attempt=more.pop("attempt", 1),
        outcome=outcome,
        error=None if outcome in ANSWERS else "timeout",
        latency=0.5,
        ended_at="2026-11-30T12:00:00.000Z",
        generation=Generation(text=text, usage=Usage(prompt_tokens=3, completion_tokens=2))
        if outcome in ANSWERS
        else None,
        **more,
    )


def prediction_of(attempt: Attempt) -> Prediction:
    return Prediction(
        task_id="t",
        key=attempt.key,
        doc_id=attempt.doc_id,
        outcome=attempt.outcome,
        attempts=attempt.attempt,
        generation=attempt.generation,
    )


outcomes: st.SearchStrategy[Outcome] = st.sampled_from(["ok", *ANSWER_KINDS, "error"])
attempts = st.builds(
    attempt_of,
    st.integers(0, 2**32 - 1),
    text=texts,
    outcome=outcomes,
    idx=st.integers(0, 2**16 - 1),
    repeat=st.integers(0, 2**16 - 1),
    attempt=st.integers(1, 9),
    endpoint=texts,
)


class Committed(NamedTuple):
    target: object
    tokens: list[Any]


@contextmanager
def writer(interval: float = 0.001) -> Iterator[tuple[JournalWriter, list[Committed], list[OSError]]]:
    """A JournalWriter, what it said is committed, and what it said failed."""
    told: list[Committed] = []
    failed: list[OSError] = []
    made = JournalWriter(
        lambda target, lines: told.append(Committed(target, [token for token, _, _ in lines])),
        lambda _, error: failed.append(error),
        interval,
    )
    try:
        yield made, told, failed
    finally:
        made.stop(10.0)


def write(path: Path, lines: list[bytes], tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines) + tail)
    return path


def read(path: Path) -> list[Attempt]:
    with path.open("rb") as file:
        return [msgspec.json.decode(line, type=Attempt) for _, line in split_lines(file)]


# --- lines ------------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(attempts, max_size=20))
def test_what_was_written_is_read_back(given_attempts: list[Attempt]) -> None:
    """Any attempts with any text, in the order they came."""
    with tempfile.TemporaryDirectory() as folder:
        target = Target(WorkDir(folder), "m", "d", CLAIM)
        with writer() as (made, told, failed):
            for number, attempt in enumerate(given_attempts):
                made.append(target, encode_record(attempt), number)
            assert made.stop(10.0)
        assert failed == []
        assert [token for group in told for token in group.tokens] == list(range(len(given_attempts)))
        path = WorkDir(folder).journal("m", "d", CLAIM)
        assert path.exists() == bool(given_attempts)
        assert (read(path) if given_attempts else []) == given_attempts
        target.close()


@given(st.lists(attempts, min_size=1, max_size=8), st.data())
def test_a_torn_tail_hides_nothing_else(given_attempts: list[Attempt], data: st.DataObject) -> None:
    """Cut anywhere: the whole lines before the cut, and no damage counted for the torn one."""
    lines = [encode_record(attempt) for attempt in given_attempts]
    whole = b"".join(line + b"\n" for line in lines)
    cut = data.draw(st.integers(0, len(whole)))
    kept = whole[:cut].count(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "j")
        path.write_bytes(whole[:cut])
        assert read(path) == given_attempts[:kept]
        index = AnswerIndex([path])
        assert index.damaged == 0
        assert index.tally.attempts == kept


@given(st.lists(attempts, min_size=1, max_size=6), st.data())
def test_overwritten_bytes_damage_only_the_lines_they_touch(given_attempts: list[Attempt], data: st.DataObject) -> None:
    """A range of NULs or noise in the middle, as NFS leaves after a crash: every other line is found where it was."""
    distinct = [
        msgspec.structs.replace(attempt, doc_id=number, key=key_of(str(number)))
        for number, attempt in enumerate(given_attempts)
    ]
    lines = [encode_record(attempt) for attempt in distinct]
    content = bytearray(b"".join(line + b"\n" for line in lines))
    start = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(1, min(200, len(content) - start)))
    noise = data.draw(st.just(b"\x00" * length) | st.binary(min_size=length, max_size=length))
    before = bytes(content)
    content[start : start + length] = noise
    touched = {before[: start + step].count(b"\n") for step in range(length) if before[start + step] != noise[step]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "j")
        path.write_bytes(content)
        cursor = AnswerIndex([path]).cursor()
        for number, attempt in enumerate(distinct):
            found = cursor.find(number, attempt.idx, attempt.repeat, attempt.key)
            # A newline that was overwritten joins its line with the next one.
            joined = number - 1 in touched and before[: start + length].count(b"\n") >= number
            if attempt.outcome in ANSWERS and number not in touched and not joined:
                assert found is not None
                line = bytes(content)[found.offset : found.offset + found.length]
                assert msgspec.json.decode(line, type=Attempt) == attempt
                assert found.outcome == attempt.outcome


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=10), st.integers(1, 40))
def test_lines_come_with_their_offsets(lines: list[bytes], size: int) -> None:
    """However the reads fall: each line where it lies, empty ones too, and no tail."""
    content = b"".join(line + b"\n" for line in lines) + b"tail"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "READ_SIZE", size)
        found = list(split_lines(BytesIO(content)))
    assert [line for _, line in found] == lines
    assert all(content[offset : offset + len(line)] == line for offset, line in found)


def test_an_endless_line_is_told_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gigabyte of NULs isn't gathered into memory; what follows its newline is found."""
    monkeypatch.setattr(journal, "READ_SIZE", 1000)
    monkeypatch.setattr(journal, "MAX_LINE", 5000)
    good = attempt_of(1)
    path = write(tmp_path / "j", [b"\x00" * 50_000, encode_record(good)])
    with path.open("rb") as file:
        assert max(len(line) for _, line in split_lines(file)) <= 6000
    index = AnswerIndex([path])
    assert index.damaged >= 1
    found = index.cursor().find(1, 0, 0, good.key)
    assert found is not None
    assert found.offset == 50_001


# --- what was answered ------------------------------------------------------------------------------------------------

small = st.builds(
    attempt_of,
    st.integers(0, 3),
    outcome=outcomes,
    idx=st.integers(0, 1),
    repeat=st.integers(0, 1),
    key=st.sampled_from([key_of("now"), key_of("earlier")]),
    text=st.sampled_from(["a", "b", "c"]),
    attempt=st.integers(1, 3),
)


@settings(max_examples=200)
@given(st.lists(st.lists(small, max_size=12), max_size=4))
def test_the_first_answer_under_the_same_key_wins(files: list[list[Attempt]]) -> None:
    """Several journals in order, against a dict: by triple and key, errors passed over, the first one stays."""
    model: dict[tuple[int, int, int, str], tuple[int, Attempt]] = {}
    for number, lines in enumerate(files):
        for attempt in lines:
            if attempt.outcome in ANSWERS:
                place = (attempt.doc_id, attempt.idx, attempt.repeat, attempt.key)
                model.setdefault(place, (number, attempt))
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            write(Path(folder, str(number)), [encode_record(attempt) for attempt in lines])
            for number, lines in enumerate(files)
        ]
        index = AnswerIndex(paths)
        assert len(index) == sum(attempt.outcome in ANSWERS for lines in files for attempt in lines)
        assert index.tally.attempts == sum(map(len, files))
        for key in (key_of("now"), key_of("earlier"), key_of("never")):
            cursor = index.cursor()
            for doc_id in range(5):
                for idx in range(2):
                    for repeat in range(2):
                        expected = model.get((doc_id, idx, repeat, key))
                        found = cursor.find(doc_id, idx, repeat, key)
                        assert (found is None) == (expected is None)
                        if found is not None and expected is not None:
                            assert (found.file, found.outcome) == (expected[0], expected[1].outcome)
                            line = paths[found.file].read_bytes()[found.offset : found.offset + found.length]
                            assert msgspec.json.decode(line, type=Attempt) == expected[1]


@given(st.lists(small, max_size=20), st.lists(st.booleans(), min_size=16, max_size=16))
def test_places_may_be_passed_over(lines: list[Attempt], asked: list[bool]) -> None:
    """A cursor that isn't asked about some places still finds the later ones."""
    places = [(doc_id, idx, repeat) for doc_id in range(4) for idx in range(2) for repeat in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        index = AnswerIndex([write(Path(folder, "j"), [encode_record(attempt) for attempt in lines])])
        every = index.cursor()
        all_found = [every.find(*place, key_of("now")) for place in places]
        some = index.cursor()
        for place, found, wanted in zip(places, all_found, asked, strict=True):
            if wanted:
                assert some.find(*place, key_of("now")) == found


def test_the_tally_is_over_all_journals(tmp_path: Path) -> None:
    """Attempts, errors by class, tokens and cost; what a predictions file repeats isn't counted again."""
    lines = [
        encode_record(attempt_of(0, outcome="error", cost=0.0)),
        encode_record(attempt_of(0, cost=0.25, attempt=2)),
        encode_record(attempt_of(1, cost=0.5)),
    ]
    first = write(tmp_path / "1", lines[:2])
    second = write(tmp_path / "2", lines[2:])
    prediction = Prediction(
        task_id="t",
        key=key_of("5"),
        doc_id=5,
        outcome="ok",
        attempts=1,
        cost=9.0,
        generation=Generation(text="kept", usage=Usage(prompt_tokens=100)),
    )
    predictions = write(tmp_path / "p", [encode_record(prediction)])
    index = AnswerIndex([first, second], [predictions])
    tally = index.tally
    assert (tally.attempts, tally.errors, tally.cost) == (3, {"timeout": 1}, 0.75)
    assert (tally.prompt_tokens, tally.completion_tokens) == (6, 4)
    found = index.cursor().find(5, 0, 0, key_of("5"))
    assert found is not None
    assert index.paths[found.file] == predictions


def test_predictions_alone_say_what_was_paid(tmp_path: Path) -> None:
    """Where the journals were cleared away, attempts, tokens and cost are those that the predictions hold."""
    row = Prediction(
        task_id="t",
        key=key_of("5"),
        doc_id=5,
        outcome="ok",
        attempts=3,
        cost=0.5,
        generation=Generation(text="kept", usage=Usage(prompt_tokens=100, completion_tokens=7)),
    )
    tally = AnswerIndex([], [write(tmp_path / "p", [encode_record(row)])]).tally
    assert (tally.attempts, tally.prompt_tokens, tally.completion_tokens, tally.cost) == (3, 100, 7, 0.5)


def test_journals_come_before_predictions(tmp_path: Path) -> None:
    """Where both hold the answer, the journal's line is taken: it says more."""
    line = write(tmp_path / "j", [encode_record(attempt_of(0))])
    prediction = Prediction(
        task_id="t", key=key_of("0"), doc_id=0, outcome="ok", attempts=1, generation=Generation(text="x")
    )
    index = AnswerIndex([line], [write(tmp_path / "p", [encode_record(prediction)])])
    found = index.cursor().find(0, 0, 0, key_of("0"))
    assert found is not None
    assert found.file == 0


def test_nothing_in_no_file() -> None:
    """No journals, no answers."""
    index = AnswerIndex([])
    assert (len(index), index.damaged, index.tally.attempts) == (0, 0, 0)
    assert index.cursor().find(0, 0, 0, key_of("0")) is None


HOSTILE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "negative doc": lambda row: row | {"doc_id": -1},
    "huge doc": lambda row: row | {"doc_id": 2**32},
    "monstrous doc": lambda row: row | {"doc_id": 10**30},
    "negative idx": lambda row: row | {"idx": -1},
    "huge idx": lambda row: row | {"idx": 2**16},
    "negative repeat": lambda row: row | {"repeat": -1},
    "huge repeat": lambda row: row | {"repeat": 2**16},
    "doc as text": lambda row: row | {"doc_id": "0"},
    "no key": lambda row: {name: value for name, value in row.items() if name != "key"},
    "key not hex": lambda row: row | {"key": "g" * 64},
    "key too short": lambda row: row | {"key": "ab"},
    "key too long": lambda row: row | {"key": "ab" * 33},
    "key with spaces": lambda row: row | {"key": " ".join(["ab"] * 32)},
    "key full width": lambda row: row | {"key": "１" * 64},
    "unknown outcome": lambda row: row | {"outcome": "great"},
    "answer without text": lambda row: row | {"generation": None},
    "generation cut": lambda row: row | {"generation": {"usage": None}},
}


def test_another_version_is_no_damage(tmp_path: Path) -> None:
    """What a later program journalled was paid for: it isn't asked again, but refused with the remedy."""
    row = msgspec.json.decode(encode_record(attempt_of(0)))
    path = write(tmp_path / "j", [msgspec.json.encode(row | {"schema": 2, "key": 7})])
    with pytest.raises(WorkDirError, match="written as schema 2, this program reads schema 1: use the version"):
        AnswerIndex([path])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines_are_damage(name: str, tmp_path: Path) -> None:
    """What can't be a request's answer is counted and passed over; the line after it is found."""
    row = msgspec.json.decode(encode_record(attempt_of(0)))
    good = attempt_of(1)
    path = write(tmp_path / "j", [msgspec.json.encode(HOSTILE[name](row)), encode_record(good)])
    index = AnswerIndex([path])
    assert index.damaged == 1
    assert len(index) == index.tally.attempts == 1
    assert index.cursor().find(1, 0, 0, good.key) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00" * 1000,
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"doc_id":' + b"9" * 10_000,
    ],
    ids=["empty", "NULs", "null", "list", "object", "no text", "deep", "deeper", "long number"],
)
def test_noise_is_damage(line: bytes, tmp_path: Path) -> None:
    """A line that is no JSON, or no such record, costs itself alone."""
    good = attempt_of(1)
    index = AnswerIndex([write(tmp_path / "j", [line, encode_record(good), line])])
    assert index.damaged == 2
    assert index.cursor().find(1, 0, 0, good.key) is not None


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    """An answer's text overwritten by bytes that aren't UTF-8 can't be merged, so it is no answer."""
    line = encode_record(attempt_of(0, text="PLACE")).replace(b"PLACE", b"PL\xff\xfeE")
    index = AnswerIndex([write(tmp_path / "j", [line])])
    assert (index.damaged, len(index)) == (1, 0)


@given(st.binary(max_size=300))
@example(b"\n\n\n")
def test_any_bytes_can_be_read(content: bytes) -> None:
    """Whatever lies in the file: lines of damage, and no error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "j")
        path.write_bytes(content)
        index = AnswerIndex([path])
        assert index.damaged + index.tally.attempts == content.count(b"\n")


# --- group commit -----------------------------------------------------------------------------------------------------


def test_committed_is_told_after_the_bytes_are_there(tmp_path: Path) -> None:
    """#5: whoever hears of a token finds its line in the file, at the place that is told."""
    work = WorkDir(tmp_path)
    target = Target(work, "m", "d", CLAIM)
    seen: list[bool] = []

    def committed(_: object, lines: list[tuple[object, int, int]]) -> None:
        content = work.journal("m", "d", CLAIM).read_bytes()
        for token, offset, length in lines:
            seen.append(content[offset : offset + length + 1] == str(token).encode() + b"\n")

    made = JournalWriter(committed, lambda *_: None, 0.0005)
    for number in range(500):
        made.append(target, str(number).encode(), number)
    assert made.stop(10.0)
    assert seen == [True] * 500
    target.close()


def test_what_is_added_is_found_as_if_read_again(tmp_path: Path) -> None:
    """An index that is told of what was appended equals one that reads the journals anew; the first answer wins."""
    work = WorkDir(tmp_path)
    old = work.journal("m", "d", "0a")
    write_old = [attempt_of(doc_id, text="old") for doc_id in (3, 1)]
    old.parent.mkdir(parents=True)
    write(old, [encode_record(row) for row in write_old])
    index = AnswerIndex([old])
    assert [row.doc_id for row in write_old if index.cursor().find(row.doc_id, 0, 0, row.key)] == [3, 1]
    new = [attempt_of(doc_id, text="new") for doc_id in (2, 3, 0)]
    told: list[tuple[int, int, int, int, str]] = []

    def committed(_: object, lines: list[tuple[Any, int, int]]) -> None:
        told.extend(
            (order_of(row.doc_id, 0, 0), key64(row.key), offset, length, row.outcome) for row, offset, length in lines
        )

    target = Target(work, "m", "d", "ff")
    made = JournalWriter(committed, lambda *_: None, 0.0005)
    for row in new:
        made.append(target, encode_record(row), row)
    assert made.stop(10.0)
    target.close()
    index.add(target.path, told)
    assert len(index) == 2
    index.absorb(index.take_fresh())
    index.absorb(index.take_fresh())  # nothing more
    read_again = AnswerIndex([old, target.path])
    assert len(index) == len(read_again) == 5
    rows = [(row.doc_id, 0, 0, row.key) for row in map(attempt_of, range(4))]
    cursor, other = index.cursor(), read_again.cursor()
    found = [cursor.find(*row) for row in rows]
    assert found == [other.find(*row) for row in rows]
    assert index.paths == read_again.paths
    assert [place.file for place in found if place] == [1, 0, 1, 0]


def test_answers_paid_for_twice_are_counted(tmp_path: Path) -> None:
    """The same request answered in two journals counts once more for each further answer; another key doesn't, nor does
    the predictions file that repeats them.
    """
    first = write(tmp_path / "a", [encode_record(attempt_of(doc_id)) for doc_id in (0, 1, 2)])
    again = [attempt_of(1, text="again"), attempt_of(1, text="and again"), attempt_of(2, key="e" * 64)]
    second = write(tmp_path / "b", [encode_record(row) for row in again])
    merged = write(tmp_path / "p", [encode_record(prediction_of(attempt_of(doc_id))) for doc_id in (0, 1, 2)])
    assert AnswerIndex([first, second], [merged]).duplicates == 2
    assert AnswerIndex([first], [merged]).duplicates == 0
    assert AnswerIndex([], [merged]).duplicates == 0


def test_what_the_endpoint_called_itself_is_kept(tmp_path: Path) -> None:
    """Served names and fingerprints of all answers, in bounded number."""
    rows = [
        msgspec.structs.replace(
            attempt_of(n),
            generation=Generation(text="x", served_model="a" if n < 50 else f"new-{n}", system_fingerprint="fp"),
        )
        for n in range(200)
    ]
    told = AnswerIndex([write(tmp_path / "a", [encode_record(row) for row in rows])]).told
    assert told.fingerprints == {"fp"}
    assert "a" in told.models
    assert len(told.models) == MAX_NAMES


def test_many_threads_append(tmp_path: Path) -> None:
    """Each token is told exactly once, of its own target, and each file holds each thread's lines in order."""
    work = WorkDir(tmp_path)
    targets = [Target(work, "m", f"d{number}", CLAIM) for number in range(3)]
    with writer() as (made, told, _):

        def append(thread: int) -> None:
            for number in range(300):
                which = (thread + number) % 3
                made.append(targets[which], f"{thread} {number}".encode(), (which, thread, number))

        threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
        for started in threads:
            started.start()
        for started in threads:
            started.join()
        assert made.stop(10.0)
        assert made.backlog() == 0
    counted = Counter(token for group in told for token in group.tokens)
    assert len(counted) == 8 * 300
    assert set(counted.values()) == {1}
    assert all(targets[token[0]] is group.target for group in told for token in group.tokens)
    for which in range(3):
        rows = [
            tuple(map(int, line.split()))
            for line in work.journal("m", f"d{which}", CLAIM).read_bytes().split(b"\n")[:-1]
        ]
        assert len(rows) == 800
        for thread in range(8):
            own = [number for owner, number in rows if owner == thread]
            assert own == [number for number in range(300) if (thread + number) % 3 == which]
        targets[which].close()


def test_lines_are_gathered_into_few_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes in during one interval goes to disk in one write: the reason for the thread."""
    calls: list[int] = []
    real = AppendFile.append

    def counted(self: AppendFile, data: bytes) -> int:
        calls.append(data.count(b"\n"))
        return real(self, data)

    monkeypatch.setattr(AppendFile, "append", counted)
    target = Target(WorkDir(tmp_path), "m", "d", CLAIM)
    with writer(interval=0.2) as (made, _, _):
        for number in range(1000):
            made.append(target, b"x", number)
        assert made.stop(10.0)
    assert sum(calls) == 1000
    assert len(calls) <= 3
    target.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_refuses_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """`disk-full-corrupts-log`: a full disk or quota a few times over: the lines are kept, each failure is told, and at
    last each line is there once.
    """
    work = WorkDir(tmp_path)
    good, bad = Target(work, "m", "good", CLAIM), Target(work, "m", "bad", CLAIM)
    left = [3]
    tried = threading.Semaphore(0)
    real = AppendFile.append

    def refusing(self: AppendFile, data: bytes) -> int:
        if "bad" in self.path.name and left[0]:
            left[0] -= 1
            made.append(bad, f"meanwhile {left[0]}".encode(), ("meanwhile", left[0]))  # while the write fails
            tried.release()
            raise OSError(code, os.strerror(code))
        return real(self, data)

    monkeypatch.setattr(AppendFile, "append", refusing)
    with writer() as (made, told, failed):
        made._stop.wait = lambda *_: made._stop.is_set()  # type: ignore[method-assign]  # no second between tries
        for number in range(50):
            made.append(bad, f"bad {number}".encode(), ("bad", number))
            made.append(good, f"good {number}".encode(), ("good", number))
        for _ in range(3):
            assert tried.acquire(timeout=10)
        for number in range(50, 60):
            made.append(bad, f"bad {number}".encode(), ("bad", number))
        assert made.stop(10.0)
    assert [error.errno for error in failed] == [code] * 3
    tokens = Counter(token for group in told for token in group.tokens)
    expected = [("bad", 60), ("good", 50), ("meanwhile", 3)]
    assert tokens == Counter((name, number) for name, size in expected for number in range(size))
    lines = work.journal("m", "bad", CLAIM).read_bytes().split(b"\n")[:-1]
    own = [line for line in lines if line.startswith(b"bad")]
    assert own == [f"bad {number}".encode() for number in range(60)]
    assert [line for line in lines if line not in own] == [b"meanwhile 2", b"meanwhile 1", b"meanwhile 0"]
    good.close()
    bad.close()


def test_stop_saves_what_came_in_during_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that came while an earlier write was on its way are committed by the stop as all others."""
    release, busy = threading.Event(), threading.Event()
    real = AppendFile.append

    def slow(self: AppendFile, data: bytes) -> int:
        busy.set()
        release.wait(30)
        return real(self, data)

    monkeypatch.setattr(AppendFile, "append", slow)
    target = Target(WorkDir(tmp_path), "m", "d", CLAIM)
    with writer() as (made, told, _):
        made.append(target, b"first", 1)
        assert busy.wait(10)
        made.append(target, b"second", 2)
        threading.Timer(0.2, release.set).start()
        assert made.stop(10.0)
    assert [token for group in told for token in group.tokens] == [1, 2]
    assert WorkDir(tmp_path).journal("m", "d", CLAIM).read_bytes() == b"first\nsecond\n"
    target.close()


def test_stop_tells_what_could_not_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more try, then the number of lines that are lost when the process goes."""
    tries: list[int] = []

    def refusing(self: AppendFile, data: bytes) -> int:
        tries.append(data.count(b"\n"))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AppendFile, "append", refusing)
    target = Target(WorkDir(tmp_path), "m", "d", CLAIM)
    with writer() as (made, told, failed):
        for number in range(7):
            made.append(target, b"x", number)
        assert not made.stop(10.0)
        assert made.backlog() == 7
    assert told == []
    assert tries[-1] == 7
    assert len(failed) == len(tries) >= 1
    target.close()


def test_a_disk_that_hangs_does_not_hold_up_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that doesn't answer: stop says so within its time."""
    release = threading.Event()
    hangs = threading.Event()

    def hanging(self: AppendFile, data: bytes) -> int:
        hangs.set()
        release.wait(30)
        return 0

    monkeypatch.setattr(AppendFile, "append", hanging)
    target = Target(WorkDir(tmp_path), "m", "d", CLAIM)
    with writer() as (made, _, _):
        made.append(target, b"x", 0)
        assert hangs.wait(10)
        assert not made.stop(0.05)
        release.set()
    target.close()


def test_a_target_makes_its_file_at_its_first_line(tmp_path: Path) -> None:
    """A shard that needs nothing leaves no empty journal; closing what was never opened is no error."""
    target = Target(WorkDir(tmp_path), "m", "d", CLAIM)
    target.close()
    assert list(tmp_path.iterdir()) == []
    assert target.file() is target.file()
    assert [path.name for path in (tmp_path / "predictions" / "m").iterdir()] == [f"tmp_d.{CLAIM}.jsonl"]
    target.close()


def test_duplicates_are_counted_over_the_edges_of_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However long a block of the table is, the count is the same."""
    rows = [attempt_of(doc_id, text=str(copy)) for copy in range(3) for doc_id in range(0, 9, copy + 1)]
    path = write(tmp_path / "a", [encode_record(row) for row in rows])
    for block in range(1, 12):
        monkeypatch.setattr(answers, "_BLOCK", block)
        assert AnswerIndex([path]).duplicates == len(rows) - 9
