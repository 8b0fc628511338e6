"""A real nginx in front of the fake server, for the length of a `with`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil

from tests.harness import until
from tests.real.certificates import Certificates

_CONF = """
{user}
daemon off;
worker_processes 1;
worker_rlimit_nofile 4096;
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 2048; }}
http {{
  log_format seen '$server_port $server_protocol $connection $status "$sent_http_content_encoding" "$ssl_client_s_dn"';
  access_log access.log seen;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  upstream model {{ server 127.0.0.1:{upstream}; keepalive 512; }}
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_buffering off;
  proxy_next_upstream off;
  http2_max_concurrent_streams 128;
  gzip on; gzip_proxied any; gzip_types application/json; gzip_min_length 1;
  {servers}
}}
"""
_SERVER = """
  server {{
    listen 127.0.0.1:{port} ssl http2;
    ssl_certificate {cert}; ssl_certificate_key {key};
    {more}
    location / {{ proxy_pass http://model; }}
  }}
"""


class Seen(NamedTuple):
    """A request as nginx saw it. connection: its number."""

    port: int
    protocol: str
    connection: int
    status: int
    encoding: str
    client: str


class Nginx:
    """upstream: the fake server's port. Serves https by what `certificates` has: on `good`, `elsewhere`, `expired` and
    `self_signed` with that certificate; `client` asks for one of the client; `brief` has a connection carry 50
    requests.
    """

    def __init__(self, folder: Path, upstream: int, certificates: Certificates) -> None:
        self._folder = folder
        folder.mkdir()
        more = {
            "client": f"ssl_client_certificate {certificates.authority}; ssl_verify_client on;",
            "brief": "keepalive_requests 50;",
        }
        self._ports: dict[str, int] = {}
        servers = []
        for name, port in zip(("good", "elsewhere", "expired", "self_signed", *more), _free_ports(6), strict=True):
            self._ports[name] = port
            pair = "good" if name in more else name
            files = {"cert": certificates.pem(pair), "key": certificates.key(pair)}
            servers.append(_SERVER.format(port=port, more=more.get(name, ""), **files))
        user = "user root;" if os.geteuid() == 0 else ""  # else its workers could not read the folder
        text = _CONF.format(user=user, upstream=upstream, servers="".join(servers))
        (folder / "nginx.conf").write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Nginx:
        command = ["nginx", "-p", str(self._folder), "-c", "nginx.conf", "-e", "error.log"]
        self._process = process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        until(lambda: process.poll() is not None or self._listens(), "nginx listens")
        assert process.poll() is None, (self._folder / "error.log").read_text()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def url(self, name: str, behaviour: str = "") -> str:
        return f"https://127.0.0.1:{self._ports[name]}/{behaviour + '/' if behaviour else ''}v1"

    def reload(self) -> None:
        """New workers; the old one ends what it is at and takes nothing more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def kill_worker(self) -> None:
        for worker in self._workers():
            worker.kill()

    def seen(self, name: str) -> list[Seen]:
        """The requests that ended at this server so far."""
        found = []
        for line in (self._folder / "access.log").read_text().splitlines():
            head, encoding, _, client, _ = line.split('"')
            port, protocol, connection, status = head.split()
            if int(port) == self._ports[name]:
                found.append(Seen(int(port), protocol, int(connection), int(status), encoding, client))
        return found

    def streams(self, name: str) -> Counter[int]:
        """How many requests each connection carried."""
        return Counter(request.connection for request in self.seen(name))

    def _workers(self) -> list[psutil.Process]:
        assert self._process is not None
        return psutil.Process(self._process.pid).children()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._ports["good"])) == 0


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
