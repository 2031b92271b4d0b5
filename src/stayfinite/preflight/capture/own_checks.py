"""Detects a loop that checks its own loss and skips non-finite batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["OwnChecks"]

_ASKED: set[Any] = {
    getattr(home, name) for home in (torch, Tensor) for name in ("isnan", "isinf", "isfinite")
}
_READ: set[Any] = {Tensor.item, Tensor.__float__}


class OwnChecks(TorchFunctionMode):
    """Reports each single number that is not finite when the loop reads it or asks whether it is.

    >>> seen = []
    >>> with OwnChecks(seen.append):
    ...     loss = torch.tensor(float("nan"))
    ...     is_fine = bool(torch.isfinite(loss))
    >>> seen
    [tensor(nan)]
    """

    def __init__(self, report: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._report = report

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _READ or func in _ASKED:
            value = args[0]
            if value.numel() == 1 and value.is_floating_point() and not math.isfinite(value.item()):
                self._report(value)
        return result
