"""What two hosts can find out together: one leads and changes files, the other follows and looks when it sees that.

No two clocks are compared but to tell their difference: the follower's delays are counted on its own clock from the
first sign it saw of the changes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from evalctl.doctor.alone import is_locked, wins
from evalctl.doctor.events import Listening
from evalctl.doctor.judge import EXCLUDED, SEEN
from evalctl.doctor.meeting import LOOK_EVERY, Meeting, Silent, Word
from shared.atomic import FILE_MODE, make_folder, promote, read_regular, replace
from shared.clock import Clock

PINGS = 3
PATIENCE = 8.0  # seconds that a change is looked for
ANSWER = 60.0  # seconds that an answer may take: the other may be busy with its own checks
LOCKS: dict[str, Callable[[int, int], None]] = {"flock": fcntl.flock, "fcntl": fcntl.lockf}

# Each change has a folder of its own: what refreshes the one would have the kernel look at its neighbours anew.
CHANGED = ("listed", "probed", "fresh", "opened", "stat")
REPLACED = ("opened", "stat")
SECOND = b"the second version"

Measured = dict[str, float | None]


def together(meeting: Meeting, clock: Clock) -> Measured:
    """What both measured. Raises Silent."""
    own = _lead(meeting, clock) if meeting.leads else _follow(meeting, clock)
    if meeting.leads:
        meeting.say("done", measured=own)
        other = meeting.hear()
        try:
            meeting.wait("bye", PATIENCE)
        except Silent:
            pass  # all that was to be measured is here
    else:
        other = meeting.wait("done", ANSWER)
        meeting.say("bye")
    both = {**own, **other.measured}
    both["wins"] = (own["wins"] or 0) + (other.measured.get("wins") or 0)
    return both


# --- the one that leads -----------------------------------------------------------------------------------------------


def _lead(meeting: Meeting, clock: Clock) -> Measured:
    trips = [_ping(meeting, clock, f"ping-{number}") for number in range(PINGS)]
    trip, skew = min(trips)
    root = meeting.own
    for name in (*CHANGED, "events", "race"):
        make_folder(root / name)
    for name in CHANGED:
        replace(root / "staged" / name, SECOND)
    for name in REPLACED:
        replace(root / name / "new", b"the first version")
    held = [_locked(root / name, lock) for name, lock in LOCKS.items()]
    try:
        meeting.say("laid")
        meeting.wait("ready", ANSWER)
        for name in CHANGED:
            promote(root / "staged" / name, root / name / "new")
        replace(root / "events" / "new.json", b"{}")
        meeting.say("changed")
        meeting.wait("seen", ANSWER)
    finally:
        for fd in held:
            os.close(fd)
    meeting.say("race")
    won = wins(root / "race")
    meeting.wait("raced", ANSWER)
    return {"trip": trip, "skew": skew, "wins": won}


def _ping(meeting: Meeting, clock: Clock, step: str) -> tuple[float, float]:
    """(seconds there and back, by how much the other's clock is ahead): as RFC 5905, section 8 has it."""
    meeting.say(step)
    sent = meeting.word.time
    answer = meeting.wait(step, ANSWER)
    now = clock.time()
    trip = (now - sent) - (answer.time - answer.heard_at)
    return trip, ((answer.heard_at - sent) + (answer.time - now)) / 2


def _locked(path: Path, lock: Callable[[int, int], None]) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # the other will find it free, and tell
    return fd


# --- the one that follows ---------------------------------------------------------------------------------------------


def _follow(meeting: Meeting, clock: Clock) -> Measured:
    for number in range(PINGS):
        meeting.wait(f"ping-{number}", ANSWER)
        meeting.say(f"ping-{number}", heard_at=clock.time())
    leader = meeting.wait("laid", ANSWER)
    root = meeting.own.with_name(leader.token)
    found: Measured = {EXCLUDED[name]: float(_is_locked(root / name, lock)) for name, lock in LOCKS.items()}
    _is_there(root / "probed" / "new")  # looked up in vain: that is what NFS remembers
    before = os.stat(root / "stat" / "new").st_ino
    read_regular(root / "opened" / "new", 100)
    listening = Listening(root / "events")
    meeting.say("ready")
    looks: dict[str, Callable[[], bool]] = {
        "listed": lambda: "new" in os.listdir(root / "listed"),
        "opened": lambda: read_regular(root / "opened" / "new", 100) == SECOND,
        "stat": lambda: os.stat(root / "stat" / "new").st_ino != before,
        "probed": lambda: _is_there(root / "probed" / "new"),
        "events": lambda: listening.heard,
        # Never looked for before it is known to be there.
        "fresh": lambda: meeting.hear().step == "changed" and _is_there(root / "fresh" / "new"),
    }
    found |= _delays(looks)
    listening.stop()
    meeting.say("seen")
    meeting.wait("race", ANSWER)
    found["wins"] = wins(root / "race", backwards=True)
    meeting.say("raced", measured=found)
    return found


def _delays(looks: dict[str, Callable[[], bool]]) -> Measured:
    """Of each look, seconds from the first sign of any until it saw the change; None where it hasn't in time."""
    seen: dict[str, float] = {}
    start = time.monotonic()
    while len(seen) < len(looks):
        for name, look in looks.items():
            if name not in seen and _tried(look):
                seen[name] = time.monotonic()
        if time.monotonic() - min(seen.values(), default=start + 2 * PATIENCE) > PATIENCE:
            break
        time.sleep(LOOK_EVERY / 5)
    first = min(seen.values(), default=start)
    return {name: seen[name] - first if name in seen else None for name in SEEN}


def _tried(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except (OSError, ValueError):
        return False  # ESTALE, say: looked at again


def _is_there(path: Path) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _is_locked(path: Path, lock: Callable[[int, int], None]) -> bool:
    try:
        return is_locked(path, lock)
    except OSError:
        return False


def hosts(meeting: Meeting) -> tuple[Word, Word]:
    assert meeting.other is not None, "after `meet`"
    return meeting.word, meeting.other
