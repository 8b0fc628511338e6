"""What an answer counts as: one table, which the code evaluates and docs/errors.md shows. First match wins. Pure.

All outcomes here are answers: scored, and counted beside the score. What isn't an answer never becomes a Generation. A
text stays an answer whatever comes beside it, a tool call as well: what was due is there to be scored. Where there is
no text, a tool call says more than the reasoning that led to it, and reasoning more than nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shared.records import Answered, Generation

LENGTH = frozenset({"length", "max_tokens", "model_length"})
"""finish_reason when the limit on tokens ended the answer: OpenAI's word, and those of endpoints that keep their own.
"""
FILTERED = frozenset({"content_filter", "safety", "prohibited_content", "blocklist"})
TOOL = frozenset({"tool_calls", "function_call", "tool_use"})


class Rule(NamedTuple):
    """when: in words. holds: whether it is so, given the generation and its finish_reason in lower case."""

    outcome: Answered
    when: str
    holds: Callable[[Generation, str], bool]


def _one_of(reasons: frozenset[str]) -> str:
    return "finish_reason " + ", ".join(f"`{reason}`" for reason in sorted(reasons))


def _reasoned(generation: Generation, _: str) -> bool:
    """Endpoints that keep the reasoning to themselves still tell how many tokens it took."""
    hidden = generation.usage is not None and generation.usage.reasoning_tokens > 0
    return hidden or bool(generation.reasoning and generation.reasoning.strip())


RULES: tuple[Rule, ...] = (
    Rule("filtered", _one_of(FILTERED), lambda _, reason: reason in FILTERED),
    Rule(
        "refused",
        "a refusal that the model marked as one (`refusal`, or finish_reason `refusal`)",
        lambda generation, reason: bool(generation.refusal) or reason == "refusal",
    ),
    Rule(
        "truncated",
        f"some text, {_one_of(LENGTH)}",
        lambda generation, reason: reason in LENGTH and bool(generation.text.strip()),
    ),
    Rule(
        "ok",
        "some text, or a likelihood where one was asked for",
        lambda generation, _: bool(generation.text.strip()) or generation.loglikelihood is not None,
    ),
    Rule(
        "tool_call",
        f"no text but a tool call, or {_one_of(TOOL)}",
        lambda generation, reason: generation.tool_calls or reason in TOOL,
    ),
    Rule("reasoning_only", "no text but reasoning, or reasoning tokens; cut off or not", _reasoned),
    Rule("empty", "nothing, or white space alone", lambda _, __: True),
)


def outcome_of(generation: Generation) -> Answered:
    """The outcome by the table above."""
    reason = (generation.finish_reason or "").lower()
    return next(rule.outcome for rule in RULES if rule.holds(generation, reason))
