"""A fix for a schedule whose formula gives a NaN or Inf rate: its divisions, logarithms and powers are changed, its
rates are computed again, and the step is run with them.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from ...diagnose.evidence import Evidence
from ...locate.frames import is_user_file
from ...records import Culprit
from ...remedies import Candidate, Source, schedule_candidates
from ...sandbox.compute import computing_only
from .. import changes
from ..evidence.called_schedules import called_schedule
from ..evidence.own_schedules import (
    Formula,
    by_counter,
    first_bad_step,
    is_in,
    own_schedules,
    stand_in,
)
from ..evidence.setting_lines import assigned_key
from ..laboratory import Laboratory
from ..replays.changed_source import ChangedSource, NotRunnable, functions_of
from .setting_change import SettingChange, source_of_culprit

__all__ = ["schedule_changes"]

_AHEAD = 200
"""The formula has to be finite for this many further steps."""
_MOST_BEFORE = 50


def schedule_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """Changes with which the formula gives the same rates as before, and finite ones from here on."""
    found = source_of_culprit(lab, e, "bad_schedule")
    if found is None:
        return
    place, source = found
    computed = _formula(lab, place)
    if computed is None:
        return
    formula, at, base = computed
    functions = functions_of(place.file)
    for candidate in schedule_candidates(source, place.line):
        try:
            change = ChangedSource(place.file, source.text, candidate.text, functions)
        except NotRunnable:
            continue
        rate = _rate_with(change, formula, at)
        if rate is not None:
            yield _made(place.file, source, candidate, rate * base)


def _made(file: str, source: Source, candidate: Candidate, rate: float) -> SettingChange:
    return SettingChange(
        file, source.text, candidate.text, candidate, partial(changes.with_setting, "lr", rate)
    )


def _rate_with(change: ChangedSource, formula: Formula, at: int) -> float | None:
    """The rate of the changed formula at this step; None if it fails or changes earlier rates."""
    healthy = range(max(0, at - _MOST_BEFORE), at)
    try:
        with computing_only():
            before = [float(formula(step)) for step in healthy]
            with change.installed():
                after = [float(formula(step)) for step in healthy]
                later = [float(formula(step)) for step in range(at, at + _AHEAD)]
    except Exception:
        return None
    is_same = all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in zip(before, after))
    usual = max((abs(v) for v in before), default=1.0) or 1.0
    is_usable = all(math.isfinite(v) and abs(v) <= 10 * usual for v in later)
    return later[0] if is_same and is_usable else None


def _formula(lab: Laboratory, place: Culprit) -> tuple[Formula, int, float] | None:
    """The function of the step, the step at which it fails, and the factor of its result."""
    given = list(lab.state.schedulers)
    inner = [s for g in given for s in getattr(g, "_schedulers", ())]
    for scheduler in reversed([*given, *inner]):
        at = int(getattr(scheduler, "last_epoch", lab.window.step))
        for function in getattr(scheduler, "lr_lambdas", ()):
            if is_in(function, place.file):
                group = scheduler.optimizer.param_groups[0]
                failing = first_bad_step(function, at)
                if failing is not None:
                    return function, failing, float(group.get("initial_lr", 1.0))
        if is_in(type(scheduler).__dict__.get("get_lr"), place.file):
            own = _by_class(scheduler)
            failing = first_bad_step(own, at)
            if failing is not None:
                return own, failing, 1.0
    for scheduler in (*given, *own_schedules(lab.state)):
        is_here = is_in(type(scheduler).__dict__.get("step"), place.file)
        counted = by_counter(lab.state, scheduler) if is_here else None
        if counted is not None:
            return *counted, 1.0
    called = called_schedule(lab.investigation)
    if called is not None and called[2].co_filename == place.file:
        return called[0], called[1], 1.0
    return _assigned(lab)


def _by_class(scheduler: Any) -> Formula:
    """The `get_lr` of a user's class, as a function of the step."""

    def formula(step: int) -> Any:
        mine = stand_in(scheduler)
        mine.last_epoch = step
        mine._get_lr_called_within_step = True
        return mine.get_lr()[0]

    return formula


def _assigned(lab: Laboratory) -> tuple[Formula, int, float] | None:
    """The rate that a loop assigns, as a function of its step counter."""
    scene = lab.investigation.vehicle.scene
    places = [(scene.file, scene.variables)] if scene is not None else list(_running())
    files = [file for file, _ in places]
    found = assigned_key(files, "lr")
    variables = next((v for f, v in places if found is not None and f == found[0].file), None)
    if found is None or variables is None:
        return None
    names = [n.id for n in ast.walk(found[1]) if isinstance(n, ast.Name)]
    counters = [n for n in names if type(variables.get(n)) is int]
    if not counters:
        return None
    code = compile(ast.Expression(found[1]), found[0].file, "eval")

    def formula(step: int) -> Any:
        return eval(code, {**variables, counters[0]: step})

    at = first_bad_step(formula, int(variables[counters[0]]))
    return None if at is None else (formula, at, 1.0)


def _running() -> Iterator[tuple[str, dict[str, Any]]]:
    """The files and variables of the user's running functions."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            yield frame.f_code.co_filename, {**frame.f_globals, **frame.f_locals}
        frame = frame.f_back
