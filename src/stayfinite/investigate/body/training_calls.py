"""The calls that a replay must run: backward, optimizer steps and the like."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .access import GRADIENTS, Reader, Verdict
from .effects import code_kind, file_kind_of
from .values import UNKNOWN, Value

__all__ = ["is_training_object", "training_call"]

_CLIPPING = {"clip_grad_norm_", "clip_grad_value_", "clip_gradients", "clip_grads_with_norm_"}
_STEPPING = {"step", "zero_grad", "unscale_", "update"}


def is_training_object(obj: Any) -> bool:
    """An optimizer, a scaler or a pipeline of torch, or a library's wrapper of an optimizer."""
    if isinstance(obj, (Optimizer, torch.amp.GradScaler)) or _is_pipeline(obj):
        return True
    kind = type(obj)
    if file_kind_of(kind) != "library":
        return False
    return all(any(n in base.__dict__ for base in kind.__mro__) for n in ("step", "zero_grad"))


def training_call(
    node: ast.Call, reader: Reader, is_training: Callable[[object], bool]
) -> Verdict | None:
    """`loss.backward()`, `optimizer.step()`, `scaler.update()`, clipping: the training's own calls."""
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    found = Verdict(is_training=True, reads={GRADIENTS}, mutates={GRADIENTS})
    target = reader.value(func)
    owner = reader.value(func.value) if isinstance(func, ast.Attribute) else UNKNOWN
    if name == "step" and owner.is_known and _is_pipeline(owner.obj):
        collected = [reader.env.path(k.value) for k in node.keywords if k.arg == "losses"]
        changed = {GRADIENTS, *(path for path in collected if path is not None)}
        return replace(found, is_backward=True, is_computing=True, mutates=changed)
    if name in _STEPPING and owner.is_known and is_training(owner.obj):
        is_step = name == "step"
        return replace(found, is_step=is_step, optimizers=_stepped(owner, node, reader, is_step))
    if name == "backward" and owner.is_known and isinstance(owner.obj, Tensor):
        return replace(found, is_backward=True)
    if name == "grad" and target.is_known and is_training(target.obj):
        return replace(found, is_backward=True)  # a training without a torch optimizer
    if target.is_known and code_kind(target.obj) == "user":
        return None
    if getattr(target.obj, "__name__", name) in _CLIPPING:
        return found
    if name in ("backward", "manual_backward") and isinstance(func, ast.Attribute):
        return replace(found, is_backward=True)
    is_model = owner.is_known and isinstance(owner.obj, nn.Module)
    if name == "zero_grad" and (is_model or not owner.is_known):
        return found
    return None


def _is_pipeline(obj: Any) -> bool:
    """A schedule of torch's pipelining: its `step` is the forward and backward of all stages."""
    home = sys.modules.get("torch.distributed.pipelining.schedules")
    kind = getattr(home, "_PipelineSchedule", None)
    return kind is not None and isinstance(obj, kind)


def _stepped(owner: Value, node: ast.Call, reader: Reader, is_step: bool) -> tuple[object, ...]:
    """`optimizer.step()`, `scaler.step(optimizer)`."""
    if not is_step:
        return ()
    if not isinstance(owner.obj, torch.amp.GradScaler) or not node.args:
        return (owner.obj,)
    given = reader.value(node.args[0])
    return (given.obj,) if given.is_known else ()
