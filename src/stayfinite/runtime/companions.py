"""State that follows a training outside of its model: averages, counters, copies of the model.

*Holders* are the script's own objects that have an optimizer: a wrapper that counts steps and sets the rate, a custom
schedule. *Twins* are modules that are not trained: a running average of the weights, a target network, a teacher. They are
found through the loop's variables, and referenced weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .frames import calling_frames, variables
from .outside_modes import outside_user_modes
from .undo import Undo, attributes

if TYPE_CHECKING:
    from .discover import Auxiliaries

__all__ = ["Companions", "undo_of"]

_NUMBERS = (bool, int, float, str, type(None))
_MAX_DEPTH = 4
_NUM_PROBES = 4


class Companions:
    """The companions of one training."""

    def __init__(self) -> None:
        self.holders: list[weakref.ref[Any]] = []
        self.training: dict[str, weakref.ref[nn.Module]] = {}
        """Twins in training mode: a forward updates their buffers, as it does the model's."""
        self.twins: list[tuple[weakref.ref[nn.Module], list[Any]]] = []
        self._noted: list[tuple[weakref.ref[Any], dict[str, Any]]] = []
        self._adopted_at = 0

    @outside_user_modes
    def adopt(
        self, auxiliaries: Auxiliaries, moved: Iterable[Tensor], models: set[int], num_applied: int
    ) -> None:
        """Note the objects that were found; `moved`: the optimizers' parameters, `models`: ids of the models."""
        ours, others = (
            {id(p) for p in moved},
            (m for m in auxiliaries.modules if id(m) not in models),
        )
        twins = [m for m in others if not any(id(p) in ours for p in m.parameters())]
        self.holders = [weakref.ref(h) for h in auxiliaries.holders if id(h) not in models]
        self._noted = []
        self.twins = [(weakref.ref(m), _probes(m)) for m in twins]
        self._adopted_at = num_applied
        self.training = {
            f"beside{i or ''}": weakref.ref(m) for i, m in enumerate(twins) if m.training
        }

    def clear(self) -> None:
        """Forget all companions when the training is over."""
        self.holders, self._noted, self.twins = [], [], []
        self.training.clear()

    def note(self) -> None:
        """At the start of a window: note numbers, because a wrapper may count the step before it calls the optimizer."""
        self._noted = [
            (ref, {k: v for k, v in vars(holder).items() if type(v) in _NUMBERS})
            for ref in self.holders
            if (holder := ref()) is not None and hasattr(holder, "__dict__")
        ]

    @outside_user_modes
    def capture(
        self, models: Iterable[nn.Module], frame: FrameType, num_applied: int
    ) -> list[Undo]:
        """At a bad step: undo functions for the end of the iteration.

        `frame`: the caller of the step. If that is inside a wrapper, the wrapper may change the weights, too.
        """
        holders = [h for ref in self.holders if (h := ref()) is not None]
        undos = [attributes(h)() for h in holders]
        undos += [_numbers(ref, values) for ref, values in self._noted]
        callers = {id(v) for f in calling_frames(frame, most=6) for v in _first_argument(f)}
        tensors = [t for h in holders for t in _tensors(vars_of(h), _MAX_DEPTH)]
        if any(id(h) in callers for h in holders):
            tensors += [p for m in models for p in m.parameters()]
        tensors += self._moving(list(models), num_applied)
        return undos + undo_of(tensors)

    def _moving(self, models: list[nn.Module], num_applied: int) -> list[Tensor]:
        """The tensors of twins with the shapes of a model, if the loop updates them."""
        shapes = [_shapes(m) for m in models]
        found = []
        for ref, probes in self.twins:
            twin = ref()
            if twin is None or _shapes(twin) not in shapes:
                continue
            if num_applied == self._adopted_at or _probes(twin) != probes:
                found += [*twin.parameters(), *twin.buffers()]
        return found


def vars_of(holder: Any) -> dict[str, Any]:
    return getattr(holder, "__dict__", {})


def _numbers(ref: weakref.ref[Any], values: dict[str, Any]) -> Undo:
    def undo() -> None:
        holder = ref()
        if holder is not None:
            vars(holder).update(values)

    return undo


def _first_argument(frame: FrameType) -> list[Any]:
    """The first argument of a method, `self`."""
    code = frame.f_code
    name = code.co_varnames[0] if code.co_argcount else None
    return [v for k, v in variables(frame).items() if k == name]


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for each in list(value.values()):
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for each in list(value):
            yield from _tensors(each, depth - 1)


def _shapes(module: nn.Module) -> list[torch.Size | None]:
    return [None if is_lazy(p) else p.shape for p in module.parameters()]


def _probes(module: nn.Module) -> list[Any]:
    """A fingerprint that changes with any write, even by `.data`, which does not change the version counter."""
    found = []
    for p in list(module.parameters())[:_NUM_PROBES]:
        if _is_plain(p) and p.numel() and p.layout == torch.strided:
            first = p.detach()[(0,) * p.dim()].item()
            found.append((p.data_ptr(), p._version, first))
    return found


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is on one rank, has memory, and can be written to."""
    is_whole = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type != "meta"
    return is_whole and not tensor.is_inference()


def undo_of(tensors: Iterable[Tensor]) -> list[Callable[[], None]]:
    """Functions that restore the current values; unchanged tensors are not written to."""
    unique = {id(t): t for t in tensors if t.device.type != "meta" and not t.is_inference()}
    kept = [(t, t.detach().clone(), t._version) for t in unique.values()]

    @torch.no_grad()
    def undo() -> None:
        for live, values, version in kept:
            if _is_plain(live):
                is_same = live.shape != values.shape or torch.equal(live, values)
            else:
                is_same = live._version == version
            if not is_same:
                live.copy_(values)

    return [undo] if kept else []
