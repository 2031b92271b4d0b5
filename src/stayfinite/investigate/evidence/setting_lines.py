"""Finds the line of a setting in the source, if it was not recorded at run time."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator

from ...locate.frames import Frame, is_user_file
from ...parsing import parsed

__all__ = [
    "assigned_key",
    "assigned_keys",
    "assignment_before",
    "called",
    "computed_at",
    "functions_of_file",
    "given_keyword",
    "made_attribute",
    "returned_by",
    "users_files",
]

_WRAPS = {
    "Parameter", "tensor", "as_tensor", "from_numpy", "float", "to", "clone", "detach", "register_buffer",
    "contiguous", "double", "half", "FloatTensor", "Tensor", "asarray", "array", "requires_grad_",
}  # fmt: skip


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        return parsed("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def functions_of_file(file: str) -> Iterator[tuple[str, list[ast.stmt]]]:
    """(name, statements in order) of the file itself and of each of its functions."""
    tree = _tree(file)
    if tree is None:
        return
    scopes: list[tuple[str, ast.AST]] = [("<module>", tree)]
    while scopes:
        name, scope = scopes.pop(0)
        found: list[ast.stmt] = []
        todo: list[ast.AST] = list(ast.iter_child_nodes(scope))
        while todo:
            node = todo.pop(0)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                scopes.append((node.name, node))
                continue
            if isinstance(node, ast.stmt) and not isinstance(node, ast.ClassDef):
                found.append(node)
            todo[:0] = list(ast.iter_child_nodes(node))
        yield name, found


def _only(found: list[Frame]) -> Frame | None:
    """The only answer, or none: a guess among several would be misleading."""
    places = list(dict.fromkeys(found))
    return places[0] if len(places) == 1 else None


def users_files(files: Iterable[str | None]) -> list[str]:
    return [f for f in dict.fromkeys(files) if f and is_user_file(f)]


def called(files: Iterable[str | None], name: str) -> list[Frame]:
    """The lines that call something of this name: `optim.SGD(...)` for "SGD"."""
    found = []
    for file in users_files(files):
        for function, statements in functions_of_file(file):
            found += [
                Frame(file, node.lineno, function)
                for node in _own_nodes(statements)
                if isinstance(node, ast.Call) and _name(node.func) == name
            ]
    return list(dict.fromkeys(found))


def given_keyword(files: Iterable[str | None], *names: str) -> Frame | None:
    """The only line with an argument of this name, for objects that a framework makes."""
    found = []
    for file in users_files(files):
        for function, statements in functions_of_file(file):
            found += [
                Frame(file, node.value.lineno, function)
                for node in _own_nodes(statements)
                if isinstance(node, ast.keyword) and node.arg in names
            ]
    return _only(found)


def assigned_key(files: Iterable[str | None], key: str) -> tuple[Frame, ast.expr] | None:
    """The line that assigns to `[key]`, with the assigned value: `group["lr"] = rate`; the last, if one function has several."""
    found = assigned_keys(files, key)
    return found[-1] if found else None


def assigned_keys(files: Iterable[str | None], key: str) -> list[tuple[Frame, ast.expr]]:
    """All these lines of the only function that has any."""
    found: list[tuple[Frame, ast.expr]] = []
    for file in users_files(files):
        for function, statements in functions_of_file(file):
            for s in statements:
                if isinstance(s, (ast.Assign, ast.AugAssign)) and any(
                    isinstance(t, ast.Subscript)
                    and isinstance(t.slice, ast.Constant)
                    and t.slice.value == key
                    for t in _assigned(s)
                ):
                    found.append((Frame(file, s.lineno, function), s.value))
    return found if len({(line.file, line.function) for line, _ in found}) == 1 else []


def returned_by(file: str, value: ast.expr, function: str) -> tuple[str, ast.Call] | None:
    """The function of the same file whose result `value` is, and the call; names are resolved."""
    for _ in range(4):
        if isinstance(value, ast.Call):
            name = _name(value.func)
            is_here = any(n == name for n, _ in functions_of_file(file))
            return (name, value) if name and is_here else None
        if isinstance(value, ast.BinOp):
            value = value.right if isinstance(value.right, ast.Call) else value.left
            continue
        if not isinstance(value, ast.Name):
            return None
        made = assignment_before(file, function, value.id, value.lineno)
        if made is None:
            return None
        value = made[1]
    return None


def computed_at(line: Frame, value: ast.expr) -> Frame:
    """The line in which the function computes an assigned name, if there is only one."""
    if not isinstance(value, ast.Name):
        return line
    found = _assignments(line.file, line.function, value.id, line.line)
    return found[0][0] if len(found) == 1 else line


def made_attribute(files: Iterable[str | None], path: str) -> Frame | None:
    """The statement that gave a parameter or buffer (a dotted path) its values."""
    *owners, attribute = path.split(".")
    found: list[tuple[int, Frame, str, ast.expr | None]] = []
    for file in users_files(files):
        for function, statements in functions_of_file(file):
            for s in statements:
                rank, value = _writes(s, attribute, owners)
                if rank:
                    found.append((rank, Frame(file, s.lineno, function), function, value))
        if found:
            break
    if not found:
        return None
    best = max(rank for rank, *_ in found)
    _, frame, function, value = [f for f in found if f[0] == best][-1]
    return _behind(frame, function, value)


def _behind(frame: Frame, function: str, value: ast.expr | None) -> Frame:
    """If `value` is only a name or a wrapped name: the line that made its value."""
    for _ in range(4):
        while isinstance(value, ast.Call) and _name(value.func) in _WRAPS:
            inner = [a for a in value.args if not isinstance(a, ast.Constant)]
            receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
            is_plain = isinstance(receiver, ast.Name) and receiver.id not in ("torch", "nn", "np")
            value = receiver if is_plain and not inner else inner[0] if inner else None
        made = None
        if isinstance(value, ast.Name):
            made = assignment_before(frame.file, function, value.id, frame.line)
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            made = _returned(frame.file, value.func.id)
        if made is None:
            return frame
        frame, value = made
        function = frame.function
    return frame


def _returned(file: str, name: str) -> tuple[Frame, ast.expr] | None:
    """The only return statement of a function of this file."""
    found = [
        (Frame(file, s.lineno, function), s.value)
        for function, statements in functions_of_file(file)
        if function == name
        for s in statements
        if isinstance(s, ast.Return) and s.value is not None
    ]
    return found[0] if len(found) == 1 else None


def assignment_before(
    file: str, function: str, name: str, before: int
) -> tuple[Frame, ast.expr] | None:
    """The last assignment to a name before a line in the same function."""
    found = _assignments(file, function, name, before)
    return found[-1] if found else None


def _assignments(file: str, function: str, name: str, before: int) -> list[tuple[Frame, ast.expr]]:
    found = []
    for each, statements in functions_of_file(file):
        if each != function:
            continue
        for s in statements:
            if not isinstance(s, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or s.value is None:
                continue
            is_it = any(isinstance(t, ast.Name) and t.id == name for t in _assigned(s))
            if is_it and s.lineno <= before and not isinstance(s.value, ast.Name):
                found.append((Frame(file, s.lineno, function), s.value))
    return found


def _writes(s: ast.stmt, attribute: str, owners: list[str]) -> tuple[int, ast.expr | None]:
    """(confidence that this statement gives the attribute its values, the values); 0 if it does not."""
    if isinstance(s, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        for t in _assigned(s):
            target = t.value if isinstance(t, ast.Subscript) else t
            if isinstance(target, ast.Attribute) and target.attr == "data":
                target = target.value
            if isinstance(target, ast.Attribute) and target.attr == attribute:
                return 2 + _is_of(target, owners), s.value
            given = _given(s.value, attribute) if owners and _name(t) == owners[-1] else None
            if given is not None:
                return 2, given
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
        return _call_writes(s.value, attribute, owners)
    return 0, None


def _given(value: ast.expr | None, attribute: str) -> ast.expr | None:
    """The argument of a layer with the name of its buffer: `CrossEntropyLoss(weight=...)`."""
    keywords = value.keywords if isinstance(value, ast.Call) else []
    return next((k.value for k in keywords if k.arg == attribute), None)


def _call_writes(call: ast.Call, attribute: str, owners: list[str]) -> tuple[int, ast.expr | None]:
    name = _name(call.func)
    if name in ("register_buffer", "register_parameter") and len(call.args) > 1:
        first = call.args[0]
        is_it = isinstance(first, ast.Constant) and first.value == attribute
        return (3, call.args[1]) if is_it else (0, None)
    if not name.endswith("_") or name.endswith("__"):
        return 0, None
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(receiver, ast.Attribute) and receiver.attr == "data":
        receiver = receiver.value
    for target in (receiver, *call.args[:1]):
        if isinstance(target, ast.Attribute) and target.attr == attribute:
            return 2 + _is_of(target, owners), None
    return 0, None


def _is_of(target: ast.Attribute, owners: list[str]) -> int:
    """Whether an attribute is written with the name of its module, or of `self`."""
    holder = target.value
    name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
    return int(name == (owners[-1] if owners else "self")) + int(bool(owners) and name in owners)


def _assigned(s: ast.Assign | ast.AugAssign | ast.AnnAssign) -> list[ast.expr]:
    targets = s.targets if isinstance(s, ast.Assign) else [s.target]
    return [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]


def _own_nodes(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of these statements, each once; nested functions have their own statements."""
    seen: set[int] = set()
    for s in statements:
        for node in ast.walk(s):
            if id(node) not in seen:
                seen.add(id(node))
                yield node


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
