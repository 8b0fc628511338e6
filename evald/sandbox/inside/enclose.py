"""Builds a sandbox out of what the kernel has, and runs a command in it: namespaces, a file system of its own, no
capabilities, a filter for system calls, and Landlock where the kernel has it.

Run outside of the sandbox, in a fresh interpreter; on descriptor argv[1] comes what to build (`Plan` as a tuple). Three
processes: this one waits; the first of the new pid namespace reaps, and all others end with it; the third becomes the
command. Each dies with the one before it.

Numbers are of the kernel's headers (uapi/linux: mount.h, sched.h, prctl.h, landlock.h); those of the system calls are
the same on all architectures that are newer than they are.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

from . import wire

TYPE_CHECKING = False  # see wire
if TYPE_CHECKING:
    from collections.abc import Sequence

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PDEATHSIG, _SECCOMP, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 22, 24, 38
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SETGID, _SETUID = 6, 7  # capabilities
_NOBODY = 65534
_DEVICES = ("null", "zero", "full", "random", "urandom")
_HERE = "/tmp"  # in the new mount namespace alone

_libc = ctypes.CDLL(None, use_errno=True)
Plan = tuple[
    bool, list[tuple[str, str]], list[tuple[str, str]], dict[str, bytes], int, bytes, list[str], dict[str, str]
]
"""(is it root that builds, links (path, target), folders (path here, path there), files of /tmp by name, bytes of /tmp,
the filter, the command, its environment)."""


def main() -> None:
    fd = int(sys.argv[1])
    plan: Plan = wire.Codec(_no_handle, _no_handle).decode(wire.receive(fd))
    os.close(fd)
    root = plan[0]
    _prctl(_PDEATHSIG, signal.SIGKILL)
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET | _NEWCGROUP
    _check(_libc.unshare(flags if root else flags | _NEWUSER), "unshare")
    if not root:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{_NOBODY} {uid} 1")
        _write("/proc/self/gid_map", f"{_NOBODY} {gid} 1")
    child = os.fork()
    if child:
        _stand_by(child)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    _build(plan)
    command = os.fork()
    if command:
        _stand_by(command)
    _become(plan)


def _stand_by(child: int) -> None:
    """Reap until that child has ended, then end as it did. Holds no pipe open meanwhile."""
    os.closerange(0, 1 << 10)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _build(plan: Plan) -> None:
    """Turn the root of this mount namespace into what the plan says; nothing else stays reachable."""
    _, links, folders, files, disk, *_ = plan
    os.umask(0o022)
    _libc.sethostname(b"sandbox", 7)
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", _HERE, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")
    os.chdir(_HERE)
    os.mkdir("old")
    os.mkdir("new")
    _check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"old"), "pivot_root")
    os.chdir("/")
    # A mount of its own, so that it can become the root in turn.
    _mount("tmpfs", "/new", "tmpfs", _NOSUID | _NODEV, "mode=0755,size=4m")
    os.mkdir("/new/tmp")
    _mount("tmpfs", "/new/tmp", "tmpfs", _NOSUID | _NODEV, f"mode=1777,size={disk},nr_inodes=16384")
    for path, target in links:
        os.symlink(target, "/new" + path)
    for source, path in folders:
        _show("/old" + source, "/new" + path)
    os.makedirs("/new/dev/shm", exist_ok=True)
    _mount("tmpfs", "/new/dev/shm", "tmpfs", _NOSUID | _NODEV | _NOEXEC, f"mode=1777,size={disk}")
    for name in _DEVICES:
        _touch(f"/new/dev/{name}")
        _mount(f"/old/dev/{name}", f"/new/dev/{name}", None, _BIND)
    for name, data in files.items():
        with open(f"/new/tmp/{name}", "xb") as file:
            file.write(data)
        os.chmod(f"/new/tmp/{name}", 0o644)
    os.chdir("/new")
    _check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    # Both the old tree and the tmpfs between lie on top of the new root now.
    _check(_libc.umount2(b".", _DETACH), "umount2")
    os.chdir("/")
    _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def _show(source: str, path: str) -> None:
    """The folder or file, and what is mounted below it, to be read."""
    if os.path.isdir(source):
        os.makedirs(path, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        _touch(path)
    _mount(source, path, None, _BIND | _REC)
    wanted = struct.pack("<QQQQ", _RDONLY | _NOSUID | _NODEV, 0, 0, 0)
    _check(
        _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, wanted, len(wanted)), "mount_setattr"
    )


def _become(plan: Plan) -> None:
    root, _, _, _, _, code, argv, environment = plan
    os.setsid()
    # Where root builds, confine still has to leave root; elsewhere there is nothing left to do with a capability.
    kept = {_SETGID, _SETUID} if root else set[int]()
    for capability in range(64):
        if capability not in kept:
            _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    mask = sum(1 << capability for capability in kept)
    _check(_libc.capset(struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", mask, mask, 0, 0, 0, 0)), "capset")
    _prctl(_NO_NEW_PRIVS, 1)
    os.chdir("/tmp")
    _landlock()
    if code:
        buffer = ctypes.create_string_buffer(code, len(code))
        filter_program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
        _check(_libc.prctl(_SECCOMP, 2, filter_program, 0, 0), "seccomp")
    os.execve(argv[0], argv, environment)


_ALL = (1 << 13, 1 << 14, 1 << 15, 1 << 15, 1 << 16)  # rights of files that versions 1 to 5 of Landlock know, as limits
_READ = 1 | 4 | 8  # execute, read a file, list a folder
_WRITE_FILE, _TRUNCATE = 2, 1 << 14


def _landlock() -> None:
    """A second lock on the same doors: writing only in the private folders; no signals to others, and no sockets of
    theirs. Silent where the kernel has none.
    """
    version = _libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return
    handled = _ALL[min(version, len(_ALL)) - 1] - 1
    attributes = struct.pack("<QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _libc.syscall(_LANDLOCK_CREATE, attributes, size, 0)
    _check(rules, "landlock")
    every_device = (f"/dev/{name}" for name in _DEVICES)
    for path, rights in (
        ("/", _READ),
        ("/tmp", handled),
        ("/dev/shm", handled),
        *((path, 1 | 4 | _WRITE_FILE | _TRUNCATE) for path in every_device),
    ):
        fd = os.open(path, os.O_PATH)
        rule = struct.pack("<Qi", rights & handled, fd)
        _check(_libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0), "landlock")
        os.close(fd)
    _check(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0), "landlock")
    os.close(rules)


def _mount(source: str | None, path: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words: Sequence[bytes | None] = [None if word is None else os.fsencode(word) for word in (source, path, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), None if options is None else options.encode()), f"mount {path}")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _no_handle(*_: object) -> tuple[bytes, int]:
    raise wire.WireError("no data")
