"""A script by itself against the same script under `stayfinite run`, byte by byte.

A script in `healthy/` must leave the same behind in both. One in `bad_batch/` has a batch that is not
finite: with LEFT_OUT=1 in the environment it leaves that batch out by itself (or, where the body of the
loop counts and writes, the update alone), and that is what the run without the variable is held against.
"""

import os
import pathlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import torch
from tests.launch import LIMIT_SECONDS, ROOT, Done, Nursery

SCRIPTS = pathlib.Path(__file__).parent
RUNS = "stayfinite-runs"


@dataclass(frozen=True)
class Job:
    script: str
    folder: pathlib.Path
    env: dict[str, str]


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


class Forking:
    """Each script in a fork of a process that has imported torch: an import takes seconds."""

    def __init__(self, kind: str, folder: pathlib.Path) -> None:
        own = environment()
        self._before = ["-m", "stayfinite", "run"] if kind == "guarded" else []
        self._nursery = Nursery(folder, plain=kind == "plain", **own)

    def start(self, job: Job) -> None:
        self._files = self._nursery.start([*self._before, job.script], job.folder, **job.env)

    def wait(self) -> Done:
        return self._nursery.wait(self._files)

    def close(self) -> None:
        self._nursery.close()


class Fresh:
    """The same with an interpreter of its own for each script."""

    def __init__(self, kind: str) -> None:
        self._before = ["-m", "stayfinite", "run"] if kind == "guarded" else []

    def start(self, job: Job) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *self._before, job.script], cwd=job.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**job.env), text=True,
        )  # fmt: skip

    def wait(self) -> Done:
        out, err = self._process.communicate(timeout=LIMIT_SECONDS)
        return Done(self._process.returncode, out, err)


def run_pair(
    script: pathlib.Path, home: pathlib.Path, runners: dict[str, Any]
) -> tuple[Left, Left]:
    """(by itself, under `stayfinite run`): side by side, each in an empty folder of its own."""
    is_bad = script.parent.name == "bad_batch"
    for kind, runner in runners.items():
        folder = home / kind
        folder.mkdir()
        shutil.copy(script, folder / script.name)
        env = {"LEFT_OUT": "1"} if is_bad and kind == "plain" else {}
        runner.start(Job(script.name, folder, env))
    ended = {kind: runner.wait() for kind, runner in runners.items()}
    plain, guarded = (
        Left(ended[k].code, ended[k].out, ended[k].err, home / k) for k in ("plain", "guarded")
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
