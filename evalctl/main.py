"""evalctl: the command line. Each command checks its input, calls one function, and turns errors into an exit status.

Exit status of every command: 0 clean, 1 failure, 2 bad usage or a bad suite, 3 some pairs are missing.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.live import Live

from evalctl import control_commands, sight_commands, template
from evalctl import demo as demo_run
from evalctl.doctor import main as doctor_command
from evalctl.elsewhere import FORMATS, FileFormat
from evalctl.estimate import estimate
from evalctl.options import AS_JSON, PATHS, WORK_DIR, selecting
from evalctl.run import run_daemons, tell_what_is_kept
from evalctl.runs import read_runs, runs_table
from evalctl.sample import sample_command
from evalctl.score import score_file
from evalctl.showing import show_report, tell_missing
from evalctl.state import is_missing, read_state
from evalctl.submit import check, submit
from evalctl.tables import clean, leaderboard_table, state_table
from evalctl.watching import states
from evald.report.markdown import markdown
from evald.summary import read_report, write_summary
from shared.clock import SystemClock
from shared.config import SelectConfig
from shared.errors import TandemError
from shared.layout import WorkDir
from shared.records import encode_record

SUITE = click.argument("suite", type=click.Path(path_type=Path))


class Commands(click.Group):
    """Turns Tandem's errors into one text on stderr and their exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TandemError as error:
            for line in str(error).splitlines():
                click.echo(clean(line), err=True)
            sys.exit(error.exit_code)
        except OSError as error:
            click.echo(f"evalctl: {clean(str(error))}", err=True)
            sys.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tandem-eval")
def main() -> None:
    """Evaluate language models over an API at large scale.

    \b
    A first run:
      evalctl init my-suite && evalctl run my-suite/suite.toml -w runs/first
    On servers, with both daemons under a supervisor:
      evalctl submit suite.toml -w /srv/tandem/run1
      inferd -w /srv/tandem/run1      and      evald -w /srv/tandem/run1
      evalctl status -w /srv/tandem/run1 --watch
      evalctl why -w /srv/tandem/run1
      evalctl pause -w /srv/tandem/run1       (resume, drain, stop, cancel, retune, reload)
    """


for command in (*control_commands.COMMANDS, *sight_commands.COMMANDS, sample_command, doctor_command):
    main.add_command(command)


@main.command("list")
@click.argument("root", type=click.Path(path_type=Path))
@click.option("--observe", type=click.FloatRange(min=0), default=0.0, help="Watch every heartbeat for so many seconds.")
@AS_JSON
def list_command(root: Path, observe: float, as_json: bool) -> None:
    """Show every work_dir under ROOT: what works there, and how far it is.

    \b
    Examples:
      evalctl list /srv/tandem
      evalctl list /srv/tandem --observe 12 --json | jq '.runs[] | {work_dir, state, beat_seconds}'
    """
    found = read_runs(root, SystemClock(), time.sleep, observe)
    if as_json:
        click.echo(encode_record(found).decode())
    else:
        Console().print(runs_table(found))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
