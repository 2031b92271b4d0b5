"""A file's imports, functions and classes."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .names import dotted, is_evaluation, is_loss
from .values import Value

__all__ = ["ClassFacts", "Function", "Module"]

_USUAL = {
    "torch": "torch",
    "th": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "np": "numpy",
    "math": "math",
}
_FOREIGN = {"numpy", "jax", "tensorflow", "scipy", "cupy", "math", "keras", "mlx", "pandas", "statistics",
            "triton"}  # fmt: skip

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class ClassFacts:
    """A class: its methods, and the facts of `self.x` after construction."""

    node: ast.ClassDef
    name: str
    bases: tuple[str, ...]
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, Value] | None = None

    @property
    def is_module(self) -> bool:
        """Whether this is probably a torch module; an autograd function is not differentiated itself."""
        if any(b.rpartition(".")[2] == "Function" for b in self.bases):
            return False
        return "forward" in self.methods or any(b.endswith(("Module", "Loss")) for b in self.bases)


@dataclass(eq=False)
class Function:
    """A function or method, with its class."""

    node: AnyFunction
    name: str
    owner: ClassFacts | None = None
    returned: Value | None = None
    is_running: bool = False
    arguments: dict[str, Value] | None = None
    """The arguments of the calls within the file, if all of them agree."""

    @property
    def parameters(self) -> list[ast.arg]:
        a = self.node.args
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs]
        return every[1:] if self.owner is not None and _is_bound(self.node) else every


def _is_bound(node: AnyFunction) -> bool:
    return not any(dotted(d) == "staticmethod" for d in node.decorator_list)


class Module:
    """Imports, functions and classes of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.aliases: dict[str, str] = {}
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, ClassFacts] = {}
        self.constants: dict[str, Value] = {}
        self._resolved: dict[str, str] = {}
        self._called: set[str] | None = None
        self._uses_half: bool | None = None
        for node in tree.body:
            self._add(node)
        self._add_late_imports()

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.functions[node.name] = Function(node, node.name)
        elif isinstance(node, ast.ClassDef):
            self._add_class(node)
        elif isinstance(node, (ast.If, ast.Try)):
            for child in (*node.body, *node.orelse):
                self._add(child)

    def _add_class(self, node: ast.ClassDef) -> None:
        owner = ClassFacts(node, node.name, tuple(dotted(b) for b in node.bases))
        for child in node.body:
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                owner.methods[child.name] = Function(child, child.name, owner)
        self.classes[node.name] = owner

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                head = alias.name if alias.asname else alias.name.partition(".")[0]
                self.aliases[alias.asname or head] = head
        elif node.module and not node.level:
            for alias in node.names:
                self.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _add_late_imports(self) -> None:
        """Files that import inside functions use the usual names for the usual modules."""
        for name, full in _USUAL.items():
            self.aliases.setdefault(name, full)

    def resolve(self, node: ast.AST) -> str:
        """The full name of the object of `node`; empty for a variable.

        >>> m = Module(ast.parse("import torch.nn.functional as F"))
        >>> m.resolve(ast.parse("F.softmax", mode="eval").body)
        'torch.nn.functional.softmax'
        """
        name = dotted(node)
        if not name:
            return ""
        found = self._resolved.get(name)
        if found is None:
            head, dot, rest = name.partition(".")
            full = self.aliases.get(head)
            found = self._resolved[name] = "" if full is None else f"{full}{dot}{rest}"
        return found

    @property
    def uses_half(self) -> bool:
        """Whether the file mentions float16 or bfloat16."""
        if self._uses_half is None:
            self._uses_half = any(
                isinstance(n, ast.Attribute) and n.attr in ("half", "float16", "bfloat16")
                for n in ast.walk(self.tree)
            )
        return self._uses_half

    def is_foreign(self, full: str) -> bool:
        """Whether a full name belongs to a numeric library other than torch."""
        return full.partition(".")[0] in _FOREIGN

    def called_with_gradient(self) -> set[str]:
        """Functions of the file that a forward or a loss calls, directly or indirectly."""
        if self._called is None:
            every = [m for c in self.classes.values() for m in c.methods.values()]
            every += self.functions.values()
            calls = {f: called_names(f.node) for f in every}
            found: set[str] = set()
            todo = [f for f in every if is_differentiated(f)]
            while todo:
                new = calls[todo.pop()] - found
                found |= new
                todo += [f for f in every if f.name in new]
            self._called = found
        return self._called

    def root_model(self) -> ClassFacts | None:
        """The only top-level module of a script."""
        modules = [c for c in self.classes.values() if c.is_module and "forward" in c.methods]
        used = {
            dotted(call.func)
            for c in modules
            for call in ast.walk(c.node)
            if isinstance(call, ast.Call)
        }
        roots = [c for c in modules if c.name not in used and not _is_loss(c.name)]
        return roots[0] if len(roots) == 1 else None


def is_differentiated(function: Function) -> bool:
    """Whether the names of a function and its class suggest that a gradient flows through it."""
    owner = function.owner
    if is_evaluation(function.name) or is_backward(function):
        return False
    if is_loss(function.name) or (owner is not None and is_loss(owner.name)):
        return True
    return owner is not None and owner.is_module and not is_evaluation(owner.name)


def is_backward(function: Function) -> bool:
    """A custom backward is not differentiated itself."""
    first = function.node.args.args[:1]
    return function.name == "backward" or bool(first and first[0].arg == "ctx")


def called_names(node: AnyFunction) -> set[str]:
    """Functions and own methods that a function calls."""
    names = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Call):
            func = child.func
            if isinstance(func, ast.Name):
                names.add(func.id)
            elif isinstance(func, ast.Attribute) and dotted(func.value) in ("self", "cls"):
                names.add(func.attr)
    return names


def _is_loss(name: str) -> bool:
    return name.lower().endswith("loss")
