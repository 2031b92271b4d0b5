"""A small operator trace that knows where every non-finite value was born, and where it went.

The trace carries, with every tensor that holds a NaN or an Inf, the set of places where those
values were born, so that the symptom (the loss, a gradient, a parameter, a buffer, a moment) says
where it comes from. An infinity that somebody wrote down (`masked_fill(mask, -inf)`, a causal mask
in a buffer) is a sentinel and has no birth; what turns it into a NaN has, and where no NaN comes of
it, the first reduction that carries it towards the symptom.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clinic.form import Case, Entry

# These write all of their first argument and do not read it.
_OVERWRITES = {"fill_", "zero_", "copy_", "normal_", "uniform_", "bernoulli_", "random_"}


@dataclass(frozen=True)
class Birth:
    """One place where a non-finite value came from."""

    order: int
    phase: str
    op: str | None = None
    module: str | None = None
    line: int | None = None
    label: str = ""
    from_buffers: frozenset[Birth] = frozenset()
    """Infinite buffers that fed it; they are the origin only if the buffer is itself a mistake."""


@dataclass
class Taint:
    """Where the NaNs and the Infs of one storage were born; `carried` is where a sentinel was reduced."""

    nan: frozenset[Birth] = frozenset()
    inf: frozenset[Birth] = frozenset()
    carried: frozenset[Birth] = frozenset()

    def __or__(self, other: Taint) -> Taint:
        return Taint(self.nan | other.nan, self.inf | other.inf, self.carried | other.carried)

    @property
    def births(self) -> frozenset[Birth]:
        return self.nan | self.inf or self.carried


def health(t: torch.Tensor) -> tuple[bool, bool]:
    """Whether a tensor holds a NaN, and whether it holds an Inf."""
    if not (t.is_floating_point() or t.is_complex()) or t.numel() == 0:
        return False, False
    if t.is_sparse:
        t = t.detach()._values()
    return bool(torch.isnan(t).any()), bool(torch.isinf(t).any())


def is_finite(t: torch.Tensor) -> bool:
    return not any(health(t))


def _key(t: torch.Tensor) -> Any:
    return (t.detach()._values() if t.is_sparse else t).untyped_storage()


def named_state(case: Case) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Every parameter, buffer and optimizer tensor, as (kind, name, tensor)."""
    names = {}
    for name, p in case.model.named_parameters():
        names[p] = name
        yield "parameter", name, p
    for name, b in case.model.named_buffers():
        yield "buffer", name, b
    for p, state in case.optimizer.state.items():
        for entry, value in state.items():
            if isinstance(value, torch.Tensor):
                yield "optimizer state", f"{names.get(p, '?')}.{entry}", value


class Trace(TorchDispatchMode):
    """All operators of one step: where each non-finite value is born, and where it goes."""

    def __init__(self, entry: Entry, case: Case, restored: set[int]) -> None:
        super().__init__()
        self.path = str(entry.path)
        self.part = "forward"
        self.taints: dict[int, Taint] = {}
        self.alive: list[Any] = []
        self.modules: list[str] = []
        self.module_of_node: dict[int, str | None] = {}
        self.count = 0
        for kind, name, t in named_state(case):
            owner = case.optimizer if kind == "optimizer state" else t
            is_loaded = id(owner) in restored
            self._source(t, "checkpoint" if is_loaded else "parameter", f"{kind} {name}", kind)

    def batch(self, batch: Any) -> None:
        for t in _tensors(batch):
            self._source(t, "data", "batch", "batch")

    def _source(self, t: torch.Tensor, phase: str, label: str, kind: str) -> None:
        has_nan, has_inf = health(t)
        if not (has_nan or has_inf):
            return
        birth = frozenset({Birth(-1, phase, label=label)})
        by_design = kind == "buffer" and phase == "parameter" and not has_nan
        self._mark(t, Taint(carried=birth) if by_design else Taint(nan=birth, inf=birth))

    def _mark(self, t: torch.Tensor, taint: Taint) -> None:
        storage = _key(t)
        self.alive.append((storage, t))
        self.taints[storage._cdata] = self.taints.get(storage._cdata, Taint()) | taint

    def of(self, t: torch.Tensor) -> Taint:
        return self.taints.get(_key(t)._cdata, Taint())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        if node is None and self.part == "forward":
            number = torch._C._autograd._get_sequence_nr() - 1
            self.module_of_node.setdefault(number, self.modules[-1] if self.modules else None)
        name = str(func).split(".")[1]
        flat = tree_leaves((args, kwargs))
        skip = 1 if name in _OVERWRITES else 0
        given = [t for t in flat[skip:] if isinstance(t, torch.Tensor)]
        bad = [(t, *health(seen), self.of(t)) for t, seen in zip(given, _seen(name, given))]
        out = func(*args, **kwargs)
        self.count += 1
        for t in (x for x in tree_leaves(out) if isinstance(x, torch.Tensor)):
            self.alive.append((_key(t), t))
            has_nan, has_inf = health(t)
            if has_nan or has_inf:
                written = any(isinstance(x, float) and not math.isfinite(x) for x in flat)
                # In the optimizer a written NaN or Inf is a learning rate, never a sentinel.
                written = self.part != "update" and (written or name == "lift_fresh")
                here = self._here(f"aten.{name}", node)
                self._mark(t, _spread(t, has_nan, has_inf, bad, written, here))
        return out

    def _here(self, op: str, node: Any) -> Callable[..., frozenset[Birth]]:
        def birth(from_buffers: frozenset[Birth] = frozenset()) -> frozenset[Birth]:
            if self.part == "backward" and node is not None:
                module = self.module_of_node.get(node._sequence_nr())
                # A backward written by hand has lines of its own; else the forward line counts.
                line = _line_of_stack(self.path)
                line = line or _line_of_traceback(node.metadata.get("traceback_", []), self.path)
                name = node.name().rsplit(":", 1)[-1]
                made = Birth(self.count, "backward", name, module, line, op, from_buffers)
            else:
                module = self.modules[-1] if self.modules else None
                phase = "forward" if module is not None else "loss"
                phase = {"update": "optimizer", "backward": "backward"}.get(self.part, phase)
                line = _line_of_stack(self.path)
                made = Birth(self.count, phase, op, module, line, op, from_buffers)
            return frozenset({made})

        return birth


def _seen(name: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the operator takes of its inputs: `where` takes only the chosen side of each element."""
    if name != "where" or len(given) != 3:
        return given
    chosen, left, right = given
    return [chosen, torch.where(chosen, left, 0), torch.where(chosen, 0, right)]


def _spread(
    out: torch.Tensor,
    has_nan: bool,
    has_inf: bool,
    given: list[tuple[torch.Tensor, bool, bool, Taint]],
    is_written: bool,
    here: Callable[..., frozenset[Birth]],
) -> Taint:
    nans = [taint.nan for _, is_nan, _, taint in given if is_nan]
    infs = [taint.inf for _, _, is_inf, taint in given if is_inf]
    carried = frozenset().union(*(taint.carried for *_, taint in given))
    taint = Taint(carried=carried)
    if has_nan:
        if nans:
            taint.nan = frozenset().union(*nans)
        elif infs:
            taint.nan = frozenset().union(*infs) or here(carried)
        else:
            taint.nan = here()
    if has_inf:
        if infs:
            taint.inf = frozenset().union(*infs)
            is_reduced = out.numel() < max(t.numel() for t, _, is_inf, _ in given if is_inf)
            if not taint.inf and not carried and is_reduced:
                taint.carried = here()
        elif nans:
            taint.inf = frozenset().union(*nans)
        elif not is_written:
            taint.inf = here()
    return taint


def _line_of_stack(path: str) -> int | None:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == path:
            return frame.f_lineno
        frame = frame.f_back
    return None


def _line_of_traceback(lines: list[str], path: str) -> int | None:
    found = [re.match(r'\s*File "(.*)", line (\d+)', text) for text in lines]
    numbers = [int(m[2]) for m in found if m and m[1] == path]
    return numbers[-1] if numbers else None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, (list, tuple, str)) and hasattr(value, "__dict__"):
        value = list(vars(value).values())
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


@contextlib.contextmanager
def watching(trace: Trace, model: nn.Module) -> Iterator[None]:
    names = {id(m): name for name, m in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        if id(module) in names:
            trace.modules.append(names[id(module)])

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        if id(module) in names:
            trace.modules.pop()

    hooks = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    # Anomaly mode gives each backward node the forward line that made it.
    with torch.autograd.set_detect_anomaly(True, check_nan=False), trace:
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
