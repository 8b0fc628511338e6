"""Hold the documents to the truth: each command line that they show exists with its options, each link leads somewhere.

Looked at: the fenced `console`, `bash`, `sh` and `shell` blocks of README.md and docs/*.md, for lines that start with
one of our commands; and the links of every Markdown file of the project. A command exists when its `--help` says so.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("evalctl", "inferd", "evald")
FENCE = re.compile(r"^\s*(```+|~~~+)\s*(\w*)")
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\s*\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
OPTION_LINE = re.compile(r"^\s{1,8}(-{1,2}[A-Za-z][^\n]*)", re.MULTILINE)
CHAINS = {"&&", "||", ";", "|", "&"}


def main() -> int:
    problems: list[str] = []
    checked = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        problems += [f"{page.relative_to(ROOT)}: {problem}" for problem in link_problems(page, text)]
        if page.name == "README.md" or page.parent.name == "docs":
            for line, command in command_lines(text):
                checked += 1
                problems += [f"{page.relative_to(ROOT)}:{line}: {problem}" for problem in command_problems(command)]
    if not (ROOT / "README.md").is_file():
        problems.append("README.md: missing")
    if not checked:
        problems.append("no command line was found in README.md and docs/: is this check looking at the right blocks?")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{checked} command lines checked, {len(problems)} problems")
    return 1 if problems else 0


def pages() -> list[Path]:
    return sorted({*ROOT.glob("*.md"), *(p for part in ("docs", "examples") for p in (ROOT / part).rglob("*.md"))})


# --- commands ---------------------------------------------------------------------------------------------------------


def command_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, words) of each simple command in shell blocks that is one of ours."""
    for number, line in shell_lines(text):
        for words in simple_commands(line):
            if words[0] in COMMANDS or words[0].removeprefix("./").startswith("scripts/"):
                yield number, words


def shell_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of shell blocks, continuation lines joined. In a block with `$ ` prompts the rest is what is printed."""
    fence, language, pending, first = "", "", "", 0
    prompts = False
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if mark := FENCE.match(line):
            if not fence:
                fence, language = mark[1], mark[2]
                prompts = shows_prompts(lines[number:], fence)
            elif mark[1].startswith(fence) and not mark[2]:
                fence = ""
            continue
        if not fence or language not in ("console", "bash", "sh", "shell"):
            continue
        typed = line.strip()
        if not pending:
            first = number
            if prompts and not typed.startswith("$ "):
                continue
            typed = typed.removeprefix("$ ")
        if typed.endswith("\\"):
            pending += typed[:-1] + " "
            continue
        yield first, pending + typed
        pending = ""


def shows_prompts(lines: list[str], fence: str) -> bool:
    for line in lines:
        if line.strip().startswith("$ "):
            return True
        if line.strip().startswith(fence):
            return False
    return False


def simple_commands(line: str) -> Iterator[list[str]]:
    """The line cut at `&&`, `|`, `;`; without comments, redirections and leading `NAME=value`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:
        return  # an open quote: a here-document or the like, nothing that we could judge
    current: list[str] = []
    for word in [*words, ";"]:
        if word in CHAINS:
            while current and re.fullmatch(r"\w+=.*", current[0]):
                current.pop(0)
            if current:
                yield [piece for piece in current if not re.fullmatch(r"[<>&]+", piece)]
            current = []
        else:
            current.append(word)


def command_problems(words: list[str]) -> list[str]:
    name, arguments = words[0], words[1:]
    if name.removeprefix("./").startswith("scripts/"):
        path = ROOT / name
        return [] if path.is_file() and path.stat().st_mode & 0o100 else [f"{name}: no such script, or not executable"]
    path_so_far = [name]
    text = help_of(tuple(path_so_far))
    problems: list[str] = []
    if text is None:
        return [f"{name}: no such command"]
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if word == "--":
            break
        if word.startswith("-") and len(word) > 1:
            option, _, value = word.partition("=")
            known = options_in(text)
            if option not in known and re.fullmatch(r"-[A-Za-z]\S+", option):
                option, value = option[:2], option[2:]  # -wDIR, or -vv
            takes_value = known.get(option)
            if takes_value is None:
                problems.append(f"`{' '.join(path_so_far)}` has no option {option}")
            elif takes_value and not value:
                position += 1
        elif subcommands := subcommands_in(text):
            if word not in subcommands:
                problems.append(f"`{' '.join(path_so_far)}` has no command {word}")
                break
            path_so_far.append(word)
            text = help_of(tuple(path_so_far))
            if text is None:
                problems.append(f"`{' '.join(path_so_far)} --help` fails")
                break
    return problems


@cache
def help_of(command: tuple[str, ...]) -> str | None:
    program = Path(sys.executable).parent / command[0]
    if not program.exists():
        return None
    done = subprocess.run([program, *command[1:], "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout if done.returncode == 0 else None


def options_in(text: str) -> dict[str, bool]:
    """Each option that a help text names, and whether it takes a value: `-w, --work-dir PATH  where ...`."""
    found = {"--help": False}
    for match in OPTION_LINE.finditer(text):
        head = re.split(r"\s{2,}", match[1])[0]  # the description stands apart by two spaces
        names = re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", head)
        rest = re.sub(r"(?<![\w-])--?[A-Za-z][\w-]*|[,/\s]", "", head)
        found.update(dict.fromkeys(names, bool(rest)))
    return found


def subcommands_in(text: str) -> set[str]:
    _, found, section = text.partition("\nCommands:\n")
    return set(re.findall(r"^  (\S+)", section.split("\n\n")[0], re.MULTILINE)) if found else set()


# --- links ------------------------------------------------------------------------------------------------------------


def link_problems(page: Path, text: str) -> Iterator[str]:
    prose = without_code(text)
    for match in LINK.finditer(prose):
        target = match[1] or match[2]
        if re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
            continue  # an address elsewhere
        file, _, anchor = unquote(target).partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists():
            yield f"link to {target}: no such file"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"link to {target}: no such heading"


def without_code(text: str) -> str:
    lines, fence = [], ""
    for line in text.splitlines():
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            lines.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(lines)


@cache
def anchors(page: Path) -> set[str]:
    """The headings as GitHub makes anchors of them; a repeated one gets `-1`, `-2` ..."""
    found: set[str] = set()
    prose = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", prose, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        unique, count = slug, 0
        while unique in found:
            count += 1
            unique = f"{slug}-{count}"
        found.add(unique)
    return found


if __name__ == "__main__":
    sys.exit(main())
