"""What a preset changes for each quantity, and why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .names import number_of, quantity_of
from .read import ConfigFile, PlacedValue

__all__ = ["SAFER", "Change", "Safer", "related"]


@dataclass(frozen=True)
class Safer:
    """How one quantity is made safer: for `conservative` and for `very-conservative`."""

    mild: Callable[[float], float]
    strong: Callable[[float], float]
    reason: str


@dataclass(frozen=True)
class Change:
    """One value that the preset changes."""

    entry: PlacedValue
    value: Any
    reason: str
    is_known: bool = True
    """False where it is not known whether the script accepts the new value."""

    @property
    def is_applied(self) -> bool:
        """False where the value's place in the text is not known: change it by hand."""
        return self.entry.start >= 0 and self.is_known

    @property
    def why_by_hand(self) -> str:
        if self.is_known:
            return "its place in the file is not known"
        return "if your script knows this value"


def _at_most(limit: float) -> Callable[[float], float]:
    return lambda value: min(value, limit)


def _at_least(limit: float) -> Callable[[float], float]:
    return lambda value: max(value, limit)


def _divided(by: float, floor: float) -> Callable[[float], float]:
    """Divide, but not below the floor; a value that is already below it stays."""
    return lambda value: max(value / by, floor) if value > floor else value


def _exponent(limit: float) -> Callable[[float], float]:
    """An exponent of probabilities lies between 0 and 1; any other `beta` is something else."""
    return lambda value: limit if limit < value <= 1 else value


SAFER = {
    "lr": Safer(
        lambda v: v / 2, lambda v: v / 4,
        "a smaller step is the first thing that helps against divergence",
    ),
    "lr_multiplier": Safer(
        _divided(2, 1.0), _divided(4, 1.0),
        "this group's rate is the product of the two: it is the first to diverge",
    ),
    "clip": Safer(
        _at_most(1.0), _at_most(0.5),
        "one large gradient moves the weights less (Pascanu et al. 2013)",
    ),
    "warmup_ratio": Safer(
        _at_least(0.05), _at_least(0.1), "Adam's second moment needs some hundred steps to settle",
    ),
    "beta2": Safer(
        _at_most(0.98), _at_most(0.95),
        "a second moment that follows faster is not caught out by a sudden large gradient "
        "(Wortsman et al. 2023)",
    ),
    "adam_eps": Safer(
        _at_least(1e-7), _at_least(1e-6),
        "parameters whose gradients are nearly zero move less",
    ),
    "eps": Safer(
        _at_least(1e-7), _at_least(1e-6), "below 6e-8 it is exactly 0 in float16",
    ),
    "temperature": Safer(
        # No more, also for the stronger: a teacher must stay colder than its student.
        _at_least(0.05), _at_least(0.05), "logits are divided by it: smaller ones saturate",
    ),
    "loss_beta": Safer(
        # At 0.5 a uniform assignment is as good as a sure one, below it is the best of all.
        _exponent(0.55), _exponent(0.55),
        "an exponent of probabilities: the smaller, the farther their powers stay from zero",
    ),
    "focal_gamma": Safer(_at_most(1.0), _at_most(0.0), "a plainer loss: 0 is cross entropy"),
    "label_smoothing": Safer(_at_most(0.1), _at_most(0.0), "no mass on classes that are masked"),
    "mixup_alpha": Safer(_at_most(0.2), _at_most(0.0), "less mixing while the fault is looked for"),
    "growth_interval": Safer(
        _at_least(2000), _at_least(5000), "the loss scale grows less often, so it overflows less",
    ),
    "init_scale": Safer(_at_most(1024.0), _at_most(1024.0), "fewer skipped steps at the start"),
    "norm_eps": Safer(_at_least(1e-6), _at_least(1e-5), "bounds the gain of a constant row"),
    "sinkhorn_eps": Safer(
        _at_least(0.1), _at_least(0.5), "exp(x / eps) overflows float32 where x is above 88 eps",
    ),
    "streams": Safer(
        _divided(2, 2), _divided(2, 2),
        "fewer streams, fewer products that grow (a checkpoint of the old width does not fit)",
    ),
}  # fmt: skip
_SMALLEST_BATCH = 8
_ENOUGH = 32
_WHOLE = {
    "fp16": "fp32", "bf16": "fp32", "float16": "float32", "bfloat16": "float32", "half": "float",
    "torch.float16": "torch.float32", "torch.bfloat16": "torch.float32", "16": "32",
    "16-mixed": "32-true", "bf16-mixed": "32-true", "16-true": "32-true", "bf16-true": "32-true",
}  # fmt: skip
_BRAIN = {
    "fp16": "bf16", "float16": "bfloat16", "torch.float16": "torch.bfloat16",
    "16-mixed": "bf16-mixed", "16-true": "bf16-true",
}  # fmt: skip
_HEAVY = ("full", "heavy", "strong", "high", "hard")
_MAIN = re.compile(r"text|ce|cls|class|main|recon|task|nll|lm")


