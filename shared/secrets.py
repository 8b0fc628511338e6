"""Where secrets come from: the environment, or systemd's credentials folder. They go to the adapter and
nowhere else; what looks like one is kept out of messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from shared.atomic import read_regular

_KEY = re.compile(
    r"(?<![A-Za-z0-9])((sk|gsk|hf|xai|ghp|nvapi)[-_][\w-]{6,}|AIza[\w-]{8,}|(bearer|basic)\s+\S+\s*$)", re.IGNORECASE
)
_LONG_WORD = re.compile(r"[A-Za-z0-9]{20,}")


def lookup(name: str, env: Mapping[str, str]) -> str | None:
    """The secret called `name`: the variable, or the file of that name under $CREDENTIALS_DIRECTORY; None when
    unset.
    """
    if value := env.get(name):
        return value
    folder = env.get("CREDENTIALS_DIRECTORY")
    if folder and name.replace("_", "").isalnum():
        try:
            return read_regular(Path(folder) / name, 1 << 16).decode().strip() or None
        except (OSError, ValueError):
            return None
    return None


def looks_like_key(text: str) -> bool:
    """Does the text hold a key of a well-known form, or an Authorization header's value?

    >>> looks_like_key("sk-live-0123456789")
    True
    >>> looks_like_key("sk-SK")
    False
    """
    return bool(_KEY.search(text))


def may_be_key(text: str) -> bool:
    """The same, or a long run of letters and digits such as keys without a form are: not to be quoted."""
    return looks_like_key(text) or any(not (word.isalpha() or word.isdigit()) for word in _LONG_WORD.findall(text))
