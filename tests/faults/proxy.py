"""A TCP proxy on loopback between inferd and the fake server: it resets, refuses or swallows on command.

A process would be no better: its one thread does nothing but move bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Proxy:
    """Forwards to `target`, a port on loopback, for the length of a `with`. Its methods may be called from any thread
    and have taken effect when they return.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._swallow = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._await(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._await(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def open(self) -> int:
        """Connections of clients that are open."""
        return len(self._pairs)

    def reset(self, share: float = 1.0) -> int:
        """Reset so large a share of the connections, whatever is under way on them; how many that were."""
        return self._call(lambda: self._reset(share))

    def refuse(self) -> None:
        """Refuse new connections, and reset those that are open, as a host does whose server is gone."""
        self._await(self._unlisten())

    def swallow(self) -> None:
        """Accept connections and bytes, and hand on nothing, in neither direction."""
        self._call(lambda: self._set_swallow(True))

    def restore(self) -> None:
        """Forward again. What was swallowed is lost: its connections are reset."""
        self._await(self._restore())

    async def _listen(self) -> None:
        listening = socket.create_server(("127.0.0.1", self.port), backlog=4096)
        self.port = listening.getsockname()[1]
        self._server = await self._loop.create_server(lambda: _Client(self), sock=listening)

    async def _unlisten(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._reset(1.0)
        await asyncio.sleep(0)  # transports close on the loop's next turn

    async def _restore(self) -> None:
        if self._swallow:
            self._set_swallow(False)
            self._reset(1.0)
        if self._server is None:
            await self._listen()

    async def _close(self) -> None:
        await self._unlisten()
        tasks = [pair.connecting for pair in self._pairs if pair.connecting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _set_swallow(self, on: bool) -> None:
        self._swallow = on

    def _reset(self, share: float) -> int:
        pairs = sorted(self._pairs, key=lambda pair: pair.number)
        chosen = pairs[: max(1, round(len(pairs) * share))]
        for pair in chosen:
            pair.reset()
        return len(chosen)

    def _await(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result()  # type: ignore[arg-type]

    def _call(self, what: Callable[[], T]) -> T:
        async def call() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


class _Pair:
    """A client's connection and the one to the server that belongs to it."""

    _numbers = 0

    def __init__(self, proxy: Proxy, client: asyncio.Transport) -> None:
        _Pair._numbers += 1
        self.number = _Pair._numbers
        self.proxy = proxy
        self.client = client
        self.server: asyncio.Transport | None = None
        self.early = b""
        self.connecting: asyncio.Task[None] | None = proxy._loop.create_task(self._connect())
        proxy._pairs.add(self)

    async def _connect(self) -> None:
        try:
            await self.proxy._loop.create_connection(lambda: _Server(self), "127.0.0.1", self.proxy._target)
        except OSError:
            self.reset()  # the server is down: whoever asks the proxy finds out as well
        finally:
            self.connecting = None

    def reset(self) -> None:
        for transport in (self.client, self.server):
            if transport is not None and not transport.is_closing():
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                transport.abort()


class _Client(asyncio.Protocol):
    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.pair = _Pair(self.proxy, transport)

    def data_received(self, data: bytes) -> None:
        pair = self.pair
        if self.proxy._swallow:
            return
        if pair.server is None:
            pair.early += data
        else:
            pair.server.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.proxy._pairs.discard(self.pair)
        if self.pair.connecting is not None:
            self.pair.connecting.cancel()
        if self.pair.server is not None:
            self.pair.server.close()


class _Server(asyncio.Protocol):
    def __init__(self, pair: _Pair) -> None:
        self.pair = pair

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.pair.server = transport
        if self.pair.client.is_closing():
            transport.close()
        elif self.pair.early:
            transport.write(self.pair.early)

    def data_received(self, data: bytes) -> None:
        if not self.pair.proxy._swallow and not self.pair.client.is_closing():
            self.pair.client.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.pair.client.is_closing():
            if error is None:
                self.pair.client.close()
            else:
                self.pair.reset()
