"""A fix that moves gradient clipping before the optimizer step."""

from __future__ import annotations

import ast
from functools import partial
from typing import Any

from ...remedies import Candidate, Source, apply, clip_behind, find
from ...runtime.step_changes import clipped
from ..laboratory import Laboratory
from .setting_change import SettingChange
from .where_set import source_of

__all__ = ["clip_order_change"]


def clip_order_change(lab: Laboratory) -> SettingChange | None:
    """Move the statement; the proof runs the training with its gradients clipped to the given norm."""
    place = lab.investigation.engine.step_place
    source = source_of(place.code.co_filename) if place.code is not None else None
    step = _step_at(source, place.line) if source is not None and place.line else None
    if source is None or step is None or place.code is None:
        return None
    call, remedy = clip_behind(source, step), find(source, step, "clip_first")
    norm = _norm(lab, call) if call is not None else None
    if remedy is None or norm is None:
        return None
    after, done = apply(source.text, [remedy])
    file = place.code.co_filename
    return SettingChange(
        file, source.text, after, Candidate(done, after), partial(clipped, norm),
        is_from_snapshot=True,
    )  # fmt: skip


def _step_at(source: Source, line: int) -> ast.Call | None:
    calls = (n for n in source.at_line(line) if isinstance(n, ast.Call))
    return next((c for c in calls if getattr(c.func, "attr", "") == "step"), None)


def _norm(lab: Laboratory, call: ast.Call) -> float | None:
    """The limit in the call: a number, or a variable of the loop."""
    given = next((k.value for k in call.keywords if k.arg == "max_norm"), None)
    given = call.args[1] if given is None and len(call.args) > 1 else given
    scene = lab.investigation.vehicle.scene
    value: Any = given.value if isinstance(given, ast.Constant) else None
    if isinstance(given, ast.Name) and scene is not None:
        value = scene.variables.get(given.id)
    return float(value) if type(value) in (int, float) and value > 0 else None
