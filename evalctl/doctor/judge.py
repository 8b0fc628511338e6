"""What follows from the measures of two hosts. Pure."""

from __future__ import annotations

import math

from evalctl.doctor.findings import Finding, note, ok, problem

EXCLUDED = {"flock": "flock_excluded", "fcntl": "fcntl_excluded"}
SEEN = ("listed", "opened", "fresh", "stat", "probed", "events")
"""Ways to see another host's change, each with the seconds that it took; None: not in time."""

LATE = 2.0  # seconds
BEATS = 4  # of these a reader may miss before it takes a daemon for gone
HEARTBEAT_TIMEOUT = 60.0  # [eval], by default
SKEW = 2.0

_LOCKS = "use a mount whose locks hold between hosts: two daemons may pay for the same answers here"


def judge_hosts(own: tuple[str, str], other: tuple[str, str], *, both_first: bool) -> list[Finding]:
    """own, other: (host name, boot id of the machine). both_first: both got one claim."""
    found = []
    if own[0] != other[0]:
        found.append(ok("host names", f"{own[0]} and {other[0]}"))
    elif own[1] == other[1]:
        text = f"both ran on {own[0]}: nothing of this tells what two hosts see"
        found.append(note("host names", text, "run the other one on the other host"))
    else:
        text = f"two hosts are called {own[0]}: an NFS server may take them for one, and their locks for one's"
        found.append(problem("host names", text, "give each host a name of its own, and mount anew"))
    if both_first:
        found.append(problem("claim between hosts", "both hosts got one claim at once", _LOCKS))
    else:
        found.append(ok("claim between hosts", "one host's claim excludes the other"))
    return found


def judge_measures(measured: dict[str, float | None], raced: int) -> list[Finding]:
    """measured: by the names of `SEEN` and `EXCLUDED`; `trip`, `skew` in seconds; `wins` of `raced` files."""
    found = []
    for name, key in EXCLUDED.items():
        check = f"{name} between hosts"
        if measured.get(key):
            found.append(ok(check, "one host's lock excludes the other"))
        else:
            found.append(problem(check, "both hosts held one lock at once", _LOCKS))
    won = measured.get("wins") or 0
    if won == raced:
        found.append(ok("O_EXCL between hosts", f"{raced} files that both created had one maker each"))
    else:
        text = f"{raced} files that both created were made {won:g} times"
        found.append(problem("O_EXCL between hosts", text, "use another file system"))
    found += _visibility(measured)
    return [*found, _skew(measured.get("skew"), measured.get("trip"))]


def _visibility(measured: dict[str, float | None]) -> list[Finding]:
    found = []
    # Tandem goes by these two: all that it needs from another host is found by a listing, and read by a fresh open.
    for name, what in (
        ("listed", "a new file, by listing its folder"),
        ("opened", "a replaced file, by open and read"),
    ):
        seconds = measured.get(name)
        check = f"seen: {name}"
        if seconds is None:
            remedy = "mount without `nocto`, and with shorter attribute caches (NFS: actimeo=3)"
            found.append(problem(check, f"{what}: not seen in time", remedy))
        elif seconds > LATE:
            longer = math.ceil(HEARTBEAT_TIMEOUT + BEATS * seconds)
            found.append(note(check, f"{what}: {seconds:.2f} s", eval__heartbeat_timeout=longer))
        else:
            found.append(ok(check, f"{what}: {seconds:.2f} s"))
    # These it doesn't go by; people's scripts may.
    others = {
        "fresh": "a new file, by its name",
        "stat": "a replaced file, by stat alone",
        "probed": "a new file, by a name that was looked up in vain before",
    }
    for name, what in others.items():
        seconds = measured.get(name)
        if seconds is not None and seconds <= LATE:
            found.append(ok(f"seen: {name}", f"{what}: {seconds:.2f} s"))
        else:
            told = "not in time" if seconds is None else f"{seconds:.2f} s"
            remedy = "Tandem doesn't go by that; scripts of your own should list the folder and open the file"
            found.append(note(f"seen: {name}", f"{what}: {told}", remedy))
    if measured.get("events") is not None:
        found.append(ok("seen: events", "inotify tells of the other host's changes"))
    else:
        text = "inotify doesn't tell of the other host's changes: evald finds them at its next scan"
        found.append(
            note("seen: events", text, "a shorter [eval] watch_interval finds them sooner", eval__events=False)
        )
    return found


def _skew(skew: float | None, trip: float | None) -> Finding:
    if skew is None or trip is None:
        return note("clocks", "their difference couldn't be measured")
    told = f"the follower's is {skew:+.2f} s off the leader's (± {trip / 2:.2f} s; an answer takes {trip:.2f} s)"
    if abs(skew) - trip / 2 <= SKEW:
        return ok("clocks", told)
    return note("clocks", f"{told}. Tandem depends on it nowhere; times in logs differ", "let NTP set both clocks")
