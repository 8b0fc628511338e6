"""A forward proxy on loopback: plain requests to http addresses, CONNECT for the others; with a password if wanted."""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from base64 import b64encode
from pathlib import Path
from types import TracebackType

_AUTHORIZATION = re.compile(rb"\r\nproxy-authorization: *([^\r]*)", re.IGNORECASE)


class ForwardProxy:
    """For the length of a `with`. userinfo: the `user:password` it wants; others are refused with 407. swallow: CONNECT
    is never answered. cert, key: files, to be asked by https itself. seen: the first line of each request.
    """

    def __init__(
        self, userinfo: str = "", *, swallow: bool = False, cert: Path | None = None, key: Path | None = None
    ) -> None:
        self.port = 0
        self.seen: list[str] = []
        self._wanted = b"Basic " + b64encode(userinfo.encode()) if userinfo else b""
        self._swallow = swallow
        self._tls = None
        if cert is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(cert, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forward-proxy", daemon=True)
        self._server: asyncio.Server

    def __enter__(self) -> ForwardProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            line = head[: head.index(b"\r\n")].decode()
            self.seen.append(line)
            method, target, _ = line.split(" ")
            if self._swallow:
                await reader.read()
                return
            found = _AUTHORIZATION.search(head)
            if self._wanted and (found is None or found[1] != self._wanted):
                asked = found[1] if found else b"nothing"
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n")
                writer.write(b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(asked) + 5, b"not: " + asked))
                await writer.drain()
                return
            host, _, port = (target if method == "CONNECT" else target.split("/")[2]).rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                far_writer.write(head)
            await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the one who asked went away
        finally:
            writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass  # the other direction ends as well
    finally:
        writer.close()
