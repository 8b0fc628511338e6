"""Which elements a longest common subsequence takes; rapidfuzz tells how many.

Where several are equally long, the choice is that of the usual table read from its end: a match is taken, else the step
goes to the left if that holds more, else up. ROUGE-Lsum's number depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

_BLOCK = 512  # rows that are kept at once while reading back: the memory is (rows / 512 + 512) x columns bits


def positions(wanted: Sequence[int], given: Sequence[int]) -> list[int]:
    """The indices in `wanted` of a longest common subsequence with `given`, falling.

    Time: the product of both lengths over the bits of a machine word, twice. A row of the table is one integer: bit j
    says that the length grows with column j (Hyyro, "Bit-parallel LCS-length computation revisited", 2004), so that the
    length in column j is the number of bits up to there.
    """
    # Rows go along `given`, which may be long; columns along `wanted`.
    masks: dict[int, int] = {}
    for column, element in enumerate(wanted):
        masks[element] = masks.get(element, 0) | 1 << column
    full = (1 << len(wanted)) - 1
    starts = [0]  # the row before each block
    row = 0
    for number, element in enumerate(given, 1):
        row = _next(row, masks.get(element, 0), full)
        if number % _BLOCK == 0:
            starts.append(row)
    found: list[int] = []
    column = len(wanted)
    for block in range(len(starts) - 1, -1, -1):
        first = block * _BLOCK
        rows = [starts[block]]
        for element in given[first : first + _BLOCK]:
            rows.append(_next(rows[-1], masks.get(element, 0), full))
        at = len(rows) - 1  # the row; of `given` as a whole it is first + at
        while at and column:
            if wanted[column - 1] == given[first + at - 1]:
                found.append(column - 1)
                column -= 1
                at -= 1
            elif _length(rows[at - 1], column) > _length(rows[at], column - 1):
                at -= 1
            else:
                column -= 1
        if not column:
            break
    return found


def _next(row: int, mask: int, full: int) -> int:
    """The row below: bits are ones where the length grows. Hyyro keeps the complement."""
    kept = full & ~row
    hits = kept & mask
    return full & ~((kept + hits) | (kept & ~mask))


def _length(row: int, column: int) -> int:
    return (row & ((1 << column) - 1)).bit_count()
