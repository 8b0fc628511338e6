"""Where everything lies in a work_dir. No other module joins paths under it. Each file has one writer.

    suite.toml                                      evalctl  replaced     the suite as submitted; no secrets
    plan.json                                       inferd   replaced     pairs, shards, counts, digests
                                                                          (evalctl submit first; under plan.lock)
    tasks/<dataset>.jsonl                           inferd   replaced     the TaskSpec lines as planned
    infer_heartbeat                                 inferd   replaced     the beat of the inferd that came first
    infer_heartbeat.<instance>                      inferd   replaced     ... of each further one
    eval_heartbeat                                  evald    replaced
    infer_status/<model>/<dataset>.json             inferd   replaced     progress and state of a shard
    predictions/<model>/tmp_<dataset>.<claim>.jsonl inferd   append-only  the journal: a line an attempt that ended
    predictions/<model>/<dataset>.jsonl             inferd   write-once   a line a request, by (doc_id, idx, repeat)
    predictions/<model>/tmp_<dataset>.<token>.merged.jsonl
                                                    inferd   write-once   predictions that another sharding left; until
                                                                          the pair is done
    eval_status/<model>/<dataset>.json              evald    replaced     pending / running / done / fail, and why
    results/<model>/<dataset>.json                  evald    replaced     metrics, counts, provenance
    results/<model>/<dataset>.scores.jsonl          evald    replaced     one line a task and metric
    results/<model>/<dataset>.samples.jsonl         evald    replaced     one line a task: asked, answered, filtered,
                                                                          scored ([eval] sample_log)
    summary/{report.json,report.md,leaderboard.csv} evald    replaced     rebuilt identically from results/
    control/<id>.json                               evalctl  write-once   a command to daemons (pause, drain, retune
                                                                          ...); acknowledged in their beats
    claims/                                         both     locks        hints; correctness never rests on them
    logs/                                           both     append-only
    demo/                                           evalctl  write-once   the demo's own suite, where it runs
    given/<dataset>.jsonl                           evalctl  replaced     tasks that came over the Python API
    .doctor/                                        evalctl  removed      what `evalctl doctor` tries the mount with

A work_dir of `evalctl score` has no inferd: evalctl writes there what inferd would have. With `evalctl run --serial`,
and over the Python API, one process writes what both daemons would, under the claims of both.

A name that begins with a dot and ends in `.new` or `.staged` is half-written; nobody reads it.

<model> and <dataset> are the names of the suite under `shared.names`; a dataset of several shards has `_0`, `_1` ...
after its name (`stem`), in all that inferd writes. What another sharding left is under the dataset's own name.
Write order: plan, journal, predictions, status. Read order is the reverse: whoever sees a
status `done` finds the predictions it speaks of, and whoever sees predictions finds the plan.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from shared.atomic import look_again
from shared.errors import UsageError
from shared.names import real_name, safe_name

JOURNAL_PREFIX = "tmp_"  # no safe name begins so
MERGED = ".merged.jsonl"


class WorkDir:
    """Paths under one work_dir. Joins names, touches nothing.

    own_journal: the one file, wherever it lies, that all answers go to and come from, instead of one a shard and claim;
    for a single pair, and a caller who keeps everybody else from it.
    """

    def __init__(self, root: Path | str, own_journal: Path | None = None) -> None:
        self.root = Path(root).absolute()
        self.own_journal = own_journal
        try:
            str(self.root).encode()
        except UnicodeEncodeError:
            raise UsageError(f"{str(self.root)!a}: the folder's name isn't UTF-8: rename it") from None

    def __str__(self) -> str:
        return str(self.root)

    @property
    def suite(self) -> Path:
        return self.root / "suite.toml"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    def tasks(self, dataset: str) -> Path:
        return self.root / "tasks" / f"{safe_name(dataset)}.jsonl"

    def staged_tasks(self, dataset: str) -> Path:
        """Where a tasks file is written before the whole plan is known to be sound."""
        return self.root / "tasks" / f".{safe_name(dataset)}.staged"

    def infer_heartbeat(self, instance: str = "") -> Path:
        return self.root / (f"infer_heartbeat.{instance}" if instance else "infer_heartbeat")

    def infer_heartbeats(self) -> list[Path]:
        """Every inferd's beat that is there, found by listing: a name once missed stays missing on NFS for a while."""
        return sorted(path for path in self.root.iterdir() if is_infer_heartbeat(path.name))

    @property
    def eval_heartbeat(self) -> Path:
        return self.root / "eval_heartbeat"

    @property
    def infer_status_root(self) -> Path:
        return self.root / "infer_status"

    def infer_status_of(self, model: str) -> Path:
        return self.infer_status_root / safe_name(model)

    def infer_status(self, model: str, stem: str) -> Path:
        return self.infer_status_of(model) / f"{safe_name(stem)}.json"

    @property
    def predictions_root(self) -> Path:
        return self.root / "predictions"

    def predictions_folder(self, model: str) -> Path:
        return self.predictions_root / safe_name(model)

    def predictions(self, model: str, stem: str) -> Path:
        return self.predictions_folder(model) / f"{safe_name(stem)}.jsonl"

    def journal(self, model: str, stem: str, claim: str) -> Path:
        if self.own_journal is not None:
            return self.own_journal
        return self.predictions_folder(model) / f"{JOURNAL_PREFIX}{safe_name(stem)}.{claim}.jsonl"

    def journals(self, model: str, stem: str) -> list[Path]:
        """Every journal of a shard, of whichever claim, in the order of their names."""
        if self.own_journal is not None:
            return [self.own_journal]
        folder = self.predictions_folder(model)
        if not folder.is_dir():
            return []
        prefix, suffix = f"{JOURNAL_PREFIX}{safe_name(stem)}.", ".jsonl"
        return sorted(
            path
            for path in folder.iterdir()
            # Exactly <prefix><claim>.jsonl: a claim is hexadecimal, so `a` never takes the journals of `a.b`.
            if path.name.startswith(prefix)
            and path.name.endswith(suffix)
            and _is_claim(path.name[len(prefix) : -len(suffix)])
        )

    def merged(self, model: str, dataset: str, token: str) -> Path:
        """Where predictions of another sharding go. token: as of a claim."""
        return self.predictions_folder(model) / f"{JOURNAL_PREFIX}{safe_name(dataset)}.{token}{MERGED}"

    def all_merged(self, model: str) -> dict[str, list[Path]]:
        """Every such file of the model, by dataset, by listing."""
        found: dict[str, list[Path]] = {}
        folder = self.predictions_folder(model)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            name, _, token = path.name.removesuffix(MERGED).removeprefix(JOURNAL_PREFIX).rpartition(".")
            if path.name.startswith(JOURNAL_PREFIX) and path.name.endswith(MERGED) and _is_claim(token):
                try:
                    found.setdefault(real_name(name), []).append(path)
                except ValueError:
                    continue
        return found

    def stems(self, model: str) -> set[str]:
        """Of every shard of the model that has a journal, predictions or a status, by listing folders."""
        found = set()
        for folder, suffix in ((self.predictions_folder(model), ".jsonl"), (self.infer_status_of(model), ".json")):
            for path in folder.iterdir() if folder.is_dir() else ():
                name, _, ending = path.name.rpartition(suffix)
                if ending or not name:
                    continue
                if name.startswith(JOURNAL_PREFIX):
                    name, _, claim = name.removeprefix(JOURNAL_PREFIX).rpartition(".")
                    if not _is_claim(claim):
                        continue
                try:
                    found.add(real_name(name))
                except ValueError:
                    continue  # half-written, or somebody's own file
        return found

    def finished_predictions(self) -> set[tuple[str, str]]:
        """(model, stem) of every predictions file that is there, by listing folders."""
        found = set()
        look_again(self.root)  # to probe a folder that wasn't there a while ago tells nothing on NFS
        if self.predictions_root.is_dir():
            for folder in self.predictions_root.iterdir():
                if not folder.is_dir():
                    continue
                for path in folder.iterdir():
                    if path.suffix == ".jsonl" and not path.name.startswith((JOURNAL_PREFIX, ".")):
                        try:
                            found.add((real_name(folder.name), real_name(path.stem)))
                        except ValueError:
                            continue  # somebody's own file: no name of ours comes out so
        return found

    def eval_status(self, model: str, dataset: str) -> Path:
        return self.root / "eval_status" / safe_name(model) / f"{safe_name(dataset)}.json"

    def result(self, model: str, dataset: str) -> Path:
        return self.root / "results" / safe_name(model) / f"{safe_name(dataset)}.json"

    def scores(self, model: str, dataset: str) -> Path:
        return self.root / "results" / safe_name(model) / f"{safe_name(dataset)}.scores.jsonl"

    def samples(self, model: str, dataset: str) -> Path:
        return self.root / "results" / safe_name(model) / f"{safe_name(dataset)}.samples.jsonl"

    @property
    def report_json(self) -> Path:
        return self.root / "summary" / "report.json"

    @property
    def report_md(self) -> Path:
        return self.root / "summary" / "report.md"

    @property
    def leaderboard_csv(self) -> Path:
        return self.root / "summary" / "leaderboard.csv"

    @property
    def control(self) -> Path:
        return self.root / "control"

    def command(self, command_id: str) -> Path:
        return self.control / f"{command_id}.json"

    def inferd_claim(self, instance: str = "") -> Path:
        """Held by an inferd while it lives: the one that came first, or the further one of that instance."""
        return self.root / "claims" / (f"inferd.{instance}.lock" if instance else "inferd.lock")

    def inferd_claim_of(self, beat: Path) -> Path:
        """The claim of the inferd whose heartbeat that is."""
        return self.inferd_claim(beat.name.partition(".")[2])

    def inferd_claims(self) -> list[Path]:
        """Every claim that an inferd ever had, by listing."""
        folder = self.inferd_claim().parent
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [folder / name for name in names if name.startswith("inferd.") and name.endswith(".lock")]

    @property
    def evald_claim(self) -> Path:
        return self.root / "claims" / "evald.lock"

    @property
    def plan_claim(self) -> Path:
        """Held by whoever plans."""
        return self.root / "claims" / "plan.lock"

    def shard_claim(self, model: str, stem: str) -> Path:
        return self.root / "claims" / "shards" / safe_name(model) / f"{safe_name(stem)}.lock"

    def written_by_inferd(self, models: Iterable[str]) -> Iterator[Path]:
        """The folders of small files that inferd replaces."""
        for model in models:
            yield self.infer_status_of(model)

    def written_by_evald(self, models: Iterable[str]) -> Iterator[Path]:
        """The folders in which evald alone writes."""
        yield self.report_json.parent
        for model in models:
            yield self.eval_status(model, "any").parent
            yield self.result(model, "any").parent

    @property
    def demo(self) -> Path:
        """Where `evalctl demo` puts its suite before it submits it."""
        return self.root / "demo"

    @property
    def doctor(self) -> Path:
        """Where `evalctl doctor` tries the mount, and two of them find each other. Nothing in it outlives them."""
        return self.root / ".doctor"

    def given_tasks(self, dataset: str) -> Path:
        """Where tasks that came over the Python API lie until they are planned."""
        return self.root / "given" / f"{safe_name(dataset)}.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, daemon: str, host: str) -> Path:
        """One log a daemon and host: two hosts that append to one file over NFS lose lines."""
        return self.logs / f"{daemon}.{safe_name(host)}.log"

    def model_log(self, model: str) -> Path:
        """What the server of a `local` model says."""
        return self.logs / f"model.{safe_name(model)}.log"


def is_work_dir(names: Container[str]) -> bool:
    """Whether a folder that holds these names is a work_dir with a plan."""
    return "plan.json" in names


def is_infer_heartbeat(name: str) -> bool:
    """Whether a file of that name, in the work_dir itself, is an inferd's beat."""
    return name.partition(".")[0] == "infer_heartbeat"


def claim_of(journal: Path) -> str:
    """The claim that wrote it, by its name."""
    return journal.name.split(".")[-2]


def _is_claim(text: str) -> bool:
    return len(text) == 32 and all(letter in "0123456789abcdef" for letter in text)
