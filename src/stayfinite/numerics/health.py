"""Is this tensor finite? One pass at memory speed for the yes or no; statistics only when asked.

Every dtype, layout and kind of tensor has an answer here. A tensor without values (meta, empty) is
finite: there is nothing in it that could go wrong.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..devices import widest
from ..records import TensorStats

__all__ = [
    "Badness",
    "FiniteFlag",
    "badness",
    "dense_parts",
    "is_finite",
    "magnitudes",
    "numbers_of",
    "stats",
]

_FLOAT8 = tuple(getattr(torch, name) for name in dir(torch) if name.startswith("float8_"))
_ALWAYS_FINITE = tuple(
    getattr(torch, name) for name in ("float4_e2m1fn_x2",) if hasattr(torch, name)
)
_MANY = 4096
_FUSED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Badness:
    """Which kinds of non-finite value a tensor holds."""

    has_nan: bool = False
    has_posinf: bool = False
    has_neginf: bool = False

    def __bool__(self) -> bool:
        return self.has_nan or self.has_posinf or self.has_neginf

    @property
    def has_inf(self) -> bool:
        return self.has_posinf or self.has_neginf


def dense_parts(tensor: Tensor) -> list[Tensor]:
    """The plain dense tensors that hold this tensor's real values; none for integers and meta.

    >>> [p.shape for p in dense_parts(torch.zeros(2, 3, dtype=torch.complex64))]
    [torch.Size([2, 3, 2])]
    >>> dense_parts(torch.zeros(3, dtype=torch.int64))
    []
    """
    tensor = tensor.detach()
    if hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh"):
        tensor = tensor.to_local()
        if hasattr(tensor, "wait"):
            tensor = tensor.wait()
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.device.type == "meta":
        return []
    if tensor.is_quantized or tensor.dtype in _ALWAYS_FINITE:
        return []
    if tensor.layout != torch.strided:
        return [p for v in _sparse_values(tensor) for p in dense_parts(v)]
    if getattr(tensor, "is_nested", False):
        return [p for v in tensor.unbind() for p in dense_parts(v)]
    if tensor.is_complex():
        if tensor.is_conj():
            tensor = tensor.conj()
        tensor = torch.view_as_real(tensor)
    return [tensor] if tensor.numel() else []


def numbers_of(scalars: list[Tensor]) -> list[float]:
    """The values of tensors with one element, in one transfer; those of a class that only wraps others one by one.

    >>> numbers_of([torch.tensor(1.0), torch.tensor(2.0)])
    [1.0, 2.0]
    """
    stacked = torch.stack(scalars)
    if type(stacked) is Tensor:
        values: list[float] = stacked.tolist()
        return values
    return [float(t.item()) for t in scalars]


def _sparse_values(tensor: Tensor) -> list[Tensor]:
    if tensor.layout == torch.sparse_coo:
        return [tensor._values()]
    if tensor.layout in (
        torch.sparse_csr,
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
    ):
        return [tensor.values()]
    if tensor.layout == torch.jagged:
        return [tensor.values()]
    return [tensor.to_dense()]


def is_finite(tensor: Tensor) -> bool:
    """Whether the tensor holds no NaN and no Inf. One pass; on a device, one sync.

    >>> is_finite(torch.tensor([1.0, float("inf")]))
    False
    >>> is_finite(torch.empty(0)) and is_finite(torch.tensor(3))
    True
    """
    return all(math.isfinite(v) for p in dense_parts(tensor) for v in _extremes(p))


def badness(tensor: Tensor) -> Badness:
    """Which kinds of non-finite value the tensor holds: one pass while it is finite."""
    found = [_part_badness(p) for p in dense_parts(tensor)]
    return Badness(
        any(b.has_nan for b in found),
        any(b.has_posinf for b in found),
        any(b.has_neginf for b in found),
    )


def _extremes(part: Tensor) -> tuple[float, float]:
    # aminmax propagates NaN and runs at memory speed, where isfinite().all() does not.
    low, high = torch.aminmax(_wide(part))
    return low.item(), high.item()


def _wide(part: Tensor) -> Tensor:
    return part.to(torch.float32) if part.dtype in _FLOAT8 else part


def _part_badness(part: Tensor) -> Badness:
    part = _wide(part)
    low, high = _extremes(part)
    if math.isfinite(low) and math.isfinite(high):
        return Badness()
    if math.isnan(low) or math.isnan(high):
        return Badness(
            True,
            bool(torch.isposinf(part).any()),
            bool(torch.isneginf(part).any()),
        )
    return Badness(False, high == math.inf, low == -math.inf)


def magnitudes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The largest magnitude of each of these strided tensors of floats: scalars on their devices, nothing is read.

    On the CPU the infinity norm is twenty times slower than `aminmax`; on a device it is one kernel for all.

    >>> [float(t) for t in magnitudes([torch.tensor([1.0, -3.0]), torch.full((9000,), -2.0)])]
    [3.0, 2.0]
    """
    found: list[Tensor | None] = [None] * len(tensors)
    others = []
    for i, t in enumerate(tensors):
        t = _wide(t.detach())
        if t.device.type == "cpu" and t.numel() > _MANY:
            low, high = torch.aminmax(t)
            found[i] = torch.maximum(high, -low)
        else:
            others.append(t)
    norms = iter(torch._foreach_norm(others, math.inf) if others else ())
    return [next(norms) if t is None else t for t in found]


