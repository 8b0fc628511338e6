"""How a model's connections are made: what its table and the environment say of proxies, certificates and HTTP/2.

Proxies come from the environment, as libcurl reads them, and NO_PROXY, whatever stands between its names. Certificates
are checked: against the model's own `ca_file`, else CURL_CA_BUNDLE, else SSL_CERT_FILE, else the system's; that of a
proxy never against `ca_file`.
"""

from __future__ import annotations

import os
import socket
import ssl
from base64 import b64encode
from pathlib import Path
from urllib.parse import unquote

import pycurl

from shared.config import ModelConfig

UNCONFIRMED = 60.0
"""Seconds after which a connection is given up whose other side doesn't even confirm that it got what was sent: a path
that died. Else each call over it would last to its deadline, and HTTP/2 would send the next ones over it too.
"""

_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_OF_PROXY = {pycurl.CAINFO: pycurl.PROXY_CAINFO, pycurl.CAPATH: pycurl.PROXY_CAPATH}


def connection_options(model: ModelConfig, url: str) -> list[tuple[int, str | int | None]]:
    """libcurl's options for what the model's table says."""
    offered = model.http2 and url.startswith("https:")  # as ALPN; without TLS nothing can be offered
    options: list[tuple[int, str | int | None]] = [
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS if offered else pycurl.CURL_HTTP_VERSION_1_1),
        # A connection on its way may turn out to carry many streams: then that is better than one each.
        (pycurl.PIPEWAIT, int(offered)),
    ]
    trusted = _authority()
    options += [(pycurl.CAPATH, None), (pycurl.CAINFO, model.ca_file)] if model.ca_file else trusted
    options += [(_OF_PROXY[option], value) for option, value in trusted]
    if model.client_cert:
        options += [(pycurl.SSLCERT, model.client_cert), (pycurl.SSLKEY, model.client_key or model.client_cert)]
    if model.low_speed_limit and model.low_speed_time:
        options += [
            (pycurl.LOW_SPEED_LIMIT, model.low_speed_limit),
            (pycurl.LOW_SPEED_TIME, max(1, round(model.low_speed_time))),
        ]
    if model.type == "local":
        options.append((pycurl.NOPROXY, "*"))  # a server of our own, whatever the environment says
    elif direct := (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").replace(",", " ").split():
        options.append((pycurl.NOPROXY, ",".join(direct)))  # libcurl itself knows but commas: no spaces, no new lines
    return options


def on_new_socket(descriptor: int, _purpose: int) -> int:
    """libcurl's callback before it connects."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux
        sock = socket.socket(fileno=descriptor)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNCONFIRMED * 1000))
        finally:
            sock.detach()
    return int(pycurl.SOCKOPT_OK)


def certificate_fault(model: ModelConfig, password: str) -> str | None:
    """What is wrong with the model's certificate files. Found out before the first request: later it would look like a
    server that can't be reached, and libcurl would ask the terminal for a password that is missing.
    """
    for name in ("ca_file", "client_cert", "client_key"):
        if path := getattr(model, name):
            try:
                Path(path).read_bytes()
            except OSError as error:
                return f"{name}: can't be read: {error.strerror}: {path}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if model.ca_file:
            context.load_verify_locations(model.ca_file)
    except (OSError, ValueError):  # an SSLError is an OSError
        return f"ca_file: holds no certificate in PEM: {model.ca_file}"
    if not model.client_cert:
        return None
    asked = False

    def tell() -> str:
        nonlocal asked
        asked = True
        return password

    key = model.client_key or model.client_cert
    try:
        context.load_cert_chain(model.client_cert, key, tell)
    except (OSError, ValueError) as error:
        if asked and not password:
            return f"client_key: is encrypted: name the variable with its password as client_key_password_env: {key}"
        if asked:
            return f"client_key: can't be read with the password in {model.client_key_password_env}: {key}"
        reason = getattr(error, "reason", None) or "no certificate, or no key, in PEM"
        return f"client_cert: can't be used: {reason}: {model.client_cert}, {key}"
    return None


def proxy_secrets() -> list[str]:
    """What the environment's proxies hold that is nobody else's business.

    Their addresses are taken as people write them: without a scheme, perhaps, or so that libcurl can't read them and
    quotes them whole.
    """
    found: list[str] = []
    for name in _PROXY_VARIABLES:
        proxy = os.environ.get(name, "")
        info, at, _ = proxy.rpartition("://")[2].rpartition("@")
        if at:
            found += [proxy, b64encode(unquote(info).encode()).decode()]
            found += [part for text in (info, unquote(info)) for part in (text, text.partition(":")[2]) if part]
    return found


def _authority() -> list[tuple[int, str | int | None]]:
    """Where libcurl shall find the certificates it trusts; its own idea of that is the build machine's.

    Where nobody names a file, a folder with names by hash comes first: of that only what is needed is read, while a
    whole bundle costs each thread 6 ms and 0.7 MB.
    """
    named = os.environ.get("CURL_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    if named:
        return [(pycurl.CAINFO, named)]
    known = ssl.get_default_verify_paths()  # it honours SSL_CERT_DIR
    if known.capath and next(Path(known.capath).glob("*.0"), None):
        return [(pycurl.CAINFO, None), (pycurl.CAPATH, known.capath)]
    file = known.cafile or next(filter(os.path.exists, _CA_BUNDLES), None)
    return [(pycurl.CAINFO, file)] if file else []
