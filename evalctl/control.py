"""Gives commands to the daemons at work in a work_dir, and waits for their word (`shared.control`).

What can't be done is refused before anything is written: an unknown pair or model, nobody at work, already so. What a
daemon alone can know, it says in its acknowledgement.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from evalctl.state import AT_WORK
from shared import claims, control
from shared.atomic import remove, replace
from shared.clock import Clock, utc
from shared.errors import Fatal, UsageError, WorkDirError
from shared.layout import WorkDir
from shared.plan import read_plan
from shared.records import Acknowledgement, Command, Heartbeat, InferStatus, Plan, PlanPair, Record, encode_record
from shared.status import read_record
from shared.tables import unknown_word

LONGEST = 1000  # characters of a reason
LOOK = 0.1  # seconds between looks at the beats
READABLE = 0o644  # a command is no secret, and its giver is often another user than the daemons'

Daemon = Literal["inferd", "evald"]


class Refusal(Fatal):
    """A command that can't be obeyed as things stand."""


class Target(NamedTuple):
    """A daemon at work."""

    daemon: Daemon
    beat: Heartbeat
    path: Path
    claim: Path

    def __str__(self) -> str:
        return f"{self.daemon} (process {self.beat.pid} on {self.beat.host})"


class Word(Struct, frozen=True, kw_only=True):
    """What one daemon made of a command. outcome: `silent` while it hasn't acknowledged; `ended`: it went first."""

    daemon: Daemon
    host: str
    pid: int
    boot_id: str
    outcome: Literal["obeyed", "refused", "silent", "ended"]
    text: str = ""


class Given(Record, frozen=True, kw_only=True):
    """A command and what came of it: the whole of `--json`. obeyed: by every daemon that it was for."""

    work_dir: str
    command: Command
    dry_run: bool
    obeyed: bool
    daemons: tuple[Word, ...]


class Wanted(NamedTuple):
    """A command before it is known whom it is for."""

    name: Literal["pause", "resume", "drain", "stop", "cancel", "retune", "reload"]
    pair: str = ""
    model: str = ""
    max_workers: int | None = None
    reason: str = ""


def give(work: WorkDir, wanted: Wanted, clock: Clock, *, wait: Callable[[float], object], timeout: float) -> Given:
    """Write the command and wait for the word of all whom it is for, at most `timeout` seconds.

    Raises UsageError and Refusal; then nothing was written.
    """
    prepared = prepare(work, wanted, clock)
    if work.control.is_symlink():
        raise Refusal(f"{work.control}: a link: nothing is written through it. Remove it")
    targets = [target for target in at_work(work) if target.beat.boot_id in prepared.command.boots]
    path = work.command(prepared.command.id)
    try:
        _sweep(work, {target.beat.boot_id for target in at_work(work)})
        replace(path, encode_record(prepared.command) + b"\n")
        os.chmod(path, READABLE)
    except OSError as error:
        text = f"no command can be put there ({error.strerror or error}): it must be a folder that you may write to"
        raise Refusal(f"{work.control}: {text}") from None
    words = _await(work, prepared, targets, clock, wait, timeout)
    if all(word.outcome != "silent" for word in words):
        remove(path)
    return structs.replace(
        prepared, dry_run=False, daemons=words, obeyed=all(word.outcome == "obeyed" for word in words)
    )


def prepare(work: WorkDir, wanted: Wanted, clock: Clock) -> Given:
    """The command that `give` would write, and whom it is for. Raises UsageError and Refusal."""
    plan = read_plan(work) if work.root.is_dir() else None
    if plan is None:
        raise UsageError(f"{work}: no plan here: `evalctl submit SUITE -w {work}` makes one")
    if not wanted.reason.isprintable() or len(wanted.reason) > LONGEST:
        raise UsageError(f"--reason: expected one line of at most {LONGEST} characters")
    pair = _find_pair(plan, wanted.pair) if wanted.name == "cancel" else None
    if wanted.model and wanted.model not in (models := {one.model for one in plan.pairs}):
        raise UsageError(f"--model {wanted.model}: no such model in the plan; {unknown_word(wanted.model, models)}")
    everybody = at_work(work)
    targets = [target for target in everybody if target.daemon == "inferd" or wanted.name in ("stop", "reload")]
    if not targets:
        what = "no inferd is" if wanted.name not in ("stop", "reload") else "neither inferd nor evald is"
        raise Refusal(f"{work}: {what} at work here: nobody could {wanted.name}")
    if not (fit := [target for target in targets if not _already(wanted, target)]):
        raise Refusal(f"{work}: {_already(wanted, targets[0])}")
    if pair is not None and (ended := _ended(work, pair)):
        raise Refusal(f"{wanted.pair}: {ended}")
    now = clock.time()
    command = Command(
        id=f"{_stamp(now)}-{os.urandom(4).hex()}",
        command=wanted.name,
        boots=tuple(target.beat.boot_id for target in fit),
        time=utc(now),
        by=f"{_user()}@{socket.gethostname()}"[:300],
        model=pair.model if pair is not None else wanted.model,
        dataset=pair.dataset if pair is not None else "",
        max_workers=wanted.max_workers,
        reason=wanted.reason,
    )
    words = tuple(_word(target, None) for target in fit)
    return Given(work_dir=str(work), command=command, dry_run=True, obeyed=False, daemons=words)


