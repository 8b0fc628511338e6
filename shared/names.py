"""Names of models and datasets as file names, by one rule that can be undone.

ASCII letters, digits, `.`, `_` and `-` stay; every other byte of the name's UTF-8 form becomes `%XX`. One more
character is encoded where the result would mean something else to a file system or to Tandem: a leading `.` (hidden,
`..`), a leading `tmp_` (journals), a trailing `.` and the device names of Windows (`NUL`, `com1.x`). So the rule is
one-to-one, its results are ASCII and hold no separator, and `real_name` undoes it. Case is kept: names that differ by
case alone are for `collisions` to find.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

MAX_BYTES = 150
"""Of an encoded name. File systems allow 255; the rest is for `tmp_`, the shard, the claim and the suffix."""

_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_DEVICE = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9])(\.|$)", re.IGNORECASE)
_JOURNAL = re.compile(r"tmp_", re.IGNORECASE)


def safe_name(name: str) -> str:
    """The file name for `name`.

    Raises ValueError, with the remedy, for an empty name and for one that is longer than 150 bytes when encoded.

    >>> safe_name("org/m:free")
    'org%2Fm%3Afree'
    >>> safe_name("..")
    '%2E%2E'
    """
    if not name:
        raise ValueError("a name can't be empty: give it at least one character")
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise ValueError("the name holds half of a surrogate pair, which no file name can carry: remove it") from None
    safe = "".join(chr(byte) if byte in _KEPT else _escape(byte) for byte in data)
    if safe.endswith("."):
        safe = safe[:-1] + _escape(ord("."))
    if safe.startswith(".") or _JOURNAL.match(safe) or _DEVICE.match(safe):
        safe = _escape(ord(safe[0])) + safe[1:]
    if len(safe) > MAX_BYTES:
        raise ValueError(f"the name needs {len(safe)} bytes as a file name, {MAX_BYTES} are allowed: shorten it")
    return safe


def real_name(safe: str) -> str:
    """The name whose file name is `safe`. Raises ValueError when no name has that file name."""
    try:
        name = unquote_to_bytes(safe).decode()
        known = safe_name(name) == safe
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"{safe!r} isn't the file name of any model or dataset")
    return name


def collisions(names: Iterable[str]) -> list[list[str]]:
    """The groups of names that one file would serve where a file system ignores case, each in the order given.

    Names that `safe_name` refuses belong to no group.

    >>> collisions(["M", "gsm8k", "m"])
    [['M', 'm']]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        try:
            groups.setdefault(safe_name(name).casefold(), []).append(name)
        except ValueError:
            continue
    return [group for group in groups.values() if len(group) > 1]


def _escape(byte: int) -> str:
    return f"%{byte:02X}"