class FiniteFlag:
    """A device flag that stays 0 while everything shown to it is finite. No host sync to set it.

    >>> flag = FiniteFlag(torch.device("cpu"))
    >>> flag.fold([torch.ones(3), torch.tensor([float("nan")])])
    >>> flag.read()
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.value = torch.zeros((), dtype=torch.float32, device=device)
        self._one = torch.ones((), dtype=torch.float32, device=device)
        # On the CPU the flag can be read where it lies: 50 ns, and no operator is dispatched.
        self.here = (
            ctypes.c_float.from_address(self.value.data_ptr()) if device.type == "cpu" else None
        )

    def fold(self, tensors: Sequence[Tensor | None]) -> None:
        """Set the flag if any of these has a NaN or Inf. Values are left bit for bit as they are."""
        first = tensors[0] if tensors else None
        try:
            # Entering no_grad costs as much as the kernel; plain gradients do not need it.
            if first is None or not first.requires_grad:
                torch._amp_foreach_non_finite_check_and_unscale_(
                    tensors,  # type: ignore[arg-type]  # None is a TypeError, and handled
                    self.value,
                    self._one,
                )
                return
        except (RuntimeError, TypeError):
            pass
        self._fold_by_kind(tensors)

    def _fold_by_kind(self, tensors: Sequence[Tensor | None]) -> None:
        """Several dtypes, sparse, complex, fp8, None: one kernel does not serve them all."""
        groups: dict[torch.dtype, list[Tensor]] = {}
        for t in tensors:
            if t is None:
                continue
            if type(t) in _PLAIN and t.dtype in _FUSED and t.layout is torch.strided:
                groups.setdefault(t.dtype, []).append(t)
                continue
            for part in dense_parts(t):
                if part.dtype in _FLOAT8:
                    part = part.to(torch.float32)
                groups.setdefault(part.dtype, []).append(part)
        for group in groups.values():
            self._fold_group(group)

    def takes(self, tensors: Sequence[Tensor]) -> bool:
        """`fold`, and whether all that this flag of the host was shown is finite."""
        if tensors[0].requires_grad:
            self._fold_by_kind(tensors)
        else:
            try:
                torch._amp_foreach_non_finite_check_and_unscale_(tensors, self.value, self._one)  # type: ignore[arg-type]
            except (RuntimeError, TypeError):
                self._fold_by_kind(tensors)
        return self.here is not None and self.here.value == 0.0

    def _fold_group(self, group: list[Tensor]) -> None:
        with torch.no_grad():
            if all(t.device == self.device and not t.requires_grad for t in group):
                try:
                    # The kernel of the GradScaler: the fastest "any non-finite" over many tensors.
                    # It multiplies by 1, which leaves every value as it was.
                    torch._amp_foreach_non_finite_check_and_unscale_(group, self.value, self._one)
                    return
                except RuntimeError:
                    pass  # memory that overlaps itself cannot be written; look without writing
            self.fold_readonly(group)

    @torch.no_grad()
    def fold_readonly(self, tensors: Sequence[Tensor]) -> None:
        """The same without touching the tensors, for parameters and moments.

        It goes by sums of norms, which overflow a little earlier than the values do: a set flag
        means "look closer", a flag that is not set means that all is finite.
        """
        wide: list[Tensor] = []
        extremes: list[Tensor] = []
        for t in tensors:
            for part in dense_parts(t):
                if part.dtype in (torch.float32, torch.float64) and part.device == self.device:
                    wide.append(part)
                    continue
                part = part.to(torch.float32) if part.dtype in _FLOAT8 else part
                extremes += [v.to(self.device, torch.float32) for v in torch.aminmax(part)]
        if wide:
            extremes += [n.to(torch.float32) for n in torch._foreach_norm(wide)]
        if extremes:
            bad = ~torch.isfinite(torch.stack(extremes).sum())
            torch.maximum(self.value, bad.to(torch.float32), out=self.value)

    def read(self) -> bool:
        """Whether anything bad was seen. One sync on an accelerator, none on the CPU."""
        if self.here is not None:
            return self.here.value != 0.0
        return self.value.item() != 0.0

    def reset(self) -> None:
        self.value.zero_()


_PLAIN = (Tensor, torch.nn.Parameter)


def stats(tensor: Tensor) -> TensorStats:
    """Everything about the tensor's values: counts, range, headroom, the first bad index.

    >>> s = stats(torch.tensor([1.0, 0.0, float("inf"), -3.0]))
    >>> s.num_posinf, s.num_zero, s.min, s.max, s.first_bad
    (1, 1, -3.0, 1.0, (2,))
    """
    shape = tuple(int(n) for n in tensor.shape)
    base: dict[str, Any] = {
        "shape": shape,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "num_elements": tensor.numel(),
    }
    if tensor.device.type == "meta":
        return TensorStats(**base)
    with torch.no_grad():
        parts = dense_parts(tensor)
        if not parts:
            return TensorStats(**base, **_integer_range(tensor))
        wide = [p.to(torch.float32) if p.dtype in _FLOAT8 else p for p in parts]
        values = _float_range(wide)
        counts = [_counts(p, q.dtype) for p, q in zip(wide, parts)]
        histogram = _histogram(wide, values["min"], values["max"])
    summed: dict[str, Any] = {key: sum(c[key] for c in counts) for key in counts[0]}
    is_bad = summed["num_nan"] + summed["num_posinf"] + summed["num_neginf"] > 0
    return TensorStats(
        **base,
        **summed,
        **values,
        headroom_bits=_headroom(parts[0].dtype, values["abs_max"]),
        first_bad=_first_bad(tensor, wide) if is_bad else None,
        histogram=histogram,
    )


def _counts(part: Tensor, dtype: torch.dtype) -> dict[str, int]:
    tiny = torch.finfo(dtype).tiny
    magnitude = part.abs()
    return {
        "num_nan": int(torch.isnan(part).sum()),
        "num_posinf": int(torch.isposinf(part).sum()),
        "num_neginf": int(torch.isneginf(part).sum()),
        "num_zero": int((part == 0).sum()),
        "num_subnormal": int(((magnitude > 0) & (magnitude < tiny)).sum()),
    }


def _float_range(parts: Sequence[Tensor]) -> dict[str, Any]:
    """Range and mean of the finite part, the mean summed in double precision."""
    low, high, total, count = math.inf, -math.inf, 0.0, 0
    for part in parts:
        is_ok = torch.isfinite(part)
        finite = part if bool(is_ok.all()) else part[is_ok]
        if finite.numel() == 0:
            continue
        a, b = torch.aminmax(finite)
        low, high = min(low, a.item()), max(high, b.item())
        total += finite.sum(dtype=widest(finite.device)).item()
        count += finite.numel()
    if count == 0:
        return {"min": None, "max": None, "mean": None, "abs_max": None}
    return {"min": low, "max": high, "mean": total / count, "abs_max": max(abs(low), abs(high))}


def _histogram(
    parts: Sequence[Tensor], low: float | None, high: float | None, bins: int = 24
) -> tuple[int, ...]:
    if low is None or high is None or not 0 < high - low < math.inf:
        return ()
    totals = [0] * bins
    for part in parts:
        flat = part.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() >> 16)].to(widest(flat.device))
        places = (sample[torch.isfinite(sample)] - low) / (high - low) * bins
        counts = torch.bincount(places.long().clamp(0, bins - 1), minlength=bins).tolist()
        totals = [a + b for a, b in zip(totals, counts)]
    return tuple(totals)


def _integer_range(tensor: Tensor) -> dict[str, Any]:
    """Integers and bools are always finite; their range still matters (labels, indices)."""
    plain = tensor.detach()
    if plain.layout != torch.strided or plain.is_quantized or plain.numel() == 0:
        return {}
    if plain.is_floating_point() or plain.is_complex():
        return {}
    plain = plain.to(torch.int64)
    low, high = (v.item() for v in torch.aminmax(plain))
    return {
        "min": float(low),
        "max": float(high),
        "abs_max": float(max(abs(low), abs(high))),
        "mean": plain.sum(dtype=widest(plain.device)).item() / plain.numel(),
        "num_zero": int((plain == 0).sum()),
    }


def _headroom(dtype: torch.dtype, abs_max: float | None) -> float | None:
    if not abs_max:
        return None
    return math.log2(torch.finfo(dtype).max) - math.log2(abs_max)


def _first_bad(tensor: Tensor, parts: Sequence[Tensor]) -> tuple[int, ...] | None:
    if len(parts) != 1 or tensor.layout != torch.strided or hasattr(tensor, "device_mesh"):
        return None
    flat = (~torch.isfinite(parts[0])).reshape(-1)
    index = int(flat.to(torch.uint8).argmax())
    where: list[int] = []
    for size in reversed(parts[0].shape):
        where.append(index % size)
        index //= size
    where.reverse()
    return tuple(where[: tensor.dim()])
