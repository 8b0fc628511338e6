"""Takes secrets out of texts, and makes what others wrote fit to be quoted; says how an address may be shown. Pure."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Callable, Iterable
from urllib.parse import quote, unquote, urlsplit

import msgspec

QUOTED = 300
"""Characters of an answer that an error text quotes."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]+")


class Redactor:
    """Takes secrets out of texts, and makes what others wrote fit to be quoted.

    writings: the patterns by which a secret is found; by default in whatever form it is written. Secrets under 4
    characters are none: to blot them out would only garble the text.
    """

    def __init__(self, secrets: Iterable[str], writings: Callable[[str], Iterable[str]] | None = None) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= 4}, key=lambda secret: (-len(secret), secret))
        patterns = dict.fromkeys(pattern for secret in known for pattern in (writings or every_writing)(secret))
        self._pattern = re.compile("|".join(patterns), re.IGNORECASE) if patterns else None
        self._longest = max((_LONGEST * len(secret) for secret in known), default=0)

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


_LONGEST = 16  # characters that one of a secret takes at most, however it is written
_BETWEEN = r"[\\\x00]{0,4}"  # what escapes, and UTF-16, put between its characters


def usual_writings(secret: str) -> Iterable[str]:
    """As it is, as JSON writes it, as URLs do, and in ASCII: what a long text can be searched for quickly."""
    forms = {secret, msgspec.json.encode(secret).decode()[1:-1], quote(secret, safe=""), ascii(secret)[1:-1]}
    return map(re.escape, sorted(forms, key=lambda form: (-len(form), form)))


def every_writing(secret: str) -> Iterable[str]:
    """Each of its characters as it is or as JSON, URLs, HTML or UTF-16 write it; the whole of it in base64.

    Everything that repeats is bounded, so that no text takes more than linear time.
    """
    yield _BETWEEN.join(map(_character, secret))
    yield from _in_base64(secret.encode("utf-8", "replace"))


def _character(character: str) -> str:
    code = ord(character)
    octets = "".join(f"%{octet:02x}" for octet in character.encode("utf-8", "replace"))
    forms = [re.escape(character), rf"&\#0{{0,5}}{code};", rf"&\#x0{{0,5}}{code:x};", rf"\\{{1,4}}u{code:04x}", octets]
    if code < 256:
        forms.append(rf"\\{{1,4}}x{code:02x}")
    if (named := html.escape(character)) != character:
        forms.append(re.escape(named))
    return f"(?:{'|'.join(forms)})"


def _in_base64(secret: bytes) -> Iterable[str]:
    """It stands at one of three places in a group of three bytes; the characters that its neighbours share are left."""
    for shift in range(3):
        coded = b64encode(bytes(shift) + secret).decode().rstrip("=")
        form = coded[shift + (shift > 0) : None if (shift + len(secret)) % 3 == 0 else -1]
        if len(form) >= 8:
            yield re.escape(form) + "={0,2}"


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
