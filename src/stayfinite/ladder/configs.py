"""Config files: their keys, and their text with one value replaced.

Only the characters of the value are replaced, so that comments, order and line numbers stay. If that is not possible, the whole
file is rewritten. In both cases the result is parsed and compared before it is used. A Python file is parsed, never run.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..parsing import parse_toml
from .values import normal

__all__ = ["SUFFIXES", "ConfigKey", "edited", "entries", "find_entries", "load_config"]

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".py")
MAX_BYTES = 1 << 20
"""A larger file is data, not a config."""

KeyPath = tuple[Any, ...]
Span = tuple[int, int]


@dataclass(frozen=True)
class ConfigKey:
    """One key of a config file."""

    file: str
    path: KeyPath
    value: Any

    @property
    def key(self) -> str:
        return ".".join(str(p) for p in self.path)


def load_config(file: str) -> list[ConfigKey]:
    """All keys of a file; a file that cannot be read or parsed says why."""
    path = Path(file)
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"a config must be one of {', '.join(SUFFIXES)}, got {path.name}")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{file} is too large for a config: over {MAX_BYTES >> 20} MB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the config {file}: {e}") from None
    return entries(file, text)


def entries(file: str, text: str) -> list[ConfigKey]:
    """All keys of this text.

    >>> [(e.key, e.value) for e in entries("c.yaml", "optim: {lr: 1e-3}\\namp: true")]
    [('optim', {'lr': '1e-3'}), ('optim.lr', '1e-3'), ('amp', True)]
    >>> [(e.key, e.value) for e in entries("c.py", "class C:\\n  lr: float = 1e-3\\nD = {'clip': 3}")]
    [('C.lr', 0.001), ('D', {'clip': 3}), ('D.clip', 3)]
    """
    if file.endswith(".py"):
        found = _python_keys(file, text)
        return [ConfigKey(file, p, _literal(node)) for p, node in found.items()]
    return [ConfigKey(file, p, v) for p, v in _walk(_parse(file, text), ())]


def find_entries(found: list[ConfigKey], key: str) -> list[ConfigKey]:
    """The keys with exactly this dotted name, else those that end with it."""
    wanted = [normal(part) for part in key.split(".")]
    names = [[normal(str(p)) for p in e.path] for e in found]
    exact = [e for e, n in zip(found, names) if n == wanted]
    return exact or [e for e, n in zip(found, names) if n[-len(wanted) :] == wanted]


def edited(file: str, text: str, path: KeyPath, value: Any) -> str:
    """The text with the value at `path` replaced.

    >>> print(edited("c.yaml", "lr: 0.1  # too high?\\namp: true", ("lr",), 0.01))
    lr: 0.01  # too high?
    amp: true
    >>> edited("c.toml", '[optim]\\nlr = 0.1 # high', ("optim", "lr"), 0.01)
    '[optim]\\nlr = 0.01 # high'
    """
    if file.endswith(".py"):
        start, end = _python_span(text, _python_keys(file, text)[path])
        return text[:start] + repr(value) + text[end:]
    tree = _parse(file, text)
    wanted = copy.deepcopy(tree)
    _put(wanted, path, value)
    span = _span(file, text, path)
    if span is not None:
        candidate = text[: span[0]] + _as_text(file, value) + text[span[1] :]
        try:
            if _parse(file, candidate) == wanted:
                return candidate
        except UsageError:
            pass  # an anchor or a block that is more than its value
    return _anew(file, path, wanted)


def _parse(file: str, text: str) -> Any:
    try:
        if file.endswith(".json"):
            return json.loads(text)
        if file.endswith(".toml"):
            return parse_toml(text)
        return _yaml().safe_load(text)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"the config {file} cannot be parsed: {e}") from None
    except Exception as e:
        if type(e).__module__.partition(".")[0] != "yaml":
            raise
        mark = getattr(e, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        said = getattr(e, "problem", None) or " ".join(str(e).split())
        if "'\\t'" in said:
            said = "found a tab; YAML is indented with spaces"
        raise UsageError(f"the config {file}{place} cannot be parsed: {said}") from None


def _yaml() -> Any:
    return importlib.import_module("yaml")  # only where a YAML file is met


def _walk(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    pairs: Any = ()
    if isinstance(tree, dict):
        pairs = tree.items()
    elif isinstance(tree, list) and any(isinstance(v, dict) for v in tree):
        pairs = enumerate(tree)
    for key, value in pairs:
        yield (*path, key), value
        yield from _walk(value, (*path, key))


def _put(tree: Any, path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        tree = tree[part]
    tree[path[-1]] = value


def _as_text(file: str, value: Any) -> str:
    if file.endswith((".json", ".toml")):
        return json.dumps(value)
    text: str = _yaml().safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _anew(file: str, path: KeyPath, tree: Any) -> str:
    if file.endswith(".toml"):
        key = ".".join(str(p) for p in path)
        raise UsageError(f"{file}: {key} stands in a form that cannot be changed in place")
    if file.endswith(".json"):
        return json.dumps(tree, indent=2)
    return str(_yaml().safe_dump(tree, sort_keys=False))


def _span(file: str, text: str, path: KeyPath) -> Span | None:
    """The position of the value in the text."""
    if file.endswith(".toml"):
        return _toml_span(text, path)
    yaml = _yaml()
    try:
        node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None  # JSON that is no YAML: tabs
    for part in path:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[part]
            continue
        if not isinstance(node, yaml.MappingNode):
            return None
        keys = [v for k, v in node.value if k.value == str(part)]
        if not keys:
            return None
        node = keys[-1]
    return (node.start_mark.index, node.end_mark.index)


def _toml_span(text: str, path: KeyPath) -> Span | None:
    """`key = value` on one line below its `[table]`; other forms are refused."""
    table: KeyPath = ()
    position = 0
    for line in text.splitlines(keepends=True):
        header = re.match(r"\s*\[([\w.\-\s]+)\]\s*(#.*)?$", line)
        pair = re.match(r"\s*([\w.\-]+)\s*=\s*", line)
        if header:
            table = tuple(p.strip() for p in header.group(1).split("."))
        elif pair and (*table, *pair.group(1).split(".")) == path:
            rest = line[pair.end() :]
            value = re.match(r"\"[^\"]*\"|'[^']*'|\[[^\]]*\]|[^#\s]+", rest)
            if value:
                start = position + pair.end()
                return (start, start + value.end())
        position += len(line)
    return None


def _python_keys(file: str, text: str) -> dict[KeyPath, ast.expr]:
    """Names that a module or one of its classes gives a value, and the keys of dicts among them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as e:
        raise UsageError(f"the config {file} cannot be parsed: {e}") from None
    found: dict[KeyPath, ast.expr] = {}
    _assignments(tree.body, (), found)
    return found


