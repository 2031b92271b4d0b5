"""A schedule whose formula gives a rate that is NaN or Inf: the formula, changed where it divides, takes a
logarithm or a power; its rates are computed anew, and the step is run with them."""

from __future__ import annotations

import ast
import contextlib
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

from ..diagnose.evidence import Evidence
from ..records import Culprit
from ..remedies import Candidate, Source, schedule_candidates
from ..sandbox.compute import computing_only
from . import changes
from .changed_source import ChangedSource, NotRunnable, functions_of
from .culprit import culprit_of
from .laboratory import Laboratory
from .setting_change import SettingChange
from .setting_lines import assigned_key
from .where_set import source_of

__all__ = ["schedule_changes"]

_AHEAD = 200
"""So many steps further on the formula has to be finite too."""
_MOST_BEFORE = 50

Formula = Callable[[int], Any]


def schedule_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """Changes with which the formula gives the same rates as before, and finite ones from here on."""
    place = None
    with contextlib.suppress(Exception):
        place = culprit_of(lab.about, e, "bad_schedule")
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
        file, source.text, candidate.text, candidate, lambda: changes.with_setting("lr", rate)
    )


def _rate_with(change: ChangedSource, formula: Formula, at: int) -> float | None:
    """What the changed formula gives at this step; None where it fails or changes what was healthy."""
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
    """The function of the step, the step at which it fails, and what its result is multiplied by."""
    for scheduler in reversed(list(lab.state.schedulers)):
        for function in getattr(scheduler, "lr_lambdas", ()):
            if _is_in(function, place.file):
                group = scheduler.optimizer.param_groups[0]
                at = int(getattr(scheduler, "last_epoch", 0))
                failing = _first_bad(function, at)
                return None if failing is None else (function, failing, float(group["initial_lr"]))
    return _assigned(lab)


def _assigned(lab: Laboratory) -> tuple[Formula, int, float] | None:
    """What a loop assigns to the rate, as a function of the number that it counts its steps with."""
    scene = lab.about.vehicle.scene
    found = assigned_key([scene.file], "lr") if scene is not None else None
    if scene is None or found is None:
        return None
    variables = scene.variables
    names = [n.id for n in ast.walk(found[1]) if isinstance(n, ast.Name)]
    counters = [n for n in names if type(variables.get(n)) is int]
    if not counters:
        return None
    code = compile(ast.Expression(found[1]), scene.file, "eval")

    def formula(step: int) -> Any:
        return eval(code, {**variables, counters[0]: step})

    at = _first_bad(formula, int(variables[counters[0]]))
    return None if at is None else (formula, at, 1.0)


def _first_bad(function: Formula, at: int) -> int | None:
    """The step around `at` at which the formula is not finite."""
    for step in (at, at - 1, at + 1):
        with contextlib.suppress(Exception), computing_only():
            if step >= 0 and not math.isfinite(float(function(step))):
                return step
    return None


def _is_in(function: Any, file: str) -> bool:
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return isinstance(code, types.CodeType) and code.co_filename == file
