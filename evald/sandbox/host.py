"""What every back end asks of this machine: the parts of the system that a program may see, files without a name, and
users that own nothing.
"""

from __future__ import annotations

import itertools
import os

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives")  # for finding libraries and commands; nothing else of /etc
_counter = itertools.count()


def system_paths() -> list[tuple[str, str]]:
    """(path, what it is a link to or ""), of what programs of any language need: libraries and commands."""
    found = []
    for path in _SYSTEM:
        if os.path.islink(path):
            found.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            found.append((path, ""))
    return found + [(path, "") for path in _SETTINGS if os.path.exists(path)]


def memory_file(data: bytes) -> int:
    """A descriptor to read the data from; the caller closes it."""
    fd = os.memfd_create("tandem")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def is_root() -> bool:
    """Whether a program can be made another user. The root of a namespace with no users but itself can't."""
    return os.geteuid() == 0 and _users() > 60_000


def own_user() -> list[str]:
    """For confine: where root starts sandboxes, a user (and group) of a number that no other one has now. So what one
    sandbox may start isn't counted against another one, and no file of this machine is that user's.
    """
    if not is_root():
        return []
    first, room = (0x40000000, 1 << 28) if _has_high_users() else (20_000, 40_000)
    number = first + ((os.getpid() << 10) + next(_counter) % 1024) % room
    return [f"uid={number}", f"gid={number}"]


def _has_high_users() -> bool:
    """Containers are often given 65,536 of the numbers alone."""
    return _users() > 0x60000000


def _users() -> int:
    """How many users there are beside each other, at most, in this user namespace."""
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        return max((sum(map(int, line.split()[::2])) for line in lines), default=0)


def oom_kills() -> int:
    """How often the kernel has killed for want of memory, on the whole machine; 0 where it doesn't tell."""
    try:
        with open("/proc/vmstat", encoding="ascii") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
