"""Functions of torch, numpy and Python that are known to have no side effects."""

from __future__ import annotations

import ast
import collections
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "CONSUMERS",
    "MUTATING",
    "draws_numbers",
    "exchanges",
    "is_pure_builtin",
    "module_effect",
    "starts_graph",
    "tensor_method_mutates",
    "unknown_method_is_harmless",
]

_PURE_BUILTINS = {
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "complex",
    "dict", "dir", "divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr",
    "hasattr", "hash", "hex", "id", "int", "isinstance", "issubclass", "iter", "len", "list", "map",
    "max", "memoryview", "min", "object", "oct", "ord", "pow", "range", "repr", "reversed", "round",
    "set", "slice", "sorted", "str", "sum", "super", "tuple", "type", "vars", "zip", "property",
    "staticmethod", "classmethod", "locals",
}  # fmt: skip
CONSUMERS = {
    "all", "any", "dict", "enumerate", "filter", "frozenset", "iter", "list", "map", "max", "min",
    "set", "sorted", "sum", "tuple", "zip",
}  # fmt: skip
MUTATING = {
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft",
    "insert", "intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove",
    "reverse", "rotate", "setdefault", "sort", "subtract", "symmetric_difference_update", "update",
    "__setitem__", "__delitem__", "__iadd__", "fill", "put", "resize", "partition", "setflags",
    "frombytes", "fromlist",
}  # fmt: skip
_TENSOR_KEYWORDS = {"alpha", "descending", "dim"}
_PURE_MODULES = {
    "math", "cmath", "numbers", "decimal", "fractions", "statistics", "operator", "_operator",
    "functools", "_functools", "itertools", "copy", "collections", "_collections", "dataclasses",
    "typing", "enum", "abc", "_abc", "contextlib", "string", "re", "_sre", "heapq", "_heapq",
    "bisect", "_bisect", "textwrap", "struct", "_struct", "types", "inspect", "numpy", "scipy",
    "random", "_random", "torch", "einops", "array", "posixpath", "genericpath", "ntpath",
    "hashlib", "_hashlib", "zlib", "base64", "binascii", "platform", "importlib",
    "_frozen_importlib", "weakref", "_weakref", "colorsys", "unicodedata", "difflib",
}  # fmt: skip
_OUTSIDE_TORCH = (
    "torch.utils.data", "torch.utils.tensorboard", "torch.distributed", "torch.multiprocessing",
    "torch.hub", "torch.serialization", "torch.onnx", "torch.profiler", "torch.package",
    "torch.optim", "torch.utils.cpp_extension",
)  # fmt: skip
_FUNCTIONAL = "torch.distributed._functional_collectives"
_ASKS_PROCESSES = {
    "get_backend", "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size",
    "is_available", "is_initialized",
}  # fmt: skip
_EXCHANGES = {
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "broadcast",
    "reduce", "reduce_scatter", "reduce_scatter_tensor",
}  # fmt: skip
"""Collectives that write their result into the first argument."""
_OUTSIDE_NUMPY = {
    "save",
    "savez",
    "savez_compressed",
    "savetxt",
    "memmap",
    "fromfile",
    "load",
    "loadtxt",
}
_OUTSIDE_TORCH_NAMES = {
    "save", "load", "set_default_dtype", "set_default_device", "set_num_threads", "compile",
    "set_default_tensor_type", "load_state_dict", "_load_from_state_dict", "share_memory",
    "use_deterministic_algorithms", "set_float32_matmul_precision",
}  # fmt: skip
_KEEP_CONTENT = {"requires_grad_", "retain_grad_", "rename_"}
_DRAWING = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli",
    "multinomial", "normal", "poisson", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "alpha_dropout", "feature_alpha_dropout", "gumbel_softmax", "rrelu", "bernoulli_", "normal_",
    "uniform_", "random_", "exponential_", "cauchy_", "geometric_", "log_normal_", "rrelu_",
    "scaled_dot_product_attention", "manual_seed", "seed", "sample", "rsample",
}  # fmt: skip
_HARMLESS_METHODS = (
    {n for n in dir(Tensor) if not n.startswith("_")}
    | {n for n in dir(str) if not n.startswith("_")}
    | {"items", "keys", "values", "copy", "index", "count"}
) - {"share_memory_", "put_", "register_hook", "set_", "resize_"}
_CONTAINERS = (
    list, dict, set, collections.deque, tuple, frozenset, str, bytes, bytearray, int,
    float, complex, bool, range, slice, type(None), types.SimpleNamespace,
)  # fmt: skip


def is_pure_builtin(name: str) -> bool:
    return name in _PURE_BUILTINS


def is_plain(obj: Any) -> bool:
    """A container or a number of Python, whose C methods affect only itself."""
    return isinstance(obj, _CONTAINERS) or type(obj).__module__ in ("array", "numpy", "collections")


def module_effect(module: str, name: str) -> str | None:
    """The reason why a function of this module must not be called again; None if it only computes."""
    root = module.split(".")[0]
    if root not in _PURE_MODULES:
        return f"{module}.{name} may reach outside"
    if module.startswith("torch.distributed") and name in _ASKS_PROCESSES:
        return None
    if root == "torch" and (module.startswith(_OUTSIDE_TORCH) or name in _OUTSIDE_TORCH_NAMES):
        return f"{module}.{name} reaches outside"
    if root == "numpy" and name in _OUTSIDE_NUMPY:
        return f"numpy.{name} works on files"
    return None


def exchanges(module: str, name: str) -> bool:
    """Whether all processes call this function together, and it computes; what it returns may be awaited."""
    return module.startswith("torch.distributed") and (
        name in _EXCHANGES or module in ("torch.distributed.nn.functional", _FUNCTIONAL)
    )


def is_tensor_call(node: ast.Call) -> bool:
    """`x.sort(descending=True)`: a keyword that only tensors have, whose method returns a new one."""
    return any(k.arg in _TENSOR_KEYWORDS for k in node.keywords)


def tensor_method_mutates(name: str) -> bool:
    """`x.add_(1)`: the contents are changed in place."""
    return name.endswith("_") and not name.endswith("__") and name not in _KEEP_CONTENT


def starts_graph(owner: Tensor, name: str) -> bool:
    """`x.requires_grad_()`: `autograd.grad(…, x)` needs it. Not for a parameter, which has it from the start."""
    return name == "requires_grad_" and not isinstance(owner, nn.Parameter)


def draws_numbers(module: str, name: str) -> bool:
    """Whether the function advances the global random state."""
    return name in _DRAWING or module.startswith(("random", "numpy.random")) or module == "_random"


def module_draws(root: nn.Module) -> bool:
    """Whether a call of this module may draw random numbers."""
    for module in root.modules():
        is_torch = type(module).__module__.startswith("torch.nn")
        if not is_torch or "Dropout" in type(module).__name__ or hasattr(module, "dropout"):
            return True
    return False


def unknown_method_is_harmless(name: str) -> bool:
    """Methods that tensors and texts have: what is unknown in a helper function is mostly a tensor."""
    return name in _HARMLESS_METHODS


def is_iterator(obj: Any) -> bool:
    return hasattr(type(obj), "__next__")


def can_iterate_again(obj: Any) -> bool:
    """Whether a container always yields the same items, without side effects."""
    if is_iterator(obj):
        return False
    if isinstance(obj, (Tensor, np.ndarray, nn.Module, torch.Size)) or is_plain(obj):
        return True
    kind = type(obj)
    return kind.__module__ == "builtins" and hasattr(kind, "__iter__")
