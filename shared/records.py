"""Every record on disk. Each has a sample in its docstring, which a test reads, writes and compares.

Records are frozen: a later stage makes a new type instead of filling in an old one. `schema` is the version of the
form; a reader that meets one it doesn't know fails with the remedy (`decode_record`). Non-finite numbers are written as
null. Times are UTC text for people; nothing compares them between hosts. Durations are seconds, costs USD.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from shared.errors import ErrorClass, WorkDirError

SCHEMA = 1

Answered = Literal["ok", "truncated", "empty", "reasoning_only", "tool_call", "refused", "filtered"]
"""The outcomes that are answers: scored, and counted beside the score (inferd/outcome.py says which is which). `error`
and `not_run` are missing: never scored.
"""
Outcome = Literal[Answered, "error", "not_run"]
ANSWER_KINDS: tuple[Answered, ...] = Answered.__args__  # type: ignore[attr-defined]  # Literal's own list, kept in one place
ANSWERS: frozenset[str] = frozenset(ANSWER_KINDS)

RequestType = Literal["generate_until", "loglikelihood", "loglikelihood_rolling"]
"""What a model can be asked for: to go on from a prompt, how likely it holds one continuation, how likely a whole text.
"""
TaskType = Literal[RequestType, "multiple_choice"]
"""What a task asks for. `multiple_choice` takes one loglikelihood request a choice."""

PairState = Literal["pending", "running", "done", "fail"]
DaemonState = Literal["starting", "running", "paused", "draining", "finished", "aborted"]
CommandName = Literal["pause", "resume", "drain", "stop", "cancel", "retune", "reload"]

COMMAND_ID = r"^[0-9A-Za-z][0-9A-Za-z.-]{0,79}$"
_PLAIN = r"^[^\x00-\x1f\x7f-\x9f]*$"  # no control characters: it is shown on terminals
_Short = Annotated[str, Meta(max_length=300, pattern=_PLAIN)]


def _schema() -> int:
    return SCHEMA


class Record(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all records on disk."""

    # By a factory: so it is written even where `omit_defaults` leaves out what is as usual.
    schema: int = msgspec.field(default_factory=_schema)


# --- what is asked ----------------------------------------------------------------------------------------------------


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat.

    {"role": "user", "content": "7 plus 5?"}

    reasoning_content: what an assistant's turn was thought out with, where that is sent back.
    """

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning_content: str | UnsetType = UNSET


ChatMode = Literal["last", "every", "every_with_gt"]
"""What of a chat is asked: the turn at its end; every user turn, with the model's own answers before it; every user
turn, with the gold answers before it. The names are OpenCompass's.
"""
FewShotFormat = Literal["turns", "text"]


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """One few-shot example: what would be asked, and the answer that would be right.

    {"prompt": "1 plus 1?", "target": "2"}
    """

    prompt: str
    target: str


class GenerationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How an answer is to be sampled. What is unset isn't sent. A task's settings win over its dataset's, those over
    the model's.

    {"temperature": 0.0, "max_tokens": 256, "stop": ["\\n\\n"], "seed": 1}
    """

    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    stop: tuple[str, ...] | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    logprobs: bool | UnsetType = UNSET
    top_logprobs: int | UnsetType = UNSET
    reasoning_effort: str | UnsetType = UNSET

    def over(self, base: GenerationSettings) -> GenerationSettings:
        """These settings, with `base` where they are unset."""
        own = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}
        return msgspec.structs.replace(base, **own)


Named = str | dict[str, Any]
"""A name, or a table that holds it beside its parameters."""


class TaskSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item of a dataset. Exactly one of `prompt` and `messages` is given. Its position in the dataset is its
    doc_id.

    {"schema":1,"task_id":"add-1","prompt":"7 plus 5?","targets":["12"],"metric_name":"exact_match",
    "post_process":"last_number","category":"arithmetic","few_shot":[{"prompt":"1 plus 1?","target":"2"}],
    "generation":{"max_tokens":16}}

    metric_name: one metric or several; the first is the task's headline. post_process: one step or a pipeline. Each is
    a name, or a table that holds it beside its parameters (`shared.scoring`). filters: further pipelines by name, under
    which metrics may be computed. targets: every answer that counts as right. few_shot: put before the prompt as turns
    of the chat. cluster: tasks that share one aren't independent samples (several questions about one text); by default
    each task is its own. metadata: what a metric needs beside the targets, such as the tests of a program.

    request_type: how the model is asked. `loglikelihood`: how likely it holds the one target behind the prompt.
    `multiple_choice`: the same of each of `choices`; gold: the positions of the right ones. `loglikelihood_rolling`:
    how likely it holds the prompt itself. target_delimiter: stands between the prompt and what follows it, in few-shot
    examples too.

    chat_mode: which turns of `messages` are asked (`shared.chat`). turn_targets: what counts as right, a list a user
    turn, an empty one where a turn isn't scored; instead of `targets`, which are the last turn's. system: put first,
    unless the messages begin with a system turn. few_shot_format: examples as turns, or as text before the question.
    """

    schema: int = msgspec.field(default_factory=_schema)
    task_id: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    targets: tuple[str, ...]
    metric_name: Named | tuple[Named, ...] = "exact_match"
    post_process: Named | tuple[Named, ...] = "none"
    filters: dict[str, Named | tuple[Named, ...]] = {}
    category: str = ""
    few_shot: tuple[Example, ...] = ()
    cluster: str = ""
    metadata: dict[str, Any] = {}
    generation: GenerationSettings = GenerationSettings()
    request_type: TaskType = "generate_until"
    choices: tuple[str, ...] = ()
    gold: tuple[int, ...] = ()
    target_delimiter: str = " "
    chat_mode: ChatMode = "last"
    turn_targets: tuple[tuple[str, ...], ...] = ()
    system: str = ""
    few_shot_format: FewShotFormat = "turns"


class Prompt(Struct, frozen=True, kw_only=True):
    """What an adapter is given to send: the turns as they go out, and the settings with all layers merged.

    repeat: which sample of the same instance this is; `generation.seed` already differs by it. request_type: unset is
    `generate_until`. text: the prompt as plain text, for endpoints that complete one. Likelihoods have no messages.
    continuation: whose likelihood behind `text` is asked for, its delimiter included.
    """

    messages: tuple[Message, ...]
    generation: GenerationSettings = GenerationSettings()
    repeat: int = 0
    request_type: RequestType | UnsetType = UNSET
    text: str | UnsetType = UNSET
    continuation: str | UnsetType = UNSET


# --- what came back ---------------------------------------------------------------------------------------------------


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens as the endpoint counted them.

    {"prompt_tokens": 12, "completion_tokens": 3}
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0


class Generation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request's answer, as an adapter returns it.

    {"text": "12", "confidence": 0.98, "token_nll": 0.0202, "token_count": 1, "finish_reason": "stop",
    "usage": {"prompt_tokens": 12, "completion_tokens": 3}, "served_model": "m-2026-01"}

    text: the answer, without reasoning; "" when the endpoint sent none (content null). confidence: in [0, 1], or None
    when unknown. token_nll: sum over the answer's tokens of -ln p, in nats; token_count: over how many tokens.
    finish_reason: as the endpoint named it, None when it named none. refusal: the endpoint's own words for declining,
    if it marked them so. first_token_seconds: from the send to the first text of a stream.
    loglikelihood: of what was asked for, the sum over its tokens of ln p, in nats; then token_count says over how many.
    is_greedy: whether each of those tokens was the most likely one.
    """

    text: str
    confidence: float | None = None
    token_nll: float | None = None
    token_count: int | None = None
    finish_reason: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: bool = False
    usage: Usage | None = None
    served_model: str | None = None
    system_fingerprint: str | None = None
    first_token_seconds: float | None = None
    loglikelihood: float | None = None
    is_greedy: bool | None = None


