"""The command line: checks, starts, shows and reports; and the Python API. The only package that imports all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalctl.api import EvalReport, infer, run_eval

__all__ = ["EvalReport", "infer", "run_eval"]


def __getattr__(name: str) -> Any:
    """The API when it is asked for: most commands need neither daemon's parts."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evalctl import api

    return getattr(api, name)
