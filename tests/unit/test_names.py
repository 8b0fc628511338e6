"""Names as file names: one-to-one, safe anywhere, and undone by `real_name`."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.names import MAX_BYTES, collisions, real_name, safe_name

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16)
awkward = st.text(st.sampled_from("./%tmp_TMPcCoOnN125eE A\\:é\n"), min_size=1, max_size=10)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("gsm8k", "gsm8k"),
        ("Llama-3.1_8B", "Llama-3.1_8B"),
        ("org/m:free", "org%2Fm%3Afree"),
        ("org__m:free", "org__m%3Afree"),
        ("../../etc/x", "%2E.%2F..%2Fetc%2Fx"),
        ("m\nx", "m%0Ax"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        (".hidden", "%2Ehidden"),
        ("m.", "m%2E"),
        ("tmp_x", "%74mp_x"),
        ("TMP_x", "%54MP_x"),
        ("nul", "%6Eul"),
        ("Con.txt", "%43on.txt"),
        ("com7", "%63om7"),
        ("console", "console"),
        ("100%", "100%25"),
        ("naïve 模型", "na%C3%AFve%20%E6%A8%A1%E5%9E%8B"),
    ],
)
def test_a_name_has_one_file_name(name: str, safe: str) -> None:
    """Each of these names, some of them met in the wild (model-name-special-chars), has exactly this file name."""
    assert safe_name(name) == safe
    assert real_name(safe) == name


@given(names | awkward)
@example("..")
@example("con")
@example("tmp_")
@example("%2E")
def test_every_name_comes_back_and_is_safe(name: str) -> None:
    """Whatever the name: it comes back, and its file name means nothing else to any file system."""
    safe = safe_name(name)
    assert real_name(safe) == name
    assert safe.isascii()
    assert safe.isprintable()
    assert not set(safe) & set('/\\:*?"<>| ')
    assert safe not in ("", ".", "..")
    assert not safe.startswith((".", "tmp_"))
    assert not safe.endswith(".")
    assert safe.split(".")[0].lower() not in {"con", "prn", "aux", "nul", "com1", "lpt1"}


@given(names | awkward, names | awkward)
@example("%2E", ".")
@example("%74mp_", "tmp_")
def test_distinct_names_have_distinct_files(one: str, other: str) -> None:
    """Two names share a file name only if they are one name."""
    assert (safe_name(one) == safe_name(other)) == (one == other)


@pytest.mark.parametrize("safe", ["", "a b", "a/b", "%2f", "%2", "%41", "%FF", "tmp_x", ".x", "x.", "nul", "é"])
def test_what_no_name_gives_has_no_name(safe: str) -> None:
    """A file name that the rule never gives is refused instead of guessed at."""
    with pytest.raises(ValueError, match="isn't the file name of any model or dataset"):
        real_name(safe)


def test_names_without_a_file_name_are_refused_with_the_remedy() -> None:
    """Empty, too long, and half of a surrogate pair: each says what to do."""
    with pytest.raises(ValueError, match=r"^a name can't be empty: give it at least one character$"):
        safe_name("")
    with pytest.raises(ValueError, match=r"^the name needs 151 bytes as a file name, 150 are allowed: shorten it$"):
        safe_name("x" * (MAX_BYTES + 1))
    with pytest.raises(ValueError, match=r"^the name needs 153 bytes as a file name, 150 are allowed: shorten it$"):
        safe_name("é" * 25 + "xyz")
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        safe_name("\ud800")
    assert safe_name("x" * MAX_BYTES) == "x" * MAX_BYTES


def test_collisions_are_found_where_case_is_ignored() -> None:
    """Names that share a file on a case-insensitive file system are grouped; others, and impossible ones, are not."""
    assert collisions(["M", "gsm8k", "m", "", "a/b", "A/B", "é", "É", "gsm8k"]) == [
        ["M", "m"],
        ["gsm8k", "gsm8k"],
        ["a/b", "A/B"],
    ]
    assert collisions(["org/m:free", "org__m:free"]) == []
