"""How a count is compared with what an instruction asks for."""

from __future__ import annotations

from shared.instructions import Relation


def holds(count: int, relation: Relation, bound: int) -> bool:
    return count >= bound if relation == "at least" else count < bound
