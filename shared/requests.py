"""From a task to the requests it needs: what is sent, and the request_key that decides whether an answer may be reused.

A request is (doc_id, idx, repeat). For generated answers a task has one instance, idx 0; further request types add
instances here, and everything after this module goes by the key and the triple alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Struct

from shared.config import DatasetConfig, ModelConfig
from shared.records import Message, Prompt, TaskSpec

REQUEST_TYPE = b"generate_until"
PROMPT_ONLY = frozenset({"openai", "local"})
"""Adapter types that send the prompt and look at nothing else of a task."""


class Request(Struct, frozen=True):
    """One unit that is sent, journalled and resumed."""

    key: str
    doc_id: int
    idx: int
    repeat: int
    task: TaskSpec
    prompt: Prompt


class Identity(Struct, frozen=True):
    """All of a model that can change its answers; hashed into each request_key. The address is not in it:
    servers move.
    """

    adapter: str
    model: str
    version: str
    extra_body: bytes
    options: bytes
    max_tokens_field: str
    stream: bool


def identity(model: ModelConfig) -> bytes:
    """The model's part of the request_key, computed once a model."""
    return _ENCODER.encode(
        Identity(
            adapter=model.type,
            # Other adapters know the model by its abbr, whatever a server would call it.
            model=model.served_name if model.type in PROMPT_ONLY else model.abbr,
            version=model.version,
            extra_body=_ENCODER.encode(model.extra_body),
            # A local model's options say how it is served; its weights are told by its version.
            options=_ENCODER.encode({} if model.type == "local" else model.options),
            max_tokens_field=model.max_tokens_field,
            stream=model.stream,
        )
    )


def render(task: TaskSpec, model: ModelConfig, repeat: int, *, seed_per_repeat: bool = True) -> Prompt:
    """The turns and settings of one repeat. A seed, where one is given, differs by repeat (seed + repeat) unless
    `seed_per_repeat` is false.
    """
    turns: list[Message] = []
    for example in task.few_shot:
        turns += (Message("user", example.prompt), Message("assistant", example.target))
    if task.messages is not None:
        # A system turn stays first: the examples go between it and the conversation.
        leading = 1 if task.messages and task.messages[0].role == "system" else 0
        turns = [*task.messages[:leading], *turns, *task.messages[leading:]]
    else:
        turns.append(Message("user", task.prompt or ""))
    settings = task.generation.over(model.generation)
    if settings.seed is not UNSET and seed_per_repeat:
        settings = msgspec.structs.replace(settings, seed=settings.seed + repeat)
    return Prompt(messages=tuple(turns), generation=settings, repeat=repeat)


def request_key(model_identity: bytes, prompt: Prompt, task: TaskSpec | None) -> str:
    """SHA-256 over the canonical form of all that can change the answer.

    task: given for adapters that look at more of it than the prompt (all but the HTTP ones may).
    """
    seen = _ENCODER.encode(task) if task is not None else b""
    return hashlib.sha256(b"\0".join((REQUEST_TYPE, model_identity, _ENCODER.encode(prompt), seen))).hexdigest()


def requests_of(
    task: TaskSpec,
    doc_id: int,
    model: ModelConfig,
    model_identity: bytes,
    repeats: int,
    *,
    seed_per_repeat: bool = True,
) -> Iterator[Request]:
    """Every request of one task, in (idx, repeat) order."""
    seen = None if model.type in PROMPT_ONLY else task
    for repeat in range(repeats):
        prompt = render(task, model, repeat, seed_per_repeat=seed_per_repeat)
        yield Request(request_key(model_identity, prompt, seen), doc_id, 0, repeat, task, prompt)


def instances_of(task: TaskSpec) -> int:
    """How many model requests one repeat of the task needs."""
    del task  # a generated answer needs one; likelihood choices will need one each
    return 1


def pair_settings(model: ModelConfig, dataset: DatasetConfig) -> bytes:
    """What of the configuration decides a pair's requests, beside its tasks."""
    # As usual it adds nothing: pairs that were planned before the key existed stay the same.
    seeds = b"" if dataset.seed_per_repeat else b" with one seed"
    return b"\0".join((identity(model), _ENCODER.encode(model.generation), str(dataset.repeats).encode() + seeds))


_ENCODER = msgspec.json.Encoder(order="deterministic")
