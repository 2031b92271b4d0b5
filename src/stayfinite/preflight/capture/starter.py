"""Starts processes that run the user's script, each a fork of one that has imported torch.

A script is started more than once (a probe that it refuses ends it, the training in short is a run of its
own), and importing torch costs more than most of what is then done. Where there is no safe fork, and
wherever anything goes wrong here, a process is started in the ordinary way.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Process", "Starter"]

_PATIENCE_S = 120.0
"""Seconds to wait for an answer, because importing torch takes long on a busy machine."""
_POLL_S = 0.02


class Process(Protocol):
    """The attributes of a process that are used."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Starter:
    """Starts modules of this package as `python -m` would."""

    def __init__(self) -> None:
        self._forker: subprocess.Popen[bytes] | None = None
        self._is_useless = sys.platform != "linux"
        self._unread = b""
        self._codes: dict[int, int] = {}

    def start(self, module: str, folder: Path, output: Path, environ: Mapping[str, str]) -> Process:
        """`python -m module folder` in a session of its own, without input."""
        pid = self._fork(module, folder, output, environ)
        if pid is not None:
            return _Forked(self, pid)
        with open(output, "wb") as f:
            return subprocess.Popen(
                [sys.executable, "-m", module, str(folder)],
                stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT,
                env=dict(environ), start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """Close the connection, which ends the forking process."""
        forker, self._forker = self._forker, None
        if forker is not None:
            assert forker.stdin is not None and forker.stdout is not None
            with contextlib.suppress(OSError):
                forker.stdin.close()
            forker.stdout.close()
            try:
                forker.wait(timeout=5)
            except subprocess.TimeoutExpired:
                forker.kill()
                forker.wait()

    def code_of(self, pid: int) -> int | None:
        """The exit code of this process, if it has ended."""
        while pid not in self._codes:
            said = self._answer(0.0)
            if said is None:
                return None if self._is_alive() else -9
        return self._codes[pid]

    def _fork(
        self, module: str, folder: Path, output: Path, environ: Mapping[str, str]
    ) -> int | None:
        if self._is_useless:
            return None
        try:
            if self._forker is None:
                self._forker = _forker(environ)
            job = {"module": module, "folder": str(folder), "output": str(output)}
            job["cwd"] = os.getcwd()
            assert self._forker.stdin is not None
            line = json.dumps({**job, "environ": dict(environ)}) + "\n"
            self._forker.stdin.write(line.encode())
            self._forker.stdin.flush()
            end = time.monotonic() + _PATIENCE_S
            while time.monotonic() < end and self._is_alive():
                said = self._answer(1.0)
                if said is not None and "started" in said:
                    return int(said["started"])
        except (OSError, ValueError):
            pass
        self._is_useless = True
        self.close()
        return None

    def _is_alive(self) -> bool:
        return self._forker is not None and self._forker.poll() is None

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """Read the next line of the forking process, and note which processes have ended."""
        if self._forker is None:
            return None
        assert self._forker.stdout is not None
        if b"\n" not in self._unread:
            ready = self._forker.stdout
            if not select.select([ready], [], [], seconds)[0]:
                return None
            self._unread += os.read(ready.fileno(), 65536)
            if b"\n" not in self._unread:
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if "ended" in said:
            self._codes[said["ended"]] = said["code"]
        return said


class _Forked:
    """A process that is not our own child."""

    def __init__(self, starter: Starter, pid: int) -> None:
        self.pid = pid
        self._starter = starter

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._starter.code_of(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + timeout if timeout is not None else None
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("the script", timeout or 0.0)
            time.sleep(_POLL_S)
        return code


def _forker(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "stayfinite.preflight.capture.starter_fork"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=dict(environ), start_new_session=True,
    )  # fmt: skip
