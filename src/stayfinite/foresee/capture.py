"""Captures healthy steps operator by operator: forward, backward, optimizer.

No tensor is kept alive and no result is copied: the tape records which memory each operator read and wrote. Memory that existed
before (batch, parameters, constants) is copied at its first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ..locate.frames import Place, backward_place, current_place
from ..locate.modules import ModuleStack
from ..locate.notes import SourceRef
from .memory import Memory
from .records import Operation
from .tape import Call, Capture, refs_in

__all__ = ["StepCapture"]


class StepCapture(TorchDispatchMode):
    """Records every operator while it is entered; each entry is a separate step."""

    is_strict = False
    """For tests: raise errors of the capture itself instead of storing them in `capture.errors`."""

    def __init__(
        self, sources: Iterable[SourceRef] = (), module_names: Mapping[int, str] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture = Capture()
        self.modules = ModuleStack(module_names or {})
        self._memory = Memory(self.capture)
        for ref in sources:
            self.add_source(ref)
        self._in_optimizer = 0
        self._has_gradients = False
        """Mark the end of a backward; the optimizer's step follows."""
        self._anomaly: Any = None
        self._hooks: list[Any] = []

    def add_source(self, ref: SourceRef) -> None:
        """Add a named tensor with which this step begins (such as the batch of the next step)."""
        self._memory.name(ref.kind, ref.name, ref.tensor)

    def __enter__(self) -> StepCapture:
        self._anomaly = torch.autograd.set_detect_anomaly(True, check_nan=False)
        self._anomaly.__enter__()
        self.modules.__enter__()
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self.modules.__exit__(*exc)
        self._anomaly.__exit__(*exc)
        self._in_optimizer, self._has_gradients = 0, False
        self.capture.num_steps += 1

    def _before_step(self, *_: Any) -> None:
        self._in_optimizer += 1

    def _after_step(self, *_: Any) -> None:
        self._in_optimizer = max(0, self._in_optimizer - 1)
        self._has_gradients = False

    def _phase(self, node: Any) -> str:
        """Operators on the gradients before the step (clipping, unscaling) belong to the optimizer."""
        if self._in_optimizer:
            return "optimizer"
        if node is not None:
            self._has_gradients = True
            return "backward"
        return "optimizer" if self._has_gradients and not torch.is_grad_enabled() else "forward"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not func._schema.name.startswith("aten::") and not _has_tensor(args):
            return func(*args, **kwargs)  # the profiler's marks
        given: Any = None
        try:
            given = self._memory.refs(args), self._memory.refs(kwargs)
        except Exception as e:
            self._forgive(e)
        out = func(*args, **kwargs)
        try:
            if given is not None:
                self._record(func, given, out, args, kwargs)
        except Exception as e:
            self._forgive(e)
        return out

    def _forgive(self, error: Exception) -> None:
        """Run our own code; an error in it must not end the training."""
        if self.is_strict:
            raise error
        self.capture.errors.append(f"{type(error).__name__}: {error}")

    def _record(self, func: Any, given: Any, out: Any, args: Any, kwargs: Any) -> None:
        known = {r.storage for r in refs_in(given)}
        results = self._memory.refs(out, is_made=True)
        made = list(refs_in(results))
        is_written = bool(func._schema.is_mutable)
        is_view = not is_written and bool(made) and all(r.storage in known for r in made)
        lo, hi = (None, None) if is_view else _seen(out if made else args)
        node = torch._C._current_autograd_node()
        place, module = self._place(node)
        user = place.user
        dtype = made[0].dtype if made else next((r.dtype for r in refs_in(given)), None)
        operation = Operation(
            index=len(self.capture.calls),
            op=func._schema.name.replace("::", "."),
            phase=self._phase(node),
            node=node.name().split("::")[-1] if node is not None else "",
            file=user.file if user else None,
            line=user.line if user else None,
            source=user.source if user else None,
            module=module,
            dtype=str(dtype).removeprefix("torch.") if dtype else "",
            step=self.capture.num_steps,
            seen_lo=lo,
            seen_hi=hi,
        )
        self.capture.calls.append(Call(operation, func, given[0], given[1], results, is_written))

    def _place(self, node: Any) -> tuple[Place, str | None]:
        if node is None:
            return current_place(), self.modules.current()[0]
        found = backward_place(node)
        return found.place, self.modules.at_sequence(found.number)[0]


def _has_tensor(args: Any) -> bool:
    return any(
        isinstance(a, Tensor) or (isinstance(a, (list, tuple)) and _has_tensor(a)) for a in args
    )


def _seen(out: Any) -> tuple[float | None, float | None]:
    """Smallest and largest number in the results."""
    lows, highs = [], []
    for value in out if isinstance(out, (list, tuple)) else (out,):
        if not isinstance(value, Tensor) or not value.numel() or value.is_complex():
            continue
        if value.layout != torch.strided or value.device.type == "meta":
            continue
        low, high = torch.aminmax(value.detach())
        lows.append(float(low))
        highs.append(float(high))
    return (min(lows), max(highs)) if lows else (None, None)
