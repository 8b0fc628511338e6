"""evald with an exact_match that breaks on some answers: `python -m tests.daemons.broken_evald -w WORK`.

Its workers import this module as their main module, so the metric is broken in them too. An answer may be `raise`,
`hang`, `die` (SIGKILL), `exit` (status 7), or `gate`, which waits until there is a file TANDEM_TEST_GATE. Each call
adds a byte to the file TANDEM_TEST_CALLS.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import cast

from evald.metrics import METRICS, Metric, of_text
from evald.service import main
from shared.vocabulary import METRICS as VOCABULARY

_exact_match = METRICS["exact_match"].make(VOCABULARY["exact_match"]())


def _score(answer: str, targets: Sequence[str]) -> float:
    if path := os.environ.get("TANDEM_TEST_CALLS"):
        with open(path, "ab") as file:
            file.write(b".")
    if answer == "raise":
        raise ValueError(f"no way to score {answer!r}")
    if answer == "hang":
        threading.Event().wait()
    if answer == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if answer == "exit":
        os._exit(7)
    while answer == "gate" and not os.path.exists(os.environ["TANDEM_TEST_GATE"]):
        time.sleep(0.01)
    return _exact_match.of(answer, targets)


cast(dict[str, Metric], METRICS)["exact_match"] = of_text("exact_match", "1", 1.0, _score)

if __name__ == "__main__":
    main()
