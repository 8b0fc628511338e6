"""Many transfers on one thread: libcurl's multi interface over epoll.

    Multi.start(transport, call, token)   begin one; nothing is waited for
    Multi.poll(timeout)                   let them go on; gives (token, what came) of those that ended
    Multi.wake()                          end a poll early, from any thread

Invariant: what was started is given back exactly once, with its Reply or the exception that ended it. There is no limit
on how many run at once, and none a host. Connections are kept for whoever comes next; HTTP/2 carries many transfers
over one. All but `wake` belongs to one thread.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Generic, NamedTuple, TypeVar

import pycurl

from inferd.adapters.transport import SETTLE_LOOKS, Call, Handle, Reply, Transport

T = TypeVar("T")

_BATCH = 16  # events taken at once: what ended meanwhile is not kept waiting for long
_NEVER = float("inf")


class _Transfer(NamedTuple, Generic[T]):
    transport: Transport
    handle: Handle
    token: T
    settles: bool


class Multi(Generic[T]):
    """connections: how many to keep when they rest."""

    def __init__(self, connections: int) -> None:
        self._multi = multi = pycurl.CurlMulti()
        self.connections = connections
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
        multi.setopt(pycurl.M_MAXCONNECTS, connections)
        self._epoll = select.epoll()
        self._watched: dict[int, int] = {}
        self._gone: set[int] = set()
        self._due = _NEVER
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open = True
        self._waking = threading.Lock()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._running: dict[pycurl.Curl, _Transfer[T]] = {}
        self._streams: dict[pycurl.Curl, _Transfer[T]] = {}
        self._look = 0.0
        self._idle: dict[Transport, list[Handle]] = {}

    def __len__(self) -> int:
        """Transfers on their way."""
        return len(self._running)

    def keep(self, connections: int) -> None:
        """Keep so many connections from now on."""
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
        self.connections = connections

    def start(self, transport: Transport, call: Call, token: T) -> None:
        idle = self._idle.get(transport)
        handle = idle.pop() if idle else transport.handle()
        handle.begin(call)
        transfer = _Transfer(transport, handle, token, call.settle is not None)
        self._multi.add_handle(handle.curl)
        self._running[handle.curl] = transfer
        if transfer.settles:
            self._streams[handle.curl] = transfer

    def poll(self, timeout: float) -> list[tuple[T, Reply | Exception]]:
        """Waits at most `timeout` seconds for something to happen."""
        now = time.monotonic()
        wait = min(timeout, self._due - now, self._look - now if self._streams else _NEVER)
        self._gone.clear()
        for fd, events in self._epoll.poll(max(wait, 0.0), _BATCH):
            if fd == self._wake:
                os.eventfd_read(fd)
            # What came before it in this batch may have let go of it: then the event is of a socket that was closed,
            # even if another one has got its number since.
            elif fd not in self._gone:
                self._multi.socket_action(fd, _told(events))
        if self._due <= time.monotonic():
            self._due = _NEVER
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        ended = self._ended()
        if self._streams:
            ended += self._settled(time.monotonic())
        return ended

    def wake(self) -> None:
        """Does nothing once it is closed."""
        with self._waking:  # else the number could be another file's by now
            if self._open:
                os.eventfd_write(self._wake, 1)

    def close(self) -> list[T]:
        """Break off what runs, and let go of every connection; gives the tokens of what was broken off."""
        left = [transfer.token for transfer in self._running.values()]
        for curl in self._running:
            self._multi.remove_handle(curl)
        self._running.clear()
        self._streams.clear()
        self._idle.clear()
        self._multi.close()
        self._epoll.close()
        with self._waking:
            self._open = False
            os.close(self._wake)
        return left

    def _ended(self) -> list[tuple[T, Reply | Exception]]:
        ended: list[tuple[T, Reply | Exception]] = []
        more = True
        while more:
            more, good, bad = self._multi.info_read()
            for curl in good:
                ended.append((self._running[curl].token, self._take(curl).succeeded()))
            for curl, code, text in bad:
                ended.append((self._running[curl].token, self._take(curl).failed(code, text)))
        return ended

    def _settled(self, now: float) -> list[tuple[T, Reply | Exception]]:
        """Streams that fell silent after their end, though the server keeps them open."""
        if now < self._look:
            return []
        self._look = now + SETTLE_LOOKS
        silent = [(curl, transfer) for curl, transfer in self._streams.items() if transfer.handle.settled()]
        return [(transfer.token, self._take(curl).failed(pycurl.E_ABORTED_BY_CALLBACK)) for curl, transfer in silent]

    def _take(self, curl: pycurl.Curl) -> Handle:
        """Off the multi, and back among the idle: the handle still tells of its exchange until the next one begins."""
        transfer = self._running.pop(curl)
        self._multi.remove_handle(curl)
        if transfer.settles:
            del self._streams[curl]
        self._idle.setdefault(transfer.transport, []).append(transfer.handle)
        return transfer.handle

    def _on_socket(self, what: int, fd: int, _multi: object, _data: object) -> None:
        watched = self._watched
        if what == pycurl.POLL_REMOVE:
            if watched.pop(fd, None) is not None:
                self._gone.add(fd)
                try:
                    self._epoll.unregister(fd)
                except OSError:
                    pass  # closed already: epoll forgot it by itself
            return
        events = (select.EPOLLIN if what & pycurl.POLL_IN else 0) | (select.EPOLLOUT if what & pycurl.POLL_OUT else 0)
        if fd not in watched:
            try:
                self._epoll.register(fd, events)
            except FileExistsError:
                self._epoll.modify(fd, events)
        elif watched[fd] != events:
            self._epoll.modify(fd, events)
        watched[fd] = events

    def _on_timer(self, milliseconds: int) -> None:
        self._due = _NEVER if milliseconds < 0 else time.monotonic() + milliseconds / 1000


def _told(events: int) -> int:
    told = 0
    if events & select.EPOLLIN:
        told |= pycurl.CSELECT_IN
    if events & select.EPOLLOUT:
        told |= pycurl.CSELECT_OUT
    if events & (select.EPOLLERR | select.EPOLLHUP):
        told |= pycurl.CSELECT_ERR
    return told
