"""Likelihoods: the contract of every adapter that tells them; then what is particular to asking an endpoint.

The server's log-probabilities are known, so each sum here is worked out by hand.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.adapters import ModelAdapter, build_adapter, cannot, is_carried, model_faults
from inferd.adapters.likelihood import Window, asked, boundary, rolling
from shared.config import InferConfig, ModelConfig
from shared.errors import AttemptError, Permanent, Retryable, SuiteError
from shared.records import Generation, Message, Prompt, TaskSpec, encode_record
from shared.requests import Request
from shared.suite import parse_suite
from tests.asking import HOWS, Job, ask_all
from tests.likelihood_server import BOS, LN_HALF, LikelihoodServer, default_logprob, split

TABLE = {
    " Paris": -0.5,
    " Rome": -2.0,
    "not Paris": -4.0,
    "Paris": -3.0,
    "<s> Paris": -8.0,
    " sure": 0.0,
    "中": -1.0,
    "文": -1.5,
}
WAYS = {"echo": "echo", "echo with bos": "echo", "echo_tokens": "echo_tokens", "logit_bias": "logit_bias"}
BEHAVIOURS = {"echo with bos": "offsets-bos", "logit_bias": "llama"}
KINDS = ("rule", "noisy", "biased", *WAYS)
TASK = TaskSpec(task_id="t", prompt="It is", targets=("Paris",), request_type="loglikelihood", metric_name="acc")


@pytest.fixture(scope="module")
def shared() -> Iterator[LikelihoodServer]:
    with LikelihoodServer(TABLE) as running:
        yield running


@pytest.fixture
def server(shared: LikelihoodServer) -> LikelihoodServer:
    shared.reset()
    return shared


@pytest.fixture(params=KINDS)
def adapter(request: pytest.FixtureRequest, server: LikelihoodServer) -> ModelAdapter:
    kind: str = request.param
    if kind not in WAYS:
        return build(ModelConfig(abbr="m/1", type=kind))
    bos = {} if kind == "echo with bos" else {"bos": BOS}
    return endpoint(server, WAYS[kind], BEHAVIOURS.get(kind, ""), abbr="m/1", **bos)


def build(model: ModelConfig, **secrets: str) -> ModelAdapter:
    return build_adapter(model, infer=InferConfig(attempt_timeout=30.0), secret=secrets.get)


def endpoint(server: LikelihoodServer, way: str, behaviour: str = "", **more: Any) -> ModelAdapter:
    if way == "logit_bias" and not behaviour.startswith(("llama", "biased", "unforced", "no-ids")):
        behaviour = f"llama/{behaviour}" if behaviour else "llama"
    options: dict[str, Any] = {"abbr": "m", "base_url": server.url(behaviour), "loglikelihood": way}
    return build(ModelConfig(**(options | more)))


def prompt(text: str = "It is", continuation: str = " Paris") -> Prompt:
    return Prompt(messages=(), request_type="loglikelihood", text=text, continuation=continuation)


def whole(text: str) -> Prompt:
    return Prompt(messages=(), request_type="loglikelihood_rolling", text=text)


def told(adapter: ModelAdapter, what: Prompt | None = None, task: TaskSpec = TASK) -> Generation:
    what = what or prompt()
    assert isinstance(what.request_type, str)
    generation: Generation = getattr(adapter, what.request_type)(what, task)
    return generation


# --- the contract ----------------------------------------------------------------------------------------------------


def test_tells_a_likelihood(adapter: ModelAdapter) -> None:
    """A finite sum of 0 or less over some tokens, that survives the journal's JSON."""
    assert adapter.model_id == "m/1"
    for what in (prompt(), prompt("It is not"), prompt("", " Paris"), whole("It is Paris, sure")):
        generation = told(adapter, what)
        assert type(generation) is Generation
        assert generation.loglikelihood is not None
        assert math.isfinite(generation.loglikelihood)
        assert generation.loglikelihood <= 0
        assert generation.token_count
        assert isinstance(generation.is_greedy, bool)
        assert msgspec.json.decode(encode_record(generation), type=Generation) == generation


