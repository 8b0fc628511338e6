"""The embedded model's server: on loopback, in a child process that lives no longer than its owner.

It is llama.cpp's own server (xllamacpp). It has its own process so that a crash in native code, or its hold on the
interpreter while weights load, never touches the daemon. The child's standard input is a pipe that nobody writes to:
when its owner goes, by whatever signal, the pipe closes and the child ends. Its one line on standard output says where
it listens, or why it can't. This module is also the child's program (`python -m inferd.local_model`).
"""

from __future__ import annotations

import argparse
import fcntl
import http.client
import importlib.util
import json
import os
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from threading import Event
from typing import IO, Annotated, Any
from urllib.parse import urlsplit

import msgspec

from inferd.weights import SMOLLM2, Progress, digest_of, fetch, tail_of
from shared.atomic import make_folder
from shared.config import Count, ModelConfig, Suite
from shared.errors import Fatal, Problem, SuiteError, UsageError
from shared.tables import convert_table

SMOLLM2_BOS = "<|im_start|>"
"""As the weights name it; their tokenizer doesn't put it before texts by itself."""


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `options` of a model of `type = "local"`.

    gguf: the weights, an absolute path (default: the embedded model's, fetched once). context: tokens that one request
    may take, prompt and answer together. parallel: requests answered at once; memory is held for context x parallel
    tokens. port: on loopback; 0, the default, takes a free one. threads: default half the processors that this process
    may use, at most 8.
    """

    gguf: str | None = None
    context: Annotated[int, msgspec.Meta(ge=256)] = 4096
    parallel: Annotated[int, msgspec.Meta(ge=1, le=256)] = 2
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    threads: Count | None = None


def serve(
    model: ModelConfig, *, log: Path | None = None, progress: Progress | None = None, stop: Event | None = None
) -> LocalServer:
    """The server for a model of `type = "local"`, not yet started; its weights are fetched if need be.

    log: where llama.cpp's own messages go. progress: takes a line of text while weights are fetched (default: it goes
    to the terminal, if there is one). stop: ends the fetching early. Raises UsageError for wrong options and when the
    extra `local` isn't installed, Fatal when the weights can't be had.
    """
    options = _options(model)
    if importlib.util.find_spec("xllamacpp") is None:
        raise UsageError(
            f"model {model.abbr}: the embedded model server isn't installed: "
            "install the extra `local` (python -m pip install 'tandem-eval[local]'), or give the model a base_url"
        )
    gguf = (
        fetch(progress=progress, stop=stop)
        if options.gguf is None
        else _own_weights(options.gguf, f"models ({model.abbr}).options.gguf")
    )
    return LocalServer(
        gguf,
        context=options.context,
        parallel=options.parallel,
        threads=options.threads or _default_threads(),
        port=options.port,
        log=log,
    )


def identity(model: ModelConfig) -> str:
    """What tells these weights from others, for request keys: `gguf-sha256:` and 16 hexadecimal digits.

    Fetches nothing; a file of the user's own is read once.
    """
    options = _options(model)
    if options.gguf is None:
        return f"gguf-sha256:{SMOLLM2.sha256[:16]}"
    path = _own_weights(options.gguf, f"models ({model.abbr}).options.gguf")
    state = path.stat()
    return f"gguf-sha256:{_digest_at(path, state.st_size, state.st_mtime_ns)[:16]}"


def bos_of(model: ModelConfig) -> str:
    """The text of the token that texts without a context are asked behind, for likelihoods; empty where the weights
    aren't ours and their tokenizer has to know.
    """
    return SMOLLM2_BOS if model.type == "local" and "gguf" not in model.options else ""


def with_identities(suite: Suite) -> Suite:
    """The suite with its local models' weights told in their versions, so that other weights are another model."""
    models = tuple(
        msgspec.structs.replace(model, version=f"{model.version} {identity(model)}".strip())
        if model.type == "local"
        else model
        for model in suite.models
    )
    return msgspec.structs.replace(suite, models=models)


@lru_cache(maxsize=64)
def _digest_at(path: Path, size: int, mtime_ns: int) -> str:
    del size, mtime_ns  # they make a changed file another key of the cache
    return digest_of(path)


def option_faults(options: dict[str, Any]) -> list[Problem]:
    """What is wrong with the options of a `local` model, its own weights included; places are those in its table."""
    known, problems = convert_table(options, LocalOptions, "options")
    if known is not None and known.gguf is not None:
        try:
            _own_weights(known.gguf, "options.gguf")
        except SuiteError as error:
            problems += error.problems
    return problems


def _options(model: ModelConfig) -> LocalOptions:
    options, problems = convert_table(model.options, LocalOptions, f"models ({model.abbr}).options")
    if options is None:
        raise SuiteError(problems)
    return options


def _own_weights(gguf: str, place: str) -> Path:
    path = Path(gguf).expanduser()
    if not path.is_absolute():
        raise SuiteError([Problem(place, f"{gguf}: an absolute path is needed")])
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise SuiteError([Problem(place, f"{path}: {error.strerror}")]) from None
    if magic != b"GGUF":
        raise SuiteError([Problem(place, f"{path}: not a GGUF file")])
    return path


def _default_threads() -> int:
    # llama.cpp's threads wait for each other by spinning: when other work takes a processor, two threads on two cores
    # were six times slower than one. So half is left to others; alone on the machine that costs a third of the speed.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, usable // 2))


