"""What a likelihood is made of: where the prompt ends and its continuation begins, which tokens are scored in which
window, and their sum. As lm-evaluation-harness 0.4.13 has it (`TemplateLM._encode_pair`, `get_rolling_token_windows`),
so that the numbers are the same. Pure.

Invariant: a sum holds a finite log-probability of each token that was asked for, or there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import UNSET

from shared.errors import Permanent, Retryable
from shared.records import Prompt

ROUNDING = 1e-3
"""How far above 0 a log-probability may lie by an endpoint's rounding."""


class Window(NamedTuple):
    """Tokens that are scored, and those they stand behind, by their ids."""

    context: list[int]
    scored: list[int]


class Sum:
    """Over scored tokens: total, of ln p, in nats; is_greedy: whether each was the most likely one; count: how many."""

    def __init__(self) -> None:
        self.total = 0.0
        self.is_greedy = True
        self.count = 0

    def add(self, logprob: float | None, best: float | None) -> None:
        """One more token's; best: that of the most likely one there. Raises Retryable where one is no number."""
        value, largest = _sound(logprob), _sound(best)
        self.total += min(value, 0.0)
        self.is_greedy &= value >= largest
        self.count += 1


def _sound(logprob: float | None) -> float:
    if logprob is None or not math.isfinite(logprob) or logprob > ROUNDING:
        told = "null" if logprob is None else f"{logprob:g}"
        raise Retryable("bad_response", f"a log-probability of {told}: expected a finite one, 0 or less", status=200)
    return logprob


def asked(prompt: Prompt) -> tuple[str, str]:
    """The context and the continuation whose likelihood is asked for. Of a rolling one: nothing, and the whole text.

    White space at the context's end belongs to the continuation: tokens begin with it. Raises Permanent where there is
    nothing to score.
    """
    text = prompt.text if prompt.text is not UNSET else ""
    if prompt.request_type == "loglikelihood_rolling":
        context, continuation = "", text
    else:
        context = text.rstrip()
        continuation = text[len(context) :] + (prompt.continuation if prompt.continuation is not UNSET else "")
    if not continuation:
        raise Permanent("bad_request", "the likelihood of an empty text was asked for")
    return context, continuation


def boundary(context: Sequence[int], whole: Sequence[int]) -> Window:
    """The tokens of the context and of all that is scored behind it, from the tokens of the context alone and of it
    and its continuation together. A token that holds the end of the one and the beginning of the other is scored.
    Raises Permanent where that is the first token.
    """
    shared = 0
    while shared < min(len(context), len(whole)) and context[shared] == whole[shared]:
        shared += 1
    if not shared:
        raise Permanent("bad_request", "one token holds the whole context and more: nothing stands before it")
    return Window(list(whole[:shared]), list(whole[shared:]))


def rolling(tokens: Sequence[int], prefix: int, max_length: int | None) -> Iterator[Window]:
    """Windows over a text's tokens in which each is scored once, behind as many others as fit.

    prefix: stands before the first. max_length: what a model's context holds; a window takes one less, since at least
    one token is generated behind it. None: one window.
    """
    size = max_length - 2 if max_length is not None else len(tokens)
    done = 0
    while done < len(tokens):
        end = min(done + size, len(tokens))
        context = list(tokens[end - size - 1 : done]) if done else [prefix]
        yield Window(context, list(tokens[done:end]))
        done = end
