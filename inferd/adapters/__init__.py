"""The seam between inferd and whatever answers: what an adapter is, and how a model's `type` becomes one.

An adapter makes one call: no retry, no sleep, no log, no state per dataset. It returns a Generation or raises
shared.errors.Retryable or Permanent; anything else that it raises is a defect of the adapter.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeGuard, cast

from inferd.adapters.builtin import BiasedAdapter, NoisyAdapter, RuleAdapter
from inferd.adapters.echo import EchoAdapter
from inferd.adapters.openai import OpenAIAdapter, address_problems, header_problems
from inferd.adapters.token_ids import TokenAdapter
from inferd.adapters.transport import Call, Transport
from inferd.local_model import bos_of, option_faults
from shared.config import InferConfig, ModelConfig
from shared.errors import Problem, UsageError
from shared.records import Generation, Prompt, RequestType, TaskSpec
from shared.secrets import looks_like_key
from shared.tables import close_match, show

ENTRY_POINTS = "tandem.adapters"
ENDPOINTS = frozenset({"openai", "local"})
BUILT_IN: Mapping[str, type[Any]] = {"rule": RuleAdapter, "noisy": NoisyAdapter, "biased": BiasedAdapter}


class ModelAdapter(Protocol):
    """Asks one model. `generate` is called from up to max_workers threads at once.

    One that can tell likelihoods also has `loglikelihood(prompt, task)` (of `prompt.continuation` behind `prompt.text`)
    and `loglikelihood_rolling(prompt, task)` (of `prompt.text`), which return a Generation with `loglikelihood`.

    An adapter over a network also has `endpoint: str`, the address as it may be shown.
    """

    model_id: str

    def generate(self, prompt: Prompt, task: TaskSpec) -> Generation:
        """The model's answer to `prompt`. `task` is what the prompt was made from.

        Raises shared.errors.Retryable (the same call may succeed later) or Permanent (it won't).
        """


class CarriedAdapter(ModelAdapter, Protocol):
    """An adapter that only builds what is sent and reads what came: a transport carries its calls, on whatever thread,
    one at a time or a thousand at once.
    """

    transport: Transport

    def call(self, prompt: Prompt, task: TaskSpec) -> Call:
        """The call that the method for `prompt.request_type` would make."""


def is_carried(adapter: ModelAdapter) -> TypeGuard[CarriedAdapter]:
    return isinstance(getattr(adapter, "transport", None), Transport) and callable(getattr(adapter, "call", None))


def build_adapter(model: ModelConfig, *, infer: InferConfig, secret: Callable[[str], str | None]) -> ModelAdapter:
    """The adapter for one model of the suite.

    secret: gives the value of a variable, None if it isn't set. A `local` model's base_url must have been filled in.
    Raises UsageError when the model can't be built as it is configured.
    """
    if model.type in ENDPOINTS:
        chat = OpenAIAdapter(model, timeout=model.attempt_timeout or infer.attempt_timeout, secret=secret)
        match likelihood_way(model):
            case "echo":
                return EchoAdapter(chat, model)
            case "echo_tokens" | "logit_bias" if model.transport != "engine":
                return TokenAdapter(chat, model, model.bos or bos_of(model))
        return chat
    problems = check_adapter(model)
    if problems:
        raise UsageError(f"model {model.abbr}: {'; '.join(problems)}")
    return cast(ModelAdapter, _load(model.type)(model_id=model.abbr, **model.options))


def check_adapter(model: ModelConfig) -> list[str]:
    """What is wrong with the model's type and what goes with it, as texts. Imports user code; connects nowhere."""
    if model.type in ENDPOINTS:
        problems = header_problems(model.headers)
        return problems if model.type == "local" and not model.base_url else address_problems(model.base_url) + problems
    name = show(model.type)
    known = sorted({*ENDPOINTS, *BUILT_IN, *_installed()})
    if model.type not in known and (":" not in model.type or looks_like_key(model.type)):
        meant = close_match(model.type, known)
        hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known)}, or `module:Class`"
        return [f"no adapter is called {name}: {hint}"]
    try:
        made = _load(model.type)
    except Exception as error:  # noqa: BLE001  # a user's module may raise anything when it is imported
        return [f"the adapter {name} can't be loaded: {type(error).__name__}: {error}"]
    if not callable(made):
        return [f"the adapter {name} is no class"]
    if model.transport != "auto" and not callable(getattr(made, "call", None)):
        return [f"transport: the adapter {name} makes its calls itself: leave it out"]
    if not callable(getattr(made, "generate", None)):
        return [f"the adapter {name} has no method `generate(prompt, task)`"]
    try:
        inspect.signature(made).bind(model_id=model.abbr, **model.options)
    except TypeError as error:
        return [f"the adapter {name} doesn't take these options: {error}"]
    except ValueError:
        pass  # a class without a signature, such as one written in C: building it will tell
    return []


def likelihood_way(model: ModelConfig) -> str:
    """How an endpoint is asked for likelihoods; empty: it can't be. Ours is llama.cpp's server."""
    return model.loglikelihood or ("logit_bias" if model.type == "local" else "")


def cannot(model: ModelConfig, request_type: RequestType) -> str | None:
    """Why the model can't be asked so, in words with the remedy; None where it can. Imports user code."""
    if request_type == "generate_until":
        return None
    if model.type in ENDPOINTS:
        way = likelihood_way(model)
        if not way:
            ways = '"echo" (for vLLM\'s server, and others that echo prompts) or "logit_bias" (for llama.cpp\'s)'
            return f"{request_type}: this endpoint can't be asked so unless the model has loglikelihood = {ways}"
        if way != "echo" and model.transport == "engine":
            return f'{request_type}: loglikelihood = "{way}" takes several calls, on threads: leave transport out'
        return None
    if not callable(getattr(_load(model.type), request_type, None)):
        return f"{request_type}: the adapter {show(model.type)} has no method `{request_type}(prompt, task)`"
    return None


def model_faults(model: ModelConfig) -> list[Problem]:
    """What a suite's own check can't know to be wrong with a model: its adapter, and what that takes. The places are
    those in the model's table.
    """
    if model.type == "local":
        return option_faults(model.options)
    if model.type in ENDPOINTS:
        return []
    return [Problem("type", text) for text in check_adapter(model)]


def _load(name: str) -> Any:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name:
        module, _, attribute = name.partition(":")
        # As `python` itself would find it from here; last, so that no file in this folder hides an installed module.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found
    return _installed()[name].load()


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
