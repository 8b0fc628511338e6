"""What an answer counts as."""

from __future__ import annotations

import pytest

from inferd.outcome import outcome_of
from shared.records import Generation


@pytest.mark.parametrize(
    ("generation", "outcome"),
    [
        (Generation(text="12", finish_reason="stop"), "ok"),
        (Generation(text="12", finish_reason=None), "ok"),
        (Generation(text="12", finish_reason="something_new"), "ok"),
        (Generation(text="12", finish_reason="tool_calls", tool_calls=True), "ok"),
        (Generation(text="12", finish_reason="length"), "truncated"),
        (Generation(text="12", finish_reason="max_tokens"), "truncated"),
        (Generation(text="", finish_reason="stop"), "empty"),
        (Generation(text=" \n\t\u3000", finish_reason="stop"), "empty"),
        (Generation(text="", finish_reason="length"), "empty"),
        (Generation(text="", reasoning="long thoughts", finish_reason="length"), "empty"),
        (Generation(text="", finish_reason="content_filter"), "refused"),
        (Generation(text="part of it", finish_reason="content_filter"), "refused"),
        (Generation(text="", refusal="I can't help with that.", finish_reason="stop"), "refused"),
        (Generation(text="cut", refusal="No.", finish_reason="length"), "refused"),
        (Generation(text="12", refusal="", finish_reason="stop"), "ok"),
    ],
)
def test_the_table(generation: Generation, outcome: str) -> None:
    """First match wins: refused, empty, truncated, ok (case prompt-too-long-silent-empty: 0 tokens + length is
    empty).
    """
    assert outcome_of(generation) == outcome
