"""Which sandbox is used: the one that the suite names, or the first that passes its self-test. Found once a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from evald.sandbox import host
from evald.sandbox.bubblewrap import Bubblewrap
from evald.sandbox.contract import Sandbox, SandboxUnavailable
from evald.sandbox.namespaces import Namespaces
from evald.sandbox.remedy import facts, remedy
from evald.sandbox.self_test import faults
from evald.sandbox.unconfined import Unconfined

Choice = Literal["auto", "bubblewrap", "namespaces", "unsafe-subprocess"]

BACK_ENDS: dict[str, Callable[[], Sandbox]] = {
    "bubblewrap": Bubblewrap,
    "namespaces": Namespaces,
    "unsafe-subprocess": Unconfined,
}
SAFE = ("bubblewrap", "namespaces")

_lock = threading.Lock()
_choice: Choice = "auto"
_found: dict[str, Sandbox | str] = {}  # by choice: the sandbox, or why there is none


def use(choice: Choice) -> None:
    """What the suite says, for this process."""
    global _choice
    _choice = choice


def chosen() -> Sandbox:
    """The sandbox in use, tested. Raises SandboxUnavailable; again at each call, with what the first one found."""
    with _lock:
        if _choice not in _found:
            _found[_choice] = _find(_choice)
        found = _found[_choice]
    if isinstance(found, str):
        raise SandboxUnavailable(found)
    return found


def _find(choice: Choice) -> Sandbox | str:
    reasons = []
    for name in SAFE if choice == "auto" else (choice,):
        try:
            sandbox = BACK_ENDS[name]()
            broken = faults(sandbox)
        except (OSError, SandboxUnavailable) as error:
            broken = [str(error)]
        else:
            if not broken:
                return sandbox
        reasons.append(f"{name}: {'; '.join(dict.fromkeys(broken))}")
    told = ". ".join(reasons)
    return f"no sandbox for programs works here ({told}). Remedy: {remedy(told, facts(), root=host.is_root())}"
