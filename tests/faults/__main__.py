"""`scripts/soak`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import soak


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=soak.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = soak.Options()
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="how long faults come (default 600)")
    parser.add_argument("--seed", type=int, help="of a run that shall be had again (default: a new one)")
    parser.add_argument("--workers", type=int, default=defaults.workers, help="of each model (default 16)")
    parser.add_argument("--requests", type=int, default=defaults.requests, help="of each round (default 6000)")
    parser.add_argument("--latency", type=int, default=defaults.latency, help="ms to an answer (default 40)")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(3), "big")
    options = soak.Options(given.seconds, seed, given.workers, given.requests, given.latency)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends with it
    folder = Path(tempfile.mkdtemp(prefix="tandem-soak-"))
    started = time.monotonic()
    print(f"seed {seed}, in {folder}", flush=True)

    def tell(line: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {line}", flush=True)

    try:
        report = soak.Soak(folder, options, tell).run()
    except BaseException:
        print(f"broken off; kept: {folder} (seed {seed})", file=sys.stderr)
        raise
    print(report.table(), flush=True)
    if report.violation:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
