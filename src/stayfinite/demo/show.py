"""Runs one case three times (plain, guarded, repaired) and checks that each run does what the case claims."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..records import Incident
from .cases import Case

__all__ = ["Show"]

Say = Callable[[str], None]

# Unbuffered: what a script prints and what stayfinite says of it come in the order in which it
# happened. One thread: the models are small, and on a busy machine two threads wait for each other.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUNBUFFERED": "1"}


class Show:
    """One case on its way: what was run, what it left, and what did not come true."""

    def __init__(self, case: Case, folder: Path, say: Say) -> None:
        self.case = case
        self.folder = folder
        self.run_dir = folder / "guarded" / "run"
        self.incident: Incident | None = None
        self.others: list[Incident] = []
        """What else the run has found, each cause once."""
        self.last_line = ""
        self.warnings: list[str] = []
        """What the run said of weights that nobody trains."""
        self.disappointments: list[str] = []
        self._say = say

    def run(self) -> None:
        """The failure without us, then with us, then repaired."""
        shutil.rmtree(self.folder, ignore_errors=True)
        case = self.case
        self._say("1. as it is\n")
        plain = self._python(case.script, case.args, "plain")
        if not any("nan" in line.lower() or "inf" in line.lower() for line in plain):
            self.disappointments.append("the plain run printed no NaN and no Inf")
        for words in case.looks:
            self._say("")
            self._stayfinite(words, "plain")
        self._say("\n2. the same file, unchanged, under stayfinite\n")
        options = ("--run-dir", "run", *case.options)
        self._stayfinite(["run", *options, case.script.name, *case.args], "guarded")
        self._judge_incident()
        self._say("\n3. with the fix\n")
        lines = self._python(case.fixed, case.fixed_args, "fixed")
        self.last_line = next((line for line in reversed(lines) if line.strip()), "").strip()
        if not re.search(case.metric, self.last_line):
            self.disappointments.append(
                f"the last line of the repaired run does not show {case.metric!r}: "
                f"{self.last_line!r}"
            )

    def _judge_incident(self) -> None:
        wanted = f"{self.case.cause} at a line with {self.case.line!r}"
        seen = [
            Incident.from_json(path.read_text(encoding="utf-8"))
            for path in sorted(self.run_dir.glob("incidents/*/incident.json"))
        ]
        for incident in seen:
            has_cause = incident.diagnosis.cause == self.case.cause
            if has_cause and self.case.line in (incident.location.source or ""):
                self.incident = incident
                causes = {i.diagnosis.cause: i for i in reversed(seen) if i.diagnosis.cause}
                self.others = [i for c, i in causes.items() if c != self.case.cause][::-1]
                return
        self.disappointments.append(
            f"no incident says {wanted}; there are {len(seen)}: "
            + ", ".join(f"{i.diagnosis.cause} at {i.location.source!r}" for i in seen)
        )

    def _python(self, script: Path, args: Sequence[str], room: str) -> list[str]:
        """What the script printed; it is shown while it comes."""
        self._say(f"$ python {' '.join([script.name, *args])}")
        lines = []
        with subprocess.Popen(
            [sys.executable, script.name, *args],
            cwd=self._room(room),
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._say(line.rstrip("\n"))
                lines.append(line)
        if process.returncode:
            self._say(f"(exit code {process.returncode})")
        return lines

    def _stayfinite(self, words: Sequence[str], room: str) -> None:
        """Not piped through us, so that a terminal gets its colors."""
        self._say(f"$ stayfinite {' '.join(words)}")
        done = subprocess.run(
            [sys.executable, "-m", "stayfinite", *words],
            cwd=self._room(room),
            env=_ENVIRONMENT,
            check=False,
        )
        if done.returncode:
            self._say(f"(exit code {done.returncode})")

    def _room(self, name: str) -> Path:
        """A folder with its own copy of the sources: a checkpoint of one run reaches no other."""
        path = self.folder / name
        if not path.is_dir():
            path.mkdir(parents=True)
            for source in self.case.sources():
                shutil.copy(source, path)
        return path
