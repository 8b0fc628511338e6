"""Why nothing happens in a work_dir: from what is seen there to findings, each with its remedy. Pure.

Each rule looks for one cause and says nothing where it isn't there. Two looks tell what moves; where something does,
the findings are still told, since the rest may stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from evalctl.state import AT_WORK, DaemonView, PairView, State, count
from evalctl.watching import is_silent
from shared.errors import MEANINGS
from shared.records import Record, Straggler

NAMED = 3  # stragglers, and pairs of one kind
SCARCE_BYTES, SCARCE_INODES = 64 << 20, 100
BEHIND, BEHIND_A_WORKER = 1024, 8  # unsaved answers beyond which inferd sends nothing new (inferd.dispatcher)

Cause = Literal[
    "done",
    "not_started",
    "died",
    "ended",
    "budget",
    "hangs",
    "paused",
    "draining",
    "disk_full",
    "disk_behind",
    "given_up",
    "unhealthy",
    "retries",
    "slow",
    "claimed",
    "queued",
    "failed",
    "scoring_failed",
    "no_sandbox",
    "incomplete",
    "evald_missing",
    "unknown",
]

REMEDIES = {
    "auth": "correct the key behind the model's api_key_env, then start inferd again",
    "not_found": "correct the model's base_url and model in the suite, then `evalctl submit` and inferd again",
    "quota": "raise the account's quota, then start inferd again",
    "unsupported": "see docs/errors.md; ask another server, or in another way",
    "context_length": "shorten the prompts or max_tokens, or ask a model with a longer context",
    "bad_request": "read what the endpoint says of the request, and correct the suite",
    "rate_limited": "ask less at once: `evalctl retune --max-workers N -w {work}`",
    "timeout": "raise [infer] attempt_timeout, or ask less at once: `evalctl retune --max-workers N -w {work}`",
    "adapter": "correct the adapter; `evalctl run --serial --verbose` shows its traceback",
    "connection": "see that the endpoint runs and that this host reaches it (address, proxy, firewall)",
}
OTHER_ERROR = "look at the endpoint's own log; answers stay, and inferd's next start asks what is missing"


class Finding(Struct, frozen=True, kw_only=True):
    """One cause. what: in words; remedy: what to do; pair: `model/dataset`, where it concerns one."""

    cause: Cause
    what: str
    remedy: str
    pair: str = ""


class Why(Record, frozen=True, kw_only=True):
    """The whole of `evalctl why --json`. progressing: something moves, or is waited for no longer than usual, or all is
    done. moves: what moved between the two looks.
    """

    work_dir: str
    as_of: str
    pair: str
    progressing: bool
    moves: tuple[str, ...]
    findings: tuple[Finding, ...]


class Facts(Struct, frozen=True, kw_only=True):
    """What no state tells. free_bytes, free_inodes: of the work_dir's filesystem, null where it doesn't say. owners: by
    `model/dataset`, who holds a claim on it and is no inferd that beats here. last_errors: by daemon, the last error of
    its last run, by its log.
    """

    free_bytes: int | None = None
    free_inodes: int | None = None
    owners: dict[str, str] = {}
    last_errors: dict[str, str] = {}


class Scene(NamedTuple):
    """What the rules look at. pairs: those that were asked about."""

    state: State
    pairs: Sequence[PairView]
    facts: Facts

    @property
    def asking(self) -> list[DaemonView]:
        """The inferds at work."""
        return [view for view in self.state.inferd if view.state in AT_WORK]

    @property
    def left(self) -> list[PairView]:
        """Pairs that inference may still do something for."""
        return [pair for pair in self.pairs if pair.infer in ("pending", "running")]

    def start(self, daemon: str) -> str:
        return f"start it: `{daemon} -w {self.state.work_dir}`"


Rule = Callable[[Scene], Iterator[Finding]]


def explain(before: State, state: State, facts: Facts, pair: str = "") -> Why:
    """before: an earlier look. pair: `model/dataset`, or "" for all."""
    scene = Scene(state, [one for one in state.pairs if pair in ("", name(one))], facts)
    findings = tuple(finding for rule in RULES for finding in rule(scene))
    moves = tuple(_moves(before, scene))
    done = all(one.eval == "done" for one in scene.pairs)
    waits = any(one.in_flight and not one.stragglers for one in scene.pairs) and not any(map(is_silent, scene.asking))
    if done:
        findings = (Finding(cause="done", what=_all(scene, "scored"), remedy=f"`evalctl report -w {state.work_dir}`"),)
    elif not findings and not moves and not waits:
        findings = (_unknown(scene),)
    return Why(
        work_dir=state.work_dir,
        as_of=state.as_of,
        pair=pair,
        progressing=done or bool(moves) or waits,
        moves=moves,
        findings=findings,
    )


def name(pair: PairView) -> str:
    return f"{pair.model}/{pair.dataset}"


def _moves(before: State, scene: Scene) -> Iterator[str]:
    old = {name(pair): pair for pair in before.pairs}
    known = [(old[name(pair)], pair) for pair in scene.pairs if name(pair) in old]
    attempts = sum(new.attempts - was.attempts for was, new in known)
    completed = sum(new.completed - was.completed for was, new in known)
    scored = sum((new.eval == "done") - (was.eval == "done") for was, new in known)
    if completed > 0:
        yield f"{completed} requests were answered meanwhile"
    elif attempts > 0:
        yield f"{attempts} calls came back meanwhile, none with an answer that counts"
    if scored > 0:
        yield f"{scored} pairs were scored meanwhile"
    if scene.state.evald.state in AT_WORK and not is_silent(scene.state.evald):
        busy = [name(pair) for pair in scene.pairs if pair.eval == "running"]
        if busy:
            yield f"evald scores {_some(busy)}"
    if scene.left and any(view.state == "starting" for view in scene.asking):
        yield "inferd reads the suite and plans"


def _inferd(scene: Scene) -> Iterator[Finding]:
    """Nobody asks."""
    if scene.asking or not scene.left:
        return
    start, error = scene.start("inferd"), scene.facts.last_errors.get("inferd", "")
    said = f". The last error in its log: {error}" if error else ""
    for view in scene.state.inferd:
        who = f"inferd (process {view.pid} on {view.host})"
        if view.state == "not started":
            yield Finding(cause="not_started", what=f"no inferd is at work: {view.meaning}{said}", remedy=start)
        elif view.state == "gone":
            what = f"{who} died without a word: killed, out of memory, or its host went down{said}"
            yield Finding(cause="died", what=what, remedy=f"{start}; nothing journalled is lost")
        elif view.reason.startswith("budget reached"):
            remedy = f"raise [budget] in {scene.state.work_dir}/suite.toml, then {start}"
            yield Finding(cause="budget", what=f"{who} ended: {view.reason}", remedy=remedy)
        elif _is_full(view.reason):
            yield Finding(cause="disk_full", what=f"{who} ended: {view.reason}", remedy=f"make room, then {start}")
        else:
            what = f"{who} ended ({view.state}): {view.reason or 'pairs are left'}"
            yield Finding(cause="ended", what=what + (said if not view.reason else ""), remedy=start)


def _hangs(scene: Scene) -> Iterator[Finding]:
    views = [("inferd", view) for view in scene.asking] if scene.left else []
    if scene.state.evald.state in AT_WORK and any(pair.eval != "done" for pair in scene.pairs):
        views.append(("evald", scene.state.evald))
    for daemon, view in views:
        if is_silent(view):
            what = f"{daemon} (process {view.pid} on {view.host}) hasn't beaten for {view.beat_seconds:.0f} s"
            remedy = f"see whether {view.host} and its mount answer (`evalctl doctor`); else kill it and start it again"
            yield Finding(cause="hangs", what=f"{what}: it hangs, or its mount does", remedy=remedy)


def _held_back(scene: Scene) -> Iterator[Finding]:
    """Somebody's wish."""
    for view in scene.asking if scene.left else ():
        if view.state == "paused":
            what, remedy = view.reason or "inferd is paused", f"`evalctl resume -w {scene.state.work_dir}`"
            yield Finding(cause="paused", what=what, remedy=remedy)
        elif view.state == "draining":
            what = f"inferd (process {view.pid} on {view.host}) is ending: {view.reason}; it sends nothing new"
            yield Finding(cause="draining", what=what, remedy=f"wait for its end, then {scene.start('inferd')}")


