"""Finds the line that set the cause: optimizer, schedule, scaler, load, pipeline.

Most lines are known from records (`patches/made_at`, `patches/provenance`). Otherwise the source of the running files is read.
"""

from __future__ import annotations

import ast
import contextlib
import math
import numbers
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

from ...diagnose.evidence import Evidence
from ...locate.frames import Frame, culprit, is_user_file, place_of
from ...patches.made_at import CallStack, call_stack, made_at
from ...patches.provenance import provenance
from ...records import Culprit
from ...sandbox.compute import computing_only
from ..investigation import Investigation
from .called_schedules import called_schedule
from .gather import owner_of
from .layer_lines import layer_line
from .own_schedules import by_counter, own_schedules
from .own_update import own_rate
from .script_files import own_files, source_files
from .setting_lines import (
    assigned_key,
    called,
    computed_at,
    given_keyword,
    made_attribute,
    returned_by,
)
from .unscaled_steps import step_without_scaler

__all__ = ["CULPRITS", "culprit_of"]

_RATE_NAMES = ("lr", "learning_rate", "base_lr", "max_lr")
_EPS_NAMES = ("eps", "epsilon", "adam_epsilon")
_GREW = 1.05

Finder = Callable[[Investigation, Evidence], "Culprit | None"]


def culprit_of(
    investigation: Investigation, evidence: Evidence, cause: str | None
) -> Culprit | None:
    """The line that set the cause; None if the cause is not a setting, or its line is unknown."""
    finder = _FINDERS.get(cause or "")
    return finder(investigation, evidence) if finder is not None else None


def _user(stack: CallStack) -> Frame | None:
    """The script's own line in a stack, if it made the call itself."""
    frames = [Frame(*place) for place in stack]
    return place_of(frames).user if frames else None


def _is_framework(stack: CallStack) -> bool:
    """Whether an installed package made it, as configured by the script."""
    return bool(stack) and not is_user_file(stack[0][0])


def _called(investigation: Investigation, name: str) -> Frame | None:
    """The line that makes an object of this class, in a running function if there are several."""
    running = {(file, function) for file, _, function in call_stack(sys._getframe(1))}
    found = called(own_files(investigation), name)
    near = [f for f in found if (f.file, f.function) in running]
    return next((only[0] for only in (found, near) if len(only) == 1), None)


def _optimizer(investigation: Investigation, e: Evidence, names: tuple[str, ...]) -> Culprit | None:
    """The line that made the optimizer, or set its option."""
    optimizers = list(investigation.state.optimizers)
    wanted = e.optimizer.get("type")
    mine = next((o for o in optimizers if type(o).__name__ == wanted), None)
    if mine is None:
        return None
    if len(optimizers) > 1:
        mine = max(optimizers, key=_rate) if names is _RATE_NAMES else mine
    stack, kind = made_at(mine), type(mine).__name__
    if (
        _is_framework(stack)
        and (line := given_keyword(own_files(investigation), *names)) is not None
    ):
        return culprit(line, f"{names[0]} is given to {kind} here")
    frame = _user(stack) or _called(investigation, kind)
    return culprit(frame, f"{kind} is made here")


def _rate(optimizer: Any) -> float:
    rates = [float(g["lr"]) for g in optimizer.param_groups if "lr" in g]
    return max((r if math.isfinite(r) else math.inf for r in rates), default=0.0)


def _learning_rate(investigation: Investigation, e: Evidence) -> Culprit | None:
    """The schedule that raised the rate, the line that assigned it, or the optimizer that was made with it."""
    optimizer = max(investigation.state.optimizers, key=_rate, default=None)
    if optimizer is None or not any("lr" in g for g in optimizer.param_groups):
        by_hand = own_rate(own_files(investigation))
        return culprit(*by_hand) if by_hand is not None else None
    now, given = _rate(optimizer), _given_rate(optimizer)
    is_scheduled = now > _GREW * given or not math.isfinite(now)
    found = None
    if is_scheduled and len(investigation.state.schedulers):
        found = _schedule(investigation, optimizer)
    elif now != given or is_scheduled:
        found = _own_schedule(investigation) or _assigned_rate(investigation)
    return found or _optimizer(investigation, e, _RATE_NAMES)


def _given_rate(optimizer: Any) -> float:
    """The rate that the optimizer was made with, before any schedule."""
    rates = [
        g.get("initial_lr", optimizer.defaults.get("lr", g.get("lr")))
        for g in optimizer.param_groups
    ]
    return max((float(r) for r in rates if r is not None), default=0.0)


