"""What a doctor says: one finding a check."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from shared.records import Record

State = Literal["ok", "note", "problem"]
Setting = bool | float


class Finding(Struct, frozen=True, kw_only=True):
    """What one check found.

    {"check":"fsync","state":"note","text":"a line is safe after 0.120 s (median of 20)","remedy":"",
    "settings":{"infer.commit_interval":0.3}}

    state: `note` is good to know, with a `problem` Tandem can't work well here. settings: keys of the suite, and what
    they should be here.
    """

    check: str
    state: State
    text: str
    remedy: str = ""
    settings: dict[str, Setting] = {}


class Diagnosis(Record, frozen=True, kw_only=True):
    """All findings of one host. peer: the other host, where there was one. settings: those of all findings."""

    as_of: str
    work_dir: str
    host: str
    peer: str | None
    ok: bool
    settings: dict[str, Setting]
    findings: tuple[Finding, ...]


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, state="ok", text=text)


def note(check: str, text: str, remedy: str = "", **settings: Setting) -> Finding:
    """settings: as `eval__events=False`."""
    keys = {name.replace("__", "."): value for name, value in settings.items()}
    return Finding(check=check, state="note", text=text, remedy=remedy, settings=keys)


def problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, state="problem", text=text, remedy=remedy)


def settings_of(findings: list[Finding]) -> dict[str, Setting]:
    """Of two that want the same key the later one wins: what two hosts found stands behind what one did."""
    return {key: value for finding in findings for key, value in finding.settings.items()}
