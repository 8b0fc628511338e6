"""The limits that a process puts on itself before it turns into the program. Run as `python -c` with settings as
arguments: name=value, and after `--` the command to become.

    uid, gid      leave root for good (where root started the sandbox: its processes aren't counted otherwise)
    cpu           seconds          memory   bytes of address space     data      bytes of private memory
    file_size     bytes            files    open files                 processes of this user in this sandbox

Limits above what is allowed here already are clamped to that.
"""

from __future__ import annotations

import os
import resource
import sys

_LIMITS = {
    "cpu": resource.RLIMIT_CPU,
    "memory": resource.RLIMIT_AS,
    "data": resource.RLIMIT_DATA,
    "file_size": resource.RLIMIT_FSIZE,
    "files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}


def confine(arguments: list[str]) -> None:
    """Raises OSError, ValueError."""
    settings = {name: int(value) for name, _, value in (argument.partition("=") for argument in arguments)}
    if "uid" in settings:
        os.setgroups([])
        os.setresgid(settings["gid"], settings["gid"], settings["gid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, kind in _LIMITS.items():
        if name in settings:
            soft = hard = clamp(settings[name], resource.getrlimit(kind)[1])
            if name == "cpu":
                hard = clamp(soft + 1, resource.getrlimit(kind)[1])  # SIGXCPU first, which tells what it was
            resource.setrlimit(kind, (soft, hard))


def clamp(wanted: int, allowed: int) -> int:
    return wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed)


def main() -> None:
    """Become a command, confined."""
    split = sys.argv.index("--")
    confine(sys.argv[1:split])
    command = sys.argv[split + 1 :]
    os.environ.pop("PYTHONPATH", None)  # which led here
    sys.stderr.write("tandem: confined\n")
    sys.stderr.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"tandem: no start: {command[0]}: {error.strerror}\n")
        os._exit(127)
