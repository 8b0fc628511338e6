"""What a suite says, as types. `shared.suite` reads a TOML file into these once, at the edge; small parts of it go on
from there.

Bounds stand in the types (`Meta`), so that the check, its message and the reference in docs/suite.md come from one
place.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from shared.records import ChatMode, Example, FewShotFormat, GenerationSettings, Limit, Message, Named, TaskType

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Money = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


def default_max_workers() -> int:
    """min(32, cores + 4), as in concurrent.futures: enough to hide latency without flooding a small server."""
    return min(32, (os.cpu_count() or 1) + 4)


class _Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class BoundedSettings(GenerationSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """GenerationSettings with the bounds that what users write is checked by; records on disk are read without them."""

    temperature: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    top_p: Share | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=-1)] | UnsetType = UNSET
    max_tokens: Count | UnsetType = UNSET
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)] | UnsetType = UNSET
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | UnsetType = UNSET
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | UnsetType = UNSET
    top_logprobs: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    reasoning_effort: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET


class Price(_Table, frozen=True, kw_only=True):
    """USD for a million tokens."""

    input: Money = 0.0
    output: Money = 0.0


class ModelConfig(_Table, frozen=True, kw_only=True):
    """One `[[models]]` table.

    abbr: the model's name in this run, in files and in tables. type: a built-in adapter (`openai`, `local`, `rule`,
    `noisy`, `biased`), the name of a `tandem.adapters` entry point, or `module:Class`. base_url: up to and including
    `/v1`. model: the name the server knows it by (default: abbr). version: changes when the model behind the name does;
    part of the request_key. api_key_env: the name of the variable that holds the key, never the key. headers: a value
    may hold `${VARIABLE}`. extra_body: merged into the request's JSON body. options: keyword arguments of a user's
    adapter. price: USD a million tokens. transport: how an HTTP endpoint is asked: one connection a worker thread, or
    one thread that drives all connections; `auto` takes the latter from 64 in flight on. http2: where the server offers
    it. ca_file: certificates to trust instead of the system's. client_cert, client_key: PEM files by which the server
    knows us; client_key_password_env: the variable that holds the key's password. tags: words to choose it by.
    low_speed_limit, low_speed_time: bytes a second below which a call is broken off when that lasts so many seconds,
    the wait for the answer's first byte included (so it suits streams). prompt_format: how an endpoint is asked for a
    text: `chat`, messages to `/chat/completions`; `text`, all as plain text to `/completions`, for models that know no
    chat; `chatml`, the turns in ChatML to `/completions`. system: put first where neither the dataset nor the task has
    a system text. replay_reasoning: in chats asked turn by turn, send the reasoning behind earlier answers with them,
    as `reasoning_content`. chat_template, tokenizer: what the server makes tokens of prompts with, by name or digest;
    not sent, but part of the request_key. loglikelihood: how an endpoint tells likelihoods: `echo`, completions that
    give the prompt back with its log-probabilities, as vLLM's; `echo_tokens`, the same with prompts as token ids, which
    the server's `/tokenize` makes; `logit_bias`, one forced token a call, as llama.cpp's server (and any `local` model)
    needs it. bos: the text of the token that stands before what has no context (default: what the server puts there
    itself). max_length: tokens that the model's context holds; longer texts are asked for in windows.
    """

    abbr: Name
    type: Name = "openai"
    base_url: str = ""
    model: str = ""
    version: str = ""
    api_key_env: str = ""
    max_workers: Count | None = None
    stream: bool = False
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    attempt_timeout: Seconds | None = None
    connect_timeout: Seconds = 10.0
    generation: GenerationSettings = GenerationSettings()
    extra_body: dict[str, Any] = {}
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    price: Price = Price()
    transport: Literal["auto", "threads", "engine"] = "auto"
    http2: bool = True
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""
    client_key_password_env: str = ""
    low_speed_limit: Annotated[int, Meta(ge=0)] = 0
    low_speed_time: Annotated[float, Meta(ge=1)] = 30.0
    tags: tuple[Name, ...] = ()
    prompt_format: Literal["chat", "text", "chatml"] = "chat"
    system: str = ""
    replay_reasoning: bool = False
    chat_template: str = ""
    tokenizer: str = ""
    loglikelihood: Literal["", "echo", "echo_tokens", "logit_bias"] = ""
    bos: str = ""
    max_length: Annotated[int, Meta(ge=3)] | None = None

    @property
    def served_name(self) -> str:
        return self.model or self.abbr


class FieldMapping(_Table, frozen=True, kw_only=True):
    """Which field of a row holds what. metadata: fields that a task keeps as they are, for metrics that need them.
    target: a string, a number, a boolean or an array of them. task_id: default
    `<abbr>-<doc_id>`. A name with dots that is no field itself leads into nested objects: `answers.text`. choices: the
    answers that there are: one field that is an array, or a field each. gold: the right one's position from 0, its
    letter, or an array of those; where a text is asked for, its letter is what counts as right, in place of a target.
    turn_targets: of a chat that is asked turn by turn, an array of what counts as right, one a user turn: a value, an
    array of them, or null where a turn isn't scored.
    """

    prompt: str | None = None
    target: str | None = None
    task_id: str | None = None
    category: str | None = None
    cluster: str | None = None
    metadata: tuple[str, ...] = ()
    choices: str | Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=2)] | None = None
    gold: str | None = None
    turn_targets: str | None = None


class FewShotDraw(_Table, frozen=True, kw_only=True):
    """The `few_shot_draw` of a dataset: examples drawn anew for each task, by the seed and its task_id.

    num: how many. seed: of the draws. source: the file whose rows are the examples, of the same form as the dataset's
    own (default: the dataset's own rows, those outside `limit` too). A task never gets itself. prompt, target: of plain
    rows, templates of what an example shows, where that isn't what its task would ask and what it holds to be right.
    """

    num: Annotated[int, Meta(ge=1, le=100)]
    seed: int = 0
    source: Annotated[str, Meta(min_length=1)] | None = None
    prompt: str | None = None
    target: str | None = None


class DatasetConfig(_Table, frozen=True, kw_only=True):
    """One `[[datasets]]` table. With `abbr` and `path` alone, the file holds TaskSpec lines; with `fields`, `prompt` or
    `messages` it holds plain rows.

    format: by default told from the file's name; JSON and JSON lines are told apart by their content. columns: the
    names of the columns of a CSV or TSV file without a header. prompt: a Jinja template over the row's fields.
    messages: turns whose contents are such templates. choices: such templates, too, one a choice. target_regex: what to
    take from the target (its first group, or all that matched when it has none; the last match); a target without a
    match is refused. metric, post_process, filters: see `shared.scoring`; the first metric is the headline. metric,
    post_process, filters, category, few_shot and generation hold for all tasks that don't tell their own. repeats:
    samples of each task. seed_per_repeat: a repeat's seed is seed + repeat; if false, each repeat sends the same one.
    limit: which rows are asked (`shared.records.Limit`); by default all. few_shot_draw: examples drawn for each task.
    num_shards, max_shard_size: into how many shards a pair is split, or of how many docs each. tags: words to choose it
    by. request_type: how the model is asked: for a text, or how likely it holds one (`shared.records.TaskSpec`).
    target_delimiter: stands between a prompt and what follows it, where both are plain text. chat_mode: which turns of
    a chat are asked: `last`, the one at the end; `every`, each user turn behind the model's own answers;
    `every_with_gt`, each behind the gold answers. system: put first where the task has no system turn. few_shot_format:
    examples as `turns` of the chat, or as `text` in front of the question.
    """

    abbr: Name
    path: Annotated[str, Meta(min_length=1)]
    format: Literal["jsonl", "json", "csv", "tsv", "parquet"] | None = None
    columns: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)] | None = None
    fields: FieldMapping | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    choices: Annotated[tuple[str, ...], Meta(min_length=2)] | None = None
    few_shot: tuple[Example, ...] = ()
    few_shot_draw: FewShotDraw | None = None
    target_regex: str | None = None
    metric: Named | tuple[Named, ...] | UnsetType = UNSET
    post_process: Named | tuple[Named, ...] | UnsetType = UNSET
    filters: dict[str, Named | tuple[Named, ...]] = {}
    category: str = ""
    repeats: Count = 1
    seed_per_repeat: bool = True
    limit: Limit | None = None
    num_shards: Count | None = None
    max_shard_size: Count | None = None
    tags: tuple[Name, ...] = ()
    generation: GenerationSettings = GenerationSettings()
    request_type: TaskType = "generate_until"
    target_delimiter: str = " "
    chat_mode: ChatMode = "last"
    system: str = ""
    few_shot_format: FewShotFormat = "turns"


class InferConfig(_Table, frozen=True, kw_only=True):
    """The `[infer]` table.

    max_workers: requests in flight a model, unless the model says its own. poll_interval: the longest the dispatcher
    sleeps. log_interval: between progress lines in the log. max_attempts: calls a request. attempt_timeout: wall-clock
    seconds a call. backoff_base, backoff_max: the first and the longest wait before a retry. retry_after_max: the cap
    on what an endpoint may ask. commit_interval: between the journal's fsyncs. status_interval: between writes of one
    status file. heartbeat_interval: between beats. drain_timeout: how long a stop waits for what is in flight.
    max_error_rate: the share of requests that may fail before their pair does. unhealthy_after: so many failures of a
    model in a row, with no answer between, and it is only probed; unhealthy_timeout: after so many seconds of that it
    is given up. fail_fast_after: a pair whose first so many requests are all refused for good is given up at once.
    """

    max_workers: Count | None = None
    poll_interval: Seconds = 1.0
    log_interval: Seconds = 30.0
    max_attempts: Count = 5
    attempt_timeout: Seconds = 300.0
    backoff_base: Seconds = 1.0
    backoff_max: Seconds = 60.0
    retry_after_max: Seconds = 300.0
    commit_interval: Seconds = 0.05
    status_interval: Seconds = 1.0
    heartbeat_interval: Seconds = 5.0
    drain_timeout: Annotated[float, Meta(ge=0)] = 30.0
    max_error_rate: Share = 0.0
    unhealthy_after: Count = 20
    unhealthy_timeout: Seconds = 60.0
    fail_fast_after: Count = 10


class EvalConfig(_Table, frozen=True, kw_only=True):
    """The `[eval]` table.

    watch_interval: between scans of the work_dir. heartbeat_timeout: inferd counts as gone when its beat hasn't changed
    for so long. startup_timeout: how long to wait for its first beat. log_interval: between progress lines in the log.
    max_num_workers: pairs scored at once. pair_timeout: the longest one pair may take. events: listen to the filesystem
    between scans. calibration_bins: of equal width over [0, 1]. sandbox: what runs the programs that models wrote; by
    default the first that passes its self-test. sample_log: write what was asked and answered of every task beside its
    scores (`results/<model>/<dataset>.samples.jsonl`), which takes about as much disk again as the predictions.
    """

    watch_interval: Seconds = 5.0
    heartbeat_timeout: Seconds = 60.0
    startup_timeout: Seconds = 60.0
    log_interval: Seconds = 30.0
    max_num_workers: Count = 4
    pair_timeout: Seconds = 3600.0
    events: bool = True
    calibration_bins: Annotated[int, Meta(ge=1, le=100)] = 10
    sandbox: Literal["auto", "bubblewrap", "namespaces", "unsafe-subprocess"] = "auto"
    sample_log: bool = False


class GroupConfig(_Table, frozen=True, kw_only=True):
    """One `[[groups]]` table: datasets whose scores are averaged, beside the leaderboard. weights: of the weighted
    mean, one a dataset, in their order.
    """

    name: Name
    datasets: Annotated[tuple[Name, ...], Meta(min_length=1)]
    weights: tuple[Annotated[float, Meta(gt=0)], ...] = ()


class CombinationConfig(_Table, frozen=True, kw_only=True):
    """One `[[combinations]]` table: each of these models meets each of these datasets. Both are globs of names, or of
    tags with `tag:` before them.
    """

    models: Annotated[tuple[Name, ...], Meta(min_length=1)] = ("*",)
    datasets: Annotated[tuple[Name, ...], Meta(min_length=1)] = ("*",)


class SelectConfig(_Table, frozen=True, kw_only=True):
    """The `[select]` table: which part of the suite is run; `evalctl run --models`, `--datasets` and `--tags` put it
    there. Globs of names, and of tags: those that models carry choose models, those that datasets carry datasets.
    """

    models: tuple[Name, ...] = ()
    datasets: tuple[Name, ...] = ()
    tags: tuple[Name, ...] = ()


class BudgetConfig(_Table, frozen=True, kw_only=True):
    """The `[budget]` table: ceilings over the whole run, all models together. What isn't named isn't limited."""

    usd: Annotated[float, Meta(gt=0)] | None = None
    tokens: Count | None = None
    requests: Count | None = None


NotifyEvent = Literal["stall", "failure", "budget", "finish"]


class NotifyConfig(_Table, frozen=True, kw_only=True):
    """The `[notify]` table: a webhook that is told of what nobody watches.

    url_env: the name of the variable that holds its URL, never the URL. events: which are told: `stall`, no request was
    answered for `stall_after` seconds; `failure`, a pair failed, or a daemon ended without all its pairs; `budget`, it
    is used up; `finish`, a daemon came to its end, or was stopped.
    """

    url_env: str = ""
    events: tuple[NotifyEvent, ...] = ("stall", "failure", "budget", "finish")
    stall_after: Seconds = 300.0


class Suite(_Table, frozen=True, kw_only=True):
    """What the user wants run: every model over every dataset, or over those that `combinations` say.

    base_dir: the absolute folder that relative paths start from (default: where the suite file lies). paths: files that
    win over the datasets' own `path`, by abbr; `evalctl run --path ABBR=FILE` puts them there.
    """

    base_dir: str | None = None
    paths: dict[str, str] = {}
    models: Annotated[tuple[ModelConfig, ...], Meta(min_length=1)]
    datasets: Annotated[tuple[DatasetConfig, ...], Meta(min_length=1)]
    infer: InferConfig = InferConfig()
    eval: EvalConfig = EvalConfig()
    budget: BudgetConfig = BudgetConfig()
    notify: NotifyConfig = NotifyConfig()
    groups: tuple[GroupConfig, ...] = ()
    combinations: tuple[CombinationConfig, ...] = ()
    select: SelectConfig = SelectConfig()
