r"""contains: the answer holds a target, wherever it stands.

White space counts as one space. With `whole_words` neither end of what is found may cut a word or a number in two:
both texts are taken apart into words, numbers and single signs, and those of the target must stand side by side among
those of the answer. CJK characters are words of their own. A target in which nothing is left never matches.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

from evald import text
from evald.metrics.scorer import Scorer, text_scorer
from shared.vocabulary import ContainsParameters

VERSION = f"1.{text.VERSION}"

_BETWEEN = "\x00"


def make(parameters: ContainsParameters) -> Scorer:
    form = _form(parameters)
    enough: Callable[[list[bool]], bool] = all if parameters.targets == "all" else any

    def score(answer: str, targets: Sequence[str]) -> float:
        """1.0 or 0.0."""
        given = form(answer)
        found = [bool(wanted := form(target)) and wanted in given for target in targets]
        return float(bool(found) and enough(found))

    def target_fault(target: str) -> str | None:
        return None if form(target) else f"contains: nothing of the target {target[:60]!r} can be looked for"

    return text_scorer(score, 1.0, {"tokens": text.VERSION}, target_fault=target_fault)


def _form(parameters: ContainsParameters) -> Callable[[str], str]:
    def form(string: str) -> str:
        if parameters.normaliser == "squad":
            string = text.squad(string)
        if parameters.ignore_case:
            string = unicodedata.normalize("NFKC", string).casefold()
        if not parameters.whole_words:
            return " ".join(string.split())
        pieces = text.pieces(string.replace(_BETWEEN, " "))
        return f"{_BETWEEN}{_BETWEEN.join(pieces)}{_BETWEEN}" if pieces else ""

    return form
