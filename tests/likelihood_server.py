"""A real HTTP server that plays a completions endpoint with known log-probabilities, for tests and comparisons.

It runs on threads of this process, for the length of a `with`:

    with LikelihoodServer({" Paris": -0.5, "is Rome": -2.0}) as server:
        base_url = server.url()          # http://127.0.0.1:N/v1
        server.count("completions")      # requests so far, by the last part of their path

Tokens: an optional space and a run of letters and digits; an optional space and one other character; one character of
white space. `<s>` (id 1) and `</s>` (id 2) are special. A token's id is a function of its text alone (`id_of`).

Log-probabilities: the table's longest key that holds the token and that the text so far, the token included, ends with;
else `default_logprob(token)`. So " Paris" holds anywhere, "is Paris" behind "is" alone. A key "<s> Paris" holds at the
beginning of a text that has BOS. A token is its position's best one if its log-probability is at least ln 0.5; else the
best is BEST, with ln 0.5. What is generated is always BEST.

    POST /v1/completions   as vLLM's: prompt a text, a list of texts, of token ids, or of lists of token ids; echo,
                           logprobs, max_tokens (at least one token is made); logprobs in OpenAI's older form.
                           Nothing is put before a text unless the server was given `add_bos`
    POST /tokenize         {"prompt" or "content": text, "add_special_tokens" or "add_special": bool} -> {"tokens": ids}
    POST /detokenize       {"tokens": ids} -> {"prompt" and "content": text}
    GET /tokenizer_info    {"bos_token", "eos_token"}, as lm-evaluation-harness's remote tokenizer asks for it
    POST /v1/chat/completions   answers "A"

The path's first parts, up to `v1` (or to the last part), say how it behaves: `server.url("no-echo")`.

    llama          as llama.cpp's: `echo` is ignored, `logit_bias` forces a token, logprobs in the form of chats, with
                   ids, and unbiased
    biased, unforced, no-ids   llama's, with what such a server may do wrong
    bos            a text gets BOS before it, as if `add_bos`
    offsets-bos    the same, and text_offset counts its text, as vLLM's does
    no-echo        `echo` is ignored
    echo-cut       the last prompt token's entries are missing; the text is cut, too
    echo-other     another text comes back
    stripped       tokens are shown without the space they begin with
    no-offsets     without text_offset
    too-few        one log-probability less than tokens
    null-middle, nan, infinite, positive   one of the continuation's log-probabilities is null, NaN, -Infinity, 0.5
    no-logprobs    `logprobs` is null
    shuffled       a batch's choices in reverse order, with their right indices
    lost           a batch's last choice is missing
    no-tokenize    404 for /tokenize
    leak           400, and the headers that came are in its message
    <status>       that status; <status>after<N>: from the (N+1)th request of the behaviour on
    hang           never answers (until the server ends); hangafter<N> as above
"""

from __future__ import annotations

import json
import math
import re
import socket
import threading
import zlib
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

BOS, EOS, BEST = "<s>", "</s>", " the"
LN_HALF = math.log(0.5)
_TOKEN = re.compile(r"<s>|</s>| ?\w+| ?[^\w\s]|\s")
_FAULT = re.compile(r"(?P<what>hang|\d{3})(?:after(?P<after>\d+))?")


def split(text: str) -> list[str]:
    """The text's tokens; joined they are the text."""
    return _TOKEN.findall(text)


def id_of(token: str) -> int:
    return {BOS: 1, EOS: 2}.get(token, 3 + zlib.crc32(token.encode()) % 1_000_000_007)


def default_logprob(token: str) -> float:
    """-(1 + n / 64) for n from 0 to 255: exact in binary, so that sums are, too."""
    return -(1 + zlib.crc32(token.encode()) % 256 / 64)


