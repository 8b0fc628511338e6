"""From a task to the requests it needs: what is sent, and the request_key that decides whether an answer may be reused.

A request is (doc_id, idx, repeat). A generated answer needs one instance, idx 0; a likelihood needs one a choice, and
one more where it is also asked for without its prompt. Everything after this module goes by the key and the triple
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Struct

from shared.config import DatasetConfig, ModelConfig
from shared.records import Message, Prompt, RequestType, TaskSpec
from shared.scoring import measures_of
from shared.vocabulary import UNCONDITIONAL

FEW_SHOT_DELIMITER = "\n\n"
"""Between few-shot examples where they are plain text, as in lm-evaluation-harness."""
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


class Instance(Struct, frozen=True):
    """One model request that a task needs. continuation: whose likelihood is asked for. conditional: behind the
    task's prompt, or on its own.
    """

    request_type: RequestType = "generate_until"
    continuation: str = ""
    conditional: bool = True


GENERATED = (Instance(),)


def instances_of(task: TaskSpec) -> tuple[Instance, ...]:
    """The requests that one repeat of the task needs, in the order of their idx. Of a choice: first all choices behind
    the prompt, then, where a metric needs it, all of them without.
    """
    match task.request_type:
        case "generate_until":
            return GENERATED
        case "loglikelihood_rolling":
            return (Instance("loglikelihood_rolling"),)
        case "loglikelihood":
            return (Instance("loglikelihood", task.target_delimiter + task.targets[0]),)
        case "multiple_choice":
            texts = [task.target_delimiter + choice for choice in task.choices]
            asked = [Instance("loglikelihood", text) for text in texts]
            if any(measure.name in UNCONDITIONAL for measure in measures_of(task.metric_name)):
                asked += [Instance("loglikelihood", text, conditional=False) for text in texts]
            return tuple(asked)


def request_types(task: TaskSpec) -> frozenset[RequestType]:
    """What a model must be able to answer for this task."""
    return frozenset(instance.request_type for instance in instances_of(task))


def render(
    task: TaskSpec, model: ModelConfig, repeat: int, instance: Instance = GENERATED[0], *, seed_per_repeat: bool = True
) -> Prompt:
    """What is sent for one repeat of an instance. A seed, where one is given, differs by repeat (seed + repeat) unless
    `seed_per_repeat` is false.
    """
    if instance.request_type != "generate_until":
        # How an answer is to be sampled is no part of it: there is none.
        likelihood = {"request_type": instance.request_type, "continuation": instance.continuation}
        if instance.request_type == "loglikelihood_rolling":
            del likelihood["continuation"]
        text = plain_text(task) if instance.conditional else ""
        return Prompt(messages=(), repeat=repeat, text=text, **likelihood)  # type: ignore[arg-type]  # as named
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


def plain_text(task: TaskSpec) -> str:
    """The task's prompt behind its few-shot examples, as text for a model that knows no chat."""
    shots = [f"{example.prompt}{task.target_delimiter}{example.target}" for example in task.few_shot]
    asked = task.prompt if task.prompt is not None else "".join(message.content for message in task.messages or ())
    return FEW_SHOT_DELIMITER.join([*shots, asked])


def request_key(model_identity: bytes, prompt: Prompt, task: TaskSpec | None) -> str:
    """SHA-256 over the canonical form of all that can change the answer.

    task: given for adapters that look at more of it than the prompt (all but the HTTP ones may).
    """
    seen = _ENCODER.encode(task) if task is not None else b""
    kind = b"generate_until" if prompt.request_type is UNSET else prompt.request_type.encode()
    return hashlib.sha256(b"\0".join((kind, model_identity, _ENCODER.encode(prompt), seen))).hexdigest()


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
    for idx, instance in enumerate(instances_of(task)):
        for repeat in range(repeats):
            prompt = render(task, model, repeat, instance, seed_per_repeat=seed_per_repeat)
            yield Request(request_key(model_identity, prompt, seen), doc_id, idx, repeat, task, prompt)


def pair_settings(model: ModelConfig, dataset: DatasetConfig) -> bytes:
    """What of the configuration decides a pair's requests, beside its tasks."""
    # As usual it adds nothing: pairs that were planned before the key existed stay the same.
    seeds = b"" if dataset.seed_per_repeat else b" with one seed"
    return b"\0".join((identity(model), _ENCODER.encode(model.generation), str(dataset.repeats).encode() + seeds))


_ENCODER = msgspec.json.Encoder(order="deterministic")
