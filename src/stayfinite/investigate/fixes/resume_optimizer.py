"""A fix for a resume without the optimizer: restores it, and runs with the resulting moments and rates."""

from __future__ import annotations

import ast
import contextlib
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...patches.made_at import made_at
from ...remedies import Source, lines_after
from ...runtime.window import Window
from .. import changes
from ..laboratory import Laboratory
from .resumed import change_of, holder_of, rates_of, saved_part
from .setting_change import SettingChange

__all__ = ["with_optimizer"]


def with_optimizer(
    lab: Laboratory, source: Source, file: str, line: int, path: str | None, has_schedule: bool
) -> SettingChange | None:
    """`optimizer.load_state_dict(saved["optimizer"])` after the existing restores.

    `has_schedule`: whether the script restores the schedule. If not, that is added: a schedule that begins anew would set
    its own rate again.
    """
    holder, (key, saved) = holder_of(source, line), saved_part(path, "param_groups")
    optimizer = next(iter(lab.state.optimizers), None)
    if holder is None or key is None or optimizer is None or not _fits(optimizer, saved):
        return None
    name, made = _made_as(source, file, line, optimizer)
    name = name or _attribute(source, file, line, optimizer)
    statement = source.statement_at(line)
    beside = source.block(statement) if statement is not None else []
    last = max(_restores(source, line))
    if name is not None and made > last and source.statement_at(made) in beside:
        last = made
    if name is None or made > last:
        return None
    lines = [_restore(name, holder, key)]
    scheduler = next(reversed(list(lab.state.schedulers)), None)
    schedule_key, schedule = saved_part(path, "last_epoch")
    if scheduler is not None and schedule_key is not None and not has_schedule:
        its_name, at = _made_as(source, file, line, scheduler)
        its_name = its_name or _attribute(source, file, line, scheduler)
        if its_name is None or at > last:
            schedule = {}
        else:
            lines.append(_restore(its_name, holder, schedule_key))
    what = "the optimizer as well" if len(lines) == 1 else "the optimizer and its schedule as well"
    change = change_of(source, file, lines_after(
        source, last, lines, "restore_optimizer", f"restore {what}",
        "its moments and its learning rate belong to the weights that are restored",
    ))  # fmt: skip
    if change is not None:
        change.at = _Restored(lab, optimizer, saved, scheduler, schedule)
    return change


def _restore(name: str, holder: str, key: str) -> str:
    return f"{name}.load_state_dict({holder}[{key!r}])".replace("'", '"')


def _fits(optimizer: Optimizer, saved: dict[str, Any]) -> bool:
    theirs = saved.get("param_groups", [])
    mine = optimizer.param_groups
    return len(mine) == len(theirs) and all(
        len(a["params"]) == len(b["params"]) for a, b in zip(mine, theirs)
    )


def _made_as(source: Source, file: str, line: int, optimizer: Any) -> tuple[str | None, int]:
    """The name of the optimizer or its schedule in the function that restores, and the line."""
    for where, number, _ in made_at(optimizer):
        statement = source.statement_at(number) if where == file else None
        is_here = statement is not None and source.function_at(number) is source.function_at(line)
        if is_here and isinstance(statement, ast.Assign):
            target = statement.targets[0]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if len(names) > 1 or _called(statement.value) != type(optimizer).__name__:
                # An object that a function returns is known only by its name.
                names = [n for n in names if "opt" in source.text_of(n).lower()]
            if len(names) == 1:
                return source.text_of(names[0]), statement.end_lineno or number
    return None, 0


def _attribute(source: Source, file: str, line: int, wanted: Any) -> str | None:
    """`self.optimizer`, if another method of the class that restores has made it."""
    owner = source.parent(source.function_at(line))
    for where, number, _ in made_at(wanted):
        statement = source.statement_at(number) if where == file else None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        is_mine = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
        if is_mine and isinstance(owner, ast.ClassDef) and target is not None:
            is_same = source.parent(source.function_at(number)) is owner
            return source.text_of(target) if is_same else None
    return None


def _restores(source: Source, line: int) -> list[int]:
    """Where anything else is restored or a schedule is made: statements beside the one that has run.

    A branch that was not taken holds such calls as well, and a line put there would not run either.
    """
    statement = source.statement_at(line)
    beside = source.block(statement) if statement is not None else []
    found = [line]
    for each in beside:
        if hasattr(each, "body"):
            continue
        for node in ast.walk(each):
            called = _called(node)
            if called == "load_state_dict" or called.endswith(("LR", "Scheduler", "Restarts")):
                found.append(each.end_lineno or line)
    return found


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


class _Restored:
    """Moments of the file for the first step that is run, and from then on the rates that follow from it."""

    def __init__(
        self,
        lab: Laboratory,
        optimizer: Optimizer,
        saved: dict[str, Any],
        scheduler: Any,
        schedule: dict[str, Any],
    ) -> None:
        """`schedule`: the saved state of the scheduler; empty if it goes on as it is."""
        self._optimizer = optimizer
        self._saved = saved
        self._is_loaded = False
        self._rates = [tuple(float(g["lr"]) for g in saved["param_groups"])]
        if scheduler is not None:
            given = {**(schedule or scheduler.state_dict()), "_last_lr": list(self._rates[0])}
            found = rates_of(scheduler, given, lab.window.step + 8)
            self._rates = [(r,) * len(self._rates[0]) for r in found or ()] or self._rates
        moved = getattr(scheduler, "last_epoch", lab.window.step)
        self._is_slow = moved < lab.window.step
        """Whether the schedule moves on with the epochs: within the first, its rate stays."""

    def __call__(self, window: Window) -> AbstractContextManager[None]:
        if not self._is_loaded:
            self._is_loaded = True
            self._load()
        rates = self._rates[0 if self._is_slow else min(window.step, len(self._rates) - 1)]
        return changes.with_rates(rates) if rates else contextlib.nullcontext()

    def _load(self) -> None:
        """Write into the optimizer's own state; the laboratory restores it."""
        state = self._saved.get("state", {})
        for mine, theirs in zip(self._optimizer.param_groups, self._saved["param_groups"]):
            for p, index in zip(mine["params"], theirs["params"]):
                if index in state:
                    self._optimizer.state[p] = {
                        k: _like(v, p) if isinstance(v, Tensor) else v
                        for k, v in state[index].items()
                    }


def _like(value: Tensor, p: Tensor) -> Tensor:
    is_count = not value.is_floating_point() or value.numel() == 1
    return value.clone() if is_count else value.to(device=p.device, dtype=p.dtype, copy=True)
