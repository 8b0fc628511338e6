"""Which language a text is in.

Told by py3langid (Lui and Baldwin, "langid.py", 2012), whose model is part of its package: nothing is downloaded, and
the same text always gives the same language. The published verdicts come from another detector, which draws by chance.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Any

from shared.instructions import Language

_SAME = {"nb": "no", "nn": "no"}  # both are what other detectors call `no`


def response_language(text: str, told: Language) -> bool:
    return is_language(text, told.language)


def is_language(text: str, code: str) -> bool:
    """Whether the text is in that language (ISO 639-1; `zh-cn` counts as `zh`). Letter case tells nothing of it. What
    holds no letter is in none, and so in any: the benchmark counts it as followed.

    Raises ValueError for a language that the detector doesn't know: then no answer could ever be right.
    """
    wanted = code.partition("-")[0]
    if wanted not in _known():
        raise ValueError(f"the language {code} can't be told: {detector()} doesn't know it")
    if not any(map(str.isalpha, text)):
        return True
    found = str(_identifier().classify(text.lower())[0])
    return _SAME.get(found, found) == _SAME.get(wanted, wanted)


@cache
def detector() -> str:
    """Its name and version, recorded with what it decides."""
    return f"py3langid {version()}"


@cache
def version() -> str:
    return importlib.metadata.version("py3langid")


@cache
def _known() -> frozenset[str]:
    return frozenset(_identifier().labels) | _SAME.keys() | set(_SAME.values())


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # takes 0.6 s and 100 MB, so only whoever needs it does

    return LanguageIdentifier.from_model_file(MODEL_FILE)
