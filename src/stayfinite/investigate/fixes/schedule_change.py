"""A fix for a schedule whose formula gives a NaN or Inf rate: its divisions, logarithms and powers are changed, its
rates are computed again, and the step is run with them.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import gc
import math
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...diagnose.evidence import Evidence
from ...locate.frames import is_user_file
from ...records import Culprit
from ...remedies import Candidate, Source, schedule_candidates
from ...sandbox.compute import computing_only
from .. import changes
from ..evidence.culprit import culprit_of
from ..evidence.setting_lines import assigned_key
from ..laboratory import Laboratory
from ..replays.changed_source import ChangedSource, NotRunnable, functions_of
from .setting_change import SettingChange
from .stand_in import StandIn
from .where_set import source_of

__all__ = ["schedule_changes"]

_AHEAD = 200
"""The formula has to be finite for so many further steps."""
_MOST_BEFORE = 50

Formula = Callable[[int], Any]


def schedule_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """Changes with which the formula gives the same rates as before, and finite ones from here on."""
    place = None
    with contextlib.suppress(Exception):
        place = culprit_of(lab.investigation, e, "bad_schedule")
    source = source_of(place.file) if place is not None else None
    if place is None or source is None:
        return
    found = _formula(lab, place)
    if found is None:
        return
    formula, at, base = found
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
            if _is_in(function, place.file):
                group = scheduler.optimizer.param_groups[0]
                failing = _first_bad(function, at)
                if failing is not None:
                    return function, failing, float(group.get("initial_lr", 1.0))
        if _is_in(type(scheduler).__dict__.get("get_lr"), place.file):
            own = _by_class(scheduler)
            failing = _first_bad(own, at)
            if failing is not None:
                return own, failing, 1.0
    for scheduler in (*given, *_own_kinds(lab, place.file)):
        counted = _by_counter(lab, scheduler, place.file)
        if counted is not None:
            return counted
    return _assigned(lab)


def _own_kinds(lab: Laboratory, file: str) -> list[Any]:
    """Schedules of a user's class: objects with a `step` in this file and an optimizer."""
    kinds = [
        t
        for t in gc.get_objects()
        if issubclass(type(t), type) and _is_in(t.__dict__.get("step"), file)
    ]
    found = [s for s in gc.get_objects() if type(s) in kinds]
    return [s for s in found if _held(lab, s) is not None]


def _held(lab: Laboratory, scheduler: Any) -> str | None:
    """The attribute of a schedule with its optimizer."""
    known = list(lab.state.optimizers)
    values = getattr(scheduler, "__dict__", {})
    return next((k for k, v in values.items() if any(v is o for o in known)), None)


def _stand_in(scheduler: Any, held: str = "optimizer") -> Any:
    """A copy of a schedule that does not affect the training."""
    given = getattr(scheduler, held)
    groups = []
    for theirs in given.param_groups:
        first = theirs.get("initial_lr", given.defaults.get("lr", 1.0))
        rate = theirs["lr"] if math.isfinite(theirs["lr"]) else first
        groups.append({**theirs, "params": [], "lr": rate, "initial_lr": first})
    mine = copy.copy(scheduler)
    setattr(mine, held, StandIn(groups))
    return mine


def _by_class(scheduler: Any) -> Formula:
    """The `get_lr` of a user's class, as a function of the step."""

    def formula(step: int) -> Any:
        mine = _stand_in(scheduler)
        mine.last_epoch = step
        mine._get_lr_called_within_step = True
        return mine.get_lr()[0]

    return formula


def _by_counter(lab: Laboratory, scheduler: Any, file: str) -> tuple[Formula, int, float] | None:
    """A user's schedule that counts its steps and sets the rate of its optimizer."""
    held = _held(lab, scheduler)
    if held is None or not _is_in(type(scheduler).__dict__.get("step"), file):
        return None
    numbers = {k: v for k, v in vars(scheduler).items() if type(v) is int}
    counted = _moved_by_step(_stand_in(scheduler, held), numbers)
    if len(counted) != 1:
        return None

    def formula(number: int) -> Any:
        mine = _stand_in(scheduler, held)
        setattr(mine, counted[0], number)
        mine.step()
        return getattr(mine, held).param_groups[0]["lr"]

    at = _first_bad(formula, numbers[counted[0]])
    return None if at is None else (formula, at, 1.0)


def _moved_by_step(scheduler: Any, numbers: dict[str, int]) -> list[str]:
    """The numbers that a schedule increments when it is stepped."""
    with contextlib.suppress(Exception), computing_only():
        scheduler.step()
    return [k for k, v in numbers.items() if vars(scheduler).get(k) == v + 1]


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

    at = _first_bad(formula, int(variables[counters[0]]))
    return None if at is None else (formula, at, 1.0)


def _running() -> Iterator[tuple[str, dict[str, Any]]]:
    """The files and variables of the user's running functions."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            yield frame.f_code.co_filename, {**frame.f_globals, **frame.f_locals}
        frame = frame.f_back


def _first_bad(function: Formula, at: int) -> int | None:
    """The first step around `at` at which the formula is not finite."""
    found = next((step for step in (at, at - 1, at + 1) if _is_bad(function, step)), None)
    while found is not None and at - found < _MOST_BEFORE and _is_bad(function, found - 1):
        found -= 1
    return found


def _is_bad(function: Formula, step: int) -> bool:
    with contextlib.suppress(Exception), computing_only():
        return step >= 0 and not math.isfinite(float(function(step)))
    return False


def _is_in(function: Any, file: str) -> bool:
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return isinstance(code, types.CodeType) and code.co_filename == file
