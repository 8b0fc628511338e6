"""A DNS server of our own that fails on command, and how a process comes to ask it and nobody else: a mount namespace
with its own /etc/resolv.conf. Needs root.
"""

from __future__ import annotations

import errno
import socket
import struct
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Literal

from tests.faults.means import Missing

NAME = "model.test"
"""Resolves to 127.0.0.1 while the resolver is well."""

How = Literal["well", "unknown", "failing", "silent"]
_CODES = {"well": 0, "failing": 2, "unknown": 3}


class Resolver:
    """Answers for NAME, for the length of a `with`. prefix: the begin of a command line whose process asks it."""

    def __init__(self, scratch: Path) -> None:
        self.how: How = "well"
        self.asked = 0
        self._conf = scratch / "resolv.conf"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._run, name="resolver", daemon=True)
        self.prefix = (
            *("unshare", "--mount", "sh", "-c"),
            f'mount --bind "{self._conf}" /etc/resolv.conf && exec "$@"',
            "sh",
        )

    def __enter__(self) -> Resolver:
        self._address = self._bind()
        self._conf.write_text(f"nameserver {self._address}\noptions timeout:1 attempts:1\n")
        tried = subprocess.run([*self.prefix, "true"], capture_output=True, text=True)
        if tried.returncode:
            self._socket.close()
            raise Missing(f"root, for a mount namespace: {tried.stderr.partition(chr(10))[0]}")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"", (self._address, 53))  # ends the thread
        self._thread.join()
        self._socket.close()

    def _bind(self) -> str:
        """An address of loopback whose port for DNS is free."""
        for number in range(1, 255):
            address = f"127.0.53.{number}"
            try:
                self._socket.bind((address, 53))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                self._socket.close()
                raise Missing(f"root, to serve DNS: {error}") from None
            return address
        raise OSError(errno.EADDRINUSE, "all of 127.0.53.* is taken")

    def _run(self) -> None:
        while True:
            query, sender = self._socket.recvfrom(4096)
            if not query:
                return
            self.asked += 1
            if self.how != "silent":
                self._socket.sendto(_answer(query, _CODES[self.how]), sender)


def _answer(query: bytes, code: int) -> bytes:
    """RFC 1035: the question again, and 127.0.0.1 for NAME when an address of version 4 is asked for."""
    end = query.index(b"\0", 12)
    name = b".".join(_labels(query[12:end])).decode("latin-1").lower()
    kind = struct.unpack_from(">H", query, end + 1)[0]
    if name != NAME:
        code = 3
    found = code == 0 and kind == 1
    head = query[:2] + struct.pack(">HHHHH", 0x8580 | code, 1, int(found), 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + bytes((127, 0, 0, 1)) if found else b""
    return head + query[12 : end + 5] + record


def _labels(name: bytes) -> list[bytes]:
    found = []
    while name:
        found.append(name[1 : 1 + name[0]])
        name = name[1 + name[0] :]
    return found
