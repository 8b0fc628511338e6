"""From a task to the requests it needs: what is sent, and the request_key that decides whether an answer may be reused.

A request is (doc_id, idx, repeat). A generated answer needs one instance, idx 0; a chat that is asked turn by turn one
for each; a likelihood one a choice, and one more where it is also asked for without its prompt. Where the model's own
answers stand in a turn's prompt, its request can be made only behind them (`Later`, `follow_up`): its key hashes them,
so another earlier answer makes it another request. Everything after this module goes by the key and the triple alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Struct, UnsetType

from shared import chat
from shared.config import DatasetConfig, ModelConfig
from shared.records import Generation, Message, Prompt, RequestType, TaskSpec
from shared.scoring import measures_of
from shared.vocabulary import UNCONDITIONAL

NO_KEY = "0" * 64
"""Of a turn that can't be asked, because the one before it has no answer."""
PROMPT_ONLY = frozenset({"openai", "local"})
"""Adapter types that send the prompt and look at nothing else of a task."""


class Request(Struct, frozen=True):
    """One unit that is sent, journalled and resumed. later: so many turns of its chat wait for its answer."""

    key: str
    doc_id: int
    idx: int
    repeat: int
    task: TaskSpec
    prompt: Prompt
    later: int = 0


class Later(Struct, frozen=True):
    """The place of a request that can be made only once the turn before it has its answer."""

    doc_id: int
    idx: int
    repeat: int


class Identity(Struct, frozen=True, omit_defaults=True):
    """All of a model that can change its answers; hashed into each request_key. The address is not in it:
    servers move. What has a default is in it only where it is told, so that older keys stay.
    """

    adapter: str
    model: str
    version: str
    extra_body: bytes
    options: bytes
    max_tokens_field: str
    stream: bool
    prompt_format: str = "chat"
    system: str = ""
    replay_reasoning: bool = False
    chat_template: str = ""
    tokenizer: str = ""


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
            prompt_format=model.prompt_format,
            system=model.system,
            replay_reasoning=model.replay_reasoning,
            chat_template=model.chat_template,
            tokenizer=model.tokenizer,
        )
    )


def _likelihood_identity(model: ModelConfig) -> bytes:
    """What beside that can change a likelihood, and nothing else: as usual nothing, so that older keys stay."""
    told = (model.loglikelihood, model.bos, model.max_length)
    return _ENCODER.encode(told) if any(told) else b""


class Instance(Struct, frozen=True):
    """One model request that a task needs. continuation: whose likelihood is asked for. conditional: behind the
    task's prompt, or on its own. upto: of a chat's turn, so many of the task's messages lead to it. follows: with the
    model's own answers in place of the gold ones.
    """

    request_type: RequestType = "generate_until"
    continuation: str = ""
    conditional: bool = True
    upto: int | None = None
    follows: bool = False


GENERATED = (Instance(),)


def instances_of(task: TaskSpec) -> tuple[Instance, ...]:
    """The requests that one repeat of the task needs, in the order of their idx. Of a chat: one a turn that is asked.
    Of a choice: first all choices behind the prompt, then, where a metric needs it, all of them without.
    """
    match task.request_type:
        case "generate_until":
            if task.chat_mode == "last":
                return GENERATED
            own = task.chat_mode == "every"
            return tuple(
                Instance(upto=place + 1, follows=own and idx > 0) for idx, place in enumerate(chat.asked_turns(task))
            )
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
    """What is sent for one repeat of an instance; of one that follows the model's own answers, what would be sent if
    they were the gold ones. A seed, where one is given, differs by repeat (seed + repeat) unless `seed_per_repeat` is
    false.
    """
    if instance.request_type != "generate_until":
        # How an answer is to be sampled is no part of it: there is none.
        likelihood = {"request_type": instance.request_type, "continuation": instance.continuation}
        system = model.system
        if instance.request_type == "loglikelihood_rolling":
            del likelihood["continuation"]
            system = ""  # the text alone is asked for
        text = plain_text(task, system) if instance.conditional else ""
        return Prompt(messages=(), repeat=repeat, text=text, **likelihood)  # type: ignore[arg-type]  # as named
    settings = task.generation.over(model.generation)
    if settings.seed is not UNSET and seed_per_repeat:
        settings = msgspec.structs.replace(settings, seed=settings.seed + repeat)
    turns = chat.turns_of(task, model.system, instance.upto)
    return Prompt(messages=turns, generation=settings, repeat=repeat, text=_text(turns, task, model))


def _text(turns: tuple[Message, ...], task: TaskSpec, model: ModelConfig) -> str | UnsetType:
    """The turns as the model's endpoint takes them, where that is as text."""
    match model.prompt_format:
        case "chat":
            return UNSET
        case "text":
            return chat.text_of(turns, task.target_delimiter)
        case "chatml":
            return chat.chatml(turns)


def plain_text(task: TaskSpec, system: str = "") -> str:
    """The task's prompt behind its few-shot examples, as text for a model that knows no chat. system: the model's."""
    return chat.text_of(chat.turns_of(task, system), task.target_delimiter)


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
) -> Iterator[Request | Later]:
    """Every request of one task, in (idx, repeat) order; the place of one where it can't be made yet."""
    seen = None if model.type in PROMPT_ONLY else task
    instances = instances_of(task)
    later = sum(instance.follows for instance in instances) if len(instances) > 1 else 0
    for idx, instance in enumerate(instances):
        for repeat in range(repeats):
            if instance.follows:
                yield Later(doc_id, idx, repeat)
            else:
                prompt = render(task, model, repeat, instance, seed_per_repeat=seed_per_repeat)
                told = _likelihood_identity(model) if instance.request_type != "generate_until" else b""
                key = request_key(model_identity + told, prompt, seen)
                yield Request(key, doc_id, idx, repeat, task, prompt, later)


def follow_up(asked: Request, said: Generation, model: ModelConfig, model_identity: bytes) -> Request:
    """The request for the turn behind `asked`, which has later ones; said: its answer."""
    task = asked.task
    thoughts = said.reasoning if model.replay_reasoning and said.reasoning else UNSET
    turns = chat.next_turns(task, asked.idx, asked.prompt.messages, Message("assistant", said.text, thoughts))
    prompt = msgspec.structs.replace(asked.prompt, messages=turns, text=_text(turns, task, model))
    key = request_key(model_identity, prompt, None if model.type in PROMPT_ONLY else task)
    return Request(key, asked.doc_id, asked.idx + 1, asked.repeat, task, prompt, asked.later - 1)


def pair_settings(model: ModelConfig, dataset: DatasetConfig) -> bytes:
    """What of the configuration decides a pair's requests, beside its tasks."""
    # As usual it adds nothing: pairs that were planned before the key existed stay the same.
    seeds = b"" if dataset.seed_per_repeat else b" with one seed"
    known = identity(model) + _likelihood_identity(model)
    return b"\0".join((known, _ENCODER.encode(model.generation), str(dataset.repeats).encode() + seeds))


_ENCODER = msgspec.json.Encoder(order="deterministic")