def test_changes_nothing_and_tells_the_same_again(adapter: ModelAdapter) -> None:
    """#35: prompt and task are as they were; all of these promise the same answer, too."""
    what = prompt("It is ", " Rome")
    before = encode_record(what), encode_record(TASK)
    assert told(adapter, what) == told(adapter, what)
    assert (encode_record(what), encode_record(TASK)) == before


def test_16_threads_get_their_own_likelihoods(adapter: ModelAdapter) -> None:
    """Each what one thread alone would get."""
    asked_of = [prompt(f"It is {number}", f" Paris {number}" * (number % 3 + 1)) for number in range(32)]
    alone = [told(adapter, what).loglikelihood for what in asked_of]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda what: told(adapter, what).loglikelihood, asked_of)) == alone


def test_a_choice_may_be_anything(adapter: ModelAdapter) -> None:
    """Any script, line separators, quotes and white space go through."""
    for continuation in (" 語 naïve 🙂", ' a "quoted"\\ \u2028\u2029\x85 line', "\n\n", " x" * 50, "\t"):
        assert told(adapter, prompt("Say:", continuation)).loglikelihood is not None


# --- the numbers -----------------------------------------------------------------------------------------------------

PARTS = [
    (prompt(), -0.5, True, 1),
    (prompt("It is not"), -4.0, False, 1),  # another number behind another word
    (prompt("It is", " Rome, sure"), -2.0 + default_logprob(",") + 0.0, False, 3),
    (prompt("It is ", "Rome"), -2.0, False, 1),  # the space goes with the continuation
    (prompt("It is  \n", " Paris"), default_logprob(" ") * 2 + default_logprob("\n") - 0.5, False, 4),
    (prompt("", " Paris"), -8.0, False, 1),
    (prompt("  ", " Rome"), default_logprob(" ") * 2 - 2.0, False, 3),
    (prompt("答", "中"), default_logprob("答中"), False, 1),  # one token holds both: it is scored
    (prompt("答:", "中"), -1.0, False, 1),
]


@pytest.mark.parametrize(("what", "total", "greedy", "count"), PARTS)
@pytest.mark.parametrize("kind", WAYS)
def test_the_sum_over_the_continuation(
    server: LikelihoodServer, kind: str, what: Prompt, total: float, greedy: bool, count: int
) -> None:
    """Each way gives the same numbers. White space at the context's end and an empty context are as in
    lm-evaluation-harness.
    """
    bos = {} if kind == "echo with bos" else {"bos": BOS}
    adapter = endpoint(server, WAYS[kind], BEHAVIOURS.get(kind, ""), **bos)
    if what.text == "答" and kind != "echo with bos":
        with pytest.raises(Permanent) as caught:
            told(adapter, what)
        assert caught.value.kind in ("bad_request", "unsupported")
        return
    generation = told(adapter, what)
    assert generation.loglikelihood == pytest.approx(total, abs=1e-12)
    assert (generation.is_greedy, generation.token_count, generation.text) == (greedy, count, "")
    assert generation.served_model == "fake"
    assert generation.usage is not None
    assert generation.usage.prompt_tokens >= count - 1


@pytest.mark.parametrize("kind", WAYS)
def test_the_likelihood_of_a_text(server: LikelihoodServer, kind: str) -> None:
    """All its tokens, the first one behind BOS."""
    text = "It is not Paris, sure\nIt is Rome"
    bos = {} if kind == "echo with bos" else {"bos": BOS}
    generation = told(endpoint(server, WAYS[kind], BEHAVIOURS.get(kind, ""), **bos), whole(text))
    known = {" Paris": -4.0, " sure": 0.0, " Rome": -2.0}
    assert generation.loglikelihood == sum(known.get(token, default_logprob(token)) for token in split(text))
    assert generation.token_count == len(split(text)) == 10