def _disk(scene: Scene) -> Iterator[Finding]:
    facts = scene.facts
    scarce = []
    if facts.free_bytes is not None and facts.free_bytes < SCARCE_BYTES:
        scarce.append(f"{facts.free_bytes >> 20} MB")
    if facts.free_inodes is not None and facts.free_inodes < SCARCE_INODES:
        scarce.append(f"{facts.free_inodes} inodes")
    if scarce:
        what = f"{scene.state.work_dir}: {' and '.join(scarce)} left on its filesystem"
        yield Finding(cause="disk_full", what=what, remedy="make room; daemons that ended must be started again")
    for view in scene.asking:
        if (unsaved := count(view, "unsaved")) >= max(BEHIND, BEHIND_A_WORKER * count(view, "limit")):
            what = f"the disk is behind: {unsaved} answers wait to be saved, so nothing new is sent"
            remedy = "see what slows the work_dir's filesystem (`evalctl doctor`); it goes on by itself"
            yield Finding(cause="disk_behind", what=what, remedy=remedy)


def _endpoints(scene: Scene) -> Iterator[Finding]:
    """A model that is only probed. The same of all its pairs is told once."""
    told = set()
    for pair in scene.left:
        if pair.reason.startswith("unhealthy") and (pair.model, pair.reason) not in told:
            told.add((pair.model, pair.reason))
            what = f"{pair.model} is {pair.reason}"
            yield Finding(cause="unhealthy", what=what, remedy=_remedy(pair.reason, scene), pair=name(pair))


