"""Finds the line that computed a stored -inf of a data set: a logarithm of 0."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ...diagnose.evidence import Data
from ...locate.frames import is_user_file
from ...parsing import parsed
from ..replays.changed_source import text_of_file

__all__ = ["made_by_logarithm"]

_LOGS = ("log", "log2", "log10")
_CONVERT = ("tensor", "as_tensor", "from_numpy", "FloatTensor", "asarray", "array", "astype", "to_numpy",
            "float", "double", "to", "reshape", "view", "unsqueeze", "squeeze", "contiguous", "numpy")  # fmt: skip


def made_by_logarithm(dataset: Any, stored: Iterable[tuple[str, Any]]) -> Data | None:
    """The line that made a -inf: only the logarithm of 0 gives one."""
    kind = type(dataset)
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        return None
    text = text_of_file(file) if file is not None and is_user_file(file) else None
    if file is None or text is None:
        return None
    for name, value in stored:
        attribute = re.fullmatch(r"dataset\.(\w+)", name)
        if attribute is None or not _is_only_minus_inf(value):
            continue
        for function, statement in _assignments(text, kind.__qualname__, attribute[1]):
            if _takes_logarithm(statement.value):
                line = statement.value.lineno
                return Data(
                    origin="pipeline", is_stored=True, file=file, line=line, function=function,
                    source=text.splitlines()[line - 1].strip(),
                    detail=f"{name} holds -inf, which a logarithm gives for 0 and for nothing else.",
                )  # fmt: skip
    return None


def _is_only_minus_inf(value: Any) -> bool:
    """Whether all values that are not finite are -inf."""
    flat = value.reshape(-1).tolist() if hasattr(value, "reshape") else value
    if not isinstance(flat, (list, tuple)):
        return False
    bad = [v for v in flat if isinstance(v, float) and not math.isfinite(v)]
    return bool(bad) and all(v == -math.inf for v in bad)


def _assignments(text: str, name: str, attribute: str) -> Iterator[tuple[str, ast.Assign]]:
    """The assignments `self.y = ...` in the methods of a class."""
    classes = [n for n in ast.walk(parsed(text)) if isinstance(n, ast.ClassDef)]
    for node in (c for c in classes if c.name == name.rpartition(".")[2]):
        for method in (n for n in node.body if isinstance(n, ast.FunctionDef)):
            for statement in ast.walk(method):
                if isinstance(statement, ast.Assign) and any(
                    isinstance(t, ast.Attribute) and t.attr == attribute for t in statement.targets
                ):
                    yield method.name, statement


def _takes_logarithm(node: ast.expr) -> bool:
    """Whether an expression is a logarithm, apart from conversions."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _LOGS:
            return True
        if node.func.attr not in _CONVERT:
            return False
        is_method = not isinstance(node.func.value, ast.Name)
        node = node.func.value if is_method or not node.args else node.args[0]
    return False
