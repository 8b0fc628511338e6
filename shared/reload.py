"""Which settings of a suite take effect while daemons run, and how they are read again.

What was planned stays: a suite that asks for something else is refused, and needs `evalctl submit`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from msgspec import Struct, structs

from shared.config import Suite
from shared.control import Refused
from shared.errors import SuiteError
from shared.layout import WorkDir
from shared.suite import asked_for, parse_suite, submitted_suite

INFER_FIXED = frozenset({"attempt_timeout", "commit_interval", "unhealthy_after", "unhealthy_timeout"})
"""Settings of [infer] that hold from an inferd's start to its end."""
EVAL_FIXED = frozenset({"max_num_workers", "events", "calibration_bins", "sandbox"})
"""Those of [eval]."""

C = TypeVar("C", bound=Struct)


class Change(NamedTuple):
    """changed: what takes effect now; restart: what differs and takes effect at the next start."""

    changed: dict[str, object]
    restart: tuple[str, ...]

    def __str__(self) -> str:
        now = ", ".join(f"{name} = {value}" for name, value in self.changed.items()) or "nothing changed"
        later = f"; at the next start: {', '.join(self.restart)}" if self.restart else ""
        return now + later


def read_again(work: WorkDir, planned: bytes | None) -> Suite:
    """The suite as it stands in the work_dir now. planned: the text that it must still ask the same as.

    Raises Refused.
    """
    try:
        text = submitted_suite(work.suite)
        suite = parse_suite(text, str(work.suite), work.root, check_files=False)
    except OSError as error:
        raise Refused(f"the suite can't be read: {error}") from None
    except SuiteError as error:
        raise Refused(f"the suite is wrong, nothing was changed: {error.problems[0]}") from None
    if planned is not None and asked_for(text) != asked_for(planned):
        raise Refused(
            f"{work.suite} asks for something else than was planned: nothing was changed. "
            "Beside [infer], [eval] and models' max_workers, changes need `evalctl submit`"
        )
    return suite


def merge(current: C, wanted: C, fixed: frozenset[str]) -> tuple[C, Change]:
    """`current` with what may change taken from `wanted`."""
    differs = {
        name: value for name in current.__struct_fields__ if (value := getattr(wanted, name)) != getattr(current, name)
    }
    changed = {name: value for name, value in differs.items() if name not in fixed}
    return structs.replace(current, **changed), Change(changed, tuple(sorted(differs.keys() & fixed)))