class Attempt(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A journal line: one attempt that ended, with its answer or its error. Fields that hold their default are left
    out.

    {"schema":1,"key":"9f86d0","doc_id":7,"idx":0,"repeat":0,"attempt":1,"outcome":"ok","latency":0.21,
    "ended_at":"2026-11-30T12:00:00.000Z","endpoint":"http://127.0.0.1:8000/v1","generation":{"text":"12"}}
    """

    schema: int = msgspec.field(default_factory=_schema)
    key: str
    doc_id: int
    idx: int = 0
    repeat: int = 0
    attempt: int
    outcome: Outcome
    error: ErrorClass | None = None
    message: str | None = None
    status: int | None = None
    latency: float
    ended_at: str
    endpoint: str = ""
    cost: float = 0.0
    generation: Generation | None = None


class Prediction(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `predictions/<model>/<dataset>.jsonl`: one request's outcome, in (doc_id, idx, repeat) order.

    {"schema":1,"task_id":"add-1","key":"9f86d0","doc_id":7,"idx":0,"repeat":0,"outcome":"ok","attempts":1,
    "latency":0.21,"generation":{"text":"12"}}

    attempts: how many calls it took; latency: of the last one. An `error` line (allowed by max_error_rate) holds no
    generation.
    """

    schema: int = msgspec.field(default_factory=_schema)
    task_id: str
    key: str
    doc_id: int
    idx: int = 0
    repeat: int = 0
    outcome: Outcome
    error: ErrorClass | None = None
    message: str | None = None
    attempts: int
    latency: float = 0.0
    endpoint: str = ""
    cost: float = 0.0
    generation: Generation | None = None


# --- what is planned and what stands ----------------------------------------------------------------------------------


class SampleLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A seeded sample of a dataset's rows: `sample` of them, in the order of the file.

    {"sample":100,"seed":1}
    """

    sample: Annotated[int, Meta(ge=1)]
    seed: int = 0

    def __str__(self) -> str:
        return f"a sample of {self.sample}, seed {self.seed}"


Limit = Annotated[int, Meta(ge=1)] | Annotated[float, Meta(gt=0, le=1)] | str | SampleLimit
"""Which rows of a dataset's file are asked: the first so many, a share of them (the first, rounded up), those of a
range ("100:200": positions from 0, the end left out), or a sample.
"""


class PlanDraw(Struct, frozen=True, kw_only=True):
    """How a dataset's few-shot examples were drawn. pool: how many there were to draw from.

    {"num":5,"seed":1,"source":"data/train.jsonl","pool":1000}
    """

    num: int
    seed: int
    source: str
    pool: int


class PlanDataset(Struct, frozen=True, kw_only=True):
    """A dataset as planned. digest: SHA-256 of its tasks file. seed_per_repeat: a repeat's seed is seed + repeat.

    {"abbr":"gsm8k","docs":100,"repeats":1,"digest":"ab12","source":"data/gsm8k.jsonl","seed_per_repeat":true,
    "limit":{"sample":100,"seed":1},"rows":1319,"few_shot_draw":{"num":5,"seed":1,"source":"data/train.jsonl","pool":1000}}

    limit: as the suite has it, null where it takes all; rows: how many the source holds, where that is known.
    few_shot_draw: null where examples weren't drawn.
    """

    abbr: str
    docs: int
    repeats: int
    digest: str
    source: str = ""
    seed_per_repeat: bool = True
    limit: Limit | None = None
    rows: int | None = None
    few_shot_draw: PlanDraw | None = None


class PlanShard(Struct, frozen=True, kw_only=True):
    """A slice of a pair's tasks: doc_ids first <= doc_id < first + docs. stem: its name in files.

    {"stem":"gsm8k","first":0,"docs":100,"requests":100}
    """

    stem: str
    first: int
    docs: int
    requests: int


class PlanPair(Struct, frozen=True, kw_only=True):
    """A model x dataset. digest: over the model's identity and settings, the dataset's digest, the repeats, and where
    shards begin if there are several: what one sharding left is never taken for another's.

    {"model":"m","dataset":"gsm8k","docs":100,"instances":100,"requests":100,"digest":"cd34",
    "shards":[{"stem":"gsm8k","first":0,"docs":100,"requests":100}]}
    """

    model: str
    dataset: str
    docs: int
    instances: int
    requests: int
    digest: str
    shards: tuple[PlanShard, ...]


class PlanGroup(Struct, frozen=True, kw_only=True):
    """Datasets whose scores are averaged. weights: of the weighted mean, one a dataset; none where there is none.

    {"name":"math","datasets":["gsm8k","mgsm"],"weights":[2.0,1.0]}
    """

    name: str
    datasets: tuple[str, ...]
    weights: tuple[float, ...] = ()


class Plan(Record, frozen=True, kw_only=True):
    """`plan.json`: everything that will be asked, fixed before the first request.

    {"schema":1,"suite_digest":"ef56","created_at":"2026-11-30T12:00:00.000Z",
    "datasets":[{"abbr":"gsm8k","docs":100,"repeats":1,"digest":"ab12","source":"data/gsm8k.jsonl","seed_per_repeat":true}],
    "pairs":[{"model":"m","dataset":"gsm8k","docs":100,"instances":100,"requests":100,"digest":"cd34",
    "shards":[{"stem":"gsm8k","first":0,"docs":100,"requests":100}]}],
    "groups":[{"name":"math","datasets":["gsm8k"],"weights":[]}]}
    """

    suite_digest: str
    created_at: str
    datasets: tuple[PlanDataset, ...]
    pairs: tuple[PlanPair, ...]
    groups: tuple[PlanGroup, ...] = ()


class Straggler(Struct, frozen=True):
    """A request that is long in flight. seconds: since it was sent.

    {"task_id":"add-1","repeat":0,"attempt":1,"seconds":241.5}
    """

    task_id: str
    repeat: int
    attempt: int
    seconds: float


class InferStatus(Record, frozen=True, kw_only=True):
    """`infer_status/<model>/<stem>.json`: a shard's state and progress.

    {"schema":1,"model":"m","dataset":"gsm8k","stem":"gsm8k","state":"running","plan_digest":"cd34","total":100,
    "completed":40,"outcomes":{"ok":39,"truncated":1},"errors":{"timeout":2},"failed":{},"attempts":45,"reused":10,
    "in_flight":4,"prompt_tokens":4000,
    "completion_tokens":800,"cost":0.01,"digest":"","reason":"","started_at":"2026-11-30T12:00:00.000Z",
    "finished_at":"","spans":[["2026-11-30T12:00:00.000Z","2026-11-30T12:00:10.000Z"]],"updated_at":"2026-11-30T12:00:10.000Z","claim":"0a1b","served_models":["m-2026-01"],
    "system_fingerprints":["fp_1"],"late_answers":1,"duplicates":1,
    "stragglers":[{"task_id":"add-1","repeat":0,"attempt":1,"seconds":241.5}],"journal_damage":0}

    total: requests of the shard; completed: of those, answered for good (journalled and synced), or failed for good.
    outcomes: answers by kind. errors: failed attempts by class, those included whose request was answered later.
    failed: requests that failed for good, by class; `not_run`: turns of a chat behind such a one. reused: answers that
    an earlier run had journalled. digest: SHA-256 of the predictions once `done`. spans: (start, end) of each run that
    worked on the shard. served_models, system_fingerprints: what the endpoint called its model, and the build behind
    it; more than one is drift. late_answers: answers of attempts that had been given up as timed out, dropped.
    duplicates: answers that were paid for a second time, the late ones included. stragglers: requests long in flight.
    journal_damage: unreadable journal lines, asked again.
    """

    model: str
    dataset: str
    stem: str
    state: PairState
    plan_digest: str
    total: int
    completed: int = 0
    outcomes: dict[str, int] = {}
    errors: dict[str, int] = {}
    failed: dict[str, int] = {}
    attempts: int = 0
    reused: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    digest: str = ""
    reason: str = ""
    started_at: str = ""
    finished_at: str = ""
    spans: tuple[tuple[str, str], ...] = ()
    updated_at: str = ""
    claim: str = ""
    served_models: tuple[str, ...] = ()
    system_fingerprints: tuple[str, ...] = ()
    late_answers: int = 0
    duplicates: int = 0
    stragglers: tuple[Straggler, ...] = ()
    journal_damage: int = 0


class Command(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`control/<id>.json`: what evalctl asks of daemons that are at work.

    {"schema":1,"id":"20261130T120000.000Z-1f0c9a2b","command":"retune","boots":["3f2a"],
    "time":"2026-11-30T12:00:00.000Z","by":"ann@h1","model":"m","max_workers":16}

    boots: the boot_id of each daemon that it is for; nobody else heeds it. model, dataset: of `cancel` the pair, of
    `retune` the model (all of them when empty). max_workers: of `retune`. reason: of `cancel`, for people.
    """

    schema: int = msgspec.field(default_factory=_schema)
    id: Annotated[str, Meta(pattern=COMMAND_ID)]
    command: CommandName
    boots: Annotated[tuple[_Short, ...], Meta(max_length=1000)]
    time: _Short
    by: _Short
    model: _Short = ""
    dataset: _Short = ""
    max_workers: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    reason: Annotated[str, Meta(max_length=1000, pattern=_PLAIN)] = ""


class Acknowledgement(Struct, frozen=True, kw_only=True):
    """A daemon's word on one command: obeyed, or refused with the reason. text: what was done, or why not.

    {"id":"20261130T120000.000Z-1f0c9a2b","command":"pause","obeyed":true,"text":"nothing new is sent"}
    """

    id: str
    command: CommandName
    obeyed: bool
    text: str = ""


class Heartbeat(Record, frozen=True, kw_only=True):
    """`infer_heartbeat` and `eval_heartbeat`: the process that works beats; readers judge by change of (boot_id, seq).

    {"schema":1,"time":"2026-11-30T12:00:00.000Z","seq":17,"boot_id":"3f2a","host":"h1","pid":4242,"state":"running",
    "interval":5.0,"reason":"","counters":{"completed":40,"in_flight":8}}

    boot_id: new for each start of a daemon. interval: seconds between beats. counters: progress, for people and
    `status`. reason: why it ended, in the state `finished` or `aborted`; what it waits for, else. acknowledged: the
    last commands that it took in, the newest last.
    """

    time: str
    seq: int
    boot_id: str
    host: str
    pid: int
    state: DaemonState
    interval: float
    reason: str = ""
    counters: dict[str, float] = {}
    acknowledged: tuple[Acknowledgement, ...] = ()


# --- what came out ----------------------------------------------------------------------------------------------------


class EvalRun(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `<dataset>.scores.jsonl`: one task's score under one metric, its repeats averaged.

    {"schema":1,"model_id":"m","task_id":"add-1","doc_id":7,"metric_name":"exact_match","score":1.0,"category":"arithmetic",
    "answers":1,"confidence":0.98,"extracted":["12"]}

    score: in [0, 1], or null when it could not be computed (`error` says why) or the task has no answer. answers: how
    many repeats were scored. extracted: what post-processing took from each answer (of a chat asked turn by turn, from
    each scored turn of each), null where nothing. failures: of each answer why it is wrong, "" where it isn't; absent
    where none is, or where the metric doesn't tell. cluster: the task's own.
    """

    schema: int = msgspec.field(default_factory=_schema)
    model_id: str
    task_id: str
    doc_id: int
    metric_name: str
    score: float | None
    category: str = ""
    cluster: str = ""
    answers: int = 0
    confidence: float | None = None
    extracted: tuple[str | None, ...] = ()
    failures: tuple[str, ...] = ()
    error: str = ""


class EvalStatus(Record, frozen=True, kw_only=True):
    """`eval_status/<model>/<dataset>.json`: where scoring a pair stands. content: digest of all that decides its
    result.

    {"schema":1,"model":"m","dataset":"gsm8k","state":"done","plan_digest":"cd34","reason":"","content":"aa11",
    "updated_at":"2026-11-30T12:00:00.000Z"}
    """

    model: str
    dataset: str
    state: PairState
    plan_digest: str = ""
    reason: str = ""
    content: str = ""
    updated_at: str = ""


T = TypeVar("T")


def decode_record(data: bytes | str, kind: type[T], place: str) -> T:
    """Decode one record and check its schema.

    Raises WorkDirError naming `place` when it isn't such a record, or is of a version that this program doesn't know.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WorkDirError(f"{place}: not a {kind.__name__} record: {error}") from None
    if head.schema != SCHEMA:
        raise WorkDirError(_foreign(place, head.schema))
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WorkDirError(f"{place}: not a {kind.__name__} record: {error}") from None


def encode_record(record: Any) -> bytes:
    """The record as one line of JSON without its newline; keys in the order of the fields, NaN and infinities
    as null.
    """
    return _ENCODER.encode(record)


def check_schema(line: bytes, place: str) -> None:
    """Raises WorkDirError when the line is a record of a version that this program doesn't know; what is no record at
    all passes, as damage.
    """
    try:
        schema = msgspec.json.decode(line, type=_Head).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if schema != SCHEMA:
        raise WorkDirError(_foreign(place, schema))


def _foreign(place: str, schema: int) -> str:
    return (
        f"{place}: written as schema {schema}, this program reads schema {SCHEMA}: "
        "use the version of tandem-eval that wrote it, or start a new work_dir"
    )


class _Head(Struct):
    schema: int = SCHEMA


_ENCODER = msgspec.json.Encoder()
