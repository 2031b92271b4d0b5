"""Classifies parameters: a matrix with its fan-in, an embedding, a norm's scale, a bias."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .probes import Probe, Seen, Subject
from .records import Finding

__all__ = ["Role", "ask", "few", "has_scaler", "is_lost", "is_norm", "plain_values", "roles"]

_CONVS = (nn.modules.conv._ConvNd,)
_TRANSPOSED = (nn.modules.conv._ConvTransposeNd,)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_MATRICES = (nn.Linear, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


@dataclass(frozen=True)
class Role:
    """One parameter and its role in its module."""

    name: str
    parameter: nn.Parameter
    module: nn.Module
    kind: str
    """matrix | embedding | norm | bias | plain"""
    fan_in: int = 0


def is_norm(module: nn.Module) -> bool:
    """Whether this is a normalization, by its name, so that user-defined ones count."""
    return "norm" in type(module).__name__.lower()


def roles(subject: Subject) -> Iterator[Role]:
    """Every parameter with its role; shared ones once, under their first name."""
    owners: dict[int, nn.Module] = {}
    for _, module in subject.modules():
        for p in module.parameters(recurse=False):
            owners.setdefault(id(p), module)
    for name, p in subject.parameters():
        yield _role(name, p, owners[id(p)])


def _role(name: str, p: nn.Parameter, module: nn.Module) -> Role:
    last = name.rpartition(".")[2]
    if is_norm(module):
        return Role(name, p, module, "norm")
    if isinstance(module, _EMBEDDINGS):
        return Role(name, p, module, "embedding", p.shape[-1])
    if last.startswith(("bias", "in_proj_bias", "bias_")):
        return Role(name, p, module, "bias")
    if isinstance(module, _CONVS) and p.dim() > 2:
        # (out, in / groups, *kernel), and the other way round where the convolution is transposed.
        taps = math.prod(p.shape[2:])
        if isinstance(module, _TRANSPOSED):
            taps = max(1, taps // math.prod(module.stride))
            return Role(name, p, module, "matrix", p.shape[0] // module.groups * taps)
        return Role(name, p, module, "matrix", p.shape[1] * taps)
    if isinstance(module, _MATRICES) and p.dim() >= 2:
        return Role(name, p, module, "matrix", math.prod(p.shape[1:]))
    return Role(name, p, module, "plain")


def has_scaler(subject: Subject) -> bool:
    """Whether a GradScaler is in use, so that an overflow of a gradient may be normal."""
    return any(s.is_enabled() for s in subject.scalers)


def is_lost(subject: Subject, seen: Seen) -> bool:
    """Whether it is not finite, apart from a step that a GradScaler would skip."""
    is_number = seen.loss is not None and math.isfinite(seen.loss)
    return not seen.is_finite and not (has_scaler(subject) and is_number)


def ask(subject: Subject, probe: Probe) -> Generator[Probe, Seen, Seen]:
    """Run a probe; if a GradScaler would lower its scale and retry, so does this."""
    seen = yield probe
    for scale in (256.0, 1.0) if has_scaler(subject) else ():
        if seen.error is not None or seen.is_finite:
            break
        seen = yield replace(probe, scale=scale)
    return seen


def plain_values(tensor: Tensor) -> Tensor | None:
    """The values as one dense float32 tensor; None if there are none."""
    if tensor.device.type == "meta" or is_lazy(tensor) or not tensor.is_floating_point():
        return None
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout != torch.strided or not tensor.numel():
        return None
    return tensor.detach().float()


def few(findings: Sequence[Finding], limit: int = 5) -> list[Finding]:
    """The first findings of one check; the last one counts the rest.

    >>> from .records import warned
    >>> many = [warned("init", "init/scale", "std 40", "lower it", subject=s) for s in "abc"]
    >>> [f.value for f in few(many, 2)]
    ['std 40', 'std 40 (and 1 more like it)']
    """
    shown = list(findings[:limit])
    left = len(findings) - len(shown)
    if left:
        shown[-1] = replace(shown[-1], value=f"{shown[-1].value} (and {left} more like it)")
    return shown
