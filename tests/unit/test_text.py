"""Tokens: words of spaced scripts, characters of CJK."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.text import has_cjk, has_kana, squad_tokens, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ?!\n", []),
        ("The Cat sat.", ["the", "cat", "sat"]),
        ("don't e-mail 3.14", ["don", "t", "e", "mail", "3", "14"]),
        ("Größe ΟΔΟΣ Ёлка", ["größe", "οδος", "ёлка"]),
        ("पूर्व प्रधानमन्त्री", ["पूर्व", "प्रधानमन्त्री"]),  # vowel signs and viramas belong to their words
        ("می\u200cشود", ["میشود"]),
        ("今天天气很好。", ["今", "天", "天", "气", "很", "好"]),
        ("iPhone 15 发布了", ["iphone", "15", "发", "布", "了"]),
        ("カタカナーとひらがな", list("カタカナーとひらがな")),
        ("ｶﾞ１２", ["ガ", "12"]),  # half-width kana, full-width digits
        ("人々・𠮷", ["人", "々", "𠮷"]),
        ("葛\U000e0100城", ["葛", "城"]),  # a variation selector is no token
        ("한국어 문장입니다", ["한국어", "문장입니다"]),
        ("用GPT做", ["用", "gpt", "做"]),
    ],
)
def test_tokens_of_many_scripts(text: str, expected: list[str]) -> None:
    """Each script is cut as it is read."""
    assert tokens(text) == expected


def test_squad_tokens_drop_punctuation_without_separating() -> None:
    """As in SQuAD's own script, and with CJK by character on top."""
    assert squad_tokens("Don't pay $3.14, “now”！好的。") == ["dont", "pay", "314", "now", "好", "的"]


def test_script_checks() -> None:
    """Kana is CJK; Hangul and Latin aren't."""
    assert (has_cjk("a漢"), has_cjk("かな"), has_cjk("한국어"), has_cjk("abc")) == (True, True, False, False)
    assert (has_kana("漢かな"), has_kana("漢字"), has_kana("abc")) == (True, False, False)


@given(st.text())
def test_tokens_hold_no_space_and_are_stable(text: str) -> None:
    """Joined with spaces, tokens are cut in the same way again."""
    found = tokens(text)
    assert all(token and not token.isspace() for token in found)
    assert tokens(" ".join(found)) == found


@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_han_is_one_token_a_character(text: str) -> None:
    """Nothing is lost and nothing is joined."""
    assert tokens(text) == list(text)
