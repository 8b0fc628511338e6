"""The contract that every adapter keeps, run against all of them; then what is particular to the built-in ones."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferd.adapters as adapters
from inferd.adapters import ModelAdapter, build_adapter, check_adapter
from inferd.adapters.builtin import right_answer, wrong_answer
from shared.config import InferConfig, ModelConfig
from shared.errors import UsageError
from shared.records import Generation, GenerationSettings, Message, Prompt, TaskSpec, encode_record
from tests.server import FakeServer

INFER = InferConfig(attempt_timeout=30.0)
KINDS = ("rule", "noisy", "biased", "openai", "openai-stream", "openai-echo", "openai-logit_bias", "user")


class UserAdapter:
    """What a user might write: `module:Class`, with options."""

    def __init__(self, model_id: str, greeting: str = "hello") -> None:
        self.model_id = model_id
        self.greeting = greeting

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        return Generation(text=f"{self.greeting} {task.task_id} {prompt.repeat}", confidence=0.5, finish_reason="stop")


class NoGenerate:
    """Looks like an adapter, and isn't one."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id


not_a_class = 7


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture(params=KINDS)
def adapter(request: pytest.FixtureRequest, server: FakeServer) -> ModelAdapter:
    return build(request.param, server)


def build(kind: str, server: FakeServer, model_id: str = "m/1") -> ModelAdapter:
    if kind == "user":
        model = ModelConfig(abbr=model_id, type=f"{__name__}:UserAdapter", options={"greeting": "hi"})
    elif kind.startswith("openai"):
        option = kind.partition("-")[2]
        way: Any = option if option in ("echo", "logit_bias") else ""
        model = ModelConfig(abbr=model_id, base_url=server.url(), stream=option == "stream", loglikelihood=way)
    else:
        model = ModelConfig(abbr=model_id, type=kind)
    return build_adapter(model, infer=INFER, secret=lambda name: None)


def task(number: int = 0, **more: Any) -> TaskSpec:
    fields: dict[str, Any] = {
        "prompt": f"What is {number}?",
        "targets": (str(number),),
        "post_process": "last_number",
        "category": f"c{number % 3}",
    }
    return TaskSpec(task_id=f"t-{number}", **(fields | more))


def prompt(item: TaskSpec, repeat: int = 0, **settings: Any) -> Prompt:
    turn = Message(role="user", content=item.prompt or "")
    return Prompt(messages=(turn,), generation=GenerationSettings(**settings), repeat=repeat)


# --- the contract ----------------------------------------------------------------------------------------------------


def test_returns_a_generation(adapter: ModelAdapter) -> None:
    """An answer, with a confidence in [0, 1] or none, that survives the journal's JSON."""
    for number in range(20):
        generation = adapter.generate(prompt(task(number), temperature=0.0, max_tokens=16), task(number))
        assert type(generation) is Generation
        assert generation.text
        assert generation.confidence is None or 0.0 <= generation.confidence <= 1.0
        assert (generation.token_nll is None) or (math.isfinite(generation.token_nll) and generation.token_count)
        assert msgspec.json.decode(encode_record(generation), type=Generation) == generation


def test_knows_its_model(adapter: ModelAdapter) -> None:
    """model_id is the model's name in the run."""
    assert adapter.model_id == "m/1"


def test_changes_nothing_it_is_given(adapter: ModelAdapter) -> None:
    """#35: prompt and task are as they were."""
    item = task(3)
    asked = prompt(item, seed=4)
    before = encode_record(item), encode_record(asked)
    adapter.generate(asked, item)
    assert (encode_record(item), encode_record(asked)) == before


def test_same_question_same_answer(adapter: ModelAdapter) -> None:
    """All of these promise it; the fake endpoint does too. Only the time to the first token differs."""
    item = task(5)
    answers = [adapter.generate(prompt(item, seed=1), item) for _ in range(3)]
    assert len({msgspec.structs.replace(answer, first_token_seconds=None) for answer in answers}) == 1


def test_32_threads_get_their_own_answers(adapter: ModelAdapter) -> None:
    """Called from 32 threads at once, each gets what one thread alone would get."""
    items = [task(number) for number in range(320)]

    def text(item: TaskSpec) -> str:
        return adapter.generate(prompt(item), item).text

    alone = [text(item) for item in items[:32]]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(text, items))
    assert together[:32] == alone
    assert len(together) == 320


def test_prompt_may_be_anything(adapter: ModelAdapter) -> None:
    """Any script, line separators, quotes and an empty text go through."""
    for content in ("", "語 naïve 🙂", 'a "quoted"\\ \u2028\u2029\x85 line', "x" * 200_000):
        item = task(1, prompt=content)
        asked = Prompt(messages=(Message(role="system", content="Be brief."), Message(role="user", content=content)))
        assert isinstance(adapter.generate(asked, item), Generation)


