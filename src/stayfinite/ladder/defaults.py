"""The default ladder: the usual order of changes, as far as the script has them.

Precision first, then the data, a simpler loss, higher temperatures and a smaller exponent, a smaller learning rate, no
augmentation, a smaller batch, and finally the forward in float32 and clipped gradients.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import UsageError
from .records import Change, Outcome
from .resolve import Resolver
from .values import as_number, normal, parse_try, shown

__all__ = ["default_ladder"]

_AMP = (
    "use_amp", "amp", "enable_amp", "fp16", "use_fp16", "bf16", "use_bf16", "half",
    "mixed_precision", "use_mixed_precision", "autocast", "use_autocast",
)  # fmt: skip
_DTYPES = ("precision", "dtype", "amp_dtype", "mixed_precision", "torch_dtype")
_WIDER = {
    "fp16": "fp32", "bf16": "fp32", "float16": "float32", "bfloat16": "float32", "half": "float",
    "torch.float16": "torch.float32", "torch.bfloat16": "torch.float32", "16": "32",
    "16-mixed": "32-true", "bf16-mixed": "32-true", "16-true": "32-true", "bf16-true": "32-true",
}  # fmt: skip
_LOSS = (
    "use_focal_loss", "focal_loss", "focal_gamma", "use_class_weights", "class_weights",
    "label_smoothing", "smoothing",
)  # fmt: skip
_LR = ("lr", "learning_rate", "base_lr", "max_lr", "peak_lr", "init_lr")
_AUGMENTATION = (
    "use_augmentation", "augmentation", "augment", "use_mixup", "mixup", "mixup_alpha",
    "use_cutmix", "cutmix", "cutmix_alpha", "noise_std", "random_erasing",
)  # fmt: skip
_TEMPERATURE = re.compile(r"(\w+_)?(temperature|temp)s?")
_COLD = 0.05
_BETA = ("beta", "loss_beta", "mi_beta")
_LEAST_BETA = 0.55
_BATCH = ("batch_size", "train_batch_size", "per_device_train_batch_size", "micro_batch_size", "bs")


def default_ladder(found: Resolver, baseline: Outcome) -> list[Change]:
    """The rungs for this script and this failure."""
    rungs: list[Change] = []
    rungs += _precision(found, baseline)
    if baseline.has_loader:
        rungs.append(_ours("skip_bad_samples", "true"))
    rungs += _switched_off(found, _LOSS)
    rungs += _warmer(found)
    rungs += _flatter(found)
    rungs += _scaled(found, _LR, 0.1) or [_ours("lr", "0.1x")]
    rungs += _switched_off(found, _AUGMENTATION)
    rungs += _smaller_batch(found)
    if baseline.cause == "loss_scaling":
        rungs.append(_ours("init_scale", "1024"))
    if baseline.is_half and not baseline.has_autocast:
        rungs.append(_ours("precision", "fp32"))
    rungs.append(_ours("clip", "1"))
    unique = {c.target: c for c in reversed(rungs)}
    return [c for c in rungs if unique[c.target] is c and not c.is_idle]


def _ours(name: str, value: str) -> Change:
    label = name if value == "true" else f"{name}={value}"
    return Change(label=f"stayfinite:{label}", kind="knob", key=name, after=value)


def _precision(found: Resolver, baseline: Outcome) -> list[Change]:
    for name, value in _present(found, _AMP):
        if value is True or as_number(value) == 1:
            return _set(found, name, False)
        if isinstance(value, str) and normal(value) in ("fp16", "bf16"):
            return _set(found, name, "no")  # as accelerate spells it
    for name, value in _present(found, _DTYPES):
        wider = _WIDER.get(str(value).lower())
        if wider is not None:
            return _set(found, name, int(wider) if isinstance(value, int) else wider)
    return [_ours("autocast", "off")] if baseline.has_autocast else []


def _switched_off(found: Resolver, names: tuple[str, ...]) -> list[Change]:
    """Switch off each of these that is on."""
    rungs = []
    for name, value in _present(found, names):
        if value is True:
            rungs += _set(found, name, False)
        elif (as_number(value) or 0) > 0:
            rungs += _set(found, name, 0)
    return rungs


def _scaled(found: Resolver, names: tuple[str, ...], factor: float) -> list[Change]:
    for name, value in _present(found, names):
        if (as_number(value) or 0) > 0:
            return _set(found, name, f"{factor:g}x")
    return []


def _warmer(found: Resolver) -> list[Change]:
    """Raise each temperature to at least 0.05, including those in a list."""
    rungs = []
    for name, value in _present(found, _ending(found, _TEMPERATURE)):
        values = value if isinstance(value, list) else [value]
        numbers = [as_number(v) for v in values]
        if None in numbers or not any(0 < n < _COLD for n in numbers if n is not None):
            continue
        warm = [max(n, _COLD) for n in numbers if n is not None]
        rungs += _set(found, name, warm if isinstance(value, list) else warm[0])
    return rungs


def _flatter(found: Resolver) -> list[Change]:
    """An exponent of probabilities; any other `beta` is something else."""
    rungs = []
    for name, value in _present(found, _BETA):
        number = as_number(value)
        if number is not None and _LEAST_BETA < number <= 1:
            rungs += _set(found, name, _LEAST_BETA)
    return rungs


def _smaller_batch(found: Resolver) -> list[Change]:
    for name, value in _present(found, _BATCH):
        number = as_number(value)
        if number is not None and number >= 2 and number.is_integer():
            return _set(found, name, int(number) // 2)
    return []


def _ending(found: Resolver, pattern: re.Pattern[str]) -> tuple[str, ...]:
    names = [normal(f["dest"]) for f in found.flags]
    names += [normal(str(e.path[-1])) for e in (*found.data, *found.code)]
    return tuple(dict.fromkeys(n for n in names if pattern.fullmatch(n)))


def _set(found: Resolver, name: str, value: Any) -> list[Change]:
    try:
        return [found.resolve(parse_try(f"{name}={shown(value)}"))]
    except UsageError:
        return []  # an ambiguous name, which only the user can resolve


def _present(found: Resolver, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """(key, value) of all keys with one of these names, in the order of the names."""
    known: dict[str, list[tuple[str, Any]]] = {}
    for flag in found.flags:
        if flag["current"] is None:
            continue  # not given: the value that counts is elsewhere
        known.setdefault(normal(flag["dest"]), []).append((flag["dest"], flag["current"]))
    for group in (found.data, found.code):
        here: dict[str, list[tuple[str, Any]]] = {}
        for entry in group:
            here.setdefault(normal(str(entry.path[-1])), []).append((entry.key, entry.value))
        for name, pairs in here.items():
            known.setdefault(name, pairs)  # a flag overrides a config, a config a constant
    return [pair for name in names for pair in known.get(name, ())]
