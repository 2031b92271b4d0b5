"""Who imports whom in the package, read from the source: also under TYPE_CHECKING and inside functions."""

import ast
import functools
import pathlib

SRC = pathlib.Path(__file__).parents[1] / "src"


def modules(src=SRC):
    """Every module's path by its dotted name; a package goes by its own name."""
    found = {}
    for path in src.rglob("*.py"):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports(name, path):
    """The dotted names that a module asks for, each the longest that could be a module."""
    return list(_imports(name, path))


def _imports(name, path):
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            home = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*home, alias.name]) for alias in node.names)


def graph(src=SRC):
    """For each module the modules of the package that it imports.

    `from .room import name` is the module `room.name` where there is one, and else the room's
    `__init__`. The package's own `__init__` is left out: its names load on first use.
    """
    known = modules(src)
    top = min(known, key=len)
    found = {name: set() for name in known if name != top}
    for name in found:
        for wanted in imports(name, known[name]):
            target = wanted if wanted in known else wanted.rpartition(".")[0]
            if target in found and target != name:
                found[name].add(target)
    return found


def circles(edges):
    """Groups of modules that reach each other (Tarjan's strongly connected components)."""
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(edges[v]):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            cut = stack.index(v)
            if len(stack) - cut > 1:
                found.append(sorted(stack[cut:]))
            del stack[cut:]

    for v in sorted(edges):
        if v not in index:
            visit(v)
    return found


def rooms(edges):
    """For each room (a package, or a module beside them) the other rooms that it imports."""
    found = {}
    for name, targets in edges.items():
        own = name.split(".")[1]
        others = {t.split(".")[1] for t in targets} - {own}
        found.setdefault(own, set()).update(others)
    return found
