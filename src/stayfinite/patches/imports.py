"""Changing a function in a module, now or when somebody imports it."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["wrap_when_imported"]

_HOLDERS = (
    "torch.distributed.checkpoint", "safetensors", "transformers", "accelerate", "lightning",
    "pytorch_lightning", "lightning_fabric", "diffusers", "peft",
)  # fmt: skip
_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}


def wrap_when_imported(module: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace `module.name` by `make(original)`, wherever a framework holds on to it as well."""

    def wrap(home: ModuleType) -> None:
        original = getattr(home, name, None)
        if original is None or hasattr(original, "__stayfinite__"):
            return
        wrapper = make(original)
        functools.update_wrapper(wrapper, original)
        wrapper.__stayfinite__ = True
        setattr(home, name, wrapper)
        for other in list(sys.modules.values()):
            if getattr(other, "__name__", "").startswith(_HOLDERS):
                for key, value in list(vars(other).items()):
                    if value is original:
                        setattr(other, key, wrapper)

    if module in sys.modules:
        wrap(sys.modules[module])
        return
    if not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(module, []).append(wrap)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the usual finders find the module, then adds its share to the loading."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        wraps = _waiting.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec is not None else None
        if spec is None or loader is None or not hasattr(loader, "exec_module"):
            return spec
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            for wrap in wraps:
                wrap(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
