"""Where secrets come from: the environment, or systemd's credentials folder. They go to the adapter and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shared.atomic import read_regular


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
