"""Tracks the running module: by hooks in forward, by sequence numbers in backward."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["ModuleStack", "inner_module", "name_modules"]


def name_modules(roots: Mapping[str, nn.Module]) -> dict[int, str]:
    """Dotted paths by module id; `roots` maps a prefix ("" for a single model) to a model."""
    names: dict[int, str] = {}
    for prefix, root in roots.items():
        for path, module in root.named_modules():
            path = _public_path(path)
            full = f"{prefix}.{path}" if prefix and path else prefix or path
            names.setdefault(id(module), full)
    return names


def _public_path(path: str) -> str:
    """Remove the names that wrappers add: compile, DDP and activation checkpointing."""
    hidden = {"_orig_mod", "_checkpoint_wrapped_module"}
    parts = [p for p in path.split(".") if p not in hidden]
    return ".".join(parts)


class ModuleStack:
    """Tracks calls of modules while it is entered."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._stack: list[tuple[str | None, str, int, nn.Module]] = []
        self._spans: list[tuple[int, int, str | None, str]] = []
        self._handles: list[Any] = []
        self._thread = 0
        self._quiet: warnings.catch_warnings[None] | None = None

    def __enter__(self) -> ModuleStack:
        self._thread = threading.get_ident()  # modules that another thread calls do not count
        # A compiled model warns of hooks, but these are not the user's.
        self._quiet = warnings.catch_warnings()
        self._quiet.__enter__()
        warnings.filterwarnings(
            "ignore", message="Using `torch.compile.module.` when there are global"
        )
        self._handles = [
            register_module_forward_pre_hook(self._push),
            register_module_forward_hook(self._pop, always_call=True),
        ]
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks; can be called repeatedly."""
        while self._handles:
            self._handles.pop().remove()
        if self._quiet is not None:
            self._quiet.__exit__(None, None, None)
            self._quiet = None

    def _push(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        name = self._names.get(id(module))
        kind = type(module).__name__
        if name is None and self._stack:
            name, kind = self._inside(module)
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        self._stack.append((name, kind, number, module))

    def _inside(self, module: nn.Module) -> tuple[str | None, str]:
        """Whether this module was added later, or is a helper that is not registered."""
        outer, kind, _, owner = self._stack[-1]
        if outer is None:
            return outer, kind
        for path, inner in owner.named_modules():
            if inner is module and path:
                path = _public_path(path)
                return f"{outer}.{path}" if outer and path else outer or path, type(module).__name__
        return outer, kind

    def _pop(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack and threading.get_ident() == self._thread:
            name, kind, start, _ = self._stack.pop()
            self._spans.append((start, torch.autograd._get_sequence_nr(), name, kind))  # type: ignore[attr-defined]

    def current(self) -> tuple[str | None, str | None]:
        """Path and type of the innermost running module, or (None, None)."""
        for name, kind, *_ in reversed(self._stack):
            if name is not None:
                return name, kind
        return None, None

    def at_sequence(self, number: int) -> tuple[str | None, str | None]:
        """Path and type of the module that made the autograd node with this number."""
        best: tuple[int, str | None, str] | None = None
        for start, end, name, kind in self._spans:
            if (
                start <= number < end
                and name is not None
                and (best is None or end - start < best[0])
            ):
                best = (end - start, name, kind)
        return (best[1], best[2]) if best else (None, None)


def inner_module(module: nn.Module) -> nn.Module:
    """The user's model inside DDP, DataParallel or torch.compile."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in (
            "DistributedDataParallel",
            "DataParallel",
        ):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner
