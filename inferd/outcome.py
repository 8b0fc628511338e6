"""What an answer counts as. Pure.

    the generation, first match wins                   outcome
    finish_reason content_filter, or a refusal in it   refused
    no text but white space                            empty      (0 tokens + length too: the prompt left no room)
    finish_reason length                               truncated
    anything else, finish_reason None included         ok

All four are answers: scored, and counted beside the score. What isn't an answer never becomes a Generation.
"""

from __future__ import annotations

from typing import Literal

from shared.records import Generation

LENGTH = frozenset({"length", "max_tokens", "model_length"})
"""finish_reason when the limit on tokens ended the answer: OpenAI's word, and those of endpoints that keep their own.
"""


def outcome_of(generation: Generation) -> Literal["ok", "truncated", "empty", "refused"]:
    """The outcome by the table above."""
    reason = (generation.finish_reason or "").lower()
    if reason == "content_filter" or generation.refusal:
        return "refused"
    if not generation.text.strip():
        return "empty"
    return "truncated" if reason in LENGTH else "ok"
