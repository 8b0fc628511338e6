"""A text asked for by a plain prompt, over `/completions`: what of the request differs from a chat's."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from shared.records import Prompt

CHAT_ONLY = frozenset({"logprobs", "top_logprobs"})
"""Settings that `/completions` takes in another form."""


def completions_url(base_url: str) -> str:
    return base_url.rstrip("/") + "/completions"


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """What stands in the place of messages. logprobs is a number there: of how many tokens at each position."""
    settings = prompt.generation
    fields: dict[str, Any] = {"prompt": prompt.text}
    if settings.logprobs is True:
        # 0 would do for OpenAI, but some servers take it for "none".
        fields["logprobs"] = max(1, settings.top_logprobs) if settings.top_logprobs is not UNSET else 1
    return fields
