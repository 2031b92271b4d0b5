"""The process that imports what every run needs, and forks for each of them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import tempfile
from typing import Any

__all__ = ["main"]

_NEEDED = (
    "torch",
    "torch._dynamo",  # the first optimizer imports it
    "stayfinite.preflight.capture.rehearsal_worker",
    "stayfinite.preflight.capture.worker",
    "stayfinite.preflight.edges.group",
    "stayfinite.preflight.flow.group",
    "stayfinite.preflight.precision.group",
    "stayfinite.preflight.stability.group",
)


def main() -> None:
    """Forks for every line that comes in, announces who has ended, and ends when no line can come."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever an import prints
    for name in _NEEDED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    unread = b""
    while True:
        ready = select.select([0, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _announce_ended(answers)
        if 0 not in ready:
            continue
        given = os.read(0, 1 << 20)
        if not given:
            return
        unread += given
        while b"\n" in unread:
            line, _, unread = unread.partition(b"\n")
            job = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (answers.fileno(), woken, wake):
                    os.close(fd)
                _become(job)
                return
            _say(answers, {"started": pid})


def _announce_ended(answers: Any) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _say(answers, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what).encode() + b"\n")


def _become(job: dict[str, Any]) -> None:
    """Run as `python -m module folder` would, in its own session."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for fd, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, fd)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(job["environ"])
    tempfile.tempdir = None  # it is the environment's
    if sys.path and sys.path[0] == os.getcwd():
        sys.path[0] = job["cwd"]
    os.chdir(job["cwd"])
    sys.argv = [job["module"], job["folder"]]
    sys.modules.pop(job["module"], None)  # else Python warns of it, as if the script had said so
    runpy.run_module(job["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
