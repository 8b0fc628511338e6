"""Addresses and headers that a request can carry. What is wrong with one is told as a text that doesn't quote it: it
may hold a password or a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def address_fault(address: str) -> str | None:
    """What is wrong with the address of an endpoint that speaks OpenAI's API, which ends with /v1."""
    if fault := userinfo_fault(address):
        return fault
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "expected an address that begins with http:// or https://"
    if CONTROL.search(address) or " " in address:
        return "holds white space or a control character: remove it"
    if not address.isascii():
        return "holds a character that no address may hold: write it percent-encoded, in a host's name as xn--"
    if parts.port == 0:
        return "names no usable port"
    if parts.query or parts.fragment or address.endswith(("?", "#")):
        return "expected the address up to and including /v1, without ? and #"
    for path in ("/chat/completions", "/completions"):
        if parts.path.rstrip("/").endswith(path):
            return f"expected the address up to and including /v1: leave {path} out"
    return None


def userinfo_fault(address: str) -> str | None:
    """What is wrong with an address of any kind: it can't be read, or has a user name or a password in it."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises where it is no number from 0 to 65535
    except ValueError as error:
        quoted = "@" in address or "netloc" in str(error)  # the error may repeat a part of the password
        return "isn't a valid address" if quoted else f"isn't a valid address: {error}"
    if "@" in parts.netloc:
        return "holds a user name or password: secrets belong in the environment: use api_key_env or headers"
    return None


def header_faults(name: str, value: str) -> Iterator[str]:
    """What keeps a header from being sent."""
    if not _HEADER_NAME.fullmatch(name):
        yield "isn't a valid name of a header"
    if CONTROL.search(value):
        yield "the value holds a control character: remove it"
