"""Reads config files as flat entries with text positions; runs nothing in them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...errors import UsageError
from ...parsing import parse_toml
from .literals import arithmetic, number_in

__all__ = ["ConfigFile", "PlacedValue", "read_config"]

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".py")
_MAX_DEPTH = 20


@dataclass(frozen=True)
class PlacedValue:
    """One value of a config."""

    path: tuple[str, ...]
    value: Any
    start: int = -1
    """Where the value's text begins; -1 where that is not known."""
    end: int = -1

    @property
    def key(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class ConfigFile:
    """A config file, read."""

    path: Path
    text: str
    kind: str
    """yaml | json | toml | py"""
    entries: tuple[PlacedValue, ...]

    def values(self) -> dict[str, Any]:
        """By dotted key.

        >>> ConfigFile(Path("x.yaml"), "", "yaml", (PlacedValue(("optim", "lr"), 0.1),)).values()
        {'optim.lr': 0.1}
        """
        return {e.key: e.value for e in self.entries}

    def line_of(self, entry: PlacedValue) -> int | None:
        return self.text.count("\n", 0, entry.start) + 1 if entry.start >= 0 else None


def read_config(path: Path) -> ConfigFile:
    """A YAML, JSON, TOML or Python config. Python is parsed, not run."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"a config must be {', '.join(SUFFIXES)}, got {path.name!r}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the config {path}: {e}") from None
    kind = "yaml" if suffix in (".yaml", ".yml") else suffix[1:]
    entries = tuple({e.path: e for e in _READERS[kind](path, text)}.values())
    return ConfigFile(path, text, kind, entries)


def _broken(path: Path, kind: str, line: int | None, column: int | None, what: str) -> UsageError:
    at = f":{line}" if line is not None else ""
    at += f":{column}" if line is not None and column is not None else ""
    return UsageError(f"{path}{at}: {what}; expected {_EXPECTED[kind]}")


_EXPECTED = {
    "yaml": "a YAML mapping",
    "json": "a JSON object",
    "toml": "a TOML document",
    "py": "a Python file with assignments",
}


def _read_yaml(path: Path, text: str, kind: str = "yaml") -> Iterator[PlacedValue]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)  # type: ignore[no-untyped-call]
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        what = getattr(e, "problem", None) or str(e).splitlines()[0]
        if "'\\t'" in what:
            what = "found a tab; YAML is indented with spaces"
        if mark is None:
            raise _broken(path, kind, None, None, what) from None
        raise _broken(path, kind, mark.line + 1, mark.column + 1, what) from None
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise _broken(path, kind, 1, 1, f"found a {_NODES.get(type(node).__name__, 'value')}")
    if node is not None:
        loader: Any = yaml.SafeLoader("")  # type: ignore[no-untyped-call]
        yield from _yaml_entries(node, (), loader, 0)


_NODES = {"SequenceNode": "list", "ScalarNode": "single value"}


def _yaml_entries(
    node: Any, path: tuple[str, ...], loader: Any, depth: int
) -> Iterator[PlacedValue]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _yaml_entries(value, (*path, str(key.value)), loader, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _yaml_entries(value, (*path, str(i)), loader, depth + 1)
    else:
        try:
            value = loader.construct_object(node)
        except (yaml.YAMLError, ValueError):
            value = node.value
        yield PlacedValue(path, number_in(value), node.start_mark.index, node.end_mark.index)


def _read_json(path: Path, text: str) -> Iterator[PlacedValue]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as e:
        raise _broken(path, "json", e.lineno, e.colno, e.msg) from None
    if not isinstance(content, dict):
        raise _broken(path, "json", 1, 1, f"found a {type(content).__name__}")
    # JSON is YAML (but for tabs), and the YAML parser knows the places.
    plain = {e.path: e for e in _plain_entries(content, ())}
    try:
        placed = {e.path: e for e in _read_yaml(path, text.replace("\t", " "), "json")}
    except UsageError:
        placed = {}
    for key, entry in plain.items():
        at = placed.get(key)
        yield PlacedValue(key, entry.value, at.start, at.end) if at is not None else entry


def _plain_entries(value: Any, path: tuple[str, ...]) -> Iterator[PlacedValue]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _plain_entries(inner, (*path, str(key)))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _plain_entries(inner, (*path, str(i)))
    else:
        yield PlacedValue(path, number_in(value))


def _read_toml(path: Path, text: str) -> Iterator[PlacedValue]:
    try:
        content = parse_toml(text)
    except ValueError as e:
        found = re.search(r"line (\d+), column (\d+)", str(e))
        line, column = (int(found[1]), int(found[2])) if found else (None, None)
        what = re.sub(r" \(at .*\)", "", str(e))
        raise _broken(path, "toml", line, column, what) from None
    places = dict(_toml_places(text))
    for entry in _plain_entries(content, ()):
        start, end = places.get(entry.path, (-1, -1))
        yield PlacedValue(entry.path, entry.value, start, end)


_TOML_LINE = re.compile(r"^[ \t]*([\w.\"'-]+)[ \t]*=[ \t]*([^#\n\[{]+?)[ \t]*(?:#.*)?$", re.M)
_TOML_LIST = re.compile(r"^[ \t]*([\w.\"'-]+)[ \t]*=[ \t]*\[([^\[\]{}\"'\n]*)\]", re.M)
_TOML_INLINE = re.compile(r"^[ \t]*([\w.\"'-]+)[ \t]*=[ \t]*\{([^\[\]{}\"'\n]*)\}", re.M)
_TOML_PAIR = re.compile(r"([\w.-]+)\s*=\s*([^,\s]+)")
_TOML_TABLE = re.compile(r"^[ \t]*\[([^\[\]\n]+)\]", re.M)


def _toml_places(text: str) -> Iterator[tuple[tuple[str, ...], tuple[int, int]]]:
    """Where simple values stand: one `key = value` to a line, below its table's header."""
    tables = [(m.start(), _toml_key(m[1])) for m in _TOML_TABLE.finditer(text)]
    for match in _TOML_LINE.finditer(text):
        yield (*_table_at(tables, match.start()), *_toml_key(match[1])), match.span(2)
    for match in _TOML_LIST.finditer(text):
        path = (*_table_at(tables, match.start()), *_toml_key(match[1]))
        for i, item in enumerate(re.finditer(r"[^,\s]+", match[2])):
            start = match.start(2)
            yield (*path, str(i)), (start + item.start(), start + item.end())

    for match in _TOML_INLINE.finditer(text):
        path = (*_table_at(tables, match.start()), *_toml_key(match[1]))
        for item in _TOML_PAIR.finditer(match[2]):
            start = match.start(2)
            yield (*path, *_toml_key(item[1])), (start + item.start(2), start + item.end(2))


def _table_at(tables: list[tuple[int, tuple[str, ...]]], at: int) -> tuple[str, ...]:
    return next((name for start, name in reversed(tables) if start < at), ())


def _toml_key(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def _read_python(path: Path, text: str) -> Iterator[PlacedValue]:
    """Names, attributes, dictionary keys and keyword arguments that are given a literal value."""
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError) as e:
        line, column = getattr(e, "lineno", None), getattr(e, "offset", None)
        raise _broken(path, "py", line, column, getattr(e, "msg", str(e))) from None
    offsets = [0]
    for line_text in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line_text))
    lines = text.splitlines(keepends=True)

    def place(node: ast.expr) -> tuple[int, int]:
        return _offset(lines, offsets, node.lineno, node.col_offset), _offset(
            lines, offsets, node.end_lineno or node.lineno, node.end_col_offset or 0
        )

    for key, value in _assignments(tree, ()):
        for entry_path, node in _literals(value, key):
            number = arithmetic(node)
            literal = ast.literal_eval(node) if number is None else number
            yield PlacedValue(entry_path, literal, *place(node))


