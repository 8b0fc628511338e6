"""Metrics over HTTP, on loopback alone: each GET of /metrics looks at the work_dir anew."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from evalctl.exposition import CONTENT_TYPE
from shared.errors import TandemError

HOST = "127.0.0.1"
PATIENCE = 10.0  # seconds for a client to send its request, or to take its answer


def metrics_server(port: int, look: Callable[[], str]) -> ThreadingHTTPServer:
    """Bound, not serving yet. port: 0 for a free one. look: what a scrape gets; when it raises, the answer is 503.

    Raises OSError when the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE
        server_version = "tandem"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self._answer(404, "metrics are at /metrics\n", "text/plain; charset=utf-8")
                return
            try:
                text, status, kind = look(), 200, CONTENT_TYPE
            except (TandemError, OSError) as error:
                text, status, kind = f"{error}\n", 503, "text/plain; charset=utf-8"
            self._answer(status, text, kind)

        def _answer(self, status: int, text: str, kind: str) -> None:
            data = text.encode(errors="replace")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            try:
                self.wfile.write(data)
            except OSError:
                pass  # the client is gone

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are no news."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    return server
