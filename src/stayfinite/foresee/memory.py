"""Identifies the memory of each tensor: numbered storages, with new numbers when memory is reused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .tape import Capture, Opaque, Part, Ref, Source

__all__ = ["Memory"]

_MAX_KEPT = 1 << 27
"""Storages with more elements are not copied (a data set in one piece), so their values are unknown."""


class Memory:
    """Numbers all storages, and copies those that existed before the operators."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._num = 0

    def name(self, kind: str, name: str, tensor: Tensor) -> None:
        """Name this tensor as a part of the batch, a parameter, ..."""
        ref = self._ref(tensor, is_made=False)
        if isinstance(ref, Ref):
            self._capture.parts.append(Part(kind, name, ref, self._capture.num_steps))

    def refs(self, value: Any, is_made: bool = False) -> Any:
        """The same arguments with a `Ref` in place of every tensor."""
        if isinstance(value, Tensor):
            return self._ref(value, is_made)
        if isinstance(value, (list, tuple)):
            return tuple(self.refs(v, is_made) for v in value)
        if isinstance(value, dict):
            return {k: self.refs(v, is_made) for k, v in value.items()}
        return value

    def _ref(self, tensor: Tensor, is_made: bool) -> Ref | Opaque:
        tensor = tensor.detach()
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return Opaque()
        if hasattr(tensor, "device_mesh") or tensor.is_nested:
            return Opaque()
        number, is_new = self._number(tensor)
        if is_new and not is_made:
            self._keep(number, tensor)
        return _geometry(tensor, number)

    def _number(self, tensor: Tensor) -> tuple[int, bool]:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._known.get(key)
        if known is not None and not known[0].expired():
            return known[1], False
        self._num += 1
        self._known[key] = (StorageWeakRef(storage), self._num)
        return self._num, True

    def _keep(self, number: int, tensor: Tensor) -> None:
        ref = _geometry(tensor, number)
        values: Tensor | None = None
        if ref.length <= _MAX_KEPT:
            values = tensor.as_strided((ref.length,), (1,), 0).clone().cpu()
        self._capture.sources[number] = Source(ref, values)


def _geometry(tensor: Tensor, number: int) -> Ref:
    return Ref(
        number,
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.untyped_storage().nbytes() // tensor.element_size(),
    )
