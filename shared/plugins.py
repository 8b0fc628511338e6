"""What users bring of their own: an object named `module:attribute`, or an entry point of an installed package."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any


def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points of the group by name."""
    return {point.name: point for point in entry_points(group=group)}


def load(name: str, group: str) -> Any:
    """The object. Imports user code, so it may raise anything."""
    if ":" not in name:
        return installed(group)[name].load()
    module, _, attribute = name.partition(":")
    # As `python` itself would find it from here; last, so that no file in this folder hides an installed module.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
