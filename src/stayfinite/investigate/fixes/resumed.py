"""The file that a resume has read, and how further restores from it are written and run."""

from __future__ import annotations

import ast
import contextlib
import copy
from typing import Any

import torch

from ...remedies import Candidate, Remedy, Source, apply
from ..evidence.own_schedules import StandIn
from .setting_change import SettingChange

__all__ = ["change_of", "holder_of", "rates_of", "saved_part"]


def change_of(source: Source, file: str, remedy: Remedy | None) -> SettingChange | None:
    if remedy is None:
        return None
    after, done = apply(source.text, [remedy])
    change = SettingChange(file, source.text, after, Candidate(done, after), contextlib.nullcontext)
    change.is_from_snapshot = True
    return change


def holder_of(source: Source, line: int) -> str | None:
    """The name of the loaded file: `saved` in `optimizer.load_state_dict(saved["optimizer"])`."""
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


def saved_part(path: str | None, mark: str) -> tuple[str | None, dict[str, Any]]:
    """The key and the state of a part in a file, recognized by an entry that only such a state has."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True) if path else None
    except Exception:
        return None, {}
    for key, part in value.items() if isinstance(value, dict) else ():
        if isinstance(part, dict) and mark in part:
            return str(key), part
    return None, {}


def rates_of(scheduler: Any, state: dict[str, Any], number: int) -> list[float] | None:
    """The rates that a copy of the schedule gives from there on."""
    try:
        groups = scheduler.optimizer.param_groups
        last = state.get("_last_lr") or [g["lr"] for g in groups]
        stand_in = StandIn(
            {"lr": rate, "initial_lr": g.get("initial_lr", g["lr"])}
            for g, rate in zip(groups, last)
        )
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
