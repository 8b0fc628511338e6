"""How many sentences a text has, by a rule of its own: a splitter with a trained model would be a download.

A sentence ends where `.`, `!` or `?` stands before white space or the end, closing quotes and brackets between them
being no matter. A full stop doesn't end one after an initial ("J.") or an abbreviation, nor in an ellipsis before a
small letter, and the number of a list item ("1.") is no sentence. Line ends alone end nothing, so a heading without a
full stop belongs to the sentence after it. `。！？` and the danda end a sentence wherever they stand, since no white
space follows them. What is left at the end counts as one.
"""

from __future__ import annotations

import re
from itertools import zip_longest

_CLOSING = "\"'”’»)]}*_`"
_OPENING = "\"'“‘«([{*_`"
_LIST_NUMBER = re.compile(r"^[ \t]*\d{1,3}\.(?=\s)", re.MULTILINE)
_UNSPACED = re.compile(r"(?<=[。！？।])(?=[^\s。！？।\"'”’」』）)])")

# Never the last word of a sentence.
_TITLES = {
    "mr", "mrs", "ms", "dr", "prof", "st", "mt", "gen", "col", "lt", "capt", "sgt", "rev", "hon", "sen", "rep", "gov",
    "vs", "e.g", "i.e", "fig", "vol", "cf", "al",
}  # fmt: skip
# These may be: then the next sentence begins with a capital.
_OTHERS = {
    "etc", "jr", "sr", "inc", "ltd", "co", "corp", "dept", "est", "approx", "a.m", "p.m", "u.s", "u.k", "ph.d", "d.c",
    "no", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
}  # fmt: skip


def count_sentences(text: str) -> int:
    count, open_text = 0, False
    words = _UNSPACED.sub(" ", _LIST_NUMBER.sub("", text)).split()
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        open_text = open_text or any(map(str.isalnum, word))
        if open_text and _ends(word.rstrip(_CLOSING), following.lstrip(_OPENING)):
            count, open_text = count + 1, False
    return count + open_text


def _ends(word: str, following: str) -> bool:
    if not word.endswith("."):
        return word.endswith(("!", "?", "。", "！", "？", "।"))
    if word.endswith(".."):
        return not following[:1].islower()
    stem = word[:-1].lstrip(_OPENING)
    if len(stem) == 1 and stem.isalpha():
        return stem.islower()  # "vitamin c." and not "J. Smith"
    if stem.lower() in _TITLES:
        return False
    return stem.lower() not in _OTHERS or following[:1].isupper() or not following
