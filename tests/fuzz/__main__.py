"""`scripts/fuzz`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the inputs that found something")
    given = parser.parse_args()
    start = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk would take most of the time
    with tempfile.TemporaryDirectory(prefix="tandem-fuzz-", dir=memory) as folder:
        found = fuzz(given.inputs, Path(folder), given.seed, lambda text: print(text, flush=True))
    for number, (fault, data) in enumerate(found.faults.items()):
        print(f"FAULT {fault}\n  {data[:200]!r}")
        if given.keep is not None:
            given.keep.mkdir(parents=True, exist_ok=True)
            (given.keep / f"{number}.input").write_bytes(data)
    print(
        f"{found.count} inputs, {sum(found.read.values())} read, {sum(found.refused.values())} refused, "
        f"{len(found.faults)} faults, memory +{found.grown / 1e6:.0f} MB, {time.monotonic() - start:.0f} s"
    )
    return int(bool(found.faults))


sys.exit(main())
