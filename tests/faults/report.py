"""What a soak came to: counts by fault, and the table in which they are told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.faults.ledger import Loss


@dataclass
class Report:
    """What came of it. faults: by kind. losses: what each may have cost, with how many of these requests were answered
    again. skipped: kinds that can't be had here, and why.
    """

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    processes: int = 0
    requests: int = 0
    answered_once: int = 0
    losses: list[tuple[Loss, int]] = field(default_factory=list)
    wasted: int = 0
    most_threads: int = 0
    most_sockets: int = 0
    violation: str = ""
    kept: str = ""

    def table(self) -> str:
        unsaved = sum(len(loss.unsaved) for loss, _ in self.losses)
        rows = [("fault", "injected", "requests open", "answered, not saved", "most at once", "answered again")]
        by_kind: dict[str, list[tuple[Loss, int]]] = {}
        for loss, wasted in self.losses:
            by_kind.setdefault(loss.what, []).append((loss, wasted))
        for kind in sorted(self.faults.keys() | by_kind.keys()):
            losses = by_kind.get(kind, [])
            sums = (
                sum(loss.open for loss, _ in losses),
                sum(len(loss.unsaved) for loss, _ in losses),
                max((len(loss.unsaved) for loss, _ in losses), default=0),
                sum(wasted for _, wasted in losses),
            )
            rows.append((kind, str(self.faults[kind] or "-"), *(str(each) if losses else "-" for each in sums)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        for kind, reason in self.skipped.items():
            lines.append(f"skipped: {kind}: {reason}")
        lines += [
            f"rounds {self.rounds}, inferd started {self.processes} times",
            f"requests {self.requests}, answered exactly once in the predictions {self.answered_once}",
            f"answers given twice {self.wasted}, of {unsaved} that were not saved at a fault",
            f"at rest at most {self.most_threads} threads and {self.most_sockets} sockets",
            f"FAIL (seed {self.seed}): {self.violation}" if self.violation else f"PASS (seed {self.seed})",
        ]
        if self.kept:
            lines.append(f"kept: {self.kept}")
        return "\n".join(line.rstrip() for line in lines)
