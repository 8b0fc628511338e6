"""Back end `bubblewrap`: the sandbox of Flatpak, a Debian package.

Started by root it takes no user namespace: the program's processes leave root for a user of their own, since limits on
processes don't bind root's (inside/confine.py). Started by anyone else they are nobody in a user namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import PurePath

from evald.sandbox import host, seccomp
from evald.sandbox.contract import Limits, Program, Started
from evald.sandbox.interpreter import INSIDE, SHOWN


class Bubblewrap:
    name = "bubblewrap"

    def __init__(self) -> None:
        """Raises FileNotFoundError where it isn't installed."""
        found = shutil.which("bwrap")
        if found is None:
            raise FileNotFoundError("bwrap isn't installed (Debian: apt-get install bubblewrap)")
        self._bwrap = found

    def settings(self, limits: Limits) -> list[str]:
        return [*host.own_user(), *limits.settings()]

    def start(
        self, program: Program, limits: Limits, *, stdin: int, stdout: int, stderr: int, pass_fds: Sequence[int] = ()
    ) -> Started:
        opened: list[int] = []

        def descriptor(data: bytes) -> str:
            opened.append(host.memory_file(data))
            return str(opened[-1])

        try:
            argv = [self._bwrap, *self._user(), *_FIXED]
            argv += ["--size", str(limits.disk), "--perms", "1777", "--tmpfs", "/tmp", *_seen(program.visible)]
            argv += ["--size", str(limits.disk), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
            for name, data in program.files.items():
                argv += ["--perms", "0644", "--file", descriptor(data), f"/tmp/{name}"]
            argv += ["--remount-ro", "/", "--chdir", "/tmp"]
            for name, value in program.environment.items():
                argv += ["--setenv", name, value]
            if (code := seccomp.program()) is not None:
                argv += ["--seccomp", descriptor(code)]
            process = subprocess.Popen(
                [*argv, "--", *program.argv],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[*pass_fds, *opened],
                env={},  # so that not even bwrap's own memory holds a secret
                cwd="/",
            )
        finally:
            for fd in opened:
                os.close(fd)
        return Started(process)

    def _user(self) -> list[str]:
        if host.is_root():
            return ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        return ["--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]


_FIXED = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"),
    *("--dev", "/dev"),
)


def _seen(visible: Sequence[str]) -> list[str]:
    argv = []
    for path, target in host.system_paths():
        argv += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for path in visible:
        for parent in reversed(PurePath(path).parents[:-1]):  # else they'd be closed to the program's own user
            argv += ["--perms", "0755", "--dir", str(parent)]
        argv += ["--ro-bind", path, path]
    return [*argv, "--ro-bind", INSIDE, SHOWN]
