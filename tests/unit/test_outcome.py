"""What an answer counts as."""

from __future__ import annotations

import pytest

from inferd.outcome import RULES, outcome_of
from shared.records import ANSWER_KINDS, Generation, Usage


@pytest.mark.parametrize(
    ("generation", "outcome"),
    [
        (Generation(text="12", finish_reason="stop"), "ok"),
        (Generation(text="12", finish_reason=None), "ok"),
        (Generation(text="12", finish_reason="something_new"), "ok"),
        (Generation(text="12", finish_reason="tool_calls", tool_calls=True), "ok"),
        (Generation(text="12", reasoning="7 and 5", finish_reason="stop"), "ok"),
        (Generation(text="12", refusal="", finish_reason="stop"), "ok"),
        (Generation(text="12", finish_reason="length"), "truncated"),
        (Generation(text="12", finish_reason="MAX_TOKENS"), "truncated"),
        (Generation(text="12", reasoning="7 and 5", finish_reason="length"), "truncated"),
        (Generation(text="12", tool_calls=True, finish_reason="length"), "truncated"),
        (Generation(text="", finish_reason="stop"), "empty"),
        (Generation(text=" \n\t\u3000", finish_reason="stop"), "empty"),
        (Generation(text="", finish_reason="length"), "empty"),
        (Generation(text="", reasoning=" \n", finish_reason="stop", usage=Usage(completion_tokens=1)), "empty"),
        (Generation(text="", reasoning="long thoughts", finish_reason="length"), "reasoning_only"),
        (Generation(text="\n", reasoning="all of it", finish_reason="stop"), "reasoning_only"),
        (Generation(text="", usage=Usage(completion_tokens=64, reasoning_tokens=64)), "reasoning_only"),
        (Generation(text="", tool_calls=True, finish_reason="tool_calls"), "tool_call"),
        (Generation(text="", tool_calls=True, finish_reason="stop"), "tool_call"),
        (Generation(text="", finish_reason="function_call"), "tool_call"),
        (Generation(text="", tool_calls=True, finish_reason="length"), "tool_call"),
        (Generation(text="", tool_calls=True, reasoning="I look it up", finish_reason="tool_calls"), "tool_call"),
        (Generation(text="", finish_reason="content_filter"), "filtered"),
        (Generation(text="part of it", finish_reason="content_filter"), "filtered"),
        (Generation(text="", reasoning="hm", finish_reason="SAFETY"), "filtered"),
        (Generation(text="", refusal="No.", finish_reason="content_filter"), "filtered"),
        (Generation(text="", refusal="I can't help with that.", finish_reason="stop"), "refused"),
        (Generation(text="", reasoning="hm", refusal="No.", finish_reason="stop"), "refused"),
        (Generation(text="I", finish_reason="refusal"), "refused"),
        (Generation(text="cut", refusal="No.", finish_reason="length"), "refused"),
    ],
)
def test_the_table(generation: Generation, outcome: str) -> None:
    """First match wins (case prompt-too-long-silent-empty: 0 tokens + length is empty)."""
    assert outcome_of(generation) == outcome


def test_every_answer_has_its_rule() -> None:
    """Each outcome that is an answer stands in the table exactly once, and the last row takes what is left."""
    assert sorted(rule.outcome for rule in RULES) == sorted(ANSWER_KINDS)
    assert RULES[-1].holds(Generation(text=""), "")
