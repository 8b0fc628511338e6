"""Commands by files: evalctl writes a small file for each under control/, the daemons find it by listing, and tell in
their beats what became of it.

A command names the daemons that it is for by their boot_id, which is new at each start. So an old file moves nobody,
no two clocks are compared, and whoever gave the command knows whose word to wait for. What else lies in the folder is
refused, told once, and not opened again.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from itertools import islice
from queue import Empty, SimpleQueue

from shared.atomic import make_folder
from shared.errors import TandemError, WorkDirError
from shared.layout import WorkDir
from shared.records import COMMAND_ID, Acknowledgement, Command
from shared.status import read_record

MAX_BYTES = 1 << 16
LISTED = 4096  # names looked at: more than that is nobody's command
AT_ONCE = 64  # files read at one look
TRIES = 5  # looks at a file that can't be read just now
LOOK_EVERY = 1.0  # seconds

_NAME = re.compile(COMMAND_ID.rstrip("$") + r"\.json\Z")


class Refused(TandemError):
    """A daemon can't do what a command asks; the message says why."""


def answer(command: Command, obey: Callable[[Command], str]) -> Acknowledgement:
    """What `obey` came to: the text that it returned, or why it refused."""
    try:
        text, obeyed = obey(command), True
    except Refused as error:
        text, obeyed = str(error), False
    return Acknowledgement(id=command.id, command=command.command, obeyed=obeyed, text=text)


class Inbox:
    """The commands for one daemon. refuse: told once of each name that is no command, and why."""

    def __init__(self, work: WorkDir, boot_id: str, refuse: Callable[[str, str], None]) -> None:
        self._work = work
        self._boot_id = boot_id
        self._refuse = refuse
        self._seen: set[str] = set()
        self._tries: dict[str, int] = {}
        self._flooded = False

    def look(self) -> list[Command]:
        """The commands for this daemon that were not there at the last look, in the order of their names.

        Raises OSError when the folder can't be listed now.
        """
        regular, others = self._list()
        found = []
        for name in sorted(others - self._seen):
            self._drop(name, "not a regular file")
        for name in sorted(regular - self._seen)[:AT_ONCE]:
            command = self._read(name)
            if command is not None and self._boot_id in command.boots:
                found.append(command)
        names = regular | others
        self._seen &= names
        self._tries = {name: tries for name, tries in self._tries.items() if name in names}
        return found

    def _list(self) -> tuple[set[str], set[str]]:
        """The names of regular files, and those of everything else (half-written files left out)."""
        regular: set[str] = set()
        others: set[str] = set()
        with os.scandir(self._work.control) as entries:
            for entry in islice(entries, LISTED):
                if not entry.name.startswith("."):
                    (regular if entry.is_file(follow_symlinks=False) else others).add(entry.name)
            if not self._flooded and next(entries, None) is not None:
                self._flooded = True
                self._refuse("", f"more than {LISTED} files: remove what isn't needed")
        return regular, others

    def _read(self, name: str) -> Command | None:
        if not _NAME.match(name):
            self._drop(name, "not the name of a command")
            return None
        command_id = name.removesuffix(".json")
        try:
            command = read_record(self._work.command(command_id), Command, MAX_BYTES)
        except OSError as error:  # ESTALE, or not ours to read yet: looked at again
            self._tries[name] = self._tries.get(name, 0) + 1
            if self._tries[name] >= TRIES:
                self._drop(name, str(error))
            return None
        except WorkDirError as error:
            self._drop(name, str(error))
            return None
        self._seen.add(name)
        if command is not None and command.id != command_id:
            self._drop(name, "its id is another than its name")
            return None
        return command

    def _drop(self, name: str, reason: str) -> None:
        self._seen.add(name)
        self._refuse(name, reason)


class Listener:
    """Looks for commands on a thread of its own, so that a mount that hangs holds up nothing else.

    take: called with each command, hang_up: after `hung_up`; both on that thread.
    """

    def __init__(
        self, inbox: Inbox, take: Callable[[Command], None], hang_up: Callable[[], None], interval: float
    ) -> None:
        self._inbox = inbox
        self._take = take
        self._hang_up = hang_up
        self._interval = min(interval, LOOK_EVERY)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hung_up(self) -> None:
        """SIGHUP came. May be called from its handler."""
        self._calls.put(self._hang_up)

    def stop(self) -> None:
        """Take in nothing more. Doesn't wait: the thread may hang with its mount."""
        self._calls.put(None)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=self._interval)
            except Empty:
                call = self._look
            if call is None:
                return
            call()

    def _look(self) -> None:
        try:
            commands = self._inbox.look()
        except OSError:
            return  # the folder, or the whole mount, is away: it is looked at again
        for command in commands:
            self._take(command)


def open_folder(work: WorkDir) -> None:
    """Make the folder, before anybody looks for it: on NFS a name that was once missed stays missing for a while."""
    make_folder(work.control)