# --- the server, seen from its owner ----------------------------------------------------------------------------------


class LocalServer:
    """llama.cpp's server over one GGUF file, on loopback, while the `with` block lasts. `base_url` is known inside it.

    context: tokens that a request may take. parallel: requests answered at once (llama.cpp shares its context out
    evenly, so it is given context x parallel). start_timeout: seconds in which it must answer; Fatal when it doesn't.
    stop_timeout: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        gguf: Path,
        *,
        context: int = 4096,
        parallel: int = 2,
        threads: int = 2,
        port: int = 0,
        log: Path | None = None,
        start_timeout: float = 300.0,
        stop_timeout: float = 5.0,
    ) -> None:
        self._arguments = ["--gguf", str(gguf), "--context", str(context), "--parallel", str(parallel)]
        self._arguments += ["--threads", str(threads), "--port", str(port)]
        self._log = log
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self.base_url = ""

    def __enter__(self) -> LocalServer:
        with self._open_log() as log:
            source = str(Path(__file__).resolve().parent.parent)
            search_path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "inferd.local_model", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": search_path},
                start_new_session=True,  # Ctrl-C is for the owner, which drains first
            )
            try:
                deadline = time.monotonic() + self._start_timeout
                address = self._wait_for_address(process, deadline)
                self._wait_for_health(process, address, deadline)
            except BaseException as error:
                self._end()
                if isinstance(error, Fatal) and (words := tail_of(_read_back(log), 4)):
                    raise Fatal("\n  ".join([str(error), *words])) from None
                raise
        self.base_url = f"{address}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _open_log(self) -> IO[bytes]:
        if self._log is None:
            return tempfile.TemporaryFile()
        make_folder(self._log.parent)
        return self._log.open("a+b")

    def _wait_for_address(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        assert process.stdout is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Fatal(f"the local model server wasn't ready after {self._start_timeout:.0f} s")
                chunk = os.read(process.stdout.fileno(), 4096)
                if not chunk:
                    raise Fatal(f"the local model server ended while it started (exit status {process.wait()})")
                line += chunk
        message = json.loads(line)
        if "error" in message:
            raise Fatal(f"the local model server couldn't start: {message['error']}")
        return str(message["address"])

    def _wait_for_health(self, process: subprocess.Popen[bytes], address: str, deadline: float) -> None:
        netloc = urlsplit(address).netloc
        while not _is_healthy(netloc):
            if process.poll() is not None:
                raise Fatal(f"the local model server ended while it started (exit status {process.returncode})")
            if time.monotonic() > deadline:
                raise Fatal(f"the local model server wasn't ready after {self._start_timeout:.0f} s")
            time.sleep(0.05)

    def _end(self) -> None:
        process, self._process, self.base_url = self._process, None, ""
        if process is None:
            return
        process.terminate()
        try:
            process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _is_healthy(netloc: str) -> bool:
    connection = http.client.HTTPConnection(netloc, timeout=5)  # never through a proxy: it is on loopback
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _read_back(log: IO[bytes]) -> bytes:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 4096))
    return log.read()


# --- the server, its own process --------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Serve until standard input ends. One JSON line on standard output: `{"address": ...}` or `{"error": ...}`."""
    owner = os.getppid()
    parser = argparse.ArgumentParser(prog="python -m inferd.local_model", description=main.__doc__)
    parser.add_argument("--gguf", required=True)
    for option in ("--context", "--parallel", "--threads", "--port"):
        parser.add_argument(option, type=int, required=True)
    arguments = parser.parse_args(argv)
    _end_with_owner()
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # whatever native code prints is no answer
        try:
            server = _native_server(arguments)
        except Exception as error:  # noqa: BLE001  # an edge: the owner tells it
            answer.write(json.dumps({"error": str(error)}) + "\n")
            return 1
        answer.write(json.dumps({"address": server.listening_address}) + "\n")
    _wait_for_end(owner)
    os._exit(0)  # tearing the native server down takes time and serves nothing


def _native_server(arguments: argparse.Namespace) -> Any:
    import xllamacpp  # here alone: the extra `local`, and only in the child process

    params = xllamacpp.CommonParams()
    params.model.path = arguments.gguf
    params.model_alias = {Path(arguments.gguf).stem}  # else answers carry the path
    params.n_ctx = arguments.context * arguments.parallel
    params.n_parallel = arguments.parallel
    params.cpuparams.n_threads = arguments.threads
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    params.verbosity = 1  # errors only
    params.ui = False
    return xllamacpp.Server(params)


def _end_with_owner() -> None:
    """Have the kernel end this process when the pipe at standard input closes.

    A thread wouldn't do: loading weights holds the interpreter's lock. PR_SET_PDEATHSIG wouldn't either: it fires when
    the owner's thread that started us ends.
    """
    if stat.S_ISFIFO(os.fstat(0).st_mode) and hasattr(os, "O_ASYNC"):
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            if selector.select(0):
                os._exit(0)  # it closed before the kernel was asked to tell


def _wait_for_end(owner: int) -> None:
    """Until standard input ends, or the owner is gone while a process it forked still holds the pipe's other end."""
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(0, selectors.EVENT_READ)
        except PermissionError:
            return  # a plain file or /dev/null: it has ended
        while os.getppid() == owner:
            if selector.select(1.0) and not os.read(0, 4096):
                return


if __name__ == "__main__":
    sys.exit(main())
