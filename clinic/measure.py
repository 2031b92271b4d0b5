"""Runs the cases under stayfinite, in both forms of the guard, and scores what it says."""

from __future__ import annotations

import contextlib
import io
import os
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from clinic.form import Case, Entry
from stayfinite import Guard, Incident
from stayfinite.patches import provenance

FORMS = ("step", "loop")


@dataclass(frozen=True)
class Score:
    """What was right for one case in one form."""

    entry: Entry
    form: str
    incident: Incident | None
    num_incidents: int
    seconds: float
    error: str = ""
    is_state_finite: bool = True

    @property
    def noticed(self) -> bool:
        truth = self.entry.truth
        return (
            self.incident is not None
            and truth is not None
            and self.incident.event.step == truth.step
        )

    @property
    def has_place(self) -> bool:
        """Whether there is an operator to name: not for data, parameters and checkpoints, and not
        where a replay cannot fail again."""
        truth = self.entry.truth
        return (
            truth is not None
            and None not in truth.ops
            and truth.cause != "hardware_or_nondeterminism"
        )

    @property
    def op(self) -> bool:
        truth = self.entry.truth
        if not self.has_place:
            return self.incident is not None and self.incident.location.op is None
        return (
            self.incident is not None
            and truth is not None
            and self.incident.location.op in truth.ops
        )

    @property
    def line(self) -> bool:
        truth, incident = self.entry.truth, self.incident
        if incident is None or truth is None:
            return False
        if truth.line is None or not self.has_place:
            return True
        file = incident.location.file
        return (
            file is not None
            and os.path.samefile(file, self.entry.path)
            and incident.location.line == truth.line
        )

    @property
    def module(self) -> bool:
        truth = self.entry.truth
        if not self.has_place:
            return self.incident is not None
        return (
            self.incident is not None
            and truth is not None
            and self.incident.location.module == truth.module
        )

    @property
    def phase(self) -> bool:
        truth = self.entry.truth
        return (
            self.incident is not None
            and truth is not None
            and self.incident.event.phase in truth.phases
        )

    @property
    def cause(self) -> bool:
        truth = self.entry.truth
        return (
            self.incident is not None
            and truth is not None
            and self.incident.diagnosis.cause == truth.cause
        )

    @property
    def has_proved_fix(self) -> bool:
        return self.incident is not None and any(
            f.status == "proved" for f in self.incident.diagnosis.fixes
        )


def run(entry: Entry, form: str, fixed: bool = False) -> Score:
    """One case under the guard."""
    build = entry.build_fixed if fixed else entry.build
    assert build is not None
    rng = torch.get_rng_state()
    provenance.install()  # as in a process that has just imported `Guard`
    case = build()
    start = time.perf_counter()
    guard = Guard(
        case.model,
        case.optimizer,
        scheduler=case.scheduler,
        scaler=case.scaler,
        clip_norm=case.clip_norm,
    )
    error = ""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            _DRIVE[form](guard, case)
            guard.close()
    except Exception as e:
        error = f"{type(e).__name__}: {e}".splitlines()[0]
        with contextlib.suppress(Exception):
            guard.close()
    finally:
        case.close()
        torch.set_rng_state(rng)
    initially_bad = guard.state.initially_bad
    finite = not any(f"{k} {n}" not in initially_bad for k, n, _ in guard.state.bad_state())
    first = guard.incidents[0] if guard.incidents else None
    return Score(
        entry, form, first, len(guard.incidents), time.perf_counter() - start, error, finite
    )


def _by_step(guard: Guard, case: Case) -> None:
    for _ in range(case.epochs):
        for batch in case.loader:
            guard.step(case.loss_fn, batch)


def _by_loop(guard: Guard, case: Case) -> None:
    model, optimizer, scaler = case.model, case.optimizer, case.scaler
    for _ in range(case.epochs):
        for batch in guard(case.loader):
            optimizer.zero_grad()
            loss = case.loss_fn(model, batch)
            (scaler.scale(loss) if scaler else loss).backward()
            if scaler and case.clip_norm:
                scaler.unscale_(optimizer)
            if case.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            if case.scheduler:
                case.scheduler.step()


_DRIVE: dict[str, Any] = {"step": _by_step, "loop": _by_loop}