def _assignments(body: list[ast.stmt], path: KeyPath, found: dict[KeyPath, ast.expr]) -> None:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            _assignments(statement.body, (*path, statement.name), found)
            continue
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and value is not None:
                _expression((*path, target.id), value, found)


def _expression(path: KeyPath, value: ast.expr, found: dict[KeyPath, ast.expr]) -> None:
    if _literal(value) is not _UNKNOWN or isinstance(value, (ast.BinOp, ast.UnaryOp)):
        found[path] = value
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                _expression((*path, key.value), item, found)
    elif isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg is not None:
                _expression((*path, keyword.arg), keyword.value, found)


class _Unknown:
    """An expression whose value is unknown without running it."""

    def __repr__(self) -> str:
        return "an expression"


_UNKNOWN = _Unknown()


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNKNOWN


def _python_span(text: str, node: ast.expr) -> Span:
    """Offsets of the expression; the parser counts columns in UTF-8 bytes."""
    lines = text.split("\n")

    def offset(line: int, column: int) -> int:
        before = sum(len(t) + 1 for t in lines[: line - 1])
        return before + len(lines[line - 1].encode()[:column].decode())

    assert node.end_lineno is not None and node.end_col_offset is not None
    return (
        offset(node.lineno, node.col_offset),
        offset(node.end_lineno, node.end_col_offset),
    )
