"""The objects that a replay uses without a copy: the training's own, and those with side effects."""

from __future__ import annotations

import io
import logging
import threading
import types
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .source import file_kind

__all__ = ["is_shared", "is_user_module"]

_TYPES = (
    Optimizer, LRScheduler, torch.amp.GradScaler, torch.utils.data.DataLoader,
    torch.utils.data.Dataset, torch.utils.data.Sampler, torch.jit.ScriptModule, io.IOBase,
    threading.Thread, logging.Logger, logging.Handler, weakref.ref, types.GeneratorType,
    types.CoroutineType, types.FrameType, types.TracebackType, BaseException, type,
)  # fmt: skip
_PACKAGES = {
    "stayfinite", "threading", "_thread", "queue", "_queue", "multiprocessing", "concurrent",
    "asyncio", "logging", "socket", "ssl", "selectors", "subprocess", "contextvars", "ctypes",
    "wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "neptune", "aim", "ray", "tqdm",
    "clearml", "os",
}  # fmt: skip


def is_shared(value: Any) -> bool:
    """Whether a write to this object would be visible, because it is not copied."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return not is_user_module(value)
    if issubclass(kind, _TYPES) or hasattr(kind, "__next__"):
        return True
    root = str(kind.__module__).split(".")[0]
    if root == "torch" and not issubclass(kind, Tensor):
        return not issubclass(kind, (nn.Module, torch.Generator, torch.Size)) or _is_distributed(
            kind
        )
    return root in _PACKAGES


def is_user_module(value: Any) -> bool:
    """Whether it is an imported file of the user."""
    if type(value) is not types.ModuleType:
        return False
    file = vars(value).get("__file__")
    return isinstance(file, str) and file_kind(file) == "user"


def _is_distributed(kind: type) -> bool:
    return any(str(base.__module__).startswith("torch.distributed") for base in kind.__mro__)