def _schedule(investigation: Investigation, optimizer: Any) -> Culprit | None:
    scheduler = _schedule_of(list(investigation.state.schedulers), optimizer)
    if scheduler is None:
        return None
    kind = type(scheduler).__name__
    for function in getattr(scheduler, "lr_lambdas", ()):
        line = _line_of_formula(function, (getattr(scheduler, "last_epoch", 0),))
        if line is not None:
            return culprit(line, "the schedule's formula")
    own = (
        getattr(type(scheduler).get_lr, "__code__", None) if hasattr(scheduler, "get_lr") else None
    )
    if own is not None and is_user_file(own.co_filename):
        line = _line_of_formula(type(scheduler).get_lr, (scheduler,))
        return culprit(line, f"the formula of {kind}")
    frame = _user(made_at(scheduler)) or _called(investigation, kind)
    return culprit(frame, f"{kind} is made here")


def _own_schedule(investigation: Investigation) -> Culprit | None:
    """The line of a class of the user's whose rate is not finite."""
    for scheduler in own_schedules(investigation.state):
        found = by_counter(investigation.state, scheduler)
        if found is not None:
            formula, at = found
            line = _line_of_formula(formula, (at,), type(scheduler).step.__code__)
            return culprit(line, "the schedule's formula")
    called = called_schedule(investigation)
    if called is None:
        return None
    formula, at, code = called
    return culprit(_line_of_formula(formula, (at,), code), "the schedule's formula")


def _schedule_of(schedulers: list[Any], optimizer: Any) -> Any:
    """The schedule of this optimizer; of a chain, the active part."""
    mine = [s for s in schedulers if getattr(s, "optimizer", None) is optimizer] or schedulers
    outer = next((s for s in reversed(mine) if hasattr(s, "_schedulers")), None)
    if outer is None:
        return mine[-1] if mine else None
    index = sum(outer.last_epoch >= m for m in getattr(outer, "_milestones", ()))
    inner = outer._schedulers
    return inner[min(index, len(inner) - 1)] if inner else outer


def _line_of_formula(
    function: Any, args: tuple[Any, ...], within: CodeType | None = None
) -> Frame | None:
    """Which line of a schedule's function gave the rate: found by computing it once more.

    `within`: the code of the user's that the function runs, where it is none of theirs itself.
    """
    code = within or getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    if not isinstance(code, CodeType) or not is_user_file(code.co_filename):
        return None
    watch = _FormulaWatch(code)
    before = sys.gettrace()
    with contextlib.suppress(Exception), computing_only():
        sys.settrace(watch)
        try:
            function(*args)
        finally:
            sys.settrace(before)
    if within is not None and watch.place is None:
        return None
    return Frame(*(watch.place or (code.co_filename, code.co_firstlineno, code.co_name)))


class _FormulaWatch:
    """The first line that left a non-finite value, else the line that returned.

    If that line only returns the result of another function of the script, the line is in that function.
    """

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._lines: dict[FrameType, int] = {}
        self._found: set[FrameType] = set()
        self._given: dict[FrameType, set[str]] = {}
        self._returned: list[tuple[FrameType, Any]] = []
        self.place: tuple[str, int, str] | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not is_user_file(frame.f_code.co_filename):
            return None
        bad = {name for name, value in frame.f_locals.items() if _is_bad(value)}
        if event == "call":
            self._given[frame] = bad
        elif event == "line" and frame not in self._found:
            if frame in self._lines and bad - self._given[frame]:
                self._found.add(frame)
            else:
                self._lines[frame] = frame.f_lineno
        elif event == "return":
            self._returned.append((frame, arg))
            if frame.f_code is self._code:
                self._settle(arg)
        return self

    def _settle(self, value: Any) -> None:
        """The innermost function that returned what the formula returned; of a `step`, what it was handed."""
        if value is None:
            value = next((given for _, given in self._returned if _is_bad(given)), None)
        if value is None:
            own = next((f for f, _ in self._returned if f in self._found), None)
            if own is not None:  # it returns nothing, and has set the rate itself
                self.place = (own.f_code.co_filename, self._lines[own], own.f_code.co_name)
            self._returned.clear()
            return
        for frame, returned in self._returned:
            if frame in self._lines and (returned is value or _are_alike(returned, value)):
                code = frame.f_code
                self.place = (code.co_filename, self._lines[frame], code.co_name)
                break
        self._returned.clear()


def _are_alike(one: Any, other: Any) -> bool:
    return (_is_bad(one) and _is_bad(other)) or (isinstance(one, float) and one == other)


def _is_bad(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex() and not math.isfinite(value.item())
    # NumPy's numbers are real ones too.
    is_real = isinstance(value, numbers.Real) and not isinstance(value, int)
    return is_real and not math.isfinite(value)


def _assigned_rate(investigation: Investigation) -> Culprit | None:
    """For a loop that sets `group["lr"]` itself: the formula, if a function of the file computes it."""
    files = own_files(investigation)
    found = assigned_key(files, "lr")
    if found is None:
        return None
    line, value = found
    if isinstance(value, ast.Constant) and value.value not in investigation.state.lrs():
        return None  # it has not set the rate
    made = returned_by(line.file, value, line.function)
    function = _function_named(line.file, made[0]) if made is not None else None
    if made is not None and function is not None:
        args = _arguments(investigation, made[1].args)
        formula = _line_of_formula(function, args) if args is not None else None
        if formula is not None:
            return culprit(formula, "the schedule's formula")
    return culprit(computed_at(line, value), "the learning rate is set here")


def _function_named(file: str, name: str) -> Any:
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return getattr(module, name, None)
    return None


def _arguments(investigation: Investigation, wanted: list[Any]) -> tuple[Any, ...] | None:
    """The arguments of a call as numbers, evaluated with the loop's variables."""
    scene = investigation.vehicle.scene
    variables = scene.variables if scene is not None else {}
    found: list[Any] = []
    for node in wanted:
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Name):
            value = variables.get(node.id)
        if not isinstance(value, (int, float)):
            return (investigation.window.step,) if len(wanted) == 1 else None
        found.append(value)
    return tuple(found)


