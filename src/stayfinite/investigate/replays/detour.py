"""Sends a replay's collectives over copies of the training's process groups.

If a rank leaves in the middle of a replay, closing the copies releases the others. The training's own groups are not affected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...runtime.ranks.side_groups import GroupCopies
from ...runtime.ranks.talk import OthersBrokeOff

__all__ = ["Detour"]

_TALK = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd")
_c10d: Any = dist.distributed_c10d if dist.is_available() else None
_PLAIN = Tensor.__torch_dispatch__


class Detour(TorchDispatchMode):
    """Redirects collectives to the copies of their groups."""

    def __init__(self, copies: GroupCopies) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copies = copies

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(t.__torch_dispatch__ is not _PLAIN for t in types):
            return NotImplemented  # a DTensor: the operation on its local part is dispatched here again
        kwargs = kwargs or {}
        if func.namespace not in _TALK:
            return func(*args, **kwargs)
        names = [a.name for a in func._schema.arguments]
        args = tuple(self._led(name, value) for name, value in zip(names, args))
        kwargs = {name: self._led(name, value) for name, value in kwargs.items()}
        try:
            with _without_compiler_context():
                return func(*args, **kwargs)
        except RuntimeError as error:
            raise OthersBrokeOff from error

    def _led(self, name: str, value: Any) -> Any:
        if name == "group_name" and isinstance(value, str):
            return self._copies.of(_c10d._resolve_process_group(value)).group_name
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return self._copies.of(_c10d.ProcessGroup.unbox(value)).boxed()
        return value


@contextlib.contextmanager
def _without_compiler_context() -> Iterator[None]:
    """Keeps out of a collective the Python object that torch gives each backward for its compiler.

    A collective holds the state of its thread until gloo's thread drops it, and dropping a Python object takes the
    interpreter's lock. Whoever closes a group holds that lock and waits for gloo's thread: a deadlock.
    """
    c, key = torch._C, "context"
    if not hasattr(c, "_remove_obj_from_tls") or not c._is_key_in_tls(key):
        yield
        return
    context = c._get_obj_in_tls(key)
    c._remove_obj_from_tls(key)
    try:
        yield
    finally:
        c._stash_obj_in_tls(key, context)
