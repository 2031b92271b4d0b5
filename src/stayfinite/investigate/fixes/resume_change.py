"""A fix for a partial resume: restores the missing parts, and runs with the resulting rates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import AbstractContextManager

from ...diagnose.evidence import Evidence
from ...remedies import Remedy, Source, lines_after
from ...runtime.window import Window
from .. import changes
from ..laboratory import Laboratory
from .resume_optimizer import with_optimizer
from .resumed import change_of, holder_of, rates_of, saved_part
from .setting_change import SettingChange, source_of_culprit

__all__ = ["resume_changes"]

_APART = 1.5


def resume_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """Set the configured rate after the restore, or restore the schedule after it."""
    found = source_of_culprit(lab, e, "resume_mismatch")
    if found is None:
        return
    place, source = found
    r = e.resume
    saved = r.saved_lr or r.file_lr
    if "begins anew" in place.what:
        made = _with_schedule(lab, source, place.file, place.line, r.path)
        if made is not None:
            yield made
    if r.model and not r.optimizer and r.file_has_optimizer:
        made = with_optimizer(lab, source, place.file, place.line, r.path, r.scheduler)
        if made is not None:
            yield made
    is_higher = any(a * _APART < b for a, b in zip(r.configured_lr, saved))
    if r.optimizer and is_higher and len(r.configured_lr) == len(saved):
        made = _with_rate(source, place.file, place.line, r.configured_lr)
        if made is not None:
            yield made


def _assigned(source: Source, line: int, rates: tuple[float, ...]) -> Remedy | None:
    """Set the rates after a restore of the optimizer."""
    statement = source.statement_at(line)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    who = source.text_of(call.func.value)
    lines = [f"for group in {who}.param_groups:", f'    group["lr"] = {rates[0]:.6g}']
    if len(set(rates)) > 1:
        texts = ", ".join(f"{r:.6g}" for r in rates)
        lines = [
            f"for group, rate in zip({who}.param_groups, ({texts})):",
            '    group["lr"] = rate',
        ]
    return lines_after(
        source, line, lines,
        "set_rate_again", "set the learning rate again behind load_state_dict",
        "load_state_dict of an optimizer also restores the rate of the run that saved it",
    )  # fmt: skip


def _with_rate(
    source: Source, file: str, line: int, rates: tuple[float, ...]
) -> SettingChange | None:
    """Set the rates that the script had configured."""
    change = change_of(source, file, _assigned(source, line, rates))
    if change is not None:
        change.at = lambda window: changes.with_rates(rates)
    return change


def _with_schedule(
    lab: Laboratory, source: Source, file: str, line: int, path: str | None
) -> SettingChange | None:
    """Restore the schedule from the same file."""
    statement = source.statement_at(line)
    scheduler = next(reversed(list(lab.state.schedulers)), None)
    if not isinstance(statement, ast.Assign) or scheduler is None:
        return None
    name, holder = source.text_of(statement.targets[0]), holder_of(source, line)
    key, state = saved_part(path, "last_epoch")
    optimizer = _optimizer(statement.value)
    if holder is None or key is None or optimizer is None:
        return None
    lines = [
        f"{name}.load_state_dict({holder}[{key!r}])".replace("'", '"'),
        f"for group, rate in zip({optimizer}.param_groups, {name}.get_last_lr()):",
        '    group["lr"] = rate',
    ]
    change = change_of(source, file, lines_after(
        source, line, lines, "restore_schedule", "restore the scheduler as well",
        "a new schedule starts at its peak again; the checkpoint had come down from it",
    ))  # fmt: skip
    rates = rates_of(scheduler, state, lab.window.step + 8) if change is not None else None
    if change is None or rates is None:
        return None
    change.at = lambda window: _at_rate(rates, window)
    return change


def _at_rate(rates: list[float], window: Window) -> AbstractContextManager[None]:
    return changes.with_setting("lr", rates[min(window.step, len(rates) - 1)])


def _optimizer(value: ast.expr) -> str | None:
    """The name of the optimizer of a schedule."""
    if not isinstance(value, ast.Call) or not value.args:
        return None
    return (
        ast.unparse(value.args[0]) if isinstance(value.args[0], (ast.Name, ast.Attribute)) else None
    )