def _epsilon(investigation: Investigation, e: Evidence) -> Culprit | None:
    if e.is_in_library_optimizer or e.location.file is None:
        return _optimizer(investigation, e, _EPS_NAMES)
    return None


def _scaling(investigation: Investigation, e: Evidence) -> Culprit | None:
    traced = investigation.traced
    place = investigation.engine.step_place
    if e.scale.is_stepped_again and place.code is not None and place.line is not None:
        again = Frame(place.code.co_filename, place.line, place.code.co_name)
        return culprit(again, "the step that the scaler has left out is taken here")
    if e.scale.is_passed_by:
        return culprit(step_without_scaler(investigation), "the scaled gradients are applied here")
    if e.scale.scaler is None and traced is not None and traced.loss_factor_line is not None:
        return culprit(traced.loss_factor_line, "the loss is multiplied here")
    for scaler in investigation.state.scalers:
        frame = _user(made_at(scaler)) or _called(investigation, type(scaler).__name__)
        return culprit(frame, f"{type(scaler).__name__} is made here")
    return None


def _checkpoint(investigation: Investigation, e: Evidence) -> Culprit | None:
    label = (e.source.label if e.source is not None else None) or ""
    is_optimizer = label.startswith("optimizer_state")
    return _restored(investigation, "optimizer" if is_optimizer else "model")


def _resume(investigation: Investigation, e: Evidence) -> Culprit | None:
    r = e.resume
    if r.has_scheduler and not r.scheduler and r.saved_lr and max(r.first_lr) > max(r.saved_lr):
        # The new schedule has replaced the restored learning rate.
        for scheduler in reversed(list(investigation.state.schedulers)):
            if (frame := _user(made_at(scheduler))) is not None:
                return culprit(frame, f"{type(scheduler).__name__} begins anew here")
    return _restored(investigation, "optimizer" if r.optimizer and r.saved_lr else "model")


def _restored(investigation: Investigation, what: str) -> Culprit | None:
    state = investigation.state
    modules = [m for root in state.roots.values() for m in root.modules()]
    for name in (what, "model", "optimizer"):
        targets: list[Any] = modules if name == "model" else list(state.optimizers)
        note = provenance.restore_of(*targets)
        if note is not None and (frame := _user(note.stack)) is not None:
            return culprit(frame, f"the {name} is restored here")
    return None


def _data(investigation: Investigation, e: Evidence) -> Culprit | None:
    d = e.data
    if d is None or d.file is None or d.line is None:
        return None
    what = "the batch is made bad here" if d.origin == "pipeline" else "the sample is read here"
    return culprit(Frame(d.file, d.line, d.function or "?"), what)


def _initialization(investigation: Investigation, e: Evidence) -> Culprit | None:
    m = e.memory
    if m is not None and m.file is not None and m.line is not None and m.filling != "filled":
        return culprit(Frame(m.file, m.line, "?"), "it is allocated here")
    if e.event.phase != "parameter" or e.source is None or not e.source.label:
        return None
    path = e.source.label.split(" ", 1)[-1]
    owner, _ = owner_of(investigation, path)
    homes = source_files(list(type(owner).__mro__)) if owner is not None else []
    frame = made_attribute(homes, path) or made_attribute(own_files(investigation), path)
    return culprit(frame, f"{path.rpartition('.')[2]} is made here")


def _layer(investigation: Investigation, e: Evidence) -> Culprit | None:
    """A normalization without an epsilon, or a direction of zeros."""
    return culprit(
        layer_line(investigation.state, e, own_files(investigation)), "the layer is given this here"
    )


_FINDERS: dict[str, Finder] = {
    "zero_denominator": _layer,
    "lr_divergence": _learning_rate,
    "bad_schedule": _learning_rate,
    "optimizer_denominator": _epsilon,
    "loss_scaling": _scaling,
    "corrupt_checkpoint": _checkpoint,
    "resume_mismatch": _resume,
    "bad_preprocessing": _data,
    "bad_input_data": _data,
    "bad_initialization": _initialization,
    "uninitialized_memory": _initialization,
}
CULPRITS = frozenset(_FINDERS)
"""The causes that are settings."""