# --- how a type becomes an adapter -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (ModelConfig(abbr="m", type="opnai"), "did you mean openai"),
        (ModelConfig(abbr="m", type="zzzzzz"), "there are biased, local, noisy, openai, rule, or `module:Class`"),
        (ModelConfig(abbr="m", type="no_such_module:Thing"), "ModuleNotFoundError: No module named 'no_such_module'"),
        (ModelConfig(abbr="m", type=f"{__name__}:Missing"), "AttributeError"),
        (ModelConfig(abbr="m", type=f"{__name__}:"), "AttributeError"),
        (ModelConfig(abbr="m", type=f"{__name__}:NoGenerate"), "has no method `generate(prompt, task)`"),
        (ModelConfig(abbr="m", type=f"{__name__}:not_a_class"), "is no class"),
        (ModelConfig(abbr="m", type=f"{__name__}:UserAdapter", options={"salute": 1}), "salute"),
        (ModelConfig(abbr="m", type="rule", options={"latency": 1}), "latency"),
        (ModelConfig(abbr="m"), "base_url is missing"),
        (ModelConfig(abbr="m", base_url="localhost:8000/v1"), "begins with http"),
        (ModelConfig(abbr="m", base_url="file:///etc/passwd"), "begins with http"),
        (ModelConfig(abbr="m", base_url="http://"), "begins with http"),
        (ModelConfig(abbr="m", base_url="http://h:99999/v1"), "isn't a valid address"),
        (ModelConfig(abbr="m", base_url="http://hé/v1"), "a character that no address may hold"),
        (ModelConfig(abbr="m", base_url="http://h/v1/chat/completions"), "leave /chat/completions out"),
        (ModelConfig(abbr="m", base_url="http://u:p@h/v1"), "holds a user name or password"),
        (ModelConfig(abbr="m", base_url="http://h/v1", headers={"a b": "c"}), "isn't a valid name of a header"),
        (ModelConfig(abbr="m", base_url="http://h/v1", headers={"a": "c\r\nHost: evil"}), "a control character"),
        (ModelConfig(abbr="m", type="sk-live-0123456789"), "no adapter is called a text of 18 characters"),
        (ModelConfig(abbr="m", type="sk-live-012345:x"), "no adapter is called a text of 16 characters"),
    ],
)
def test_what_is_wrong_is_told(model: ModelConfig, problem: str) -> None:
    """check_adapter says so, without connecting; build_adapter refuses with the same words."""
    told = check_adapter(model)
    assert len(told) == 1
    assert problem in told[0]
    with pytest.raises(UsageError, match=re.escape(told[0])):
        build_adapter(model, infer=INFER, secret=lambda name: None)


@pytest.mark.parametrize(
    "model",
    [
        ModelConfig(abbr="m", base_url="https://h:8443/v1/"),
        ModelConfig(abbr="m", type="local"),
        ModelConfig(abbr="m", type="noisy", options={"error_rate": 0.1}),
        ModelConfig(abbr="m", type="biased", options={"good": ["a"]}),
        ModelConfig(abbr="m", type=f"{__name__}:UserAdapter"),
    ],
)
def test_what_is_right_is_let_pass(model: ModelConfig) -> None:
    """A `local` model's address comes later; options go to the class."""
    assert check_adapter(model) == []


