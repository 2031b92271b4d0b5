"""A fix for a wrong loss scale: a scaler that is never stepped, or a constant that is too large."""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...diagnose.evidence import Evidence
from ...patches.made_at import made_at
from ...remedies import (
    Candidate,
    Remedy,
    Source,
    apply,
    find,
    scaled_loss,
    step_left_to_scaler,
    with_keyword,
)
from ..evidence.script_files import own_files
from ..evidence.unscaled_steps import step_without_scaler
from ..laboratory import Laboratory
from ..replays.changed_source import ChangedSource, NotRunnable, functions_of, text_of_file
from .setting_change import SettingChange, only_call
from .where_set import Written, call_at, number_behind, numbers_called, source_of

__all__ = ["is_fixed_scale", "scale_changes"]

_SMALLER = (16, 256, 4096)
_DISTANCE = 16
"""A scale that barely passes the available batches may fail on others, so this factor less is proposed."""


def scale_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """Step through the scaler and only there, then disable the scaler; or use smaller constants."""
    if e.scale.is_stepped_again:
        yield from _stepped_once(lab)
        return
    scaler = _scaler(lab, e)
    if scaler is not None:
        yield from _stepped(lab, scaler)
        if e.dtype != "float16" and all(
            p.dtype != torch.float16 for _, p in lab.state.parameters()
        ):
            yield from _switched_off(lab, scaler)  # float16 needs one
        return
    factor = e.scale.factor
    traced = lab.investigation.traced
    line = traced.loss_factor_line if traced is not None else None
    source = source_of(line.file) if line is not None else None
    if factor is None or factor < 2 or line is None or source is None:
        return
    if _needs_scale(lab, e):
        yield from _dynamic(lab, source, line.file, line.line, factor)
    where = _constant(lab, source, line.file, line.line, factor)
    if where is None:
        return
    places = _places(where, source, line.file, line.line, factor)
    if not places:
        return
    if not _needs_scale(lab, e):
        # Nothing underflows, and a smaller scale may only delay a divergence.
        yield _smaller(where, places, 1.0, 1.0)
        return
    for times in _SMALLER:
        yield _smaller(where, places, max(1.0, factor / times / _DISTANCE), factor / times)


def _needs_scale(lab: Laboratory, e: Evidence) -> bool:
    """Whether gradients are computed in float16."""
    if e.dtype == "float16" or any(p.dtype == torch.float16 for _, p in lab.state.parameters()):
        return True
    texts = [text_of_file(f) or "" for f in own_files(lab.investigation)]
    return any("float16" in t.replace("bfloat16", "") or ".half(" in t for t in texts)


def _scaler(lab: Laboratory, e: Evidence) -> Any:
    """The GradScaler whose factor is never removed from the gradients."""
    if e.scale.is_scaler_unused or e.scale.is_passed_by:
        return next(iter(lab.state.scalers), None)
    if e.scale.scaler is not None or e.scale.factor is None:
        return None
    live = [s for s in gc.get_objects() if type(s) is torch.amp.GradScaler and s.is_enabled()]
    return next((s for s in live if s.get_scale() == e.scale.factor), None)


def _stepped(lab: Laboratory, scaler: Any) -> Iterator[SettingChange]:
    """`scaler.step(optimizer); scaler.update()` instead of the loop's own step."""
    place = lab.investigation.engine.step_place
    file, line = (place.code.co_filename, place.line) if place.code is not None else ("", None)
    beside = step_without_scaler(lab.investigation)
    line = beside.line if beside is not None else line
    source = source_of(file) if line is not None else None
    if line is None or source is None:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0):
            remedy = find(source, node, "scaler_step") if _is_step(node) else None
            if remedy is None:
                continue
            after, done = apply(source.text, [remedy])
            change = SettingChange(
                file, source.text, after, Candidate(done, after), partial(_off, scaler)
            )
            change.is_from_snapshot = True
            yield change