def _offset(lines: list[str], offsets: list[int], line: int, column: int) -> int:
    """ast counts bytes of UTF-8; the text is cut by characters."""
    before = lines[line - 1].encode()[:column].decode(errors="ignore")
    return offsets[line - 1] + len(before)


def _assignments(
    node: ast.AST, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _assignments(child, (*path, child.name))
            continue
        if isinstance(child, ast.Assign):
            for target in child.targets:
                name = _target_name(target)
                if name:
                    yield (*path, *name), child.value
        elif isinstance(child, ast.AnnAssign) and child.value is not None:
            name = _target_name(child.target)
            if name:
                yield (*path, *name), child.value
        elif isinstance(child, ast.keyword) and child.arg not in (None, "default"):
            yield (*path, child.arg), child.value
        elif isinstance(child, ast.Call):
            yield from _flag(child, path)
        yield from _assignments(child, path)


def _flag(call: ast.Call, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    """`add_argument("--lr", default=1e-3)` sets `lr`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
        return
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    name = next((n.lstrip("-") for n in names if n.startswith("--")), "")
    for given in call.keywords:
        if given.arg == "default" and name:
            yield (*path, name.replace("-", "_")), given.value


def _target_name(target: ast.expr) -> tuple[str, ...]:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute):
        return (*_target_name(target.value), target.attr)
    return ()


def _literals(value: ast.expr, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    if isinstance(value, ast.Dict):
        for key, inner in zip(value.keys, value.values):
            if isinstance(key, ast.Constant):
                yield from _literals(inner, (*path, str(key.value)))
    elif isinstance(value, (ast.List, ast.Tuple)):
        for i, inner in enumerate(value.elts):
            yield from _literals(inner, (*path, str(i)))
    elif isinstance(value, ast.Call) and _is_field(value.func):
        for given in value.keywords:
            if given.arg == "default":
                yield from _literals(given.value, path)
    elif isinstance(value, ast.Constant) or arithmetic(value) is not None:
        yield path, value


def _is_field(function: ast.expr) -> bool:
    """`lr: float = field(default=1e-3)`, as dataclasses, attrs and pydantic write it."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("field", "Field", "attrib", "ib")


_READERS = {"yaml": _read_yaml, "json": _read_json, "toml": _read_toml, "py": _read_python}