def test_module_that_raises_on_import(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module that fails is a problem told, not a crash."""
    (tmp_path / "broken_adapter.py").write_text("raise RuntimeError('no GPU here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "RuntimeError: no GPU here" in check_adapter(ModelConfig(abbr="m", type="broken_adapter:A"))[0]
    assert "broken_adapter" not in sys.modules


def test_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package offers an adapter under `tandem.adapters`."""
    point = EntryPoint(name="mine", value=f"{__name__}:UserAdapter", group="tandem.adapters")
    monkeypatch.setattr(adapters, "entry_points", lambda group: [point] if group == "tandem.adapters" else [])
    model = ModelConfig(abbr="m", type="mine")
    assert check_adapter(model) == []
    assert build_adapter(model, infer=INFER, secret=lambda name: None).model_id == "m"
    assert "did you mean mine" in check_adapter(ModelConfig(abbr="m", type="mime"))[0]


# --- the built-in ones -----------------------------------------------------------------------------------------------


def right_share(kind: str, items: list[TaskSpec], repeat: int = 0, **options: Any) -> float:
    model = build_adapter(ModelConfig(abbr="m", type=kind, options=options), infer=INFER, secret=lambda name: None)
    right = [model.generate(prompt(item, repeat), item).text == right_answer(item) for item in items]
    return sum(right) / len(right)


def test_rule_is_nearly_always_right() -> None:
    """About 2 % wrong, whatever the repeat; confidence above 0.9."""
    items = [task(number) for number in range(2000)]
    assert 0.965 < right_share("rule", items) < 0.99
    assert right_share("rule", items, repeat=1) == right_share("rule", items)


def test_noisy_is_sure_and_wrong() -> None:
    """About 60 % wrong, at a confidence of about 0.95; another repeat or seed is another draw."""
    items = [task(number) for number in range(2000)]
    assert 0.37 < right_share("noisy", items) < 0.43
    model = build_adapter(ModelConfig(abbr="m", type="noisy"), infer=INFER, secret=lambda name: None)
    sure = [model.generate(prompt(item), item).confidence or 0.0 for item in items]
    assert min(sure) >= 0.93
    assert max(sure) <= 0.97
    for ask in (lambda n: prompt(items[0], repeat=n), lambda n: prompt(items[0], seed=n)):
        assert len({model.generate(ask(n), items[0]).text for n in range(20)}) > 1


def test_biased_differs_by_category() -> None:
    """About 95 % in good categories and 20 % in the others."""
    items = [task(number, category="algebra") for number in range(2000)]
    assert 0.93 < right_share("biased", items, good=["algebra"]) < 0.97
    assert 0.17 < right_share("biased", items, good=["history"]) < 0.23
    shares = [right_share("biased", [task(n, category=f"c{c}") for n in range(300)]) for c in range(12)]
    assert all(share > 0.88 or share < 0.3 for share in shares)
    assert {share > 0.5 for share in shares} == {True, False}


def test_confidence_is_that_of_the_tokens() -> None:
    """confidence = exp(-token_nll / token_count), as for a real endpoint."""
    model = build_adapter(ModelConfig(abbr="m", type="rule"), infer=INFER, secret=lambda name: None)
    answer = model.generate(prompt(task(1)), task(1))
    assert answer.token_nll is not None
    assert answer.token_count
    assert answer.confidence == pytest.approx(math.exp(-answer.token_nll / answer.token_count))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == answer.token_count


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)]


@pytest.mark.parametrize("post_process", ["first_number", "last_number", "gsm8k", "none"])
@pytest.mark.parametrize("target", ["12", "-3", "1,234", "0.5", "0", "999999999999999999999"])
def test_wrong_numbers_are_other_numbers(post_process: str, target: str) -> None:
    """Not the target, nor its negative, nor the target in per cent."""
    item = task(0, targets=(target,), post_process=post_process)
    for pick in range(50):
        (wrong,) = numbers(wrong_answer(item, pick * 7919))
        (right,) = numbers(target)
        assert wrong not in (right, -right, right * 100)


def test_wrong_letters_and_yes_and_no() -> None:
    """Another letter among the likely ones; the other word."""
    letters = {wrong_answer(task(0, targets=("B",), post_process="choice_letter"), pick) for pick in range(50)}
    assert letters == {"A", "C", "D"}
    assert wrong_answer(task(0, targets=("(J) Paris",), post_process="choice_letter"), 9) != "J"
    assert wrong_answer(task(0, targets=("A", "b", "C", "D"), post_process="choice_letter"), 0) == "E"
    for right, wrong in (("yes", "no"), ("No", "yes"), ("TRUE", "no"), ("false", "yes")):
        assert wrong_answer(task(0, targets=(right,), post_process="yes_no"), 1) == wrong
    assert wrong_answer(task(0, targets=("yes", "no"), post_process="yes_no"), 1) == "perhaps"


@given(
    targets=st.lists(
        st.one_of(
            st.text(max_size=30), st.sampled_from(["Paris", "東京タワー", "한국어", "e", "the quartz oboe", "Да"])
        ),
        min_size=1,
        max_size=4,
    ),
    pick=st.integers(0, 2**64 - 1),
    post_process=st.sampled_from(["none", "strip", "lower", "first_line", "last_line"]),
)
def test_wrong_words_share_nothing_with_the_targets(targets: list[str], pick: int, post_process: str) -> None:
    """Not equal, none inside the other, no word in common, in any script."""
    wrong = wrong_answer(task(0, targets=tuple(targets), post_process=post_process), pick).casefold()
    assert wrong.strip()
    for target in targets:
        inner = target.strip().casefold()
        if inner and not re.fullmatch(r"[-+.,\deE]+|[a-e]|yes|no", inner):
            assert inner not in wrong
            assert wrong not in inner
            assert not set(re.findall(r"\w+", wrong)) & set(re.findall(r"\w+", inner))
        assert wrong != inner


@pytest.mark.parametrize("make", [lambda n: task(n, targets=("東京",), post_process="none"), task])
def test_wrong_answers_follow_only_what_they_may(make: Callable[[int], TaskSpec]) -> None:
    """No global randomness: a new adapter of the same name says the same."""
    items = [make(number) for number in range(50)]
    said = [
        [
            build_adapter(ModelConfig(abbr="m", type="noisy"), infer=INFER, secret=lambda name: None)
            .generate(prompt(item), item)
            .text
            for item in items
        ]
        for _ in range(2)
    ]
    assert said[0] == said[1]