@pytest.mark.parametrize("way", ["echo_tokens", "logit_bias"])
def test_a_text_longer_than_the_context_is_asked_in_windows(server: LikelihoodServer, way: str) -> None:
    """Each token is scored once, and no request is longer than max_length with the token that has to be made."""
    text = " ".join(f"w{number}" for number in range(23))
    generation = told(endpoint(server, way, bos=BOS, max_length=7), whole(text))
    assert generation.token_count == 23
    assert generation.loglikelihood == sum(map(default_logprob, split(text)))
    prompts = [body["prompt"] for name, body in server.bodies if name == "completions"]
    assert max(map(len, prompts)) == (6 if way == "echo_tokens" else 5)
    assert len(prompts) == (5 if way == "echo_tokens" else 23)
    with pytest.raises(Permanent, match="max_length") as caught:
        told(endpoint(server, way, bos=BOS, max_length=7), prompt("a b c d e", " f g"))
    assert caught.value.kind == "context_length"


def test_what_is_sent(server: LikelihoodServer) -> None:
    """As lm-evaluation-harness asks, by text or by token ids; llama.cpp's server a token at a time. What of extra_body
    would change the answer's meaning doesn't.
    """
    extra: dict[str, Any] = {
        "extra_body": {"top_k": 5, "echo": False, "stream": True, "max_tokens": 9},
        "model": "served",
    }
    told(endpoint(server, "echo", **extra))
    usual = {"model": "served", "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "top_k": 5}
    assert server.bodies == [("completions", usual | {"prompt": "It is Paris"})]
    server.reset()
    told(endpoint(server, "echo_tokens", **extra))
    asked_for = {"add_special_tokens": True, "add_special": True, "model": "served"}
    texts = [asked_for | {"prompt": text, "content": text} for text in ("It is", "It is Paris")]
    ids = server.ids("It is Paris")
    assert server.bodies == [*(("tokenize", text) for text in texts), ("completions", usual | {"prompt": ids})]
    server.reset()
    told(endpoint(server, "logit_bias"), prompt("It", " is Rome"))
    sent = [body for name, body in server.bodies if name == "completions"]
    assert [(body["prompt"], body["logit_bias"]) for body in sent] == [
        (ids[:1], {str(ids[1]): 100}),
        (ids[:2], {str(server.ids(" Rome")[0]): 100}),
    ]
    assert server.count() == 4  # two of them for the token ids


def test_a_chat_beside_it(server: LikelihoodServer) -> None:
    """The same model answers chats as ever."""
    chat = Prompt(messages=(Message("user", "hello"),))
    for way in ("echo", "echo_tokens", "logit_bias"):
        assert endpoint(server, way).generate(chat, TASK).text == "A"


@pytest.mark.parametrize("how", HOWS)
def test_an_echo_is_carried(server: LikelihoodServer, how: Any) -> None:
    """By either means, mixed with chats on one connection each; every job gets its own answer."""
    adapter = endpoint(server, "echo", bos=BOS)
    assert is_carried(adapter)
    assert not is_carried(endpoint(server, "logit_bias"))
    prompts = [prompt("It is", f" Rome {number}") for number in range(40)]
    prompts += [Prompt(messages=(Message("user", "hello"),)), whole("It is Paris")]
    jobs = [Job(Request(f"{number:064x}", number, 0, 0, TASK, what)) for number, what in enumerate(prompts)]
    answers = [msgspec.json.decode(ended.line)["generation"] for ended in ask_all(how, adapter, jobs)]
    assert [answer["loglikelihood"] for answer in answers[:40]] == [
        -2.0 + default_logprob(f" {number}") for number in range(40)
    ]
    assert answers[40]["text"] == "A"
    assert answers[41]["token_count"] == 3


# --- what an endpoint may do wrong -----------------------------------------------------------------------------------

FAULTS = [
    ("echo", "no-echo", "unsupported", "llama.cpp"),
    ("echo", "llama", "unsupported", "logit_bias"),
    ("echo", "echo-cut", "unsupported", "prompt back"),
    ("echo", "echo-other", "unsupported", "prompt back"),
    ("echo", "too-few", "unsupported", "token_logprobs"),
    ("echo", "no-logprobs", "unsupported", "no log-probabilities"),
    ("echo", "null-middle", "bad_response", "null"),
    ("echo", "nan", "bad_response", "nan"),
    ("echo", "infinite", "bad_response", "-inf"),
    ("echo", "positive", "bad_response", "0.5"),
    ("echo", "500", "server_error", "logprobs were requested"),  # case logprobs-inf-500
    ("echo", "429", "rate_limited", "HTTP 429"),
    ("echo", "401", "auth", "no key was sent"),
    ("echo_tokens", "no-echo", "unsupported", "4 tokens were sent, and 1 came back"),
    ("echo_tokens", "echo-cut", "unsupported", "came back"),
    ("echo_tokens", "too-few", "unsupported", "token_logprobs"),
    ("echo_tokens", "nan", "bad_response", "nan"),
    ("echo_tokens", "no-tokenize", "not_found", "/tokenize"),
    ("echo_tokens", "500after2", "server_error", "HTTP 500"),
    ("logit_bias", "biased", "unsupported", "bias in it"),
    ("logit_bias", "unforced", "unsupported", "was forced"),
    ("logit_bias", "no-ids", "unsupported", "llama.cpp"),
    ("logit_bias", "no-logprobs", "unsupported", "llama.cpp"),
    ("logit_bias", "infinite", "bad_response", "null"),
    ("logit_bias", "no-tokenize", "not_found", '"echo"'),
    ("logit_bias", "500after3", "server_error", "HTTP 500"),
    ("logit_bias", "404", "not_found", "HTTP 404"),
]


@pytest.mark.parametrize(("way", "behaviour", "kind", "words"), FAULTS)
def test_a_likelihood_or_an_error(server: LikelihoodServer, way: str, behaviour: str, kind: str, words: str) -> None:
    """A server that doesn't do what was asked of it never gives a number: a classed error says what is wrong, at the
    first of the calls that shows it.
    """
    with pytest.raises(AttemptError, match=words) as caught:
        told(endpoint(server, way, behaviour), prompt("It is", " Rome Rome"))
    assert caught.value.kind == kind
    assert isinstance(caught.value, Permanent if kind in ("unsupported", "not_found", "auth") else Retryable)
    assert caught.value.message.isprintable()


def test_a_token_that_is_certain_is_asked_for_once_more(server: LikelihoodServer) -> None:
    """Without the bias: a server that reports biased log-probabilities is found out, one that doesn't is believed."""
    generation = told(endpoint(server, "logit_bias"), prompt("It is", " sure sure"))
    assert (generation.loglikelihood, generation.is_greedy) == (0.0, True)
    biases = ["logit_bias" in body for name, body in server.bodies if name == "completions"]
    assert biases == [True, False, True]


@pytest.mark.parametrize("way", ["echo", "echo_tokens", "logit_bias"])
def test_no_token_stands_before_the_first(server: LikelihoodServer, way: str) -> None:
    """A text without a context, on a server that puts no BOS there: the setting is named."""
    for what in (prompt("", " Paris"), whole("It is")):
        with pytest.raises(Permanent, match="bos = ") as caught:
            told(endpoint(server, way), what)
        assert caught.value.kind == "unsupported"
    if way == "echo":
        with pytest.raises(Permanent, match="leave `bos` out"):
            told(endpoint(server, way, "offsets-bos", bos=BOS), whole("It is"))


@pytest.mark.parametrize("way", ["echo", "echo_tokens"])
def test_tokens_shown_without_their_spaces(server: LikelihoodServer, way: str) -> None:
    """As decoders of SentencePiece do. Where white space may be a token of its own, text_offset tells, or nobody."""
    adapter = endpoint(server, way, "stripped")
    generation = told(adapter, prompt("It is", " Rome, sure Rome"))
    assert (generation.loglikelihood, generation.token_count) == (-4.0 + default_logprob(","), 4)
    if way == "echo":
        assert told(adapter, prompt("It is\n ", "Rome")).loglikelihood == default_logprob("\n") - 2.0
        with pytest.raises(Permanent, match="echo_tokens"):
            told(endpoint(server, way, "stripped/no-offsets"), prompt("It is\n ", "Rome"))


def test_nothing_to_score(server: LikelihoodServer) -> None:
    """An empty text has no likelihood, not one of 0."""
    for way in ("echo", "echo_tokens", "logit_bias"):
        for what in (prompt("It is", ""), whole("")):
            with pytest.raises(Permanent, match="empty"):
                told(endpoint(server, way), what)


def test_all_calls_of_one_answer_share_a_deadline(server: LikelihoodServer) -> None:
    """A server that hangs at the fourth call ends the attempt as a timeout, as it would a single call."""
    adapter = endpoint(server, "logit_bias", "llama/hangafter3", attempt_timeout=1.0)
    with pytest.raises(Retryable, match="within 1 s") as caught:
        told(adapter, prompt("It is", " Rome Rome Rome"))
    assert caught.value.kind == "timeout"
    assert server.count() == 4


def test_a_key_goes_with_every_call_and_into_no_text(server: LikelihoodServer) -> None:
    """The same headers as a chat's, and the same redaction of what an endpoint quotes."""
    key = "sk-secret-1234567890"
    for way in ("echo", "echo_tokens", "logit_bias"):
        model = ModelConfig(
            abbr="m", base_url=server.url("llama" * (way == "logit_bias") or "x"), loglikelihood=way, api_key_env="KEY"
        )
        told(build(model, KEY=key))
        leaking = msgspec.structs.replace(model, base_url=server.url("leak"))
        with pytest.raises(Permanent) as caught:
            told(build(leaking, KEY=key))
        assert key not in caught.value.message
        assert "[redacted]" in caught.value.message
    assert len(server.headers) == server.count() > 6
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {key}"}


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"base_url": "http://h/v1"}, 'loglikelihood = "echo"'),
        ({"type": "local", "transport": "engine"}, "leave transport out"),
        ({"base_url": "http://h/v1", "loglikelihood": "echo"}, None),
        ({"base_url": "http://h/v1", "loglikelihood": "logit_bias"}, None),
        ({"type": "local"}, None),
        ({"type": "rule"}, None),
        ({"type": "tests.unit.test_adapters:UserAdapter"}, "has no method `loglikelihood"),
    ],
)
def test_what_a_model_cannot_tell_is_known_beforehand(model: dict[str, Any], text: str | None) -> None:
    """When the plan is made, with the remedy."""
    why = cannot(ModelConfig(abbr="m", **model), "loglikelihood")
    assert (why is None) if text is None else (why is not None and text in why)
    assert cannot(ModelConfig(abbr="m", **model), "generate_until") is None


