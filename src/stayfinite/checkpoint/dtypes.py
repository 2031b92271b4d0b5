"""How the values of each dtype are read from bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

__all__ = ["Elements", "dtype_of"]

_VIEWED_AS = {
    "bool": torch.uint8,
    "qint8": torch.int8,
    "quint8": torch.uint8,
    "qint32": torch.int32,
    "quint4x2": torch.uint8,
    "quint2x4": torch.uint8,
}


@dataclass(frozen=True)
class Elements:
    """How to read the elements of a dtype."""

    name: str
    stored: torch.dtype
    """The dtype to view the bytes as."""
    itemsize: int
    components: int = 1
    """2 for complex numbers."""
    is_float: bool = False
    is_eight_bit_float: bool = False
    tiny: float = 0.0
    """The smallest normal number of a float."""
    log2_max: float = 0.0


_ELEMENTS: dict[str, Elements | None] = {}


def dtype_of(name: str) -> Elements | None:
    """How to read a dtype; None if torch has no dtype of that name.

    >>> dtype_of("bfloat16").itemsize, dtype_of("complex64").components, dtype_of("float7")
    (2, 2, None)
    """
    if name not in _ELEMENTS:
        elements = _make_elements(name)
        if elements is not None and elements.is_float:
            limits = torch.finfo(elements.stored)
            elements = replace(elements, tiny=limits.tiny, log2_max=math.log2(limits.max))
        _ELEMENTS[name] = elements
    return _ELEMENTS[name]


def _make_elements(name: str) -> Elements | None:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        return None
    size = dtype.itemsize
    if name.startswith("float8"):
        return Elements(name, dtype, size, is_float=True, is_eight_bit_float=True)
    if dtype.is_complex:
        part = {4: torch.float16, 8: torch.float32, 16: torch.float64}[size]
        return Elements(name, part, size, components=2, is_float=True)
    if dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        return Elements(name, dtype, size, is_float=True)
    if name in _VIEWED_AS:
        return Elements(name, _VIEWED_AS[name], size)
    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size)
    is_integer = name.startswith(("int", "uint")) and name.lstrip("uint") in ("8", "16", "32", "64")
    if is_integer:
        return Elements(name, dtype, size)
    return Elements(name, plain, size) if plain else None
