"""A second process on this host: what two processes see of each other can't be tried in one.

Forked, so that it costs no start of Python; so there must be no thread yet.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from shared.atomic import write_all


class Beside:
    """Runs `work`, which is given a function that tells whether it is to stop. `work` returns what JSON can hold.

    It also stops, and ends, when this process does.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], Any]) -> None:
        told, tells = os.pipe()
        stops, self._stop = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._stop)  # or its own copy would hide that the other's is closed
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                write_all(tells, _tell(work, stops))
            finally:
                os._exit(0)
        os.close(tells)
        os.close(stops)
        self._told: BinaryIO = os.fdopen(told, "rb")

    def result(self) -> Any:
        """Tell it to stop, wait for its end; what it returned. Raises OSError as it did, or when it died."""
        os.close(self._stop)
        with self._told as file:
            data = file.read()
        os.waitpid(self.pid, 0)
        if not data:
            raise OSError("the process beside this one died")
        value, error = msgspec.json.decode(data)
        if error is not None:
            raise OSError(error)
        return value

    def kill(self) -> None:
        """With SIGKILL, once it has said nothing yet."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._stop)
        self._told.close()


def _tell(work: Callable[[Callable[[], bool]], Any], stops: int) -> bytes:
    try:
        value, error = work(lambda: bool(select.select([stops], [], [], 0)[0])), None
    except OSError as raised:
        value, error = None, str(raised)
    return msgspec.json.encode((value, error))
