"""Commands in the docs are run, and what they print is what the page shows.

    python -m tests.docs.blocks --write docs/tutorial.md    # fills in the real output

A marked block is one of

    <!-- file: train.py -->     the fence that follows is written to that file
    <!-- run -->                a console fence: `$ command` lines, each followed by its output

All blocks of a page run in one empty folder, in their order. In shown output a line that is only `…`
stands for any number of lines, and in a line for anything. Times, sizes, ids, lines of progress and the folder's own path differ from run to run and are not
compared.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass

DOCS = pathlib.Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
HOME = "/home/me/project"
_MARK = re.compile(r"^<!-- (file: (?P<file>\S+)|run) -->\n```\w*\n(?P<body>.*?)^```$", re.M | re.S)
_VARYING = (
    (re.compile(r"step(\d{6})-[0-9a-f]{6}"), r"step\1-######"),
    (re.compile(r"predicted-[0-9a-f]{8}"), "predicted-########"),
    (re.compile(r"^stayfinite check: \d/\d \w+\n", re.M), ""),  # progress, as time goes by
    (re.compile(r"\d+\.\d+ (s|ms)\b"), r"# \1"),
    (re.compile(r"\d+(\.\d+)? [kM]B\b"), "# B"),
    (re.compile(r"[ \t]+$", re.M), ""),
)


@dataclass(frozen=True)
class Command:
    """A `$ command` and the output that the page shows."""

    line: str
    shown: str


def pages() -> list[pathlib.Path]:
    """Every page with a marked block."""
    found = [README, *sorted(DOCS.rglob("*.md"))]
    return [p for p in found if _MARK.search(p.read_text(encoding="utf-8"))]


def commands(body: str) -> list[Command]:
    """The commands of a console block.

    >>> commands("$ a\\nx\\n$ b\\n")
    [Command(line='a', shown='x\\n'), Command(line='b', shown='')]
    """
    parts = re.split(r"^\$ (.*)\n", body, flags=re.M)
    return [Command(line, shown) for line, shown in zip(parts[1::2], parts[2::2])]


class Shell:
    """Runs commands one by one; those of Python in children of one process that has torch loaded."""

    def __init__(self) -> None:
        self.env = {
            **os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "NO_COLOR": "1",
            "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        command = [sys.executable, str(pathlib.Path(__file__).with_name("forks.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._forks = subprocess.Popen(command, env=self.env, text=True, **pipes)

    def run(self, line: str, folder: pathlib.Path) -> str:
        """What a command prints, both streams in their order."""
        argv = shlex.split(line)
        if argv[0] not in ("python", "stayfinite"):
            raise ValueError(f"only python and stayfinite are run, got {line!r}")
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as out:
            asked = {"argv": argv, "cwd": str(folder), "out": out.name}
            self._forks.stdin.write(json.dumps(asked) + "\n")
            self._forks.stdin.flush()
            self._forks.stdout.readline()
            said = out.read()
        return said.replace(os.path.realpath(folder), HOME).replace(str(folder), HOME)

    def close(self) -> None:
        self._forks.stdin.close()
        self._forks.wait()
        self._forks.stdout.close()


def is_same(shown: str, printed: str) -> bool:
    """Whether a page shows this output.

    >>> is_same("a\\n…\\nd in 0.1 s\\n", "a\\nb\\nc\\nd in 2.5 s\\n"), is_same("a\\n", "a\\nb\\n")
    (True, False)
    """
    for pattern, word in _VARYING:
        shown, printed = pattern.sub(word, shown), pattern.sub(word, printed)
    parts = [re.escape(p).replace("…", ".*") for p in re.split(r"^ *…\n", shown, flags=re.M)]
    return re.fullmatch(r"(?:.*\n)*?".join(parts), printed) is not None


def play(path: pathlib.Path, folder: pathlib.Path, shell: Shell) -> list[tuple[Command, str]]:
    """Run a page from top to bottom; (command, what it printed) of each."""
    seen = []
    for block in _MARK.finditer(path.read_text(encoding="utf-8")):
        if block["file"]:
            (folder / block["file"]).write_text(block["body"], encoding="utf-8")
            continue
        seen += [(c, shell.run(c.line, folder)) for c in commands(block["body"])]
    return seen


def write(path: pathlib.Path) -> None:
    """Put the real output into the page where it shows something else; what is cut (`…`) stays cut."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Shell()) as shell:
        seen = play(path, pathlib.Path(folder), shell)
    text = path.read_text(encoding="utf-8")
    for command, printed in seen:
        old = f"$ {command.line}\n{command.shown}"
        if not is_same(command.shown, printed):
            print(f"--- {path.name}: $ {command.line}\n{printed}")
            if "…" not in command.shown:
                text = text.replace(old, f"$ {command.line}\n{printed}", 1)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", nargs="+", type=pathlib.Path, required=True)
    for page in parser.parse_args().write:
        write(page)
