"""Certificates of every kind that a test of TLS needs, made by the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path

PASSWORD = "the-password-of-the-key"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


class Certificates:
    """An authority, and what it signed. Each name is a pair of files, NAME.pem and NAME.key: `good` for 127.0.0.1,
    `elsewhere` for another host, `expired`, `self_signed`, and `client`, whose key is in `client_locked.key` too,
    encrypted with PASSWORD.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._self_signed("authority", "/CN=tests' authority")
        self._self_signed("self_signed", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
        self._signed("good", "subjectAltName=IP:127.0.0.1")
        self._signed("elsewhere", "subjectAltName=DNS:elsewhere.example")
        self._signed("expired", "subjectAltName=IP:127.0.0.1", days=-1)
        self._signed("client", "extendedKeyUsage=clientAuth")
        locked = ("-aes256", "-passout", f"pass:{PASSWORD}", "-out", str(self.key("client_locked")))
        self._run("pkey", "-in", str(self.key("client")), *locked)
        both = self.pem("client").read_text() + self.key("client").read_text()
        self.pem("client_and_key").write_text(both)

    @property
    def authority(self) -> str:
        return str(self.pem("authority"))

    def pem(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def _self_signed(self, name: str, subject: str, *more: str) -> None:
        files = ("-keyout", str(self.key(name)), "-out", str(self.pem(name)))
        self._run("req", "-x509", *_KEY, "-nodes", "-days", "2", "-subj", subject, *more, *files)

    def _signed(self, name: str, extension: str, *, days: int = 2) -> None:
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(extension + "\n")
        self._run("req", *_KEY, "-nodes", "-subj", f"/CN={name}", "-keyout", str(self.key(name)), "-out", str(request))
        by = ("-CA", self.authority, "-CAkey", str(self.key("authority")), "-CAcreateserial")
        told = ("-days", str(days), "-extfile", str(extensions))
        self._run("x509", "-req", "-in", str(request), *by, *told, "-out", str(self.pem(name)))

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(["openssl", *command], check=True, capture_output=True)