def _stepped_once(lab: Laboratory) -> Iterator[SettingChange]:
    """No step beside the scaler's own; run without a scale, since the scaler leaves this step out."""
    place, scaler = lab.investigation.engine.step_place, next(iter(lab.state.scalers), None)
    file = place.code.co_filename if place.code is not None else ""
    source = source_of(file) if file else None
    remedy = step_left_to_scaler(source, place.line) if source and place.line else None
    if source is None or remedy is None or scaler is None:
        return
    after, done = apply(source.text, [remedy])
    try:
        change = _WithoutScale(file, source.text, after, functions_of(file), scaler)
    except NotRunnable:
        return
    yield SettingChange(
        file, source.text, after, Candidate(done, after), contextlib.nullcontext, ways=(change,),
        note="with the scaler switched off",
    )  # fmt: skip


@dataclass(eq=False)
class _WithoutScale(ChangedSource):
    """A changed text that runs with the scaler disabled."""

    scaler: Any = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with super().installed(), _off(self.scaler):
            yield


def _is_step(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "step"


def _switched_off(lab: Laboratory, scaler: Any) -> Iterator[SettingChange]:
    found = next(
        ((f, s, c) for f, line, _ in made_at(scaler)
         if (s := source_of(f)) is not None and (c := call_at(s, line, "GradScaler")) is not None), None,
    )  # fmt: skip
    if found is None:
        only = only_call(lab, "GradScaler")
        found = (only[0], only[2], only[3]) if only is not None else None
    if found is None:
        return
    file, source, call = found
    remedy = with_keyword(source, call, "enabled", "False")
    after, done = apply(source.text, [remedy])
    change = SettingChange(file, source.text, after, Candidate(done, after), partial(_off, scaler))
    change.is_from_snapshot = True
    yield change


@contextlib.contextmanager
def _off(scaler: Any) -> Iterator[None]:
    kept = scaler._enabled
    scaler._enabled = False
    try:
        yield
    finally:
        scaler._enabled = kept


def is_fixed_scale(lab: Laboratory) -> bool:
    """Whether nothing in the file changes the factor of the loss."""
    traced = lab.investigation.traced
    line = traced.loss_factor_line if traced is not None else None
    source = source_of(line.file) if line is not None else None
    if line is None or source is None:
        return False
    names: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.BinOp) and node.lineno <= line.line <= (node.end_lineno or 0):
            if any(isinstance(side, ast.Subscript) for side in (node.left, node.right)):
                return False
            names |= {_called(side) for side in (node.left, node.right)}
    moved = {_called(n.target) for n in ast.walk(source.tree) if isinstance(n, ast.AugAssign)}
    for function in ast.walk(source.tree):
        if isinstance(function, ast.FunctionDef) and function.name != "__init__":
            moved |= {
                _called(t) for n in ast.walk(function) if isinstance(n, ast.Assign)
                for t in n.targets if isinstance(t, ast.Attribute)
            }  # fmt: skip
    return not (names - {""}) & moved


