"""Calls made at once, in this process and on this thread, instead of in workers' processes: so that a debugger works
inside a metric, and Ctrl-C reaches it.
"""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from evald import math_process


class Inline:
    """Interface of `evald.workers.Workers`, without its time limits: nobody else is there who could end a call.

    on_error: told what a call raises. What is no Exception (Ctrl-C, the end of a debugger's session) goes up to whoever
    submits.
    """

    def __init__(self, on_error: Callable[[Exception], None] = lambda error: None) -> None:
        self._on_error = on_error

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except BdbQuit as error:
            raise KeyboardInterrupt("the debugger was left") from error
        except Exception as error:  # noqa: BLE001  # the edge of a call: its failure is this pair's alone
            self._on_error(error)
            future.set_exception(error)
        return future

    def stop(self) -> None:
        math_process.end()
