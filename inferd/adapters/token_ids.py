"""Likelihoods by token ids: the server makes tokens of the texts (`/tokenize`), and each window of them is scored, in
one of two ways.

    echo_tokens   the ids come back with their log-probabilities (`inferd.adapters.echo`): one call a window
    logit_bias    llama.cpp's server has no echo. So each scored token is asked for by itself, behind those before it,
                  with a bias that no other token can beat; the log-probability that comes with it is the one that the
                  model gave it without the bias: one call a token

Invariant: all calls of one answer end within one deadline, and the first that fails ends the answer with its class.
They are made one after another on the caller's thread, so this adapter isn't carried.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from inferd.adapters import echo
from inferd.adapters.completion import Envelope, lenient, usage_of
from inferd.adapters.endpoint_errors import no_answer
from inferd.adapters.likelihood import Sum, Window, asked, boundary, rolling
from inferd.adapters.openai import OpenAIAdapter
from inferd.adapters.transport import Feed, Settle
from shared.config import ModelConfig
from shared.errors import Permanent, Retryable
from shared.records import Generation, Prompt, TaskSpec, Usage

BIAS = 100
"""Added to the logit of the token that is forced: OpenAI's largest."""
CERTAIN = -1e-4
"""A forced token more likely than this is asked for once more without the bias: were the log-probability a biased one,
each token would look so.
"""

T = TypeVar("T")


class _Tokens(Struct):
    tokens: list[int]


class _Candidate(Struct):
    id: int | None = None
    logprob: float | None = None


class _Made(_Candidate):
    top_logprobs: list[_Candidate] = []


class _Logprobs(Struct):
    content: list[_Made] | None = None


class _Choice(Struct):
    logprobs: _Logprobs | None = None


class _Forced(Envelope):
    """llama.cpp's completion, in which log-probabilities have the form of chats, and ids."""

    choices: list[_Choice] | None = None


_tokens_of, _forced_of = lenient(_Tokens), lenient(_Forced)


class TokenAdapter:
    """An endpoint's chat, and likelihoods by token ids. bos: the text of the token that stands before a text without a
    context; empty: the one that the server's tokenizer puts there by itself.
    """

    def __init__(self, chat: OpenAIAdapter, model: ModelConfig, bos: str) -> None:
        self.model_id = chat.model_id
        self.endpoint = chat.endpoint
        self._chat = chat
        self._model = model
        self._bos = bos

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        return self._chat.generate(prompt, task)

    def loglikelihood(self, prompt: Prompt, task: TaskSpec) -> Generation:
        calls = _Calls(self._chat, self._model, prompt)
        context, continuation = asked(prompt)
        if context:
            window = boundary(calls.tokens(context), calls.tokens(context + continuation))
        else:
            prefix = calls.prefix(self._bos)
            tokens = calls.tokens(continuation, special=False)
            # A text that brings its own is scored behind that one, as lm-evaluation-harness does.
            window = Window(tokens[:1], tokens[1:]) if tokens[:1] == [prefix] else Window([prefix], tokens)
        room = self._model.max_length
        length = len(window.context) + len(window.scored)
        if room is not None and length >= room:
            text = f"{length} tokens, and one that has to be made: more than max_length ({room})"
            raise Permanent("context_length", text)
        return self._scored(calls, [window], context + continuation)

    def loglikelihood_rolling(self, prompt: Prompt, task: TaskSpec) -> Generation:
        calls = _Calls(self._chat, self._model, prompt)
        _, text = asked(prompt)
        tokens = calls.tokens(text, special=False)
        return self._scored(calls, list(rolling(tokens, calls.prefix(self._bos), self._model.max_length)), text)

    def _scored(self, calls: _Calls, windows: list[Window], text: str) -> Generation:
        if not any(window.scored for window in windows):
            raise Permanent("bad_request", "the server makes no token of the text whose likelihood was asked for")
        for window in windows:
            if self._model.loglikelihood == "echo_tokens":
                calls.echoed(window, text)
            else:
                calls.forced(window)
        return calls.generation()


class _Step:
    """What one of the calls of an answer sends."""

    feed: Feed | None = None
    settle: Settle | None = None

    def __init__(self, url: str, body: bytes) -> None:
        self.url = url
        self.body = body


