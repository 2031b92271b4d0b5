"""A script by itself against the same script under `stayfinite run`, byte by byte.

A script in `healthy/` must leave the same behind in both. One in `bad_batch/` has a batch that is not
finite: with LEFT_OUT=1 in the environment it leaves that batch out by itself (or, where the body of the
loop counts and writes, the update alone), and that is what the run without the variable is held against.
"""

import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import torch

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = pathlib.Path(__file__).parent
RUNS = "stayfinite-runs"
LIMIT_SECONDS = 120

_SERVER = """
import atexit, json, os, runpy, sys, threading, traceback
import torch, torch.utils.data, torch.optim.swa_utils
if sys.argv[1] == "guarded":
    import stayfinite.cli, stayfinite.investigate.entry, stayfinite.runtime.script
def child(job):
    os.chdir(job["folder"])
    os.environ.update(job["env"])
    for fd, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    script, code = job["script"], 0
    try:
        sys.path[0] = job["folder"]
        if sys.argv[1] == "guarded":
            sys.argv = ["stayfinite", "run", script]
            runpy.run_module("stayfinite", run_name="__main__", alter_sys=True)
        else:
            sys.argv = [script]
            runpy.run_path(script, run_name="__main__")
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush(); sys.stderr.flush()
    os._exit(code)
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        child(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Left:
    """What one run of a script left behind."""

    code: int
    out: str
    err: str
    folder: pathlib.Path

    def incidents(self) -> list[pathlib.Path]:
        return sorted((self.folder / RUNS).glob("*/incidents/*/incident.json"))

    def files(self) -> dict[str, pathlib.Path]:
        found = {p.relative_to(self.folder).as_posix(): p for p in self.folder.rglob("*")}
        ours = (RUNS, "__pycache__")
        return {
            n: p
            for n, p in found.items()
            if p.is_file() and not any(o in n.split("/") for o in ours)
        }


def environment(**more: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if k != "LEFT_OUT"}
    own |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    return own | {"PYTHONDONTWRITEBYTECODE": "1", **more}


class Server:
    """A process that has imported torch and forks for each script: an import takes seconds."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment(),
        )  # fmt: skip

    def start(self, job: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def wait(self) -> int:
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], LIMIT_SECONDS)
            if not ready:
                self._process.kill()
                raise TimeoutError(f"not done after {LIMIT_SECONDS} s")
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError("the process that forks has ended")
            if line.strip() != "ready":
                return int(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


class Fresh:
    """The same with an interpreter of its own for each script."""

    def __init__(self, kind: str) -> None:
        self._before = ["-m", "stayfinite", "run"] if kind == "guarded" else []

    def start(self, job: dict[str, Any]) -> None:
        with open(job["out"], "wb") as out, open(job["err"], "wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, *self._before, job["script"]], cwd=job["folder"], stdout=out,
                stderr=err, stdin=subprocess.DEVNULL, env=environment(**job["env"]),
            )  # fmt: skip

    def wait(self) -> int:
        return self._process.wait(timeout=LIMIT_SECONDS)


def run_pair(
    script: pathlib.Path, home: pathlib.Path, runners: dict[str, Any]
) -> tuple[Left, Left]:
    """(by itself, under `stayfinite run`): side by side, each in an empty folder of its own."""
    is_bad = script.parent.name == "bad_batch"
    jobs = {}
    for kind, runner in runners.items():
        folder = home / kind
        folder.mkdir()
        shutil.copy(script, folder / script.name)
        env = {"LEFT_OUT": "1"} if is_bad and kind == "plain" else {}
        jobs[kind] = {
            "folder": str(folder), "script": script.name, "env": env,
            "out": f"{folder}.out", "err": f"{folder}.err",
        }  # fmt: skip
        runner.start(jobs[kind])
    codes = {kind: runner.wait() for kind, runner in runners.items()}
    plain, guarded = (
        Left(
            codes[k],
            *(pathlib.Path(f"{home / k}.{e}").read_text() for e in ("out", "err")),
            home / k,
        )
        for k in ("plain", "guarded")
    )
    return plain, guarded


def differences(plain: Left, guarded: Left) -> list[str]:
    """What can be told apart, in words."""
    found = []
    if plain.code != guarded.code:
        found.append(f"exit code {guarded.code}, not {plain.code}: {guarded.err[-2000:]}")
    if plain.out != guarded.out:
        found.append(f"stdout:\n{guarded.out}\nnot\n{plain.out}")
    a, b = plain.files(), guarded.files()
    found += [f"{name} is only in one of them" for name in sorted(a.keys() ^ b.keys())]
    for name in sorted(a.keys() & b.keys()):
        if not _is_same_file(a[name], b[name]):
            found.append(f"{name} differs")
    return found


def _is_same_file(a: pathlib.Path, b: pathlib.Path) -> bool:
    if a.read_bytes() == b.read_bytes():
        return True
    if a.suffix != ".pt":
        return False
    return _is_same(torch.load(a, weights_only=True), torch.load(b, weights_only=True))


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(_is_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return type(a) is type(b) and a == b
