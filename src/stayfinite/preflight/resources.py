"""The resources group: memory and time of a step by precision and batch size.

As much as possible is measured: the bytes that autograd saves are counted in a real step, and the optimizer's state is read after
one. Only other batch sizes are computed, by linear interpolation.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..devices import device_memory
from ..runtime.rows import num_rows, take_rows
from .environment.facts import bytes_text, free_host_memory
from .precision.group import used_dtype
from .probes import Checks, Probe, Seen, Subject
from .records import Finding, failed, passed, skipped, warned

__all__ = ["Measured", "largest_batch", "resources"]

GROUP = "resources"
_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_CHECKS = {"fp32": "resources/fp32", "bf16": "resources/bf16", "fp16": "resources/fp16"}
_ROOM = 0.9
"""The usable share of the free memory: allocators and libraries need some."""
_TIMED = 3


@dataclass(frozen=True)
class Measured:
    """One precision: a whole batch, and a half one where rows can be taken out."""

    precision: str
    rows: int | None
    activations: int
    seconds: float
    half_rows: int | None = None
    half_activations: int = 0
    half_seconds: float = 0.0
    is_emulated: bool = False
    """Whether the device emulates this precision, so that its time is not relevant."""

    @property
    def per_row(self) -> float | None:
        """Bytes that one more sample takes."""
        if self.rows is None or self.half_rows is None or self.rows <= self.half_rows:
            return None
        return max(self.activations - self.half_activations, 0) / (self.rows - self.half_rows)

    @property
    def speed(self) -> str:
        if self.is_emulated:
            return "speed not measured: this device has no such arithmetic"
        each = f"{1000 * self.seconds:.3g} ms a step"
        if self.rows is None or not self.seconds:
            return each
        return f"{each}, {self.rows / self.seconds:,.0f} samples a second"


def largest_batch(measured: Measured, fixed: float, free: float) -> int | None:
    """The number of samples that fit; None if it was not measured.

    >>> m = Measured("fp32", 8, 8000, 0.1, half_rows=4, half_activations=4000)
    >>> largest_batch(m, fixed=10_000, free=30_000)
    20
    """
    if not measured.per_row or measured.rows is None:
        return None
    base = measured.activations - measured.rows * measured.per_row
    return max(int((free - fixed - base) // measured.per_row), 0)


def resources(subject: Subject) -> Checks:
    """The memory and time of this training, and what would fit."""
    if not subject.batches:
        return [skipped(GROUP, "resources/step", "no batch was seen")]
    own = {"float16": "fp16", "bfloat16": "bf16"}.get(used_dtype(subject) or "", "fp32")
    first = yield Probe(
        batch=subject.batches[0],
        name="sizes",
        apply=bool(subject.optimizers),
        sizes=True,
        fresh=True,
    )
    if first.error is not None:
        return [skipped(GROUP, "resources/step", f"the step raises {first.error}")]
    findings = [_held(subject, first)]
    fixed = sum(first.sizes[k] for k in ("parameters", "gradients", "optimizer"))
    free = device_memory(subject.device) or free_host_memory()
    measured: dict[str, Measured] = {}
    for precision in ("fp32", "bf16", "fp16"):
        found = yield from _measure(subject, precision)
        if isinstance(found, str):
            findings.append(skipped(GROUP, _CHECKS[precision], found))
            continue
        measured[precision] = found
        findings.append(_of_precision(found, fixed, free, is_used=precision == own))
    if own in measured:
        findings += _smaller(measured[own])
    return findings


def _held(subject: Subject, seen: Seen) -> Finding:
    sizes = {k: v for k, v in seen.sizes.items() if k != "activations"}
    total = sum(sizes.values())
    names = " and ".join(sorted({type(o).__name__ for o in subject.optimizers}))
    words = (
        f"{bytes_text(total)} in any case: parameters {bytes_text(sizes['parameters'])}, "
        f"gradients {bytes_text(sizes['gradients'])}, "
        f"state of {names or 'no optimizer'} {bytes_text(sizes['optimizer'])}"
    )
    return passed(GROUP, "resources/held", words, data=dict(seen.sizes))


def _measure(subject: Subject, precision: str) -> Generator[Probe, Seen, Measured | str]:
    """Measure this precision, or give the reason why not."""
    batch = subject.batches[0]
    rows = num_rows(batch) if subject.can_change_rows else None
    half = rows // 2 if rows is not None and rows >= 4 else None
    whole = yield from _one(batch, precision, f"{precision}, a whole batch")
    if whole[0].error is not None:
        return f"a step in {_NAMES[precision]} raises {whole[0].error}"
    found = Measured(
        precision, rows if subject.can_change_rows else subject.batch_size,
        whole[0].sizes["activations"], whole[1],
        is_emulated=precision == "fp16" and subject.device == "cpu",
    )  # fmt: skip
    if half is None or rows is None:
        return found
    part = yield from _one(
        take_rows(batch, range(half), rows), precision, f"{precision}, half a batch"
    )
    if part[0].error is not None:
        return found  # a model for one batch size only
    return Measured(
        precision, rows, found.activations, found.seconds, half,
        part[0].sizes["activations"], part[1], found.is_emulated,
    )  # fmt: skip


def _one(batch: Any, precision: str, name: str) -> Generator[Probe, Seen, tuple[Seen, float]]:
    """(the step with its sizes, how long such a step takes when nobody measures)."""
    seen = yield Probe(batch=batch, name=name, precision=precision, sizes=True, fresh=True)
    if seen.error is not None:
        return seen, 0.0
    times = []
    for i in range(_TIMED):
        timed = yield Probe(batch=batch, name=f"{name}, timed {i}", precision=precision)
        times.append(timed.seconds)
    return seen, median(times)


def _of_precision(found: Measured, fixed: float, free: float, is_used: bool) -> Finding:
    check = _CHECKS[found.precision]
    needed = fixed + found.activations
    at = f"batch of {found.rows}" if found.rows is not None else "this batch"
    words = (
        f"{at}: activations {bytes_text(found.activations)}, {bytes_text(needed)} in all "
        f"({bytes_text(free)} free); {found.speed}"
    )
    largest = largest_batch(found, fixed, _ROOM * free)
    if largest is not None:
        words += f"; the largest batch that fits is about {float(f'{largest:.2g}'):,.0f}"
    data = {
        "rows": found.rows, "activations": found.activations, "needed": int(needed),
        "free": int(free), "seconds": found.seconds, "largest": largest,
    }  # fmt: skip
    if not is_used or needed <= _ROOM * free:
        used = " (in use)" if is_used else ""
        return passed(GROUP, check, words, subject=f"{_NAMES[found.precision]}{used}", data=data)
    action = (
        f"use a batch of {largest:,} and accumulate, or half precision"
        if largest
        else "use half precision, activation checkpointing, or a smaller model"
    )
    make = failed if needed > free else warned
    return make(GROUP, check, words, action, subject=_NAMES[found.precision], data=data, weight=7)


def _smaller(own: Measured) -> list[Finding]:
    """The same samples a step in smaller batches."""
    if own.rows is None or own.half_rows is None:
        reason = "the batch cannot be cut into rows, so smaller ones were not measured"
        return [skipped(GROUP, "resources/accumulate", reason)]
    each, times = own.half_rows, own.rows / own.half_rows
    words = (
        f"{times:g} batches of {each} accumulated: activations {bytes_text(own.half_activations)} "
        f"instead of {bytes_text(own.activations)}"
    )
    if not own.is_emulated and own.seconds:
        words += f", {times * own.half_seconds / own.seconds:.2f} times as long"
    return [passed(GROUP, "resources/accumulate", words, subject=f"{own.rows} samples a step")]