def _waiting(scene: Scene) -> Iterator[Finding]:
    """Of the inferds at work, what they wait for."""
    for view in scene.asking if scene.left else ():
        in_flight, limit, retries = (count(view, key) for key in ("in_flight", "limit", "retries_waiting"))
        busy = any(pair.in_flight for pair in scene.left)
        if retries and not busy and any(pair.infer == "running" for pair in scene.left):
            errors = Counter[str]()
            for pair in scene.left:
                errors.update(pair.errors)
            due = view.counters.get("next_retry_seconds", 0.0)
            what = f"nothing of it is in flight: {retries} requests wait for their retry, the next one for {due:.0f} s"
            told = f" (failed attempts: {_counts(errors)})" if errors else ""
            worst = max(errors, key=lambda kind: errors[kind], default="")
            yield Finding(cause="retries", what=what + told, remedy=_remedy(worst, scene))
        elif busy and (slow := _slowest(scene)):
            who = f"all {limit} workers wait" if in_flight >= limit else f"{in_flight} calls are waited for"
            what = f"{who} for slow answers: {_named(slow)}"
            yield Finding(cause="slow", what=what, remedy=_remedy("timeout", scene))


def _claimed(scene: Scene) -> Iterator[Finding]:
    for pair in scene.left:
        if owner := scene.facts.owners.get(name(pair)):
            what = f"{name(pair)} is claimed by {owner}, which doesn't beat in this work_dir"
            remedy = "see what that process does on its host; the claim goes with it when it ends"
            yield Finding(cause="claimed", what=what, remedy=remedy, pair=name(pair))


def _failed(scene: Scene) -> Iterator[Finding]:
    for pair in scene.pairs:
        if pair.infer == "fail":
            cause: Cause = "given_up" if pair.reason.startswith("given up") else "failed"
            what = f"{name(pair)} failed: {pair.reason or _counts(pair.failed)}"
            worst = max(pair.failed, key=lambda kind: pair.failed[kind], default=pair.reason)
            yield Finding(cause=cause, what=what, remedy=_remedy(worst, scene), pair=name(pair))


