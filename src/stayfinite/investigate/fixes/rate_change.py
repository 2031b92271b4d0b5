"""Writes a proved learning rate or clip norm as a diff of the line that sets it."""

from __future__ import annotations

import ast
import hashlib
import inspect
import math
from collections.abc import Generator
from dataclasses import dataclass, replace

from torch.optim import Optimizer

from ...diagnose.evidence import Evidence
from ...diagnose.words import num
from ...locate.frames import Frame, place_of
from ...patches.made_at import made_at
from ...records import Culprit, Fix, Proof
from ...remedies import (
    Edit,
    Remedy,
    Source,
    apply,
    at_most,
    lines_before,
    unified_diff,
    with_argument,
    with_keyword,
)
from ...runtime.window import Replay, ReplayResult
from .. import changes
from ..evidence.setting_lines import assigned_keys
from ..laboratory import Laboratory
from ..search import Search, has_risen
from .setting_change import only_call, place_of_culprit, shown_path
from .where_set import call_at, key_of, number_behind, option_for, source_of

__all__ = ["setting_diff"]

_PEAKS = {"OneCycleLR": ("max_lr", 1), "CyclicLR": ("max_lr", 2)}

Made = Generator[Replay, ReplayResult, Fix]


def setting_diff(lab: Laboratory, e: Evidence, fix: Fix) -> Made:
    """The fix with its diff, if it is a rate or a norm that was run and its line is known."""
    if fix.status != "proved" or fix.diff or fix.remedy:
        return fix
    if fix.experiment == "clipped" and e.clip is not None and e.clip.passed is not None:
        return _clip_diff(lab, fix, e.clip.passed)
    rate = e.rate
    if e.resume.optimizer:
        return fix  # a restore overwrites the rate that the optimizer is made with
    if fix.experiment != "smaller_lr" or rate is None or not rate.passed or not rate.before:
        return fix
    place = place_of_culprit(lab, e, "lr_divergence")
    optimizer = max(lab.state.optimizers, key=_rate, default=None)
    if optimizer is None:
        return fix
    fast = [o for o in lab.state.optimizers if _rate(o) > rate.passed]
    if len(fast) > 1:  # the proof covers only a change of all of them
        return _lower_several(lab, fast, fix, rate.passed) or fix
    if place is not None and "formula" in place.what:
        made = yield from _capped_formula(lab, optimizer, fix, place, rate.passed)
        if made is not None:
            return made
    if place is not None and (
        "formula" in place.what or place.what.startswith("the learning rate")
    ):
        made = yield from _capped_assignment(lab, fix, place, rate.passed)
        return made or fix
    ratio = rate.passed / rate.before
    if place is not None and any(f"{kind} is made" in place.what for kind in _PEAKS):
        return _lower_peak(fix, place, ratio, optimizer) or fix
    if _is_moved_by_hand(lab, e):
        return fix  # what it is made with would be overwritten
    return _lower_given(lab, optimizer, fix, place, ratio) or fix


def _is_moved_by_hand(lab: Laboratory, e: Evidence) -> bool:
    """Whether the script sets other rates as it goes, in a way that is not known."""
    return not len(lab.state.schedulers) and len({r.lr for r in e.history if r.lr}) > 1


def _rate(optimizer: Optimizer) -> float:
    rates = [float(g["lr"]) for g in optimizer.param_groups if "lr" in g]
    return max((r if math.isfinite(r) else math.inf for r in rates), default=0.0)


def _text(value: float) -> str:
    return f"{value:.4g}"


def _with_diff(fix: Fix, file: str, before: str, remedy: Remedy, title: str | None = None) -> Fix:
    after, _ = apply(before, [remedy])
    return replace(
        fix, title=title or fix.title, file=file, line=remedy.line, remedy=remedy.name,
        diff=unified_diff(shown_path(file), before, after),
        file_sha256=hashlib.sha256(before.encode()).hexdigest(),
    )  # fmt: skip


@dataclass(frozen=True)
class _Rate:
    """A rate in the source, and its replacement."""

    file: str
    text: str
    line: int
    edit: Edit
    option: str | None = None
    """The command-line option of the rate."""


