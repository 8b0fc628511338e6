"""The program that compares mathematics, run by evald/math_process.py: a question a line, in JSON, and a reply a line.

It computes with text that a model wrote, so it gives up all it doesn't need before it reads any: it can start no
program, open no connection and write no file, and its memory is bounded. Its CPU timer kills it. It imports nothing of
Tandem.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY = 2 << 30  # bytes of address space

_FORBIDDEN = ("ctypes.", "fcntl.", "ftplib.", "os.", "pty.", "shutil.", "signal.", "socket.", "subprocess.", "urllib.")
_HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")  # what importing a module asks for
_LATEX = re.compile(r"\$|\\\(|\\\[|\\boxed|\\begin")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")


def main() -> None:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # With the parser warm, all it needs is imported.
    parse("$\\frac{1}{2}+\\sqrt{x}$", parsing_timeout=None)
    configs = (LatexExtractionConfig(), ExprExtractionConfig())

    def read(text: str) -> list[Any]:
        """What may be meant. Text that isn't marked as LaTeX and is no prose is LaTeX too: a box's content, say."""
        bare = not _LATEX.search(text) and not _WORD.search(text)
        found = parse(f"${text}$", extraction_config=configs, parsing_timeout=None) if bare else []
        return list(found or parse(text, extraction_config=configs, parsing_timeout=None))

    def same(wanted: list[Any], given: list[Any], question: dict[str, Any]) -> bool:
        told = {"float_rounding": question["decimals"], "strict": question["strict"], "timeout_seconds": None}
        return bool(verify(wanted, given, **told))

    _give_up_rights()
    _say({"ready": True})
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])  # SIGPROF ends the process
        reply = judge(question, read, same)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(reply)


def judge(question: dict[str, Any], read: Callable[[str], list[Any]], same: Callable[..., bool]) -> dict[str, Any]:
    """Whether the answer is one of the targets, or what is wrong with those. What breaks only at the answer is the
    answer's doing and not equal; what breaks without it as well is a fault.
    """
    given: list[Any] | None = None
    for target in question["targets"]:
        try:
            wanted = read(target)
        except Exception as error:  # noqa: BLE001  # the edge: whatever it is, the other side is told
            return {"fault": _told(target, error)}
        if not wanted:
            return {"fault": f"the target {target[:60]!r} can't be read as mathematics"}
        try:
            given = read(question["answer"]) if given is None else given
            if given and same(wanted, given, question):
                return {"equal": True}
            continue
        except Exception:  # noqa: BLE001  # the answer's, unless the target is no better by itself
            given = given or []
        try:  # with the memory of what failed given back
            same(wanted, wanted, question)
        except Exception as error:  # noqa: BLE001  # as above
            return {"fault": _told(target, error)}
    return {"equal": False}


def _told(target: str, error: Exception) -> str:
    return f"the target {target[:60]!r}: {type(error).__name__}: {str(error)[:200]}"


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    sys.stdout.buffer.flush()


def _give_up_rights() -> None:
    for limit, amount in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, MEMORY)):
        try:
            resource.setrlimit(limit, (amount, amount))
        except (OSError, ValueError):
            pass  # macOS refuses some; the audit hook and the CPU timer stand
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        mode, flags = args[1], args[2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & 0o3):
            raise PermissionError("writing is refused here")
    elif event.startswith(_FORBIDDEN) and event not in _HARMLESS:
        raise PermissionError(f"{event} is refused here")


if __name__ == "__main__":
    main()
