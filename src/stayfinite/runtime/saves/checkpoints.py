"""Connects every save to the save gate and every restore to the resume check."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError, NonFiniteError
from ...locate.frames import Frame, culprit, place_of
from ...patches.made_at import call_stack
from ...patches.provenance import provenance
from ...records import Action, Diagnosis, Event, Incident, Location
from ...report.text import headline
from ...saying import say
from ..engine import Engine
from ..incidents import new_incident
from .gate import Refusal, SaveGate
from .patches import SavePatches
from .resume import blame, last_good, rate_mismatch, refuse

if TYPE_CHECKING:
    from ...checkpoint import TensorFinding

__all__ = ["CheckpointWatch", "save_gate"]

_RESTORED = "it was to be restored here"
_OWN_ROLES = ("optimizer", "ema", "batchnorm", "scaler")


class CheckpointWatch:
    """The save gate and the resume check of one training."""

    def __init__(self, engine: Engine, checks_resume: bool = True) -> None:
        self._engine = weakref.ref(engine)
        self._reported: set[str] = set()
        self.checks_resume = checks_resume
        self.gate = SaveGate(self._refused, self._good, self._is_ours)
        self._patches = SavePatches(self.gate)
        provenance.checks.add(self)

    def close(self) -> None:
        self._patches.close()
        provenance.checks.discard(self)

    def _is_ours(self, found: TensorFinding) -> bool:
        """Whether a tensor is part of this training, and not other data that is saved."""
        engine = self._engine()
        if engine is None or not engine.state.roots or found.role in _OWN_ROLES:
            return engine is not None
        name = found.tensor or ""
        known = [n for n, _ in (*engine.state.parameters(), *engine.state.buffers)]
        ours = [n for n in known if name == n or name.endswith(f".{n}")]
        bad = engine.state.initially_bad
        return any(f"parameter {n}" not in bad and f"buffer {n}" not in bad for n in ours)

    def _good(self, path: str) -> None:
        engine = self._engine()
        if engine is None:
            return
        made = engine.num_applied + engine.recovery.num_open()
        engine.recovery.last_save.note(path, made)
        if engine.journal is not None:
            engine.journal.checkpoint(path, engine.num_applied, "good")

    def _refused(self, refusal: Refusal) -> None:
        engine = self._engine()
        if engine is None:
            return
        where = f"written to {refusal.written_to} instead" if refusal.written_to else "not written"
        good = refusal.last_good or _search(refusal.path)
        kept = f"the last good checkpoint is {good}" if good else "there is no good checkpoint yet"
        first = refusal.findings[0]
        raises = engine.policy.name == "raise"
        incident = self._incident(
            engine, first, "checkpoint", f"the checkpoint {refusal.path} was held back: "
            f"{first.tensor or 'a tensor'} is not finite ({first.message})",
            Action(kind="raised" if raises else "diverted", detail=f"{where}; {kept}"),
        )  # fmt: skip
        if engine.journal is not None:
            detail = f"{where}; {kept}"
            engine.journal.checkpoint(refusal.path, engine.num_applied, "refused", detail)
        engine.deep_checks.request()
        if raises:
            raise NonFiniteError(headline(incident), incident)

    def on_restore(self, target: Any, state: Any) -> bool:
        """Called before `load_state_dict`: False skips it; raises if the training must not resume."""
        engine = self._engine()
        if engine is None or not self.checks_resume or not isinstance(state, dict):
            return True
        path = provenance.last_path
        found = refuse(target, state)
        if found:
            is_loaded = provenance.is_loaded(state)
            if engine.num_applied and not is_loaded:  # the training has begun
                self._leave_out(engine, target, found)
                return False
            self._refuse(engine, found, path, "file" if is_loaded else blame(found, path))
        if path is not None:
            self._compare_rates(engine, target, state, path)
        return True

    def _leave_out(self, engine: Engine, target: Any, found: list[TensorFinding]) -> None:
        """In the middle of the training, this is a copy of a state that a step has corrupted (a target network, a swap of
        averages). Skip the copy, and request a deep check to find the step.
        """
        engine.deep_checks.request()
        first = found[0]
        what = f"{type(target).__name__} {first.tensor or ''}".strip()
        if what in self._reported:
            return
        self._reported.add(what)
        engine.monitor.warn(
            Event(
                step=engine.num_applied, phase="parameter", kind="copy_left_out", symptom="parameter",
                name=first.tensor,
                message=f"load_state_dict on {type(target).__name__} was left out: "
                f"not finite are {_shown(found)}; it keeps the values that it had",
            )
        )  # fmt: skip

    def _refuse(
        self, engine: Engine, found: list[TensorFinding], path: str | None, origin: str
    ) -> None:
        what = f"a state must not be restored: {_counted(found)}"
        remedy, good = "look at where the script has it from", None
        if origin == "since":
            remedy = (
                f"{path} is finite there: look at what the script does with it after reading "
                "(float16 holds nothing above 65504)"
            )
        elif origin == "file":
            good = _search(path) if path else None
            what = f"{path or 'the state'} must not be resumed from: {_counted(found)}"
            remedy = f"resume from the last good checkpoint, {good}" if good else "start anew"
        self._incident(
            engine, found[0], "resume", what,
            Action(kind="raised", detail=f"nothing was restored; {remedy}"),
            Diagnosis(
                cause="corrupt_checkpoint", confidence=0.9, evidence=(_shown(found),),
                summary="what would be restored already contains NaN or Inf",
            ),
        )  # fmt: skip
        beside = f"\n  last good: {good or 'none found beside it'}" if origin == "file" else ""
        raise CheckpointError(
            f"{what}{beside}\n"
            f"  try: {remedy}; `stayfinite scan` says more, --no-resume-check loads it all the same"
        )

    def _compare_rates(self, engine: Engine, target: Any, state: Any, path: str) -> None:
        # Report an optimizer and a scheduler of the same file only once.
        found = rate_mismatch(target, state, path) if path not in self._reported else None
        if found is None:
            return
        self._reported.add(path)
        engine.monitor.warn(
            Event(
                step=engine.num_applied, phase="resume", kind="resume_mismatch", symptom="learning_rate",
                name="lr", value=found[1], message=found[2],
            )
        )  # fmt: skip

    def _incident(
        self, engine: Engine, first: TensorFinding, phase: str, message: str, action: Action,
        diagnosis: Diagnosis | None = None,
    ) -> Incident:  # fmt: skip

        symptom = "optimizer_state" if first.role == "optimizer" else "parameter"
        event = Event(
            step=engine.num_applied, phase=phase, symptom=symptom, name=first.tensor,
            lr=engine.state.lrs(), message=message, rank=engine.ranks.rank,
        )  # fmt: skip
        location = Location(method="none")
        if phase == "resume":
            stack = [Frame(*place) for place in call_stack(sys._getframe(1))]
            location = replace(location, culprit=culprit(place_of(stack).user, _RESTORED))
        incident = new_incident(
            event, action=action, diagnosis=diagnosis, history=engine.records(), location=location
        )
        return engine.publish(incident, is_shared=False)


def _counted(found: list[TensorFinding]) -> str:
    """The number of findings and the first; the evidence has the full list."""
    first = f"{found[0].tensor or 'a tensor'} ({found[0].message})"
    return f"not finite are {first}" + (f" and {len(found) - 1} more" if len(found) > 1 else "")


def _shown(found: list[TensorFinding]) -> str:
    shown = ", ".join(f"{f.tensor or 'a tensor'} ({f.message})" for f in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{shown}{more}"


def _search(path: str) -> str | None:
    """The last good checkpoint in the same folder, if there is one."""
    folder = Path(path).parent
    with contextlib.suppress(Exception):
        return last_good(folder, deep=False, like=path)  # subfolders belong to other runs
    return None


@contextlib.contextmanager
def save_gate() -> Iterator[SaveGate]:
    """Protect the saves in this block: a non-finite state does not replace a good checkpoint.

        with save_gate() as gate:
            torch.save({"model": model.state_dict()}, "last.pt")
        gate.last_good, gate.refused

    A `Guard` and `stayfinite run` do this without it.
    """

    def report(refusal: Refusal) -> None:
        where = f"written to {refusal.written_to} instead" if refusal.written_to else "not written"
        good = refusal.last_good or _search(os.path.abspath(refusal.path))
        say(f"stayfinite: {refusal.describe()}; {where}; last good: {good or 'none yet'}")

    gate = SaveGate(report)
    patches = SavePatches(gate)
    try:
        yield gate
    finally:
        patches.close()
