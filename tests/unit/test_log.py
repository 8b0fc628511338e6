"""Logs: JSON lines in the file, readable lines on stderr, and no log stops a daemon. Each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(code: str, file: Path | None, *, verbose: bool = False) -> str:
    """What a daemon that configures its log and then does `code` says on stderr."""
    program = f"""
import pathlib, sys
from shared import log
logger = log.configure("inferd", pathlib.Path(sys.argv[1]) if sys.argv[1] else None, verbose={verbose})
{code}
"""
    process = subprocess.run(
        [sys.executable, "-c", program, str(file or "")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == ""
    return process.stderr


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_json_lines_in_the_file_and_text_on_stderr(tmp_path: Path) -> None:
    """The folder is made; every line is an object with event, level, time in UTC, daemon, and what was bound."""
    file = tmp_path / "logs" / "inferd.h.log"
    said = run('logger.bind(model="m").warning("model unhealthy", reason="429: é\\u2028\\nx", count=3)', file)
    (line,) = lines(file)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "model unhealthy",
        "level": "warning",
        "daemon": "inferd",
        "model": "m",
        "reason": "429: é\u2028\nx",
        "count": 3,
    }
    assert "model unhealthy" in said
    assert "\x1b" not in said, "colours are for terminals"


def test_debug_is_for_verbose(tmp_path: Path) -> None:
    """`info` up by default; all with verbose, watchdog's own chatter excepted."""
    code = """
import logging
logger.debug("detail")
logger.info("progress")
logging.getLogger("watchdog.observers").info("chatter")
"""
    said = run(code, tmp_path / "a")
    assert "progress" in said
    assert "detail" not in said
    assert [line["event"] for line in lines(tmp_path / "a")] == ["progress"]
    said = run(code, tmp_path / "b", verbose=True)
    assert "detail" in said
    assert [line["event"] for line in lines(tmp_path / "b")] == ["detail", "progress"]


def test_an_exception_is_written_with_its_traceback(tmp_path: Path) -> None:
    """In the file as one line; what is no JSON is told by its repr."""
    code = """
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("defect", thing=object, number=float("nan"), half="\\ud800")
"""
    said = run(code, tmp_path / "f")
    (line,) = lines(tmp_path / "f")
    assert "ZeroDivisionError: division by zero" in line["exception"]
    assert "<class 'object'>" in line["thing"]
    assert "ZeroDivisionError" in said


def test_a_second_start_appends(tmp_path: Path) -> None:
    """#36: what an earlier start said stays."""
    for number in range(2):
        run(f'logger.info("start {number}")', tmp_path / "f")
    assert [line["event"] for line in lines(tmp_path / "f")] == ["start 0", "start 1"]


def test_other_libraries_speak_through_it(tmp_path: Path) -> None:
    """What a library logs comes in the same form."""
    run('import logging; logging.getLogger("lib").warning("from %s", "outside")', tmp_path / "f")
    (line,) = lines(tmp_path / "f")
    assert line["event"] == "from outside"


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    """A file lies where logs/ should be: said once on stderr, and all else goes there."""
    (tmp_path / "logs").write_bytes(b"")
    said = run('logger.info("working")', tmp_path / "logs" / "f")
    assert "no log file" in said
    assert "working" in said


def test_a_file_that_cannot_be_opened_stops_nothing(tmp_path: Path) -> None:
    """A folder lies where the file should be: found out at the first line."""
    (tmp_path / "f").mkdir()
    said = run('logger.info("working"); logger.info("on")', tmp_path / "f")
    assert "working" in said
    assert "on" in said
    assert "Traceback" not in said


def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    """/dev/full refuses every write."""
    (tmp_path / "f").symlink_to("/dev/full")
    said = run('logger.info("working"); logger.info("on")', tmp_path / "f")
    assert "working" in said
    assert "on" in said
    assert "Traceback" not in said


def test_no_file_is_fine() -> None:
    """Commands log to the terminal alone."""
    assert "working" in run('logger.info("working")', None)


def test_the_run_is_in_each_line(tmp_path: Path) -> None:
    """The work_dir's name, beside what is bound; nothing of it where there is no run."""
    code = 'log.configure("inferd", pathlib.Path(sys.argv[1]), run="w1").bind(model="m", request="k").info("bound")'
    run(f'logger.info("none"); {code}', tmp_path / "f")
    none, bound = lines(tmp_path / "f")
    assert "run" not in none
    assert (bound["run"], bound["model"], bound["request"], bound["daemon"]) == ("w1", "m", "k", "inferd")


def test_a_log_that_is_full_is_turned_over(tmp_path: Path) -> None:
    """Old lines go to .1, .2 ... and so many of them; no line is torn."""
    code = """
log.MAX_BYTES, log.BACKUPS = 2000, 2
logger = log.configure("inferd", pathlib.Path(sys.argv[1]))
for number in range(100):
    logger.info("line", number=number)
"""
    run(code, tmp_path / "f")
    assert {path.name for path in tmp_path.iterdir()} == {"f", "f.1", "f.2"}
    numbers = [line["number"] for name in ("f.2", "f.1", "f") for line in lines(tmp_path / name)]
    assert numbers == list(range(numbers[0], 100))
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())


def test_what_nobody_reads_is_not_made(tmp_path: Path) -> None:
    """A debug line without verbose never gets as far as its time stamp."""
    code = """
import structlog
stamps = []
structlog.processors.TimeStamper.__call__ = lambda self, logger, name, event: stamps.append(name) or event
logger.debug("detail")
logger.info("progress")
print(stamps, file=sys.stderr)
"""
    assert "['info']" in run(code, None)
