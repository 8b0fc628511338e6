"""The fake server with what it was asked and what it answered on disk, so that its counts outlive its restarts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import TracebackType

from tests.server import FakeServer


class Endpoint:
    """The server, for the length of a `with`, on the same port each time it is started."""

    def __init__(self, folder: Path) -> None:
        self._asked = _Log(folder / "server.asked")
        self._answered = _Log(folder / "server.answered")
        self.port = 0
        self.server: FakeServer | None = None

    def __enter__(self) -> Endpoint:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        server = FakeServer(port=self.port, log=self._answered.path, asked=self._asked.path)
        server.__enter__()
        self.server, self.port = server, server.port

    def kill(self) -> None:
        """SIGKILL: what it was working on goes with it."""
        if self.server is not None:
            self.server.__exit__(None, None, None)
            self.server = None

    def behave(self, behaviour: str = "") -> None:
        assert self.server is not None
        self.server.behave(behaviour)

    def open(self) -> int:
        """Connections that are open on it, beside the one on which it is asked this."""
        assert self.server is not None
        return int(self.server.stats()["connections_open"]) - 1

    def asked(self) -> Counter[str]:
        """How often each request came whole, by the SHA-256 of its body, since the first start."""
        return self._asked.counts()

    def answered(self) -> Counter[str]:
        """How often each was answered with status 200."""
        return self._answered.counts()


class _Log:
    """A log of the server's, read on from where it was read to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._counts: Counter[str] = Counter()

    def counts(self) -> Counter[str]:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                whole = file.read()
            whole = whole[: whole.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.decode().splitlines():
                digest, _, status = line.partition(" ")
                if status in ("", "200"):
                    self._counts[digest] += 1
        return Counter(self._counts)
