"""Finds the number in the source or a config file that sets a value. Names are followed to their assignments, and
arguments to the callers.
"""

from __future__ import annotations

import ast
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...locate.frames import is_user_file
from ...remedies import Edit, Source
from ..replays.changed_source import text_of_file

__all__ = [
    "Written",
    "call_at",
    "config_number",
    "number_behind",
    "numbers_called",
    "option_for",
    "source_of",
]

_MOST = 8
_NUMBERS = ("float", "int", "abs")
_CONFIGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_LARGEST = 1 << 18
_MAX_CONFIGS = 30

Stack = Sequence[tuple[str, int, str]]


@dataclass(frozen=True)
class Written:
    """A number in the source: its file and its position."""

    file: str
    text: str
    line: int
    start: int
    end: int

    def edit(self, value: str) -> Edit:
        return Edit(self.start, self.end, value)


def source_of(file: str) -> Source | None:
    """The file as it is running."""
    text = text_of_file(file) if is_user_file(file) else None
    try:
        return Source(text) if text is not None else None
    except (SyntaxError, ValueError):
        return None


def call_at(source: Source, line: int, name: str) -> ast.Call | None:
    """The only call of this name on a line."""
    found = [
        n for n in ast.walk(source.tree)
        if isinstance(n, ast.Call) and n.lineno <= line <= (n.end_lineno or n.lineno)
        and _name(n.func) == name
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def number_behind(
    file: str, source: Source, node: ast.expr, value: float, stack: Stack
) -> Written | None:
    """The number that an expression comes from; None if that is not certain."""
    depth = 0
    for _ in range(_MOST):
        if isinstance(node, ast.Call) and _name(node.func) in _NUMBERS and len(node.args) == 1:
            node = node.args[0]
            continue
        if _is_number(node, value):
            start, end = source.span(node)
            return Written(file, source.text, node.lineno, start, end)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            return _keyed(node, value, [file, *(f for f, _, _ in stack)])
        if not isinstance(node, ast.Name):
            return None
        found = _assigned(source, node)
        if found is not None:
            node = found
            continue
        moved = _given(file, source, node, stack, depth)
        if moved is None:
            return None
        file, source, node, depth = moved
    return None


def _is_number(node: ast.expr, value: float) -> bool:
    try:
        number = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return False
    is_plain = isinstance(number, (int, float)) and not isinstance(number, bool)
    return is_plain and math.isclose(number, value, rel_tol=1e-9)


def _assigned(source: Source, node: ast.Name) -> ast.expr | None:
    """The value of a name in its function or at module level, if it is assigned once."""
    scope = source.scope(node)
    if node.id in source.parameters(scope):
        return None
    for home in (scope, source.tree):
        found = [
            n for n in ast.walk(home)
            if isinstance(n, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and n.value is not None
            and source.scope(n) is home
            and any(isinstance(t, ast.Name) and t.id == node.id for t in _targets(n))
        ]  # fmt: skip
        if found:
            only = found[0]
            is_plain = len(found) == 1 and not isinstance(only, ast.AugAssign)
            return only.value if is_plain else None
    return None


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _given(
    file: str, source: Source, node: ast.Name, stack: Stack, depth: int
) -> tuple[str, Source, ast.expr, int] | None:
    """The argument of the caller for this name, or its default."""
    scope = source.scope(node)
    if not isinstance(scope, ast.FunctionDef) or node.id not in source.parameters(scope):
        return None
    at = next(
        (i for i in range(depth, len(stack)) if (stack[i][0], stack[i][2]) == (file, scope.name)),
        None,
    )
    if at is None or at + 1 >= len(stack):
        return None
    caller, line, _ = stack[at + 1]
    home = source_of(caller)
    owner = source.parent(scope)
    is_made = scope.name == "__init__" and isinstance(owner, ast.ClassDef)
    name = owner.name if is_made and isinstance(owner, ast.ClassDef) else scope.name
    call = call_at(home, line, name) if home is not None else None
    if home is None or call is None:
        return None
    named = [a.arg for a in (*scope.args.posonlyargs, *scope.args.args)]
    place = named.index(node.id) if node.id in named else None
    if place is not None and isinstance(owner, ast.ClassDef):
        place -= 1  # self
    given = next((k.value for k in call.keywords if k.arg == node.id), None)
    if given is None and place is not None and 0 <= place < len(call.args):
        given = call.args[place]
    if given is not None:
        return caller, home, given, at + 1
    default = _default(scope, node.id)
    return (file, source, default, at) if default is not None else None


def _default(scope: ast.FunctionDef, name: str) -> ast.expr | None:
    args = [*scope.args.posonlyargs, *scope.args.args]
    pairs = [*zip(reversed(args), reversed(scope.args.defaults)),
             *zip(scope.args.kwonlyargs, scope.args.kw_defaults)]  # fmt: skip
    return next((value for a, value in pairs if a.arg == name), None)


def option_for(key: str) -> str | None:
    """The command-line option of this name, if the command has it."""
    wanted = {f"--{key}", f"--{key.replace('_', '-')}"}
    return next((a.partition("=")[0] for a in sys.argv[1:] if a.partition("=")[0] in wanted), None)


def key_of(node: ast.expr) -> str | None:
    """`lr` in `args.lr` and in `config["lr"]`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value if isinstance(node.slice.value, str) else None
    return None


def _keyed(node: ast.expr, value: float, files: Iterable[str]) -> Written | None:
    """The only number with this name: a key, the default of an option, an attribute."""
    key = key_of(node)
    if key is None:
        return None
    found = []
    for file in dict.fromkeys(files):
        source = source_of(file)
        for number in _numbers_named(source, key) if source is not None else ():
            if source is not None and _is_number(number, value):
                found.append(Written(file, source.text, number.lineno, *source.span(number)))
    if len(found) == 1:
        return found[0]
    return None if found else config_number(key, value, files)


def _numbers_named(source: Source, key: str) -> Iterator[ast.expr]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Dict):
            yield from (v for k, v in zip(node.keys, node.values)
                        if isinstance(k, ast.Constant) and k.value == key)  # fmt: skip
        elif isinstance(node, ast.Call):
            names = {a.value for a in node.args if isinstance(a, ast.Constant)}
            is_option = {f"--{key}", f"--{key.replace('_', '-')}", f"-{key}"} & names
            if is_option and option_for(key) is None:
                yield from (k.value for k in node.keywords if k.arg == "default")
            elif not is_option:
                yield from (k.value for k in node.keywords if k.arg == key)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            names = {getattr(t, "attr", getattr(t, "id", None)) for t in _targets(node)}
            yield from (node.value for name in names if name == key)


def numbers_called(word: str, value: float, files: Iterable[str]) -> Iterator[Written]:
    """The numbers of this value whose keyword, option, parameter or variable has this word in its name."""
    for file in dict.fromkeys(files):
        source = source_of(file)
        for name, number in _named_numbers(source) if source is not None else ():
            if source is not None and word in name and _is_number(number, value):
                yield Written(file, source.text, number.lineno, *source.span(number))


def _named_numbers(source: Source) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            options = [a.value for a in node.args if isinstance(a, ast.Constant)]
            option = next((o for o in options if isinstance(o, str) and o.startswith("-")), None)
            if option is not None and option_for(option.lstrip("-")) is not None:
                continue  # the command gives it
            for k in node.keywords:
                yield str(option if k.arg == "default" and option else k.arg), k.value
        elif isinstance(node, ast.FunctionDef):
            names = [
                a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            ]
            yield from ((n, d) for n in names if (d := _default(node, n)) is not None)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for t in _targets(node):
                yield str(getattr(t, "attr", getattr(t, "id", ""))), node.value


def config_number(key: str, value: float, files: Iterable[str]) -> Written | None:
    """The only number with this key in a config file that the command names, or that is next to the script."""
    pattern = re.compile(rf"""(?m)(?:^|[\s{{,"']){re.escape(key)}["']?\s*[:=]\s*([-+0-9.eE]+)""")
    found = []
    for path in _configs(files):
        try:
            with open(path, encoding="utf-8", newline="") as handle:
                text = handle.read()
        except (OSError, UnicodeDecodeError):
            continue
        for match in pattern.finditer(text):
            if _is_close(match.group(1), value):
                line = text.count("\n", 0, match.start(1)) + 1
                found.append(Written(path, text, line, *match.span(1)))
    return found[0] if len(found) == 1 else None


def _is_close(text: str, value: float) -> bool:
    try:
        return math.isclose(float(text), value, rel_tol=1e-9)
    except ValueError:
        return False


def _configs(files: Iterable[str]) -> list[str]:
    named = [os.path.abspath(a.rpartition("=")[2]) for a in sys.argv[1:] if a.endswith(_CONFIGS)]
    folders = dict.fromkeys(os.path.dirname(f) for f in files if is_user_file(f))
    beside = [
        os.path.join(folder, name)
        for folder in folders
        if os.path.isdir(folder)
        for name in sorted(os.listdir(folder))
        if name.endswith(_CONFIGS)
    ]
    found = [p for p in dict.fromkeys([*named, *beside]) if os.path.isfile(p)]
    return [p for p in found if os.path.getsize(p) < _LARGEST][:_MAX_CONFIGS]


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))
