"""A daemon's side of control: from the file of a command, or SIGHUP, to what becomes of it in the beat and the log.

Files are read on the listener's thread; what a command does happens on the daemon's own, where `post` puts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.config import Suite
from shared.control import Inbox, Listener, Refused, answer, open_folder
from shared.daemon import StopSignal
from shared.heartbeat import HeartbeatWriter
from shared.layout import WorkDir
from shared.records import Acknowledgement, Command
from shared.reload import Change, read_again
from shared.supervision import ServiceManager


class Steering:
    """planned: the suite's text when the daemon started, where more than settings hangs on it.

    obey: does what a command asks, but for `drain`, `stop` and `reload`; returns what it did, or raises Refused. apply:
    takes settings over. Both are called on the daemon's thread.
    """

    def __init__(
        self,
        work: WorkDir,
        planned: bytes | None,
        beat: HeartbeatWriter,
        manager: ServiceManager,
        stop: StopSignal,
        logger: Any,
        *,
        post: Callable[[Callable[[], None]], None],
        obey: Callable[[Command], str],
        apply: Callable[[Suite], Change],
        interval: float,
    ) -> None:
        self._work = work
        self._planned = planned
        self._beat = beat
        self._manager = manager
        self._stop = stop
        self._log = logger
        self._post = post
        self._obey_own = obey
        self._apply = apply
        inbox = Inbox(work, beat.boot_id, self._on_refused)
        self._listener = Listener(inbox, self._take, self._hang_up, interval)

    def start(self) -> None:
        try:
            open_folder(self._work)
        except OSError as error:  # somebody's own file, say: no reason not to work
            self._log.warning("no commands can be given here", error=str(error))
        self._listener.start()
        self._stop.on_hangup = self._listener.hung_up

    def end(self) -> None:
        self._listener.stop()

    def _take(self, command: Command) -> None:
        """Runs on the listener's thread, as `_hang_up` does."""
        if command.command == "reload":
            self._reload(lambda reload: self._tell(command, answer(command, lambda _: reload())))
        else:
            self._post(lambda: self._tell(command, answer(command, self._obey)))

    def _hang_up(self) -> None:
        def tell(reload: Callable[[], str]) -> None:
            try:
                self._log.info("reloaded", signal="SIGHUP", text=reload())
            except Refused as error:
                self._log.warning("not reloaded", signal="SIGHUP", reason=str(error))

        self._reload(tell)

    def _reload(self, tell: Callable[[Callable[[], str]], None]) -> None:
        """tell: calls what it is given, and says what came of it."""
        if self._stop.event.is_set():
            self._post(lambda: tell(_ending))
            return
        self._manager.reloading()
        try:
            suite = read_again(self._work, self._planned)
        except Refused as error:
            refused = error

            def reload() -> str:
                raise refused
        else:

            def reload() -> str:
                return str(self._apply(suite))

        def finish() -> None:
            try:
                tell(reload)
            finally:
                if not self._stop.event.is_set():  # else it has been told that the daemon stops
                    self._manager.ready()

        self._post(finish)

    def _obey(self, command: Command) -> str:
        if self._stop.event.is_set() and command.command != "stop":
            _ending()
        if command.command in ("drain", "stop"):
            self._stop.ask(f"evalctl {command.command} ({command.by})", hurry=command.command == "stop")
            return "ends once nothing is in flight" if command.command == "drain" else "ends now"
        return self._obey_own(command)

    def _tell(self, command: Command, word: Acknowledgement) -> None:
        tell = self._log.warning if word.obeyed else self._log.error
        tell("command", command=command.command, by=command.by, obeyed=word.obeyed, text=word.text, id=command.id)
        self._beat.acknowledge(word)

    def _on_refused(self, name: str, reason: str) -> None:
        self._log.warning("not a command: left alone", file=name, reason=reason)


def _ending() -> str:
    raise Refused("it is ending already")
