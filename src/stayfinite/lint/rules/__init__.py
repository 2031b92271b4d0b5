"""The rules, a file for each family. Importing them registers them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

from ..context import Context, Hit
from ..module import Module
from ..operation import Operation
from .registry import END_OF_FILE, END_OF_FUNCTION, ON_OPERATION

__all__ = ["at_end_of_file", "at_end_of_function", "rules_for"]

for _name in (
    "logs",
    "exponentials",
    "divisions",
    "roots",
    "branches",
    "masks",
    "reductions",
    "precision",
    "memory",
    "loop_scaler",
    "loop_order",
    "loop_checks",
):
    importlib.import_module(f"{__name__}.{_name}")


def rules_for(name: str) -> Iterable[Callable[[Operation, Context], None]]:
    """The rules that look at an operation of this name."""
    return ON_OPERATION.get(name, ())


def at_end_of_function() -> Iterable[Callable[[Context], None]]:
    """The rules that look at a function as a whole."""
    return END_OF_FUNCTION


def at_end_of_file() -> Iterable[Callable[[Module, list[Context]], Iterable[Hit]]]:
    """The rules that look at a file as a whole."""
    return END_OF_FILE