def _called(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _dynamic(
    lab: Laboratory, source: Source, file: str, line: int, factor: float
) -> Iterator[SettingChange]:
    """For a GradScaler: run with each scale in its sequence until one fits."""
    scaled = next((s for side in _factors(source, line) if _stands_for(lab, file, side, factor)
                   and (s := scaled_loss(source, line, side)) is not None), None)  # fmt: skip
    device = next((p.device.type for _, p in lab.state.parameters()), "cpu")
    remedy = scaled.with_scaler(device) if scaled is not None else None
    if scaled is None or remedy is None:
        return
    after, done = apply(source.text, [remedy])
    functions = functions_of(file)
    try:
        ast.parse(after)
        ways = [
            ChangedSource(file, source.text, scaled.with_number(2.0**power), functions)
            for power in range(16, -1, -2)
        ]
    except (SyntaxError, NotRunnable):
        return
    nothing = contextlib.nullcontext
    yield SettingChange(
        file, source.text, after, Candidate(done, after), nothing, ways=tuple(ways),
        note="with the scale that it comes to",
    )  # fmt: skip


def _stands_for(lab: Laboratory, file: str, node: ast.expr, factor: float) -> bool:
    """Whether an expression of the file has this value in the running program."""
    if isinstance(node, ast.Attribute):
        numbers = [vars(o).get(node.attr) for o in _holders(file)]
        return any(type(n) in (int, float) and n == factor for n in numbers)
    scene = lab.investigation.vehicle.scene
    if not isinstance(node, ast.Name) or scene is None or scene.file != file:
        return False
    value = scene.variables.get(node.id)
    return type(value) in (int, float) and value == factor


def _holders(file: str) -> list[Any]:
    """Objects of the file's own classes, and those with a command's options."""
    objects = gc.get_objects()
    kinds = [t for t in objects if issubclass(type(t), type)]
    own = {t for t in kinds if getattr(sys.modules.get(t.__module__), "__file__", None) == file}
    own |= {argparse.Namespace, types.SimpleNamespace}
    return [o for o in objects if type(o) in own and hasattr(o, "__dict__")]


def _factors(source: Source, line: int) -> Iterator[ast.expr]:
    """Both operands of every product on a line."""
    for node in ast.walk(source.tree):
        is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if is_product and node.lineno <= line <= (node.end_lineno or 0):  # type: ignore[attr-defined]
            yield from (node.left, node.right)  # type: ignore[attr-defined]


def _constant(
    lab: Laboratory, source: Source, file: str, line: int, factor: float
) -> Written | None:
    """The number by which the loss is multiplied."""
    given = [number_behind(file, source, side, factor, ()) for side in _factors(source, line)]
    found = [where for where in given if where is not None]
    if not found:  # perhaps an option of the script, or an argument of a class of another file
        found = list(numbers_called("scale", factor, own_files(lab.investigation)))
    return found[0] if len(set(found)) == 1 else None


def _places(
    where: Written, source: Source, file: str, line: int, factor: float
) -> list[tuple[dict[str, Any], str]]:
    """Where the running program holds the number: the names of modules, or the attribute of objects."""
    name = _module_name(where)
    modules = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == where.file]
    if name is not None:
        return [(vars(m), name) for m in modules]
    held = [side.attr for side in _factors(source, line) if isinstance(side, ast.Attribute)]
    objects = [vars(o) for o in _holders(file)]
    return [(o, key) for o in objects for key in held if o.get(key) == factor]


def _smaller(
    where: Written, places: list[tuple[dict[str, Any], str]], value: float, beyond: float
) -> SettingChange:
    """The number itself; where the program holds it, it is replaced during a replay."""
    text = f"{value:.1f}"
    remedy = Remedy(
        name="smaller_scale", title=f"lower the loss scale to {text}",
        why="gradients times the scale are then within the range of the dtype; torch.amp.GradScaler finds "
        "such a scale by itself",
        line=where.line, edits=(where.edit(text),),
    )  # fmt: skip
    after, done = apply(where.text, [remedy])
    change = SettingChange(
        where.file, where.text, after, Candidate(done, after), partial(_as, places, value)
    )
    change.is_from_snapshot = True
    change.beyond = partial(_as, places, beyond)
    return change


def _module_name(where: Written) -> str | None:
    """The module-level name of this number."""
    source = Source(where.text)
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and source.span(node.value) == (where.start, where.end):
            target = node.targets[0]
            return target.id if isinstance(target, ast.Name) else None
    return None


@contextlib.contextmanager
def _as(places: list[tuple[dict[str, Any], str]], value: float) -> Iterator[None]:
    kept = [space[name] for space, name in places]
    for space, name in places:
        space[name] = value
    try:
        yield
    finally:
        for (space, name), old in zip(places, kept):
            space[name] = old
