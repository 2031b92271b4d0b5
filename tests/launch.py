"""Running commands as a user would: in processes of their own.

Importing torch costs seconds. `Nursery` is a process that has it already and forks for each
command, so that dozens of scripts stay affordable; `alone` starts a fresh interpreter.
"""

import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[1]
LIMIT_SECONDS = 180


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


_NURSERY = """
import json, os, runpy, sys, traceback
import torch, torch._dynamo, torch.utils.data, tqdm, typer  # what takes long
def child(job):
    os.chdir(job["cwd"])
    for fd, path in ((1, job["out"]), (2, job["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    args = job["args"]
    try:
        if args[0] == "-m":
            sys.argv, sys.path[0] = args[1:], job["cwd"]
            runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = args, os.path.dirname(os.path.abspath(args[0]))
            runpy.run_path(args[0], run_name="__main__")
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(); sys.stderr.flush()
    os._exit(code)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        child(json.loads(line))
    _, status = os.waitpid(pid, 0)
    os.write(3, b"%d\\n" % os.waitstatus_to_exitcode(status))
"""


class Nursery:
    """`python ARGS` in a fork of a process that has imported torch."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._count = 0
        read, write = os.pipe()
        # The answers come over descriptor 3; 1 and 2 belong to the commands.
        start = f'exec 3>&{write}; exec {sys.executable} -c "$0"'
        self._process = subprocess.Popen(
            ["bash", "-c", start, _NURSERY], stdin=subprocess.PIPE, text=True, pass_fds=[write],
            env=environment(), cwd=folder,
        )  # fmt: skip
        os.close(write)
        self._answers = os.fdopen(read)

    def run(self, args: list[str], cwd: pathlib.Path) -> Done:
        self._count += 1
        out, err = (self._folder / f"{self._count}.{name}" for name in ("out", "err"))
        job = {"args": args, "cwd": str(cwd), "out": str(out), "err": str(err)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        code = int(self._answers.readline())
        return Done(code, out.read_text(), err.read_text())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._answers.close()