def _lower_given(
    lab: Laboratory, optimizer: Optimizer, fix: Fix, place: Culprit | None, ratio: float
) -> Fix | None:
    """The rate that the optimizer is made with, if it is in the source."""
    at = (place.file, place.line) if place is not None else None
    given = optimizer.defaults.get("lr")
    if not isinstance(given, (int, float)):
        return None
    found = _given(lab, optimizer, at, given * ratio)
    return None if found is None else _set_all(fix, [found], _text(given * ratio))


def _lower_several(lab: Laboratory, fast: list[Optimizer], fix: Fix, limit: float) -> Fix | None:
    """The rates of all optimizers that are faster than what was seen to pass: each at that limit."""
    found: list[_Rate] = []
    for optimizer in fast:
        stack = [Frame(*place) for place in made_at(optimizer)]
        user = place_of(stack).user if stack else None
        at = (user.file, user.line) if user is not None else None
        one = _given(lab, optimizer, at, limit)
        if one is None or one.file != (found or [one])[0].file:
            return None
        found.append(one)
    return _set_all(fix, found, _text(limit))


def _set_all(fix: Fix, rates: list[_Rate], value: str) -> Fix:
    options = {r.option for r in rates}
    if len(options) == 1 and None not in options:
        fix = replace(fix, title=f"{fix.title} (on the command line: {options.pop()} {value})")
    first = rates[0]
    edits = tuple(dict.fromkeys(r.edit for r in rates))
    line = min(r.line for r in rates)
    remedy = Remedy(name="set_lr", title="", why="", line=line, edits=edits)
    return _with_diff(fix, first.file, first.text, remedy)


def _given(
    lab: Laboratory, optimizer: Optimizer, at: tuple[str, int] | None, value: float
) -> _Rate | None:
    """Where the rate of this optimizer is written; `at`: the line that makes it, if that is known."""
    kind = type(optimizer).__name__
    given = optimizer.defaults.get("lr")
    source = source_of(at[0]) if at is not None else None
    call = call_at(source, at[1], kind) if source is not None and at is not None else None
    file = at[0] if at is not None else ""
    if call is None:
        found = only_call(lab, kind)
        if found is None:
            return None
        file, _, source, call = found
    if source is None or not isinstance(given, (int, float)):
        return None
    names = [n for n in inspect.signature(type(optimizer).__init__).parameters if n != "self"]
    position = names.index("lr") if "lr" in names else len(names)
    expression = next((k.value for k in call.keywords if k.arg == "lr"), None)
    if expression is None and position < len(call.args):
        expression = call.args[position]
    text, option = _text(value), None
    unpacked = next((k.value for k in call.keywords if k.arg is None), None)
    if expression is None and unpacked is not None:  # SGD(parameters, **config["optimizer"])
        expression = ast.Subscript(value=unpacked, slice=ast.Constant("lr"), ctx=ast.Load())
    if expression is not None:
        where = number_behind(file, source, expression, float(given), made_at(optimizer))
        if where is not None:
            return _Rate(where.file, where.text, where.line, where.edit(text))
        option = option_for(key_of(expression) or "")
    edit = with_argument(source, call, "lr", position, text) if unpacked is None else None
    return None if edit is None else _Rate(file, source.text, call.lineno, edit, option)


def _lower_peak(fix: Fix, place: Culprit, ratio: float, optimizer: Optimizer) -> Fix | None:
    """The highest rate of a schedule that goes up and down again."""
    source = source_of(place.file)
    for kind, (key, position) in _PEAKS.items():
        call = call_at(source, place.line, kind) if source is not None else None
        if source is None or call is None:
            continue
        node = next((k.value for k in call.keywords if k.arg == key), None)
        if node is None and position < len(call.args):
            node = call.args[position]
        if node is None:
            return None
        before = source.text_of(node)
        number = _number(before)
        if number is not None:
            new = _text(number * ratio)
        elif (is_list := _is_list(node, optimizer)) is None:
            return None
        elif is_list:
            new = f"[{_text(ratio)} * rate for rate in {before}]"
        else:
            new = f"({before}) * {_text(ratio)}"
        edit = with_argument(source, call, key, position, new)
        if edit is None:
            return None
        remedy = Remedy(name="set_max_lr", title="", why="", line=call.lineno, edits=(edit,))
        title = f"lower the peak of the schedule: {key}={new} instead of {before}"
        return _with_diff(fix, place.file, source.text, remedy, title)
    return None


