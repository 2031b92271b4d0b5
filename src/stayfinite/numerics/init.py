"""Initialization that leaves nothing unwritten and nothing unregistered."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..errors import UsageError
from .eps import choice

__all__ = ["finite_init_", "unregistered_leaves"]

METHODS = ("xavier", "small", "orthogonal")
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def unregistered_leaves(module: nn.Module) -> list[str]:
    """The names of tensors that require grad but are no registered Parameter of `module`.

    Prevents: `self.w = torch.rand(n, requires_grad=True)`. The optimizer, `.to()`, `.half()` and
    `state_dict()` do not see it: it is never trained, never saved, and stays in its dtype and on
    its device.

    >>> layer = nn.Linear(2, 2)
    >>> layer.extra = torch.rand(2, requires_grad=True)
    >>> unregistered_leaves(layer)
    ['extra']
    """
    registered = {id(p) for p in module.parameters()}
    found = []
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for path, tensor in _tensors(value, f"{prefix}.{name}" if prefix else name):
                if tensor.requires_grad and tensor.is_leaf and id(tensor) not in registered:
                    found.append(path)
        for name, buffer in part.named_buffers(prefix, recurse=False):
            if buffer.requires_grad and buffer.is_leaf:
                found.append(name)
    return found


def _tensors(value: object, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _tensors(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{path}[{key!r}]")


@torch.no_grad()
def finite_init_(module: nn.Module, method: str = "xavier", *, std: float = 0.01) -> nn.Module:
    """Initialize every parameter of `module` in place; reject tensors that nobody would train.

    Prevents: `torch.empty` that is never written, weights so large that the first forward
    overflows, and leaves outside the module (see `unregistered_leaves`). Matrices get `method`:
    "xavier" (normal), "small" (normal with `std`) or "orthogonal"; embeddings always "small";
    recurrent (hidden-to-hidden) matrices always orthogonal, gate by gate; weights of norms 1, all
    biases 0. Other vectors and scalars keep their values, which must be finite.

    >>> _ = torch.manual_seed(0)
    >>> lstm = finite_init_(nn.LSTM(4, 8))
    >>> gate = lstm.weight_hh_l0[:8]
    >>> torch.allclose(gate @ gate.T, torch.eye(8), atol=1e-5)
    True
    """
    choice("method", method, METHODS)
    if not std > 0:
        raise UsageError(f"`std` must be above 0, got {std!r}")
    problems = [
        f"{name} requires grad but is not a registered Parameter, so it is never trained or saved; "
        "wrap it in nn.Parameter(...)"
        for name in unregistered_leaves(module)
    ]
    for prefix, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            if isinstance(parameter, nn.UninitializedParameter):
                problems.append(f"{full} has no shape yet; run one forward pass first")
            elif parameter.is_floating_point():
                _init(part, name, parameter, method, std)
                if not bool(parameter.isfinite().all()):
                    problems.append(f"{full} is not finite and has no known way to be initialized")
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        head = f"finite_init_: {count} with {type(module).__name__}:"
        raise UsageError("\n  - ".join([head, *problems]))
    return module


def _init(part: nn.Module, name: str, p: Tensor, method: str, std: float) -> None:
    if "bias" in name:
        p.zero_()
    elif isinstance(part, _NORMS) or "Norm" in type(part).__name__:
        if name == "weight":
            p.fill_(1)
    elif isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
        p.normal_(0, std)
        if part.padding_idx is not None:
            p[part.padding_idx] = 0
    elif isinstance(part, (nn.RNNBase, nn.RNNCellBase)) and "hh" in name:
        for chunk in p.chunk(_num_gates(part)):
            _orthogonal(chunk)
    elif p.ndim >= 2 and p.numel():
        if method == "small":
            p.normal_(0, std)
        elif method == "xavier":
            nn.init.xavier_normal_(p)
        else:
            _orthogonal(p)


def _num_gates(part: nn.Module) -> int:
    if isinstance(part, (nn.LSTM, nn.LSTMCell)):
        return 4
    return 3 if isinstance(part, (nn.GRU, nn.GRUCell)) else 1


def _orthogonal(p: Tensor) -> None:
    # The QR decomposition does not exist in half precision.
    wide = torch.empty_like(p, dtype=torch.float32 if p.dtype.itemsize < 4 else p.dtype)
    p.copy_(nn.init.orthogonal_(wide))
