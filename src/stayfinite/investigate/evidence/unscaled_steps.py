"""Finds an optimizer that steps without the GradScaler that scales its loss."""

from __future__ import annotations

import ast

from ...locate.frames import Frame
from ..fixes.where_set import source_of
from ..investigation import Investigation

__all__ = ["step_without_scaler"]


def step_without_scaler(investigation: Investigation) -> Frame | None:
    """The only line that steps without the scaler; None if there is none, or it is not certain."""
    place = investigation.engine.step_place
    if place.code is None or place.line is None or not len(investigation.state.scalers):
        return None
    source = source_of(place.code.co_filename)
    if source is None:
        return None
    scope = source.function_at(place.line)
    calls = [n for n in ast.walk(scope) if isinstance(n, ast.Call)]
    backwards = [c for c in calls if _method(c) == "backward"]
    if not backwards or not all(_is_scaled(c) for c in backwards):
        return None
    steps = [c for c in calls if _method(c) == "step"]
    through = {ast.unparse(c.args[0]) for c in steps if len(c.args) == 1}
    plain = [c for c in steps if not c.args and not c.keywords and _is_optimizer(investigation, c)]
    plain = [c for c in plain if ast.unparse(_receiver(c)) not in through]
    if not through or len(plain) != 1:
        return None
    return Frame(place.code.co_filename, plain[0].lineno, place.code.co_name)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _receiver(call: ast.Call) -> ast.expr:
    assert isinstance(call.func, ast.Attribute)
    return call.func.value


def _is_scaled(call: ast.Call) -> bool:
    """Whether this is `scaler.scale(loss).backward()`."""
    inner = _receiver(call)
    return isinstance(inner, ast.Call) and _method(inner) == "scale"


def _is_optimizer(investigation: Investigation, call: ast.Call) -> bool:
    """Whether this variable is known to be an optimizer, and not a schedule."""
    scene = investigation.vehicle.scene
    name = _receiver(call)
    if scene is None or not isinstance(name, ast.Name):
        return False
    value = scene.variables.get(name.id)
    return any(value is o for o in investigation.state.optimizers)
