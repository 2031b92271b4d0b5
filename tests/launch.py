"""Running commands as a user would: in processes of their own.

Importing torch and stayfinite costs two seconds of CPU. A `Nursery` is a process that has done it and forks
for each command (`tests/nursery.py`), so that hundreds of commands stay affordable; `forked` asks the one
of this process. `alone` starts a fresh interpreter, for what is about the start itself.
"""

import atexit
import functools
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[1]
LIMIT_SECONDS = 600
"""Only against what hangs: on a busy machine everything takes its time."""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))  # the sources beside these tests
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def alone(args: list[str], cwd: pathlib.Path) -> Done:
    """`python ARGS` in a fresh interpreter."""
    run = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=environment(), capture_output=True, text=True,
        timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    return Done(run.returncode, run.stdout, run.stderr)


class Nursery:
    """`python ARGS` in a fork of a process that has imported torch and, if not `plain`, stayfinite."""

    def __init__(self, folder: pathlib.Path, plain: bool = False, **env: str) -> None:
        self._folder = folder
        self._count = 0
        self._env = {**environment(), **env}
        read, write = os.pipe()
        # The answers come over descriptor 3; 1 and 2 belong to the commands.
        start = f'exec 3>&{write} {write}>&-; exec "$0" "$@"'
        script = str(pathlib.Path(__file__).with_name("nursery.py"))
        self._process = subprocess.Popen(
            ["bash", "-c", start, sys.executable, script, "plain" if plain else "guarded"],
            stdin=subprocess.PIPE, pass_fds=[write], env=self._env, cwd=folder,
        )  # fmt: skip
        os.close(write)
        self._answers = read
        self._unread = b""

    def run(self, args: list[str], cwd: pathlib.Path, **env: str) -> Done:
        """The command's end is waited for; `start` and `wait` are for several at once."""
        return self.wait(self.start(args, cwd, **env))

    def start(
        self, args: list[str], cwd: pathlib.Path, **env: str
    ) -> tuple[pathlib.Path, pathlib.Path]:
        self._count += 1
        out, err = (self._folder / f"{self._count}.{name}" for name in ("out", "err"))
        for file in (out, err):
            file.touch()
        job = {
            "args": list(map(str, args)), "cwd": str(cwd), "env": {**self._env, **env},
            "out": str(out), "err": str(err),
        }  # fmt: skip
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        return out, err

    def wait(self, files: tuple[pathlib.Path, pathlib.Path]) -> Done:
        child = self._answer()
        try:
            code = self._answer()
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            self._answer()
            raise
        out, err = (file.read_text(encoding="utf-8") for file in files)
        return Done(code, out, err)

    def _answer(self) -> int:
        while b"\n" not in self._unread:
            if not select.select([self._answers], [], [], LIMIT_SECONDS)[0]:
                raise TimeoutError(f"not done after {LIMIT_SECONDS} s")
            more = os.read(self._answers, 4096)
            if not more:
                raise RuntimeError("the process that forks has ended")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return int(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=LIMIT_SECONDS)
        os.close(self._answers)


@functools.cache
def the_nursery() -> Nursery:
    """One for all tests of this process."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nursery-"))
    nursery = Nursery(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(nursery.close)
    return nursery


def forked(args: list[str], cwd: pathlib.Path) -> Done:
    """`python ARGS` in a process that begins with torch and stayfinite imported."""
    return the_nursery().run(args, cwd)