def _is_list(node: ast.expr, optimizer: Optimizer) -> bool | None:
    """Whether a peak is given for each group; None where one number for all and a list look alike."""
    if isinstance(node, (ast.List, ast.Tuple, ast.ListComp)):
        return True
    if isinstance(node, ast.BinOp):
        return False  # a list times a number would not have run
    peaks = {float(g.get("max_lr", 0.0)) for g in optimizer.param_groups}
    if len(peaks) > 1:
        return True
    return False if len(optimizer.param_groups) == 1 else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _capped_formula(
    lab: Laboratory, optimizer: Optimizer, fix: Fix, place: Culprit, passed: float
) -> Generator[Replay, ReplayResult, Fix | None]:
    """A schedule's formula with an upper limit: of the factor, or of the rates that it gives."""
    source = source_of(place.file)
    if source is None or not len(lab.state.schedulers):
        return None
    base = [float(g.get("initial_lr", g.get("lr", 0.0))) for g in optimizer.param_groups]
    is_factor = place.what == "the schedule's formula"
    limit = passed / max(base) if is_factor and max(base, default=0.0) > 0 else passed
    remedy = at_most(source, place.line, _text(limit), is_list=not is_factor)
    if remedy is None:
        return None
    return (yield from _run_capped(lab, fix, place.file, source, remedy, passed))


def _capped_assignment(
    lab: Laboratory, fix: Fix, place: Culprit, passed: float
) -> Generator[Replay, ReplayResult, Fix | None]:
    """A loop that sets the rate by itself: what it sets, with an upper limit."""
    source = source_of(place.file)
    lines = [line.line for line, _ in assigned_keys([place.file], "lr")]
    found = [at_most(source, line, _text(passed)) for line in lines] if source is not None else []
    remedies = [r for r in found if r is not None]
    if source is None or not remedies or len(remedies) < len(found):
        return None
    edits = tuple(edit for r in remedies for edit in r.edits)
    remedy = replace(remedies[0], edits=edits)
    return (yield from _run_capped(lab, fix, place.file, source, remedy, passed))


def _run_capped(
    lab: Laboratory, fix: Fix, file: str, source: Source, remedy: Remedy, passed: float
) -> Generator[Replay, ReplayResult, Fix | None]:
    """Where the search has scaled the rates, a limit is something else, and is run as such."""
    title = f"{remedy.title} (a learning rate of {num(passed)} at most)"
    made = _with_diff(fix, file, source.text, remedy, title)
    if has_risen(lab):
        return made
    search = Search(lab, [passed], lambda value: [changes.limited_lr(value)])
    with lab.restored():
        found = yield from search.run(None, usual=passed)
    if found is None or found.passed is None:
        return None
    proof = Proof(
        is_step_finite=True, num_after=found.num_steps, note="from the last healthy state on"
    )
    return replace(made, proof=proof)


def _clip_diff(lab: Laboratory, fix: Fix, norm: float) -> Fix:
    """Clipping put in front of the loop's own optimizer step; of a guard's, its `clip_norm`."""
    if lab.window.batches and lab.window.batches[0].loss_fn is not None:
        guard = only_call(lab, "Guard")
        if guard is None:
            return fix
        remedy: Remedy | None = with_keyword(guard[2], guard[3], "clip_norm", _text(norm))
        return _with_diff(fix, guard[0], guard[1], remedy) if remedy is not None else fix
    place = lab.investigation.engine.step_place
    scene = lab.investigation.vehicle.scene
    if place.code is None or scene is None or scene.code is not place.code:
        return fix
    file, line = place.code.co_filename, place.line
    source = source_of(file)
    if source is None or line is None:
        return fix
    optimizer = next(
        (name for name, value in scene.variables.items()
         if isinstance(value, Optimizer) and f"{name}.step(" in source.lines[line - 1]), None,
    )  # fmt: skip
    torch = next((n for n in ("torch",) if n in scene.variables), None)
    if optimizer is None or torch is None:
        return fix
    roots = {id(m) for m in lab.state.roots.values()}
    model = next(
        (n for n, v in scene.variables.items() if id(v) in roots and n.isidentifier()), None
    )
    what = (
        f"{model}.parameters()"
        if model
        else f'[p for g in {optimizer}.param_groups for p in g["params"]]'
    )
    text = f"{torch}.nn.utils.clip_grad_norm_({what}, {_text(norm)})"
    remedy = lines_before(source, line, [text], "clip_norm", "", "")
    return fix if remedy is None else _with_diff(fix, file, source.text, remedy)
