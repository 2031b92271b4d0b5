"""Uninitialized memory, and in-place writes to memory that the backward needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from .. import values as v
from ..context import Context, Hit
from ..module import ClassFacts, Module
from ..names import dotted
from ..operation import Operation
from .registry import end_of_file, end_of_function, on

_ALLOCATES = {"empty", "empty_like", "new_empty", "Tensor", "FloatTensor", "HalfTensor"}
_PLAIN = {"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module"}
_READS = {
    "zip",
    "len",
    "enumerate",
    "range",
    "print",
    "add",
    "mul",
    "matmul",
    "cat",
    "stack",
    "sum",
}
_FILLS = re.compile(
    r"init|normal|glorot|uniform|xavier|kaiming|orthogonal|trunc|fill|zero|ones|eye|constant|copy|reset|load|"
    r"dirac|sparse_|quant|set_|assign|materialize|eval\(|exponential|_weights|no_init|random|pack"
)


@end_of_file
def unwritten_parameters(module: Module, contexts: list[Context]) -> Iterable[Hit]:
    for owner in module.classes.values():
        allocated = list(_allocated(module, owner))
        if not allocated or _fills_all(module):
            continue
        written = _written_names(module)
        for name, node, code, words in allocated:
            if name not in written:
                yield Hit(code, node, words, is_default=_is_plain_module(module, owner))


def _is_plain_module(module: Module, owner: ClassFacts) -> bool:
    """A base class in another file may fill what this one allocates."""
    if any("_init_weights" in c.methods for c in module.classes.values()):
        return False
    return bool(owner.bases) and all(module.resolve(_name(b)) in _PLAIN for b in owner.bases)


def _name(base: str) -> ast.expr:
    return ast.parse(base or "_", mode="eval").body


def _allocated(module: Module, owner: ClassFacts) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Parameters and buffers made from uninitialized memory."""
    for method in owner.methods.values():
        for node in ast.walk(method.node):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                target = dotted(node.targets[0])
                if target.startswith("self.") and _is_parameter(module, node.value):
                    yield target[5:], node.value, *_words(node.value.args[0], "parameter")
            elif isinstance(node, ast.Call):
                yield from _buffer(node)


def _buffer(node: ast.Call) -> Iterator[tuple[str, ast.expr, str, str]]:
    is_buffer = isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer"
    if not is_buffer or len(node.args) < 2:
        return
    name, value = node.args[:2]
    if isinstance(name, ast.Constant) and isinstance(name.value, str) and _is_allocation(value):
        yield name.value, node, *_words(value, "buffer")


def _is_parameter(module: Module, node: ast.Call) -> bool:
    made = module.resolve(node.func) or dotted(node.func)
    if not made.endswith("Parameter") or not node.args or not _is_allocation(node.args[0]):
        return False
    frozen = [k.value for k in node.keywords if k.arg == "requires_grad"]
    return not any(isinstance(f, ast.Constant) and f.value is False for f in frozen)


def _is_allocation(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    if name not in _ALLOCATES or (not node.args and not node.keywords):
        return False
    is_empty = any(isinstance(a, ast.Constant) and a.value in (0, 1) for a in node.args[:1])
    return not is_empty and not any(isinstance(a, (ast.List, ast.ListComp)) for a in node.args)


def _words(node: ast.expr, kind: str) -> tuple[str, str]:
    is_tensor = isinstance(node, ast.Call) and dotted(node.func).endswith("Tensor")
    code = "SF162" if is_tensor else "SF161"
    return code, f"nothing writes this {kind}: it starts as whatever was in memory"


def _fills_all(module: Module) -> bool:
    """A method that handles all parameters, or passes itself to a function that may."""
    methods = [m.node for c in module.classes.values() for m in c.methods.values()]
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("parameters", "named_parameters", "apply", "modules")
        and dotted(node.value) == "self"
        for method in methods
        for node in ast.walk(method)
    )


def _written_names(module: Module) -> set[str]:
    """Attributes that code in the file fills: `init.normal_(m.x)`, `self.x.data.zero_()`, `x[...] = 0`."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
            if name.endswith("_") or _FILLS.search(name.lower()):
                found.update(_attributes(node))
        elif isinstance(node, (ast.For, ast.comprehension)):
            found.update(_attributes(node.iter))
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Subscript) or dotted(target).endswith(".data"):
                    found.update(_attributes(target))
    return found - {"register_buffer", "Parameter"}


def _attributes(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


@end_of_function
def partly_written(ctx: Context) -> None:
    """Memory from `empty` that is only partly written."""
    allocated = {}
    for node in _own_nodes(ctx.body):
        if isinstance(node, ast.Assign) and _is_allocation(node.value) and len(node.targets) == 1:
            name = dotted(node.targets[0])
            if name and not name.startswith("self."):
                allocated[name] = node.value
    if not allocated:
        return
    written = {name for node in _own_nodes(ctx.body) for name in _written_whole(node)}
    for name, node in allocated.items():
        if name not in written:
            words = "not all of this memory is surely written before it is read"
            ctx.hits.append(Hit("SF163", node, words, is_default=False))


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _written_whole(node: ast.AST) -> Iterator[str]:
    """Names that a node fills, or passes to a function that may."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_everything(target.slice):
                yield dotted(target.value)
    elif isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute) and _fills_in_place(func.attr):
            yield dotted(func.value)
        is_reader = dotted(func).rpartition(".")[2] in _READS
        yield from map(dotted, [] if is_reader else node.args)
        yield from (dotted(k.value) for k in node.keywords)


def _fills_in_place(name: str) -> bool:
    return name.endswith("_") and not name.startswith(("index_", "scatter", "masked_"))


def _is_everything(index: ast.expr) -> bool:
    """`x[:]`, `x[...]`, and slices or numbers with them: several of these may fill it together."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(p, ast.Slice) for p in parts) or (
        isinstance(index, ast.Constant) and index.value is Ellipsis
    )


@on("in_place")
def result_changed_in_place(op: Operation, ctx: Context) -> None:
    x = op.first
    is_variable = bool(op.nodes) and isinstance(op.nodes[0], ast.Name)
    if not is_variable or not x.has(v.SAVED) or x.has(v.NOGRAD | v.NP | v.PY | v.FIXED):
        return
    if ctx.is_differentiated:
        words = "the backward needs the value that is changed here in place, and raises"
        ctx.report("SF142", op.node, words, default=False)
