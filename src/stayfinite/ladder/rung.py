"""One run of the script, watched until it fails or passes the failing step."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import Settings
from ..investigate.entry import investigate
from ..records import Incident
from ..recover.policy import Policy
from ..report.text import headline, number
from ..runtime.script.run_script import ScriptRun
from .answer import finish, prepare, write_answer

__all__ = ["PROGRESS", "run_rung"]

PROGRESS = "progress.json"
_EVERY_S = 0.2
_MAX_SKIPS = 30
"""The steps after the goal that the GradScaler may skip before the run counts as failed."""
_NUM_EARLY = 3
_GROWTH = 1e3
"""A run counts as diverging if all later losses are that many times the first ones."""
_NUMERIC = ("nonfinite", "scale_collapse")
_HALF = ("float16", "bfloat16")


class RungRun(ScriptRun):
    """A `stayfinite run` that ends as soon as the result is known."""

    def __init__(self, spec: dict[str, Any], index: int = 0) -> None:
        self._spec = spec
        self._prepared = prepare(spec)
        self._unread: set[str] = set(spec["changed"])
        """Changed files that the script has not read yet."""
        self._prepared["files"].on_read = self._note_read
        self._goal: int | None = spec["goal"]
        self._reported_at = 0.0
        self._loss: float | None = None
        self._early: list[float] = []
        self._late: list[float] = []
        self._step = -1
        self._last_applied = -1
        is_sanitizing = "skip_bad_samples" in spec["knobs"]
        super().__init__(
            # This process exists for one run, and its files are redirected: a replay may have any effect.
            settings=Settings(diagnose_seconds=spec["diagnose_seconds"], replay="full"),
            policy=Policy.parse("sanitize" if is_sanitizing else "raise", on_spike="ignore"),
            run_dir=Path(spec["folder"]) / "run",
            investigate=investigate,
            index=index,
        )

    def for_child(self, index: int) -> Callable[[], ScriptRun]:
        # What this process has read may be handed on, so nobody asks the others about it.
        return functools.partial(RungRun, self._spec | {"changed": []}, index)

    def _note_read(self, path: str) -> None:
        if self._unread:
            real = os.path.realpath(path)
            self._unread = {f for f in self._unread if os.path.realpath(f) != real}

    def _set_up(self, folder: Path | None, name: str) -> None:
        super()._set_up(folder, name)
        assert self.folder is not None
        self.folder._say = _silent
        journal = self.engine.journal
        if journal is not None:
            for method, is_applied in (("step", True), ("skipped", False)):
                setattr(journal, method, self._counted(getattr(journal, method), is_applied))

    def _counted(self, original: Any, is_applied: bool) -> Any:
        def note(row: Any, *args: Any) -> None:
            original(row, *args)
            self._note(row, is_applied)

        return note

    def _note(self, row: Any, is_applied: bool) -> None:
        """Called after a step that was finite, or that the scaler skipped."""
        self._step = int(row[0])
        if is_applied:
            self._last_applied = self._step
            self._note_loss(float(row[2]) if row[2] is not None else math.nan)
        now = time.monotonic()
        if now - self._reported_at > _EVERY_S:
            self._reported_at = now
            progress = {"step": self._step, "loss": self._loss}
            write_answer(self._spec["folder"], PROGRESS, progress)
        goal = self._goal
        if goal is None or self._step < goal - 1:
            return
        if self._step >= goal and self._last_applied >= self._spec["failing_step"]:
            self.survived()
        elif self._step >= goal + _MAX_SKIPS:
            text = f"the GradScaler skips every step since step {self._last_applied}"
            self.answer("failed", text=text, cause="loss_scaling")
        else:
            self.engine.deep_checks.request()  # the gradients are finite, but the state has to be checked too

    def _note_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            return
        self._loss = loss
        if len(self._early) < _NUM_EARLY:
            self._early.append(abs(loss))
        elif self._spec["has_margin"] and self._step > self._spec["failing_step"]:
            self._late.append(abs(loss))

    def survived(self, text: str = "") -> None:
        """Whether a finite loss keeps growing, which only delays the failure."""
        if self._late and min(self._late) > _GROWTH * max(max(self._early), 1e-6):
            text = f"the loss has grown from {number(self._early[0])} to {number(self._loss)}"
            self.answer("diverging", text=text)
        self.answer("survived", text=text)

    def _save(self, incident: Incident) -> Incident:
        saved = super()._save(incident)
        if saved.event.kind in _NUMERIC and saved.action.kind != "sanitized":
            self._fail(saved)
        return saved

    def _fail(self, incident: Incident) -> None:
        where = incident.location
        birth = next((link for link in where.chain if link.role == "birth"), None)
        operands = [*birth.inputs, *birth.outputs] if birth is not None else []
        self._step = incident.event.step
        self.answer(
            "failed",
            text=headline(incident).partition(";")[0],
            op=where.op,
            file=where.file,
            line=where.line,
            cause=incident.diagnosis.cause,
            is_half=any(o.stats is not None and o.stats.dtype in _HALF for o in operands),
        )

    def answer(self, status: str, **more: Any) -> None:
        """Write the result, and end."""
        if self._unread:
            names = ", ".join(os.path.basename(f) for f in sorted(self._unread))
            status, more = "idle", {"text": f"the script never read {names}"}
        finish(
            self._spec["folder"],
            {
                "status": status,
                "step": self._step if self._step >= 0 else None,
                "loss": self._loss,
                "has_autocast": self._prepared["seen"].has_autocast,
                "has_loader": self._prepared["seen"].has_loader,
                **more,
            },
        )


def _silent(incident: Incident) -> None:
    """Print nothing: the ladder reports all rungs together."""


def run_rung(spec: dict[str, Any]) -> int:
    """Run the script until the result is known; a script that ends normally has survived."""
    run = RungRun(spec)
    if spec["is_module"]:
        code = run.run_module(spec["target"], spec["args"])
    else:
        code = run.run_file(spec["target"], spec["args"])
    if code == 0:
        run.survived("the script came to its end")
    return code