def _scoring(scene: Scene) -> Iterator[Finding]:
    """Inference has done its part."""
    ready = [pair for pair in scene.pairs if pair.infer == "done" and pair.eval != "done"]
    for pair in ready:
        if pair.eval == "fail" and "sandbox" in pair.reason:
            remedy = "install bubblewrap on evald's host, or see docs/code-exec.md; then start evald again"
            yield Finding(cause="no_sandbox", what=f"{name(pair)}: {pair.reason}", remedy=remedy, pair=name(pair))
        elif pair.eval == "fail":
            what, remedy = f"{name(pair)} could not be scored: {pair.reason}", "mend that, then start evald again"
            yield Finding(cause="scoring_failed", what=what, remedy=remedy, pair=name(pair))
        elif pair.reason.startswith("incomplete"):
            remedy = "its files may be on their way over the mount; else start inferd again, which mends them"
            yield Finding(cause="incomplete", what=f"{name(pair)}: {pair.reason}", remedy=remedy, pair=name(pair))
    evald = scene.state.evald
    waiting = [name(pair) for pair in ready if pair.eval != "fail"]
    if evald.state not in AT_WORK and waiting:
        ended = f"{evald.state}: {evald.reason}" if evald.reason else evald.meaning
        error = scene.facts.last_errors.get("evald", "")
        said = f". The last error in its log: {error}" if error else ""
        what = f"{_some(waiting)} could be scored, and no evald is at work ({ended}){said}"
        yield Finding(cause="evald_missing", what=what, remedy=scene.start("evald"))


def _queued(scene: Scene) -> Iterator[Finding]:
    """Of one pair: others come first."""
    if len(scene.pairs) != 1 or not scene.asking or name(scene.pairs[0]) in scene.facts.owners:
        return
    (pair,) = scene.pairs
    running = [name(one) for one in scene.state.pairs if one.infer == "running"]
    if pair.infer == "pending" and running:
        what = f"{name(pair)} waits for its turn behind {_some(running)}"
        remedy = "nothing: a model's pairs are opened as its workers have room"
        yield Finding(cause="queued", what=what, remedy=remedy, pair=name(pair))


RULES: tuple[Rule, ...] = (
    _inferd, _hangs, _held_back, _disk, _endpoints, _waiting, _claimed, _failed, _scoring, _queued,
)  # fmt: skip
"""What keeps everything from going on comes first."""


def _unknown(scene: Scene) -> Finding:
    return Finding(
        cause="unknown",
        what="nothing moved while it was looked at, and nothing is known to hold it up",
        remedy=f"look for longer (`evalctl why --observe 30 -w {scene.state.work_dir}`), and at logs/",
    )


def _remedy(text: str, scene: Scene) -> str:
    """By the error class that `text` is, or quotes."""
    words = {word.strip(":;,.") for word in text.split()}
    kind = next((kind for kind in MEANINGS if kind in words), "")
    return REMEDIES.get(kind, OTHER_ERROR).format(work=scene.state.work_dir)


def _is_full(reason: str) -> bool:
    return any(sign in reason for sign in ("No space left", "Disk quota exceeded"))


def _slowest(scene: Scene) -> list[tuple[PairView, Straggler]]:
    found = [(pair, one) for pair in scene.pairs for one in pair.stragglers]
    return sorted(found, key=lambda entry: -entry[1].seconds)


def _named(slow: Sequence[tuple[PairView, Straggler]]) -> str:
    told = [f"{name(pair)} {one.task_id} ({one.seconds:.0f} s, attempt {one.attempt})" for pair, one in slow]
    return _some(told)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in sorted(counts.items()))


def _all(scene: Scene, what: str) -> str:
    pairs = len(scene.pairs)
    return f"all {pairs} pairs are {what}" if pairs != 1 else f"{name(scene.pairs[0])} is {what}"