@pytest.mark.parametrize(
    ("lines", "place", "text"),
    [
        ('type = "rule"\nloglikelihood = "echo"', "models[0].loglikelihood", "is for endpoints"),
        ('base_url = "http://h/v1"\nbos = "<s>"', "models[0].bos", "is of no use without loglikelihood"),
        ('base_url = "http://h/v1"\nmax_length = 9', "models[0].max_length", "is of no use"),
        ('type = "local"\nloglikelihood = "echo"', "models[0].loglikelihood", "no echo"),
        ('base_url = "http://h/v1"\nloglikelihood = "echo"\nmax_length = 9', "models[0].max_length", "echo_tokens"),
        (
            'base_url = "http://h/v1"\nloglikelihood = "logit_bias"\ntransport = "engine"',
            "models[0].transport",
            "on threads",
        ),
        ('base_url = "http://h/v1"\nloglikelihood = "ecko"', "models[0].loglikelihood", "echo"),
        ('base_url = "http://h/v1"\nloglikelihood = "echo_tokens"\nmax_length = 2', "models[0].max_length", "3"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, lines: str, place: str, text: str) -> None:
    """Found when the suite is read."""
    suite = f'[[models]]\nabbr = "m"\n{lines}\n[[datasets]]\nabbr = "d"\npath = "d.jsonl"\n'
    with pytest.raises(SuiteError) as caught:
        parse_suite(suite, "suite.toml", tmp_path, check_files=False, model_faults=model_faults)
    assert any(problem.place == place and text in problem.text for problem in caught.value.problems)


# --- what is scored --------------------------------------------------------------------------------------------------


def test_rolling_windows() -> None:
    """lm-evaluation-harness's own example (`LM.loglikelihood_rolling`): ten tokens in windows of four."""
    found = [(window.context, window.scored) for window in rolling(range(10), -1, 6)]
    assert found == [([-1], [0, 1, 2, 3]), ([3], [4, 5, 6, 7]), ([5, 6, 7], [8, 9])]
    assert list(rolling(range(3), -1, None)) == [Window([-1], [0, 1, 2])]
    assert list(rolling([], -1, 6)) == []


@given(st.integers(0, 60), st.integers(3, 30))
def test_each_token_is_scored_once(count: int, max_length: int) -> None:
    """In order, behind the ones before it, in windows that leave room for a token to be made."""
    windows = list(rolling(range(count), -1, max_length))
    assert [token for window in windows for token in window.scored] == list(range(count))
    for window in windows:
        assert len(window.context) + len(window.scored) < max_length
        joined = window.context + window.scored
        assert joined == list(range(joined[0], joined[0] + len(joined)))


@given(st.text(" \t\nab"), st.text(" \nab", min_size=1))
def test_white_space_goes_with_the_continuation(text: str, continuation: str) -> None:
    """Nothing is lost, and no context ends with white space."""
    context, rest = asked(prompt(text, continuation))
    assert context + rest == text + continuation
    assert context == context.rstrip()
    assert rest.endswith(continuation)


def test_the_boundary_between_tokens() -> None:
    """Where the context's tokens are the whole's first ones, the rest; else from the first that differs on."""
    assert boundary([1, 2], [1, 2, 3, 4]) == Window([1, 2], [3, 4])
    assert boundary([1, 2], [1, 23, 4]) == Window([1], [23, 4])
    with pytest.raises(Permanent, match="nothing stands before it"):
        boundary([1], [12, 3])


# --- the server itself -----------------------------------------------------------------------------------------------


@given(st.text())
def test_the_servers_tokens_make_up_the_text(text: str) -> None:
    """What the sums above rest on."""
    assert "".join(split(text)) == text


def test_it_answers_a_batch(server: LikelihoodServer) -> None:
    """As lm-evaluation-harness may ask: choices with their indices, whatever their order; a lost one is missing."""
    body = {"prompt": ["It is Paris", "It is Rome"], "echo": True, "logprobs": 1, "max_tokens": 1}
    for behaviour, order in (([], [0, 1]), (["shuffled"], [1, 0]), (["lost"], [0])):
        status, answer = server.answer("/".join([*behaviour, "v1", "completions"]), body, {})
        assert status == 200
        assert [choice["index"] for choice in answer["choices"]] == order
        for choice in answer["choices"]:
            assert choice["logprobs"]["token_logprobs"][2:] == [[-0.5, -2.0][choice["index"]], LN_HALF]
    assert threading.active_count() < 50
