"""Gathers settings from the training's objects and from a config file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..environment.facts import has_attention
from ..probes import Subject
from .names import number_of, quantity_of

__all__ = ["Reading", "held", "in_file", "tags_of"]

_ADAM = ("adam", "rmsprop", "adafactor", "lamb")
_LARGE_BATCH = 2048
_MAX_HEADS = 256


@dataclass(frozen=True)
class Reading:
    """A value and its source."""

    quantity: str
    value: float
    subject: str


def held(subject: Subject) -> Iterator[Reading]:
    """The values in use: in the optimizers, scalers, layers and losses of this training."""
    for optimizer in subject.optimizers:
        yield from _of_optimizer(optimizer)
    if subject.clip_norm is not None:
        yield Reading("clip", subject.clip_norm, "clip_grad_norm_")
    for scaler in subject.scalers:
        if scaler.is_enabled():
            for name in ("init_scale", "growth_interval", "growth_factor", "backoff_factor"):
                value = number_of(getattr(scaler, f"_{name}", None))
                if value is not None:
                    yield Reading(name, value, f"GradScaler {name}")
    for path, module in subject.modules():
        yield from _of_module(path or type(module).__name__, module, subject)
    for module in subject.criteria:
        yield from _of_module(type(module).__name__, module, subject)
    if subject.batch_size is not None:
        yield Reading("batch_size", float(subject.batch_size), "batch size")


_GROUP_KEYS = {
    "lr": "lr",
    "eps": "adam_eps",
    "weight_decay": "weight_decay",
    "momentum": "momentum",
}


def _of_optimizer(optimizer: Any) -> Iterator[Reading]:
    kind = type(optimizer).__name__
    seen: set[tuple[str, float]] = set()
    for i, group in enumerate(optimizer.param_groups):
        label = f"{kind} group {i}" if len(optimizer.param_groups) > 1 else kind
        for quantity, value, name in _of_group(group):
            if (quantity, value) not in seen:
                seen.add((quantity, value))
                yield Reading(quantity, value, f"{label} {name}")


def _of_group(group: dict[str, Any]) -> Iterator[tuple[str, float, str]]:
    for key, quantity in _GROUP_KEYS.items():
        value = group.get(key)
        if key == "lr":
            # A schedule may start at 0 and climb to `max_lr`: its peak is what counts.
            rates = [_number(group.get(k)) for k in ("max_lr", "initial_lr", "lr")]
            value = max((r for r in rates if r is not None), default=None)
            if any(r is not None and r != r for r in rates):
                value = float("nan")
        number = _number(value)
        if number is not None:
            yield quantity, number, key
    betas = group.get("betas")
    if isinstance(betas, (tuple, list)):
        for i, beta in enumerate(betas[:2]):
            number = _number(beta)
            if number is not None:
                yield f"beta{i + 1}", number, f"betas[{i}]"


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else None
    return number_of(value)


def _of_module(path: str, module: nn.Module, subject: Subject) -> Iterator[Reading]:
    kind = type(module).__name__.lower()
    if "norm" in kind:
        for name in ("eps", "epsilon", "variance_epsilon"):
            eps = _number(getattr(module, name, None))
            if eps is not None:
                yield Reading("norm_eps", eps, f"{path}.{name}")
    if isinstance(module, _BatchNorm) and module.training:
        if subject.batch_size is not None:
            yield Reading("bn_batch", float(subject.batch_size), f"{path} batch size")
        if module.momentum is not None and module.track_running_stats:
            yield Reading("bn_momentum", float(module.momentum), f"{path}.momentum")
    if isinstance(module, _DropoutNd):
        yield Reading("dropout", float(module.p), f"{path}.p")
    yield from _temperatures(path, module)
    smoothing = number_of(getattr(module, "label_smoothing", None))
    if smoothing is not None:
        yield Reading("label_smoothing", smoothing, f"{path}.label_smoothing")
    if "focal" in kind or "focal" in path.lower():
        gamma = _number(getattr(module, "gamma", None))
        if gamma is not None:
            yield from _gamma(gamma, f"{path}.gamma")
    if "sinkhorn" in kind:
        for name in ("eps", "epsilon", "reg"):
            value = _number(getattr(module, name, None))
            if value is not None:
                yield Reading("sinkhorn_eps", value, f"{path}.{name}")


def _temperatures(path: str, module: nn.Module) -> Iterator[Reading]:
    """The temperatures of a module; of several (one for each head) the lowest, which is the riskiest."""
    own = {**vars(module), **module._buffers, **module._parameters}
    for name, value in own.items():
        if name.startswith("_") or quantity_of((name,)) != "temperature":
            continue
        if isinstance(value, Tensor):
            is_small = value.is_floating_point() and 0 < value.numel() <= _MAX_HEADS
            # As they are written: 0.01 in float32 is a little less.
            values = (
                [float(f"{v:.6g}") for v in value.detach().flatten().tolist()] if is_small else []
            )
        else:
            values = list(value) if isinstance(value, (list, tuple)) else [value]
        numbers = [(i, n) for i, v in enumerate(values) if (n := number_of(v)) is not None]
        for i, number in numbers:
            at = f"[{i}]" if len(values) > 1 else ""
            yield Reading("temperature", number, f"{path}.{name}{at}")


def _gamma(value: float, label: str) -> Iterator[Reading]:
    yield Reading("focal_gamma", value, label)
    if 0 < value < 1:
        yield Reading("focal_gamma_fraction", value, label)


def in_file(values: dict[str, Any], path: str) -> Iterator[Reading]:
    """The values in the config file, under its own keys."""
    for key, value in values.items():
        quantity = quantity_of(tuple(key.split(".")))
        number = number_of(value)
        if quantity is None or number is None:
            continue
        label = f"{path}: {key}" if path else key
        if quantity == "focal_gamma":
            yield from _gamma(number, label)
        else:
            yield Reading(quantity, number, label)


def tags_of(subject: Subject) -> frozenset[str]:
    """Tags for the kind of training, for rules that apply only to some."""
    tags = set()
    kinds = [type(o).__name__ for o in subject.optimizers] or _named_optimizer(subject)
    for kind in kinds:
        tags |= _family(kind)
    if not kinds:
        tags.add("unknown-optimizer")
    dtypes = {p.dtype for _, p in subject.parameters()}
    if torch.float16 in dtypes:
        tags.add("half-parameters")
    if subject.autocast_dtype == "float16" or torch.float16 in dtypes or _asks_for_amp(subject):
        tags.add("fp16")
    if has_attention(subject):
        tags.add("attention")
    if not subject.schedulers and not _has_warmup(subject):
        tags.add("no-schedule")
    if (subject.batch_size or 0) >= _LARGE_BATCH:
        tags.add("large-batch")
    return frozenset(tags)


def _family(kind: str) -> set[str]:
    name = kind.lower()
    found = set()
    if any(a in name for a in _ADAM):
        found.add("adam")
    if name.startswith(("sgd", "asgd")):
        found.add("sgd")
    if name.startswith("lion"):
        found.add("lion")
    if "adamw" in name or name.startswith("lion"):
        found.add("decoupled")
    return found


def _named(subject: Subject, quantity: str) -> list[Any]:
    entries = (subject.config or {}).items()
    return [v for k, v in entries if quantity_of(tuple(k.split("."))) == quantity]


def _named_optimizer(subject: Subject) -> list[str]:
    return [v for v in _named(subject, "optimizer") if isinstance(v, str)]


def _asks_for_amp(subject: Subject) -> bool:
    return any(v is True or v == "fp16" for v in _named(subject, "use_amp"))


def _has_warmup(subject: Subject) -> bool:
    found = _named(subject, "warmup_steps") + _named(subject, "warmup_ratio")
    return any(number_of(v) for v in found)
