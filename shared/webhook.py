"""A webhook: one JSON body, posted within a deadline, tried twice. Its URL is a secret: it stands in no message.

Invariant: `post` takes at most `TRIES` deadlines and the pause between, whatever the other side does, and raises
nothing.
"""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, NamedTuple

import msgspec

DEADLINE = 5.0  # seconds for a try, the look-up of the name included
PAUSE = 1.0  # seconds between tries
TRIES = 2
MAX_TEXT = 2000  # characters
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Sent(NamedTuple):
    """fault: why it wasn't taken, without the URL; "" when it was."""

    fault: str
    again: bool = False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Where a hook sends us isn't where its owner wants the news."""

    def redirect_request(self, *_: Any) -> None:
        return None


def url_fault(url: str) -> str:
    """What is wrong with it, without quoting it; "" where nothing is."""
    if not url.startswith(("https://", "http://")) or not url.isprintable() or " " in url:
        return "its URL must begin with https:// or http:// and hold no blank"
    return ""


def text_of(*parts: str) -> str:
    """One line for people, as chat services show it: no markup, no control characters, no mention of anybody."""
    line = ": ".join(filter(None, parts))
    return "".join(char if char.isprintable() else " " for char in line).translate(_MARKUP)[:MAX_TEXT]


def post(url: str, body: object, wait: Callable[[float], object]) -> str:
    """Why it wasn't taken; "" when it was. wait: between two tries. Redirects aren't followed; certificates are
    checked against the system's; proxies are those of the environment.
    """
    data = msgspec.json.encode(body)
    for number in range(TRIES):
        if number:
            wait(PAUSE)
        sent = _try(url, data)
        if not sent.again:
            break
    return sent.fault


def _try(url: str, data: bytes) -> Sent:
    """On a thread of its own: neither a name's look-up nor an answer that trickles heeds a timeout."""
    found: list[Sent] = []
    thread = threading.Thread(target=lambda: found.append(_send(url, data)), name="webhook", daemon=True)
    thread.start()
    thread.join(DEADLINE)
    return found[0] if found else Sent(f"no answer within {DEADLINE:g} s", again=True)


def _send(url: str, data: bytes) -> Sent:
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json", "User-Agent": "tandem"})
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=DEADLINE):
            return Sent("")
    except urllib.error.HTTPError as error:
        with error:
            return Sent(f"status {error.code}", again=error.code == 429 or error.code >= 500)
    except urllib.error.URLError as error:
        # Of the reason its kind alone: a text may quote the host, or more.
        if isinstance(error.reason, ssl.SSLError):
            return Sent("TLS: its certificate or handshake is refused")
        return Sent(f"no connection ({type(error.reason).__name__})", again=True)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: what is no URL after all
        return Sent(f"no answer ({type(error).__name__})", again=isinstance(error, OSError))