def at_work(work: WorkDir) -> list[Target]:
    """Every daemon that lives, by its claim; where claims can't be tested, by its own word."""
    found: list[tuple[Daemon, Path, Path]] = [
        ("inferd", path, work.inferd_claim_of(path)) for path in work.infer_heartbeats()
    ]
    found.append(("evald", work.eval_heartbeat, work.evald_claim))
    targets = []
    for daemon, path, claim in found:
        beat = _beat(path)
        if beat is not None and beat.state in AT_WORK and claims.held(claim) is not False:
            targets.append(Target(daemon, beat, path, claim))
    return targets


def _find_pair(plan: Plan, text: str) -> PlanPair:
    named = {f"{pair.model}/{pair.dataset}": pair for pair in plan.pairs}
    if text not in named:
        raise UsageError(f"{text}: no such pair in the plan; {unknown_word(text, named)}")
    if sum(f"{pair.model}/{pair.dataset}" == text for pair in plan.pairs) > 1:
        raise UsageError(f"{text}: more than one pair is called so: rename a model or a dataset")
    return named[text]


def _already(wanted: Wanted, target: Target) -> str:
    """Why this daemon has nothing to do for it, in words."""
    state = target.beat.state
    if state == "draining" and wanted.name != "stop":
        return f"{target} is ending already"
    if wanted.name == "pause" and state == "paused":
        return f"{target} is paused already"
    if wanted.name == "resume" and state != "paused":
        return f"{target} isn't paused: it is {state}"
    return ""


def _ended(work: WorkDir, pair: PlanPair) -> str:
    """Why there is nothing left of the pair to cancel."""
    for shard in pair.shards:
        try:
            status = read_record(work.infer_status(pair.model, shard.stem), InferStatus)
        except (WorkDirError, OSError):
            return ""  # inferd knows
        if status is None or status.plan_digest != pair.digest or status.state not in ("done", "fail"):
            return ""
    return "it has ended already: there is nothing to cancel"


def _await(
    work: WorkDir,
    given: Given,
    targets: list[Target],
    clock: Clock,
    wait: Callable[[float], object],
    timeout: float,
) -> tuple[Word, ...]:
    deadline = clock.monotonic() + timeout
    words: dict[str, Word] = {target.beat.boot_id: _word(target, None) for target in targets}
    while True:
        for target in targets:
            if words[target.beat.boot_id].outcome == "silent":
                words[target.beat.boot_id] = _heard(target, given.command)
        if clock.monotonic() >= deadline or all(word.outcome != "silent" for word in words.values()):
            return tuple(words.values())
        wait(LOOK)


def _heard(target: Target, command: Command) -> Word:
    # In this order: a daemon that acknowledges and ends in between has written its last beat before it let go.
    alive = claims.held(target.claim) is not False
    beat = _beat(target.path)
    if beat is not None and beat.boot_id == target.beat.boot_id:
        if said := next((word for word in beat.acknowledged if word.id == command.id), None):
            return _word(target, said)
        if alive and beat.state in AT_WORK:
            return _word(target, None)
    elif beat is None and alive:
        return _word(target, None)
    gone = "it ended before it could acknowledge"
    return structs.replace(_word(target, None), outcome="ended", text=gone)


def _word(target: Target, said: Acknowledgement | None) -> Word:
    outcome: Literal["obeyed", "refused", "silent"] = "silent"
    if said is not None:
        outcome = "obeyed" if said.obeyed else "refused"
    return Word(
        daemon=target.daemon,
        host=target.beat.host,
        pid=target.beat.pid,
        boot_id=target.beat.boot_id,
        outcome=outcome,
        text=said.text if said is not None else "",
    )


def _beat(path: Path) -> Heartbeat | None:
    try:
        return read_record(path, Heartbeat)
    except (WorkDirError, OSError):
        return None


def _sweep(work: WorkDir, boots: set[str]) -> None:
    """Remove commands for daemons that are no more."""
    for path, command in _commands(work):
        if not boots & set(command.boots):
            remove(path)


def _commands(work: WorkDir) -> Iterator[tuple[Path, Command]]:
    try:
        names = [entry.name for entry in islice(os.scandir(work.control), control.LISTED)]
    except FileNotFoundError:
        return
    for name in names:
        path = work.command(name.removesuffix(".json"))
        try:
            command = read_record(path, Command, control.MAX_BYTES)
        except (WorkDirError, OSError):
            continue  # not ours
        if command is not None and command.id == path.stem:
            yield path, command


def _stamp(now: float) -> str:
    """The instant as part of a file's name, so that names sort as commands were given."""
    return utc(now).replace("-", "").replace(":", "")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return f"uid {os.getuid()}"
