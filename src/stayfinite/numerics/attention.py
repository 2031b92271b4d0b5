"""Scaled dot-product attention that survives half precision and empty rows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UsageError
from .eps import hold, widen
from .masked import masked_softmax

__all__ = ["stable_attention"]


def stable_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(query @ keyᵀ * scale) @ value over (…, L, E), (…, S, E), (…, S, V).

    Prevents: scores that overflow fp16 before they are scaled (the scale goes into the query first,
    and the product and the softmax are fp32, also under autocast), and NaN for a query that may
    attend to nothing: its output is 0, with gradient zero. `mask` is bool, True where attention is
    allowed, or a float that is added. Entries beyond 4e9 (the fourth root of fp32's range) are
    held there, so that no product of three overflows.

    >>> q = k = v = torch.full((1, 2, 4), 300.0, dtype=torch.float16)
    >>> stable_attention(q, k, v, torch.tensor([[True, True], [False, False]]))
    tensor([[[300., 300., 300., 300.],
             [  0.,   0.,   0.,   0.]]], dtype=torch.float16)
    """
    if not 0 <= dropout_p < 1:
        raise UsageError(f"`dropout_p` must be at least 0 and below 1, got {dropout_p!r}")
    with torch.autocast(query.device.type, enabled=False):
        q, k, v = _held(query), _held(key), _held(value)
        factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        scores = (q * factor) @ k.mT
        is_allowed = None
        if mask is not None and mask.dtype == torch.bool:
            is_allowed = mask
        elif mask is not None:
            scores = scores + mask.to(scores.dtype)
        if is_causal:
            causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
            is_allowed = causal if is_allowed is None else is_allowed & causal
        weights = masked_softmax(scores, is_allowed)
        if dropout_p:
            weights = F.dropout(weights, dropout_p)
        return (weights @ v).to(query.dtype)


def _held(x: Tensor) -> Tensor:
    wide = widen(x)
    # fp16 numbers are all far below the limit in fp32.
    return wide if x.dtype == torch.float16 else hold(wide, torch.finfo(wide.dtype).max ** 0.25)
