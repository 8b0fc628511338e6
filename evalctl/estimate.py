"""`evalctl validate`: the counts a suite comes to, and about how many tokens and USD."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from evald.faults import task_fault
from inferd.adapters import cannot
from shared import requests
from shared.combinations import pairs_of
from shared.config import DatasetConfig, ModelConfig, Suite
from shared.errors import Problem, SuiteError
from shared.plan import unable
from shared.records import Record, RequestType, TaskSpec
from shared.suite import dataset_path
from shared.tasks import read_tasks

ANSWER_TOKENS = 256  # assumed where nothing says max_tokens
CHARS_PER_TOKEN = 4.0  # of ASCII text; a rule of thumb for English and common tokenizers
TOKENS_PER_WIDE_CHAR = 0.8  # of other scripts, roughly


class Estimate(Record, frozen=True, kw_only=True):
    """What a suite would ask. prompt_tokens are estimated from characters, completion_tokens are the most
    there can be.
    """

    models: int
    datasets: int
    pairs: int
    docs: int
    instances: int
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    per_dataset: dict[str, int]

    def lines(self) -> Iterator[str]:
        some = "" if self.pairs == self.models * self.datasets else "some of "
        yield f"{some}{self.models} models x {self.datasets} datasets = {self.pairs} pairs"
        yield f"docs {self.docs}, instances {self.instances}, requests {self.requests}"
        yield (
            f"about {self.prompt_tokens} prompt tokens and up to {self.completion_tokens} completion tokens "
            f"({ANSWER_TOKENS} an answer where nothing says max_tokens), "
            + (f"up to about {self.cost:.2f} USD" if self.cost else "no price given")
        )
        for name, docs in self.per_dataset.items():
            yield f"  {name}: {docs} docs"


def estimate(suite: Suite) -> Estimate:
    """Reads every dataset file once. Raises SuiteError with the problems of all of them, and of models that can't be
    asked as their tasks need.
    """
    problems: list[Problem] = []
    docs: dict[str, int] = {}
    instances = requests_ = prompt = completion = 0
    cost = 0.0
    pair_docs = 0
    meeting = pairs_of(suite)
    models = {model.abbr: model for model in suite.models}
    for dataset in suite.datasets:
        try:
            count, units, chars, answers = _measure(suite, dataset)
        except SuiteError as error:
            problems += error.problems
            continue
        docs[dataset.abbr] = count
        asked_here = [models[model] for model, abbr in meeting if abbr == dataset.abbr]
        problems += unable(asked_here, dataset, answers.request_types, cannot)
        for model in asked_here:
            pair_docs += count
            asked = units * dataset.repeats
            into = round(chars * dataset.repeats)
            out = (answers(model)) * dataset.repeats
            instances += units
            requests_ += asked
            prompt += into
            completion += out
            cost += (into * model.price.input + out * model.price.output) / 1e6
    if problems:
        raise SuiteError(problems)
    return Estimate(
        models=len(suite.models),
        datasets=len(suite.datasets),
        pairs=len(meeting),
        docs=pair_docs,
        instances=instances,
        requests=requests_,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=cost,
        per_dataset=docs,
    )


class _Answers:
    """Sums the most tokens that answers may have, for models that differ in what they set. request_types: how they are
    asked for.
    """

    def __init__(self) -> None:
        self.request_types: set[RequestType] = set()
        self._told = 0
        self._untold = 0

    def add(self, task: TaskSpec, instance: requests.Instance) -> None:
        self.request_types.add(instance.request_type)
        if instance.request_type != "generate_until":
            self._told += 1  # endpoints generate a token beside what they are asked for
        elif task.generation.max_tokens is UNSET:
            self._untold += 1
        else:
            self._told += task.generation.max_tokens

    def __call__(self, model: ModelConfig) -> int:
        own = model.generation.max_tokens
        return self._told + self._untold * (ANSWER_TOKENS if own is UNSET else own)


def _measure(suite: Suite, dataset: DatasetConfig) -> tuple[int, int, float, _Answers]:
    """(docs, instances, prompt tokens, answers) of one repeat."""
    count = units = 0
    tokens = 0.0
    answers = _Answers()
    for task in read_tasks(dataset, dataset_path(suite, dataset), task_fault, repeats=dataset.repeats):
        count += 1
        for instance in requests.instances_of(task):
            units += 1
            prompt = requests.render(task, suite.models[0], 0, instance)
            texts = [message.content for message in prompt.messages if prompt.text is UNSET]
            tokens += sum(_tokens(text) for text in (*texts, prompt.text, prompt.continuation) if text is not UNSET)
            answers.add(task, instance)
    return count, units, tokens, answers


def _tokens(text: str) -> float:
    narrow = len(text.encode("ascii", "ignore"))
    return narrow / CHARS_PER_TOKEN + (len(text) - narrow) * TOKENS_PER_WIDE_CHAR