def init(folder: Path) -> None:
    """Write a commented suite and its tasks into FOLDER, to start from.

    \b
    Example: evalctl init my-suite
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / "suite.toml": template.SUITE, folder / template.TASKS_NAME: template.TASKS}
    for path in texts:
        if os.path.lexists(path):
            raise click.UsageError(f"{path} is there already: name another folder")
    for path, text in texts.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    click.echo(
        f"wrote {folder / 'suite.toml'} and {folder / template.TASKS_NAME}; "
        f"next: evalctl run {folder / 'suite.toml'} -w RUN"
    )


@main.command()
@SUITE
@PATHS
@selecting
@AS_JSON
def validate(suite: Path, paths: dict[str, Path], select: SelectConfig, as_json: bool) -> None:
    """Check SUITE and every file it names; print what it would ask, and about what that costs. Starts nothing.

    \b
    Example: evalctl validate suite.toml
    """
    checked, _ = check(suite, paths, select)
    counts = estimate(checked)
    if as_json:
        click.echo(encode_record(counts).decode())
        return
    for line in counts.lines():
        click.echo(line)


@main.command("submit")
@SUITE
@WORK_DIR
@PATHS
@selecting
@click.option("--no-env", is_flag=True, help="Don't ask for API key variables here: inferd does, on its own host.")
def submit_command(suite: Path, work_dir: Path, paths: dict[str, Path], select: SelectConfig, no_env: bool) -> None:
    """Check SUITE, freeze it into WORK_DIR with its plan and tasks. Starts nothing.

    \b
    Example: evalctl submit suite.toml -w /srv/tandem/run1
    Then, on any host that sees the folder: inferd -w /srv/tandem/run1, and evald -w /srv/tandem/run1
    """
    plan = submit(suite, WorkDir(work_dir), paths, select, check_env=not no_env)
    requests = sum(pair.requests for pair in plan.pairs)
    click.echo(
        f"{len(plan.pairs)} pairs, {requests} requests planned in {work_dir}; "
        f"next: inferd -w {work_dir} and evald -w {work_dir}"
    )


@main.command()
@SUITE
@WORK_DIR
@PATHS
@selecting
@AS_JSON
@click.option("--progress/--no-progress", default=True, help="Show progress on stderr.")
@click.option("--serial", is_flag=True, help="Infer, then score, dataset by dataset in this process: no daemons.")
@click.option(
    "--max-workers",
    type=click.IntRange(min=1),
    help="Requests in flight a model; wins over [infer] max_workers, with --serial over the models' own too.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more; with --serial also the traceback of what is raised.")
def run(
    suite: Path,
    work_dir: Path,
    paths: dict[str, Path],
    select: SelectConfig,
    as_json: bool,
    progress: bool,
    serial: bool,
    max_workers: int | None,
    verbose: bool,
) -> None:
    """Run SUITE in WORK_DIR: both daemons, live progress, and the leaderboard at the end.

    Stopped (Ctrl-C) or killed, it goes on where it was when started again with the same WORK_DIR, with --serial or
    without. --serial is for a laptop and for debugging: with --max-workers 1 as well, a debugger works in adapters and
    metrics of one's own.

    \b
    Examples:
      evalctl run suite.toml -w runs/first
      evalctl run examples/gsm8k-local.toml -w runs/gsm8k --path gsm8k=/data/gsm8k/test.jsonl
      evalctl run suite.toml -w runs/math --models 'qwen-*' --datasets tag:math
      evalctl run suite.toml -w runs/first --serial --max-workers 1 --verbose
    """
    work, console = WorkDir(work_dir), Console(stderr=True)
    submit(suite, work, paths, select)
    if serial:
        from evalctl.serial import run_serial  # it brings both daemons' parts along

        ended = run_serial(work, max_workers=max_workers, progress=progress, verbose=verbose)
    else:
        ended = run_daemons(work, console, progress=progress, max_workers=max_workers, verbose=verbose)
    tell_what_is_kept(work, console, ended)
    if ended.exit_code != 2:
        found = read_report(work)
        show_report(found, as_json=as_json)
        tell_missing(found)
    sys.exit(ended.exit_code)


@main.command()
@WORK_DIR
@AS_JSON
@click.option("--watch", is_flag=True, help="Keep showing it until both daemons have ended.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between looks with --watch.",
)
def status(work_dir: Path, as_json: bool, watch: bool, interval: float) -> None:
    """Show what stands in WORK_DIR: pairs, progress, errors, tokens, cost, and whether the daemons live.

    With --watch, whether a daemon beats is judged by its beat's change here, so no host's clock matters. What nothing
    comes of is explained by `evalctl why`.

    Exit status 3 when a pair has failed, or when nobody works any more and pairs are left.

    \b
    Examples:
      evalctl status -w runs/first
      evalctl status -w runs/first --watch
      evalctl status -w runs/first --json | jq .pairs
    """
    work, clock = WorkDir(work_dir), SystemClock()
    if as_json:
        for state in states(work, clock, lambda: time.sleep(interval), watch=watch):
            click.echo(encode_record(state).decode())
    elif watch:
        console = Console()
        with Live(console=console, auto_refresh=False) as live:
            for state in states(work, clock, lambda: time.sleep(interval), watch=True):
                live.update(state_table(state, rows=max(console.height - 12, 5)), refresh=True)
    else:
        state = read_state(work, clock.time())
        Console().print(state_table(state))
    sys.exit(3 if is_missing(state) else 0)


@main.command()
@WORK_DIR
@AS_JSON
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown on stdout instead of a table.")
@click.option("--write", is_flag=True, help="Also write summary/ anew.")
def report(work_dir: Path, as_json: bool, as_markdown: bool, write: bool) -> None:
    """Show the leaderboard of what is scored in WORK_DIR so far.

    \b
    Examples:
      evalctl report -w runs/first
      evalctl report -w runs/first --json | jq .leaderboard
    """
    work = WorkDir(work_dir)
    found = read_report(work)
    if write:
        write_summary(str(work))
    if as_markdown:
        click.echo(markdown(found))
    else:
        show_report(found, as_json=as_json)
    tell_missing(found)
    sys.exit(0 if found.summary.pairs_scored == found.summary.pairs else 3)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dataset", required=True, metavar="ABBR", help="Which dataset of the suite the answers are for.")
@click.option("--suite", "suite", required=True, type=click.Path(path_type=Path), help="The suite that describes it.")
@click.option("--model", metavar="NAME", help="Who made the answers; by default the file's name.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="The file's form; by default told from its content.")
@click.option("--repeats", type=click.IntRange(min=1), help="Answers a task, where neither suite nor file tells.")
@click.option("-w", "--work-dir", type=click.Path(path_type=Path), help="Where to keep it all; nowhere by default.")
@PATHS
@AS_JSON
def score(
    file: Path,
    dataset: str,
    suite: Path,
    model: str | None,
    form: FileFormat | None,
    repeats: int | None,
    work_dir: Path | None,
    paths: dict[str, Path],
    as_json: bool,
) -> None:
    """Score the answers in FILE, made elsewhere, as those of a run.

    FILE: JSON lines with task_id or doc_id and text; an OpenCompass prediction file; or an lm-eval sample file. Of the
    suite the dataset alone is used; no model is asked. With the same WORK_DIR, several files are compared.

    Exit status 3 when answers are missing: they are never counted as wrong, and the score shows its coverage.

    \b
    Examples:
      evalctl score samples_gsm8k.jsonl --dataset gsm8k --suite suite.toml --model big
      evalctl score big/gsm8k.json --dataset gsm8k --suite suite.toml --model big -w runs/compared
    """
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tandem-score-") as scratch:
        work = WorkDir(work_dir or Path(scratch))
        code = score_file(file, suite, dataset, work, console, model=model, form=form, repeats=repeats, paths=paths)
        if code in (0, 3):
            found = read_report(work)
            show_report(found, as_json=as_json)
            tell_missing(found)
    sys.exit(code)


@main.command()
@click.option("-w", "--work-dir", type=click.Path(path_type=Path), help="The run's folder; a temporary one by default.")
@click.option(
    "--with-local-model", is_flag=True, help="Add a real small model, served on this machine (extra `local`)."
)
@AS_JSON
@click.option("--progress/--no-progress", default=True, help="Show progress on stderr.")
def demo(work_dir: Path | None, with_local_model: bool, as_json: bool, progress: bool) -> None:
    """Ten tasks, every metric, three built-in models, through the real daemons: does all of it work here?

    \b
    Examples:
      evalctl demo
      evalctl demo --with-local-model -w runs/demo
    """
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as scratch:
        result = demo_run.run(work_dir or Path(scratch), console, with_local_model=with_local_model, progress=progress)
    if as_json:
        click.echo(msgspec.json.format(encode_record(result), indent=1).decode())
    elif result.report is not None:
        Console().print(leaderboard_table(result.report))
    for error in result.errors:
        click.echo(f"demo: {clean(error.check)}: {clean(error.reason)}", err=True)
    if result.ok and not as_json:
        click.echo("demo: everything works here")
    sys.exit(0 if result.ok else result.exit_code)


@main.command("serve-model")
@click.option(
    "--gguf",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Other weights than the embedded model's.",
)
@click.option("--parallel", type=click.IntRange(min=1), help="Requests answered at once.")
@click.option(
    "--context", type=click.IntRange(min=256), help="Tokens one request may take, prompt and answer together."
)
@click.option("--port", type=click.IntRange(0, 65535), help="The port on loopback; a free one by default.")
def serve_model(gguf: Path | None, parallel: int | None, context: int | None, port: int | None) -> None:
    """Serve the embedded real model on loopback, as an API to try suites on, until Ctrl-C.

    \b
    Example: evalctl serve-model
    Then in a suite: type = "openai", base_url = the address it prints.
    """
    from evalctl.serve_model import serve_until_stopped

    own = str(gguf.absolute()) if gguf is not None else None
    given = {"gguf": own, "parallel": parallel, "context": context, "port": port}
    serve_until_stopped({name: value for name, value in given.items() if value is not None})
