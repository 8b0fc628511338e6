"""What the tests of whole daemons share: a suite on disk, daemons as real processes, and a look at what they left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.layout import WorkDir
from shared.records import Attempt, EvalStatus, Heartbeat, InferStatus, Prediction

ROOT = Path(__file__).parent.parent
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
FAST_INFER = {
    "poll_interval": 0.2,
    "heartbeat_interval": 0.2,
    "status_interval": 0.1,
    "commit_interval": 0.01,
    "backoff_base": 0.02,
    "backoff_max": 0.1,
    "attempt_timeout": 10.0,
    "drain_timeout": 10.0,
}
FAST_EVAL = {"watch_interval": 0.2, "heartbeat_timeout": 3.0, "startup_timeout": 10.0, "max_num_workers": 2}


def task(number: int, **more: Any) -> dict[str, Any]:
    """A task whose right answer the fake server finds in the prompt."""
    return {
        "task_id": f"t{number}",
        "prompt": f"question {number} ANSWER={number}",
        "targets": [str(number)],
        "metric_name": "exact_match",
        "post_process": "strip",
        **more,
    }


def write_suite(
    folder: Path,
    models: Sequence[dict[str, Any]],
    datasets: dict[str, Sequence[dict[str, Any]]],
    *,
    infer: dict[str, Any] | None = None,
    eval: dict[str, Any] | None = None,  # the table's own name
    budget: dict[str, Any] | None = None,
    dataset_options: dict[str, Any] | None = None,
) -> Path:
    """A suite over datasets given as task lines, with intervals short enough for tests."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for model in models:
        lines += ["[[models]]", *_pairs(model), ""]
    for abbr, tasks in datasets.items():
        path = folder / f"{abbr.replace('/', '_')}.jsonl"
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in tasks), encoding="utf-8")
        lines += ["[[datasets]]", *_pairs({"abbr": abbr, "path": path.name, **(dataset_options or {})}), ""]
    lines += ["[infer]", *_pairs(FAST_INFER | (infer or {})), "", "[eval]", *_pairs(FAST_EVAL | (eval or {})), ""]
    if budget:
        lines += ["[budget]", *_pairs(budget)]
    suite = folder / "suite.toml"
    suite.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return suite


def _pairs(table: dict[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in table.items()]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(_pairs(value)) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def openai(url: str, abbr: str = "m", **more: Any) -> dict[str, Any]:
    return {"abbr": abbr, "type": "openai", "base_url": url, "max_workers": 4, **more}


class Process:
    """A program of ours as a real process."""

    def __init__(self, *command: str, env: dict[str, str] | None = None, prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", *command],
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "200"} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out = self.err = ""

    def wait(self, timeout: float = 60.0) -> int:
        try:
            self.out, self.err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not end within {timeout} s; it said:\n{self.err[-3000:]}") from None
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL to it and to whatever it started; then its output is there."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.out, self.err = self.process.communicate()

    def kill_alone(self) -> None:
        """SIGKILL to the one process, as the kernel's OOM killer does; what it started must notice by itself."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    @property
    def running(self) -> bool:
        return self.process.poll() is None


def inferd(work: WorkDir, *options: str, **more: Any) -> Process:
    return Process("inferd", "-w", str(work), *options, **more)


def evald(work: WorkDir, *options: str, **more: Any) -> Process:
    return Process("evald", "-w", str(work), *options, **more)


def evalctl(*options: str | Path, **more: Any) -> Process:
    return Process("evalctl", *map(str, options), **more)


@contextmanager
def running(process: Process) -> Iterator[Process]:
    """The process, killed at the latest when the block ends."""
    try:
        yield process
    finally:
        assert process.process.stdout is not None
        if not process.process.stdout.closed:  # nobody waited for its end
            process.kill()


def faketime() -> dict[str, str]:
    """The environment of a process whose wall clock, and that alone, FAKETIME or FAKETIME_TIMESTAMP_FILE sets."""
    if not FAKETIME.exists():
        if os.environ.get("CI"):
            pytest.fail("faketime is not installed")
        pytest.skip("faketime is not installed (Debian's package `faketime`)")
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}


def submit(suite: Path, work: WorkDir, **more: Any) -> None:
    process = evalctl("submit", suite, "-w", work.root, **more)
    assert process.wait() == 0, process.err


def until(condition: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    """Wait for a condition, by looking often; its value."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {timeout} s: {what}")


def read(path: Path, kind: type[Any]) -> Any:
    """The record in a file, or None when it isn't there."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None


def infer_status(work: WorkDir, model: str = "m", dataset: str = "d") -> InferStatus | None:
    return read(work.infer_status(model, dataset), InferStatus)  # type: ignore[no-any-return]


def eval_status(work: WorkDir, model: str = "m", dataset: str = "d") -> EvalStatus | None:
    return read(work.eval_status(model, dataset), EvalStatus)  # type: ignore[no-any-return]


def heartbeat(path: Path) -> Heartbeat | None:
    return read(path, Heartbeat)  # type: ignore[no-any-return]


def predictions(work: WorkDir, model: str = "m", dataset: str = "d") -> list[Prediction]:
    path = work.predictions(model, dataset)
    return [msgspec.json.decode(line, type=Prediction) for line in path.read_bytes().split(b"\n") if line]


def journal(work: WorkDir, model: str = "m", dataset: str = "d") -> list[Attempt]:
    """Every readable line of every journal of the pair, torn tails left out."""
    found: list[Attempt] = []
    for path in work.journals(model, dataset):
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                found.append(msgspec.json.decode(line, type=Attempt))
            except msgspec.DecodeError:
                continue
    return found


def report(work: WorkDir) -> dict[str, Any]:
    return json.loads(work.report_json.read_text())  # type: ignore[no-any-return]
