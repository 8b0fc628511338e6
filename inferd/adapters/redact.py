"""Takes secrets out of texts, and makes what others wrote fit to be quoted; says how an address may be shown. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit

import msgspec

QUOTED = 300
"""Characters of an answer that an error text quotes."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]+")


class Redactor:
    """Takes secrets out of texts, and makes what others wrote fit to be quoted.

    A secret is found as it is, as JSON writes it and as a URL does. Those under 4 characters are none: to blot them out
    would only garble the text.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= 4:
                forms |= {
                    secret,
                    msgspec.json.encode(secret).decode()[1:-1],
                    quote(secret, safe=""),
                    ascii(secret)[1:-1],
                }
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if longest_first else None
        self._longest = max(map(len, forms), default=0)

    def __call__(self, text: str) -> str:
        return self._pattern.sub("[redacted]", text) if self._pattern else text

    def quote(self, text: str | bytes, limit: int = QUOTED) -> str:
        """The text in one line of at most about `limit` characters: no secrets, no control characters."""
        room = 65536 + self._longest
        head = text[:room]
        told = self(head if isinstance(head, str) else head.decode("utf-8", "replace"))
        if len(text) > room:
            told = told[: max(0, len(told) - self._longest)]  # the start of a secret may stand at the cut
        line = _CONTROL.sub(_escape, _SPACE.sub(" ", told).strip())
        return line if len(line) <= limit else line[:limit] + "..."


def public_url(url: str) -> str:
    """The address as it may be shown: without userinfo, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that can't be read"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl().rstrip("/")


def url_secrets(url: str) -> list[str]:
    """What a URL may hold that is nobody else's business: user and password in every form they go out in, query
    values.
    """
    parts = urlsplit(url)
    found = [value for pair in parts.query.split("&") if len(value := pair.partition("=")[2]) >= 8]
    info = parts.netloc.rpartition("@")[0]
    if info:
        plain = unquote(info)
        found += [info, info.partition(":")[2], b64encode(plain.encode()).decode()]
    return [form for value in found for form in (value, unquote(value)) if form]


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}"