class LikelihoodServer:
    """table: see above. add_bos: what a tokenizer that adds BOS does to texts."""

    def __init__(self, table: Mapping[str, float] | None = None, *, add_bos: bool = False, port: int = 0) -> None:
        self.table = dict(table or {})
        self.add_bos = add_bos
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self._counts: Counter[str] = Counter()
        self._by_behaviour: Counter[str] = Counter()
        self._texts = {1: BOS, 2: EOS, id_of(BEST): BEST}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        server = self

        class Handler(_Handler):
            fake = server

        self._httpd = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._httpd.daemon_threads = True
        self.port = self._httpd.server_address[1]

    def __enter__(self) -> LikelihoodServer:
        threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._httpd.shutdown()
        self._httpd.server_close()

    def url(self, behaviour: str = "") -> str:
        """The base_url under which it behaves so."""
        return f"http://127.0.0.1:{self.port}/{behaviour + '/' if behaviour else ''}v1"

    def count(self, path: str = "") -> int:
        """Requests so far whose path's last part is `path`; without one, all."""
        return self._counts[path] if path else sum(self._counts.values())

    def reset(self) -> None:
        with self._lock:
            self.bodies.clear()
            self.headers.clear()
            self._counts.clear()
            self._by_behaviour.clear()

    def ids(self, text: str) -> list[int]:
        ids = []
        for token in split(text):
            ids.append(id_of(token))
            if self._texts.setdefault(ids[-1], token) != token:
                raise ValueError(f"{token!r} and {self._texts[ids[-1]]!r} have one id: take other words")
        return ids

    def tokens(self, ids: list[int]) -> list[str]:
        return [self._texts[number] for number in ids]

    def logprob(self, before: str, token: str) -> float:
        """ln p of the token behind the text `before`."""
        whole = before + token
        fitting = [key for key in self.table if len(key) >= len(token) and whole.endswith(key)]
        return self.table[max(fitting, key=len)] if fitting else default_logprob(token)

    def best(self, before: str, token: str) -> tuple[str, float]:
        """The best token where `token` stands."""
        told = self.logprob(before, token)
        return (token, told) if told >= LN_HALF else (BEST, LN_HALF)

    # --- what it answers --------------------------------------------------------------------------------------------

    def answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        name = parts[-1]
        behaviour = parts[: parts.index("v1")] if "v1" in parts else parts[:-1]
        with self._lock:
            self._counts[name] += 1
            self.bodies.append((name, body))
            self.headers.append(headers)
            self._by_behaviour["/".join(behaviour)] += 1
            nth = self._by_behaviour["/".join(behaviour)]
        for part in behaviour:
            fault = _FAULT.fullmatch(part)
            if fault and nth > int(fault["after"] or 0):
                if fault["what"] == "hang":
                    self._ending.wait()
                return _refusal(int(fault["what"]) if fault["what"] != "hang" else 500, "as told")
        if "leak" in behaviour:
            return _refusal(400, f"as told, with {headers}")
        match name:
            case "completions" if parts[-2] == "chat":
                turn = {"role": "assistant", "content": "A"}
                return 200, {"model": "fake", "choices": [{"index": 0, "message": turn, "finish_reason": "stop"}]}
            case "completions" if {"llama", "biased", "unforced", "no-ids"} & set(behaviour):
                return self._forced(body, behaviour)
            case "completions":
                return self._completions(body, behaviour)
            case "tokenize" if "no-tokenize" not in behaviour:
                text = body["prompt"] if "prompt" in body else body["content"]
                special = body.get("add_special_tokens", body.get("add_special", False))
                ids = self.ids(self._bos(behaviour) * bool(special) + text)
                return 200, {"tokens": ids, "count": len(ids)}
            case "detokenize":
                text = "".join(self.tokens(body["tokens"]))
                return 200, {"prompt": text, "content": text}
            case "tokenizer_info":
                return 200, {"bos_token": BOS, "eos_token": EOS, "chat_template": None}
            case "models":
                return 200, {"object": "list", "data": [{"id": "fake", "object": "model"}]}
        return _refusal(404, f"no such path: {name}")

    def _bos(self, behaviour: list[str]) -> str:
        return BOS if self.add_bos or {"bos", "offsets-bos"} & set(behaviour) else ""

    def _completions(self, body: dict[str, Any], behaviour: list[str]) -> tuple[int, Any]:
        prompt = body["prompt"]
        one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
        choices, used, made = [], 0, max(int(body.get("max_tokens", 16)), 1)
        for index, asked in enumerate([prompt] if one else prompt):
            if isinstance(asked, str):
                bos = self._bos(behaviour)
                tokens, hidden = [*([bos] if bos else []), *split(asked)], bool(bos)
            else:
                tokens, hidden = self.tokens(asked), False
            if not tokens:
                return _refusal(400, "the prompt is empty")
            used += len(tokens)
            choices.append(self._choice(index, tokens, hidden, made, body, behaviour))
        if "shuffled" in behaviour:
            choices.reverse()
        if "lost" in behaviour:
            choices.pop()
        usage = {"prompt_tokens": used, "completion_tokens": made * len(choices)}
        return 200, {"object": "text_completion", "model": "fake", "choices": choices, "usage": usage}

    def _choice(
        self, index: int, tokens: list[str], hidden: bool, made: int, body: dict[str, Any], behaviour: list[str]
    ) -> dict[str, Any]:
        """hidden: the first token is a BOS that stands in no text."""
        echo = bool(body.get("echo")) and "no-echo" not in behaviour
        shown = (tokens if echo else []) + [BEST] * made
        first = 0 if echo else len(tokens)
        everything = tokens + [BEST] * made
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for place in range(first, len(everything)):
            before = "".join(everything[:place])
            token = everything[place]
            if place == 0:
                logprobs.append(None)
                tops.append(None)
            elif place >= len(tokens):
                logprobs.append(LN_HALF)
                tops.append({BEST: LN_HALF})
            else:
                told = self.logprob(before, token)
                best, its = self.best(before, token)
                logprobs.append(told)
                tops.append({token: told, best: its})
        offsets, at = [], 0
        for place, token in enumerate(shown):
            offsets.append(at)
            if not (place == 0 and hidden and echo and "offsets-bos" not in behaviour):
                at += len(token)
        text = "".join(shown[1:] if hidden and echo else shown)
        if echo and "echo-other" in behaviour:
            text = "?" + text[1:]
        if echo and "echo-cut" in behaviour:
            for column in (shown, logprobs, tops, offsets):
                del column[len(tokens) - 1]
            text = text[: -len(tokens[-1]) - len(BEST) * made] + BEST * made
        if echo and len(tokens) > 1:
            last = len(tokens) - 1 - ("echo-cut" in behaviour)
            for name, value in (
                ("null-middle", None),
                ("nan", math.nan),
                ("infinite", -math.inf),
                ("positive", 0.5),
            ):
                if name in behaviour:
                    logprobs[last] = value
        if "stripped" in behaviour:
            shown = [token.lstrip(" ") for token in shown]
        if "too-few" in behaviour:
            logprobs.pop()
        columns: dict[str, Any] = {"tokens": shown, "token_logprobs": logprobs, "top_logprobs": tops}
        if "no-offsets" not in behaviour:
            columns["text_offset"] = offsets
        asked = body.get("logprobs") is not None and "no-logprobs" not in behaviour
        return {"index": index, "text": text, "logprobs": columns if asked else None, "finish_reason": "length"}

    def _forced(self, body: dict[str, Any], behaviour: list[str]) -> tuple[int, Any]:
        """llama.cpp's way: one token is made; a bias of 100 settles which."""
        prompt = body["prompt"]
        tokens = split(self._bos(behaviour) + prompt) if isinstance(prompt, str) else self.tokens(prompt)
        before = "".join(tokens)
        bias = body.get("logit_bias") or {}
        forced = self._texts[int(next(iter(bias)))] if bias else ""
        likely, its = self.best(before, forced) if forced else self._likeliest(before)
        token, told = (forced, self.logprob(before, forced)) if forced else (likely, its)
        if "unforced" in behaviour:
            token, told = likely, its
        if "biased" in behaviour and forced:
            likely, its, told = token, 0.0, 0.0
        if "infinite" in behaviour:
            told = None  # type: ignore[assignment]  # as JSON writers put an infinity
        top = {"id": id_of(likely), "token": likely, "logprob": its}
        one = {"id": id_of(token), "token": token, "logprob": told, "top_logprobs": [top]}
        if "no-ids" in behaviour:
            del one["id"], top["id"]
        logprobs = {"content": [one]} if body.get("logprobs") and "no-logprobs" not in behaviour else None
        choice = {"index": 0, "text": token, "logprobs": logprobs, "finish_reason": "length"}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 1}
        return 200, {"object": "text_completion", "model": "fake", "choices": [choice], "usage": usage}

    def _likeliest(self, before: str) -> tuple[str, float]:
        """The best of the table's tokens behind a text, or BEST."""
        ends = {split(key)[-1] for key in self.table}
        told, token = max((self.best(before, token)[::-1] for token in ends), default=(LN_HALF, BEST))
        return token, told


class _Handler(BaseHTTPRequestHandler):
    fake: LikelihoodServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            status, told = self.fake.answer(self.path, json.loads(body), dict(self.headers))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            status, told = _refusal(400, f"{type(error).__name__}: {error}")
        self._send(status, told)

    def do_GET(self) -> None:
        self._send(*self.fake.answer(self.path, {}, dict(self.headers)))

    def _send(self, status: int, told: Any) -> None:
        data = json.dumps(told).encode()
        head = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        try:
            self.wfile.write(head.encode() + data)  # in one go: Nagle's algorithm would hold the second piece back
        except OSError:
            self.close_connection = True

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _refusal(status: int, message: str) -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": "some_error", "param": None, "code": status}}