def related(config: ConfigFile, is_strong: bool) -> Iterator[Change]:
    """Changes that are more than one number by itself."""
    by_quantity: dict[str, list[PlacedValue]] = {}
    for entry in config.entries:
        by_quantity.setdefault(quantity_of(entry.path) or "", []).append(entry)
    yield from _precision(by_quantity, is_strong)
    yield from _batches(by_quantity, is_strong)
    yield from _lengths(by_quantity, is_strong)
    yield from _warmup(by_quantity, is_strong)
    yield from _loss_weights(by_quantity.get("loss_weight", []), is_strong)
    yield from _data(by_quantity, config.text, is_strong)


Entries = dict[str, list[PlacedValue]]


def _precision(found: Entries, is_strong: bool) -> Iterator[Change]:
    full = "full precision first; switch it back on when the run is stable"
    for entry in found.get("use_amp", []):
        if entry.value is True:
            yield Change(entry, False, full)
        elif str(entry.value).lower() in ("fp16", "bf16") and (
            is_strong or str(entry.value).lower() == "fp16"
        ):
            yield Change(entry, "no" if is_strong else "bf16", full if is_strong else _RANGE)
    for entry in found.get("use_bf16", []):
        if entry.value is True and is_strong:
            yield Change(entry, False, full)
    for entry in found.get("dtype", []):
        old = str(entry.value).lower()
        new = (_WHOLE if is_strong else _BRAIN).get(old)
        if new is None or isinstance(entry.value, bool):
            continue
        value = int(new) if isinstance(entry.value, int) else new
        yield Change(entry, value, full if is_strong else _RANGE)


_RANGE = "bfloat16 has the range of float32: 65504 is no limit any more"


def _batches(found: Entries, is_strong: bool) -> Iterator[Change]:
    """A smaller batch; where the script accumulates, as many samples to a step as before."""
    factors = []
    for entry in found.get("batch_size", []):
        number = number_of(entry.value)
        if number is None or number <= _SMALLEST_BATCH or number != int(number):
            continue
        half = int(number) // 2
        # Losses that compare samples, and batch norm, need some of them beside each other.
        new = max(half // 2, min(half, _ENOUGH)) if is_strong else half
        new = max(new, _SMALLEST_BATCH)
        factors.append(number / new)
        same = "; accumulated to as many samples as before" if found.get("accumulation") else ""
        yield Change(entry, new, f"smaller sums and activations, and less memory{same}")
    for entry in found.get("accumulation", []):
        number = number_of(entry.value)
        if number is not None and factors and max(factors) > 1:
            new = math.ceil(number * max(factors))
            yield Change(entry, new, "as many samples to a step as before, in smaller batches")


def _lengths(found: Entries, is_strong: bool) -> Iterator[Change]:
    """More steps, because a quarter of the rate needs them."""
    if not is_strong or not found.get("lr"):
        return
    for quantity in ("total_steps", "epochs"):
        for entry in found.get(quantity, []):
            number = number_of(entry.value)
            if number is not None and number >= 1:
                reason = "a quarter of the rate needs more steps to get as far"
                yield Change(
                    entry, int(2 * number) if number == int(number) else 2 * number, reason
                )


def _warmup(found: Entries, is_strong: bool) -> Iterator[Change]:
    totals = [n for e in found.get("total_steps", []) if (n := number_of(e.value))]
    length = 2 if is_strong else 1
    for entry in found.get("warmup_steps", []):
        number = number_of(entry.value)
        if number is None or number < 0:
            continue
        reason = "Adam's second moment needs some hundred steps to settle"
        wanted = number * (4 if is_strong else 2)
        if totals:
            wanted = max(wanted, 2000 if is_strong else 1000)
            cap = int(max(totals) * length * (0.2 if is_strong else 0.1))
            if wanted > cap:
                share = "a fifth" if is_strong else "a tenth"
                wanted, reason = cap, f"{reason}; no more than {share} of the run"
        if wanted > number:
            yield Change(entry, int(wanted), reason)


def _loss_weights(found: list[PlacedValue], is_strong: bool) -> Iterator[Change]:
    """One part is the task's own and keeps its weight; the others count for less."""
    weights = [(e, n) for e in found if (n := number_of(e.value)) is not None and n > 0]
    if len(weights) < 2:
        return
    is_main = [bool(_MAIN.search(e.path[-1].lower())) for e, _ in weights]
    main = is_main.index(True) if any(is_main) else 0
    for i, (entry, number) in enumerate(weights):
        if i != main:
            reason = (
                f"an unbounded part drowns the other; {weights[main][0].path[-1]} keeps its own"
            )
            yield Change(entry, number * (0.1 if is_strong else 0.5), reason)


def _data(found: Entries, text: str, is_strong: bool) -> Iterator[Change]:
    for entry in found.get("oversample", []):
        if entry.value is True:
            yield Change(entry, False, "rare samples come as often as they are: less variance")
    for entry in found.get("use_augmentation", []):
        if entry.value is True and is_strong:
            yield Change(entry, False, "the data as it is, while the fault is looked for")
    for entry in found.get("augmentation_level", []):
        if str(entry.value).lower() in _HEAVY:
            reason = "less perturbation of the data"
            # Only a file that names the level itself shows that the script knows it.
            yield Change(entry, "light", reason, is_known=bool(re.search(r"\blight\b", text)))