class _Calls:
    """The calls of one answer, one after another, and what they came to so far."""

    def __init__(self, chat: OpenAIAdapter, model: ModelConfig, prompt: Prompt) -> None:
        self._chat = chat
        self._model = model
        self._prompt = prompt
        self._transport = chat.transport
        self._completions = chat.completions_url
        self._tokenize = model.base_url.rstrip("/").removesuffix("/v1") + "/tokenize"
        self._deadline = time.monotonic() + chat.transport.timeout
        self._sum = Sum()
        self._usage: Usage | None = None
        self._served: str | None = None
        self._fingerprint: str | None = None
        self._unbiased = False

    def tokens(self, text: str, *, special: bool = True) -> list[int]:
        """The text's token ids. special: with what the server's tokenizer puts before a text, a BOS if any."""
        # vLLM's names for them, and llama.cpp's; each ignores the other's.
        names = {"prompt": text, "content": text, "add_special_tokens": special, "add_special": special}
        try:
            body = self._post(self._tokenize, msgspec.json.encode({"model": self._model.served_name, **names}))
        except Permanent as error:
            if error.kind != "not_found":
                raise
            text = 'token ids need a server with /tokenize; without one: loglikelihood = "echo"'
            raise Permanent("not_found", f"{error.message} ({text})", status=error.status) from None
        told = _tokens_of(body)
        if told is None:
            raise no_answer(body, self._transport.redact)
        return told.tokens

    def prefix(self, bos: str) -> int:
        """The token that stands before a text without a context."""
        tokens = self.tokens(bos, special=False) if bos else self.tokens("")
        if len(tokens) != 1:
            found = f"bos: {len(tokens)} tokens" if bos else "the server's tokenizer puts no BOS before a text"
            raise Permanent("unsupported", f'{found}: name the model\'s BOS or EOS token, as in bos = "<s>"')
        return tokens[0]

    def echoed(self, window: Window, text: str) -> None:
        """The whole window in one call. text: what all windows' tokens are of."""
        body = self._post(self._completions, echo.echo_body(self._model, window.context + window.scored))
        answer, _, logprobs = echo.read(body, self._transport.redact)
        echo.add_window(self._sum, answer, logprobs, window, text)
        self._note(answer)

    def forced(self, window: Window) -> None:
        """A call for each scored token."""
        before = list(window.context)
        for token in window.scored:
            made = self._made(before, {str(token): BIAS})
            if made.id != token:
                text = f"token {token} was forced by logit_bias and {made.id} came"
                raise Permanent("unsupported", f"{text}: {_NOT_LLAMA}")
            best = made.top_logprobs[0].logprob if made.top_logprobs else None
            self._sum.add(made.logprob, best)
            if made.logprob is not None and made.logprob > CERTAIN and not self._unbiased:
                self._check_unbiased(before, token)
            before.append(token)

    def _check_unbiased(self, before: Sequence[int], token: int) -> None:
        if self._made(before, {}).id != token:
            text = "a forced token's log-probability comes with the bias in it"
            raise Permanent("unsupported", f"{text}: {_NOT_LLAMA}")
        self._unbiased = True

    def _made(self, before: Sequence[int], bias: dict[str, int]) -> _Made:
        """The one token that the server makes behind these."""
        forcing = {"logit_bias": bias} if bias else {}
        body = self._post(self._completions, echo.likelihood_body(self._model, prompt=before, **forcing))
        answer = _forced_of(body)
        if answer is None or answer.error or not answer.choices:
            raise no_answer(body, self._transport.redact)
        self._note(answer)
        logprobs = answer.choices[0].logprobs
        content = logprobs.content if logprobs is not None else None
        if not content or content[0].id is None:
            text = "no token came with its id and log-probability (one that ends a text can't be forced)"
            raise Permanent("unsupported", f"{text}: {_NOT_LLAMA}")
        return content[0]

    def _post(self, url: str, body: bytes) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Retryable("timeout", f"not all calls of one likelihood ended within {self._transport.timeout:g} s")
        came = self._transport.exchange(_Step(url, body), left)
        if isinstance(came, Exception):
            raise came
        if came.status // 100 != 2:
            raise self._chat.refused(came, self._prompt)
        return came.body

    def _note(self, answer: _Forced | echo.Answer) -> None:
        """Its usage is added to that of the calls before it."""
        told = usage_of(answer.usage) if answer.usage else None
        if told is not None:
            old = self._usage or Usage()
            names = Usage.__struct_fields__
            self._usage = Usage(**{name: getattr(old, name) + getattr(told, name) for name in names})
        self._served = answer.model or self._served
        self._fingerprint = answer.system_fingerprint or self._fingerprint

    def generation(self) -> Generation:
        return Generation(
            text="",
            token_count=self._sum.count,
            loglikelihood=self._sum.total,
            is_greedy=self._sum.is_greedy,
            usage=self._usage,
            served_model=self._served,
            system_fingerprint=self._fingerprint,
        )


_NOT_LLAMA = 'loglikelihood = "logit_bias" needs llama.cpp\'s server; vLLM\'s has "echo"'
