"""Finds attributes in the source that are meant as weights: random numbers that a module creates in its `__init__`
and uses in its forward.

The source is read once per run, and only for classes with a plain tensor in an instance.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn

from ...locate.frames import is_user_file
from ...parsing import parsed

__all__ = ["names_in_use", "random_weights", "weight_variables"]

_RANDOM = ("rand", "randn", "rand_like", "randn_like", "normal")
_INITIALIZERS = ("nn.init.", "torch.nn.init.", "init.")
_STARTS = ("forward", "training_step")
"""Methods that are called implicitly: by `model(x)`, and by a framework."""
_WEIGHT_PLACES = {
    "linear": 1, "embedding": 1, "bilinear": 2, "conv1d": 1, "conv2d": 1, "conv3d": 1, "matmul": 1, "mm": 1,
}  # fmt: skip
"""Functions of torch, and the position of their first weight argument."""


def random_weights(cls: type) -> set[str]:
    """Attributes that `__init__` sets to random numbers and that are not set anywhere else.

    >>> random_weights(nn.Linear)
    set()
    """
    made: set[str] = set()
    others: set[str] = set()
    for each in cls.__mro__:
        if each is object or each.__module__.partition(".")[0] == "torch":
            continue
        for function in _functions(each):
            is_first = function.name == "__init__"
            for name, value in _assigned(function):
                is_made = is_first and value is not None and _is_random(value)
                (made if is_made else others).add(name)
    return made - others


def names_in_use(modules: Iterable[nn.Module], frame: FrameType | None) -> set[str]:
    """Names of methods and attributes that are used between the user's loop or `forward` and the loss."""
    methods: dict[str, list[CodeType]] = {}
    for cls in {type(m) for m in modules}:
        for each in cls.__mro__:
            for name, value in vars(each).items():
                code = getattr(value, "__code__", None)
                if code is not None and is_user_file(code.co_filename):
                    methods.setdefault(name, []).append(code)
    todo = [code for name in _STARTS for code in methods.get(name, ())]
    todo += _loops(frame)
    seen: set[CodeType] = set()
    found: set[str] = set()
    while todo:
        code = todo.pop()
        if code in seen:
            continue
        seen.add(code)
        found.update(code.co_names)
        if code.co_name != "<module>":  # that has all the classes in it
            todo += [c for c in code.co_consts if isinstance(c, CodeType)]
        todo += [c for name in code.co_names for c in methods.get(name, ())]
    return found


def weight_variables(
    frame: FrameType | None, known: Collection[int] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Variables of the user's running functions that have a gradient and are used like weights.

    Inputs of a model can have gradients too (adversarial images), but a weight is never passed to a model. Tensors whose `id`
    is `known` are left out first: to parse a long file takes longer than many steps of a training.
    """
    seen = set(known)
    trees: dict[str, ast.AST | None] = {}
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            for name, value in (*frame.f_locals.items(), *frame.f_globals.items()):
                is_leaf = issubclass(type(value), Tensor) and value.is_leaf and value.requires_grad
                if not is_leaf or value.grad is None or value.numel() < 2 or id(value) in seen:
                    continue
                seen.add(id(value))
                if file not in trees:
                    trees[file] = _tree(file)
                if _is_used_as_weight(trees[file], name):
                    yield name, value
        frame = frame.f_back


def _tree(file: str) -> ast.AST | None:
    try:
        with open(file, encoding="utf-8") as f:
            return parsed(f.read(), file)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _is_used_as_weight(tree: ast.AST | None, name: str) -> bool:
    """Whether it is used in matrix products or as a weight argument of a torch function, and as no other argument."""
    is_weight = False
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            is_weight = is_weight or _is_name(node.right, name)
        elif isinstance(node, ast.Call):
            places = [i for i, a in enumerate(node.args) if _is_name(a, name)]
            if not places:
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            if any(i < _WEIGHT_PLACES.get(called, len(node.args)) for i in places):
                return False
            is_weight = True
    return is_weight


def _is_name(node: ast.expr, name: str) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        node = node.value
    return isinstance(node, ast.Name) and node.id == name


def _loops(frame: FrameType | None) -> list[CodeType]:
    """The code of the user's functions on the stack, and of the functions that they refer to."""
    found: list[CodeType] = []
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            found.append(frame.f_code)
            named = (frame.f_globals.get(name) for name in frame.f_code.co_names)
            found += [c for f in named if isinstance(c := getattr(f, "__code__", None), CodeType)]
        frame = frame.f_back
    return found


def _functions(cls: type) -> list[ast.FunctionDef]:
    try:
        tree = parsed(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return []
    bodies = [top.body for top in tree.body[:1] if isinstance(top, ast.ClassDef)]
    return [f for body in bodies for f in body if isinstance(f, ast.FunctionDef)]


def _assigned(function: ast.FunctionDef) -> list[tuple[str, Any]]:
    """(attribute of self, assigned value; None for a change in place)"""
    found: list[tuple[str, Any]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            found += [(name, node.value) for t in node.targets for name in _own(t)]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            found += [(name, node.value) for name in _own(node.target)]
        elif isinstance(node, ast.AugAssign):
            found += [(name, None) for name in _own(node.target)]
        elif function.name != "__init__" and isinstance(node, ast.Call):
            f = node.func
            if isinstance(f, ast.Attribute) and f.attr.endswith("_"):
                found += [(name, None) for name in _own(f.value)]
    return found


def _own(target: ast.expr) -> list[str]:
    while isinstance(target, ast.Subscript):
        target = target.value
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
    if is_own and target.value.id == "self":  # type: ignore[attr-defined]
        return [target.attr]  # type: ignore[attr-defined]
    return []


def _is_random(value: ast.expr) -> bool:
    """Whether this is `torch.rand(…)`, scaled or shifted, a list of such, or filled by `nn.init`; no masks."""
    if isinstance(value, ast.BinOp):
        return _is_random(value.left) or _is_random(value.right)
    if isinstance(value, (ast.List, ast.Tuple)):
        return bool(value.elts) and all(_is_random(v) for v in value.elts)
    if isinstance(value, ast.ListComp):
        return _is_random(value.elt)
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(_is_random(v) for v in value.values)
    if not isinstance(value, ast.Call):
        return False
    called = ast.unparse(value.func)
    if called.startswith(_INITIALIZERS):
        return True
    if called.startswith("torch.") and called.removeprefix("torch.") in _RANDOM:
        return True
    is_method = isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "float", "cuda")
    return is_method and _is_random(value.func.value)  # type: ignore[attr-defined]
