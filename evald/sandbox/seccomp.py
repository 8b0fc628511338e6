"""A filter for system calls, as the kernel takes it: what reaches past a sandbox, or what no program of a benchmark
needs and where kernels have had their holes. Everything else is allowed.

Refused calls fail with an error, so that a program that only asks goes on. Of sockets there are local ones and those of
the internet family, which lead nowhere in the sandbox; not those that a network namespace doesn't hold (vsock).
"""

from __future__ import annotations

import errno
import platform
import struct

_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*, all that clone takes

# By name: (x86-64, AArch64); from the kernel's syscall_64.tbl and asm-generic/unistd.h. None: isn't there.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6


def program(machine: str = platform.machine()) -> bytes | None:
    """The filter as an array of struct sock_filter; None for an architecture whose numbers aren't here."""
    if machine not in _ARCHES:
        return None
    at = list(_ARCHES).index(machine)
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _ARCHES[machine]),
        (_RETURN, 0, 0, _KILL),  # another architecture's numbers mean other calls
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_ABOVE, 0, 1, 0x3FFFFFFF), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]  # the x32 numbers
    for numbers in sorted(_REFUSED.values(), key=lambda pair: pair[at] or 0):
        if (number := numbers[at]) is not None:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    # Its flags lie in memory, where a filter can't look: the C library falls back on clone.
    code += [(_EQUAL, 0, 1, _CLONE3[at]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    code += [
        (_EQUAL, 0, 4, _CLONE[at]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 3 + len(_FAMILIES), _SOCKET[at]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
    ]
    code += [(_EQUAL, len(_FAMILIES) - position, 0, family) for position, family in enumerate(_FAMILIES)]
    code += [(_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
