"""A resume that brought back only a part: the lines that bring the rest back, and the rates that they give, run."""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..diagnose.evidence import Evidence
from ..remedies import Candidate, Remedy, Source, apply, lines_after
from ..runtime.window import Window
from . import changes
from .culprit import culprit_of
from .laboratory import Laboratory
from .setting_change import SettingChange
from .where_set import source_of

__all__ = ["resume_changes"]

_APART = 1.5


def resume_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """The configured rate set again behind the restore, or the schedule restored behind it."""
    place = None
    with contextlib.suppress(Exception):
        place = culprit_of(lab.about, e, "resume_mismatch")
    source = source_of(place.file) if place is not None else None
    if place is None or source is None:
        return
    r = e.resume
    saved = r.saved_lr or r.file_lr
    if "begins anew" in place.what:
        made = _with_schedule(lab, source, place.file, place.line, r.path)
        if made is not None:
            yield made
    if r.optimizer and r.configured_lr and saved and max(r.configured_lr) * _APART < max(saved):
        made = _with_rate(source, place.file, place.line, min(r.configured_lr))
        if made is not None:
            yield made


def _assigned(source: Source, line: int, rate: float) -> Remedy | None:
    """The rate set behind a restore of the optimizer."""
    statement = source.statement_at(line)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    who = source.text_of(call.func.value)
    return lines_after(
        source, line, [f"for group in {who}.param_groups:", f'    group["lr"] = {rate:.6g}'],
        "set_rate_again", "set the learning rate again behind load_state_dict",
        "load_state_dict of an optimizer also restores the rate of the run that saved it",
    )  # fmt: skip


def _change(source: Source, file: str, remedy: Remedy | None) -> SettingChange | None:
    if remedy is None:
        return None
    after, done = apply(source.text, [remedy])
    change = SettingChange(file, source.text, after, Candidate(done, after), contextlib.nullcontext)
    change.is_from_snapshot = True
    return change


def _with_rate(source: Source, file: str, line: int, rate: float) -> SettingChange | None:
    """The rate that the script had configured, set again."""
    change = _change(source, file, _assigned(source, line, rate))
    if change is not None:
        change.at = lambda window: changes.with_setting("lr", rate)
    return change


def _with_schedule(
    lab: Laboratory, source: Source, file: str, line: int, path: str | None
) -> SettingChange | None:
    """The schedule's own state, from the file that the rest came from."""
    statement = source.statement_at(line)
    scheduler = next(reversed(list(lab.state.schedulers)), None)
    if not isinstance(statement, ast.Assign) or scheduler is None:
        return None
    name, holder = source.text_of(statement.targets[0]), _holder(source, line)
    key, state = _saved(path)
    optimizer = _optimizer(statement.value)
    if holder is None or key is None or optimizer is None:
        return None
    lines = [
        f"{name}.load_state_dict({holder}[{key!r}])".replace("'", '"'),
        f"for group, rate in zip({optimizer}.param_groups, {name}.get_last_lr()):",
        '    group["lr"] = rate',
    ]
    change = _change(source, file, lines_after(
        source, line, lines, "restore_schedule", "restore the scheduler as well",
        "a new schedule starts at its peak again; the checkpoint had come down from it",
    ))  # fmt: skip
    rates = _rates(scheduler, state, lab.window.step + 8) if change is not None else None
    if change is None or rates is None:
        return None
    change.at = lambda window: _at_rate(rates, window)
    return change


def _at_rate(rates: list[float], window: Window) -> AbstractContextManager[None]:
    return changes.with_setting("lr", rates[min(window.step, len(rates) - 1)])


def _optimizer(value: ast.expr) -> str | None:
    """The name of the optimizer that a schedule is made for."""
    if not isinstance(value, ast.Call) or not value.args:
        return None
    return (
        ast.unparse(value.args[0]) if isinstance(value.args[0], (ast.Name, ast.Attribute)) else None
    )


def _holder(source: Source, line: int) -> str | None:
    """The name of what was loaded: `saved` of `optimizer.load_state_dict(saved["optimizer"])`."""
    scope = source.function_at(line)
    for node in ast.walk(scope):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "load_state_dict"
            and node.args
        ):
            given = node.args[0]
            if isinstance(given, ast.Subscript) and isinstance(
                given.value, (ast.Name, ast.Attribute)
            ):
                return source.text_of(given.value)
    return None


def _saved(path: str | None) -> tuple[str | None, dict[str, Any]]:
    """The key and the state of a schedule in a file, known by its shape."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True) if path else None
    except Exception:
        return None, {}
    for key, part in value.items() if isinstance(value, dict) else ():
        if isinstance(part, dict) and "last_epoch" in part:
            return str(key), part
    return None, {}


def _rates(scheduler: Any, state: dict[str, Any], number: int) -> list[float] | None:
    """The rates that the schedule gives from there on, by a copy that moves an optimizer of its own."""
    try:
        groups = scheduler.optimizer.param_groups
        last = state.get("_last_lr") or [g["lr"] for g in groups]
        stand_in = torch.optim.SGD([{"params": [torch.zeros(1)]} for _ in groups], lr=1.0)
        for own, theirs, rate in zip(stand_in.param_groups, groups, last):
            own.update(lr=rate, initial_lr=theirs.get("initial_lr", theirs["lr"]))
        mine = copy.copy(scheduler)
        mine.optimizer = stand_in
        mine.load_state_dict(dict(state))
        rates = []
        for _ in range(number):
            rates.append(float(stand_in.param_groups[0]["lr"]))
            mine.step()
        return rates
    except Exception:
        return None
