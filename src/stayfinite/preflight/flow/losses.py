"""Watches which loss functions a step calls, and on what."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...locate.frames import current_place
from ..probes import LossCall

__all__ = ["LossWatch"]

_WATCHED: dict[Any, str] = {
    f: f.__name__
    for f in (
        F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits,
        F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, F.ctc_loss,
        F.gaussian_nll_loss, F.poisson_nll_loss,
    )
}  # fmt: skip
_CLASSES_AXIS_1 = ("cross_entropy", "nll_loss")
_WEIGHTED = (*_CLASSES_AXIS_1, "binary_cross_entropy", "binary_cross_entropy_with_logits")
_VIEWS = (
    "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Select", "Slice", "Alias",
    "Transpose", "TBackward", "Permute", "Clone", "Expand",
)  # fmt: skip
_MOST = 32
_ROWS = 256


class LossWatch(TorchFunctionMode):
    """Notes every call of one of torch's loss functions while it is entered.

    >>> with LossWatch() as watch:
    ...     loss = F.cross_entropy(torch.zeros(4, 10), torch.tensor([0, 1, 2, 3]))
    >>> watch.calls[0].name, watch.calls[0].num_classes, round(watch.calls[0].value, 3)
    ('cross_entropy', 10, 2.303)
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[LossCall] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _WATCHED and len(self.calls) < _MOST:
            with torch.no_grad():
                self.calls.append(_note(_WATCHED[func], args, kwargs, result))
        return result


def _note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> LossCall:
    names = ("log_probs", "targets") if name == "ctc_loss" else ("input", "target")
    given = dict(zip((*names, "weight"), args)) | kwargs
    value, target = given.get(names[0]), given.get(names[1])
    call = LossCall(name=name, at=_caller())
    if isinstance(target, Tensor):
        call.target_shape = tuple(target.shape)
    if not isinstance(value, Tensor) or value.layout != torch.strided or not value.numel():
        return call
    call.input_shape, call.input_op = tuple(value.shape), _maker(value)
    low, high = (v.item() for v in torch.aminmax(value.detach().float()))
    call.input_min, call.input_max = low, high
    if name in _WEIGHTED:
        weights = (given.get("weight"), given.get("pos_weight"))
        call.has_weights = any(isinstance(w, Tensor) for w in weights)
    call.value = _mean_value(name, result, value, kwargs.get("reduction", "mean"))
    if name in _CLASSES_AXIS_1:
        call.num_classes = value.shape[1 if value.dim() > 1 else 0]
        call.is_distribution = _is_distribution(value, low)
    elif name == "ctc_loss":
        call.num_classes = value.shape[-1]
    return call


def _mean_value(name: str, result: Any, value: Tensor, reduction: str) -> float | None:
    if not isinstance(result, Tensor) or not result.numel():
        return None
    total = float(result.detach().float().mean())
    if reduction != "sum":
        return total
    per_class = value.shape[1] if name in _CLASSES_AXIS_1 and value.dim() > 1 else 1
    return total * per_class / value.numel()


def _is_distribution(value: Tensor, low: float) -> bool:
    if low < 0 or value.shape[1 if value.dim() > 1 else 0] < 2:
        return False
    axis = 1 if value.dim() > 1 else 0
    sums = value.detach()[:_ROWS].float().sum(axis) if axis else value.detach().float().sum()
    return bool(((sums - 1).abs() < 1e-2).all())


def _maker(value: Tensor) -> str:
    node: Any = value.grad_fn
    for _ in range(8):
        name = node.name() if node is not None else ""
        if not name.startswith(_VIEWS) or not node.next_functions:
            return str(name)
        node = node.next_functions[0][0]
    return ""


def _caller() -> str:
    place = current_place().user
    return f"{os.path.basename(place.file)}:{place.line}" if place else ""
