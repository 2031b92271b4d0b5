"""Observes the gradients of one backward: the source of exact zeros, and their growth.

A NaN of 0 * inf has two causes. The infinity is a bad value, so the trace has noted it. The zero is a good value, so
its source is recorded here, element by element: a mask may be named only if it discards exactly the elements that went bad.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..numerics.health import dense_parts
from .facts import Given
from .positions import View, carry, coordinates, index_of, view_of
from .storage import address

__all__ = ["Call", "GradientFlow", "Zeros"]

_COUNT_LIMIT = 1 << 22
"""Larger gradients are not examined, to limit the time of a replay."""
_TOTAL_LIMIT = 1 << 26
"""The total number of elements whose zeros are recorded."""
_MAX_VISITS = 256
_MAX_PLACES = 4096
_MAX_DIRECT = 16

_SELECTS = re.compile(
    r"^(Where|Masked\w+|NanToNum|Index\w*|Gather|Select\w*|Slice\w*|CopySlices|Take\w*|Nansum)"
    r"(Backward\d*)?$"
)
"""Nodes that drop elements because of an explicit selection."""
_SATURATES = re.compile(
    r"^(Clamp\w*|Threshold|Relu\d?|Hardtanh|Maximum|Minimum|Max|Min|Amax|Amin|Topk)Backward\d*$"
)
"""Nodes that drop elements because of their values; they count as masks only if that was the purpose."""
_CARRIES = {"sum", "clone", "_to_copy", "copy_"}
"""Operators that keep positions like elementwise ones, or sum over them (`sum_to_size`)."""


@dataclass(frozen=True)
class Call:
    """One operator call of the backward."""

    node: Any
    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: list[Given]
    is_pointwise: bool

    @property
    def name(self) -> str:
        return str(self.node.name()).split("::")[-1]

    @property
    def op(self) -> str:
        return str(self.func._schema.name).split("::")[-1]

    @property
    def keeps_places(self) -> bool:
        return self.is_pointwise or self.op in _CARRIES

    @property
    def reads_values(self) -> bool:
        """Whether it uses values, unlike `zeros_like`, which only needs the shape."""
        return not (self.op.endswith("_like") or self.op.startswith("new_"))


@dataclass(frozen=True, eq=False)
class _Flow:
    node: str
    parents: tuple[tuple[_Flow, View], ...]
    view: View
    zeros: Tensor | None = None
    """The zero elements of the storage; None if there are none or they are unknown."""
    discarded: Tensor | None = None
    """The elements of the result that are zero for any incoming gradient."""
    keeps_places: bool = True
    direct: frozenset[int] | None = None
    """For nodes that drop elements by value: the nodes whose values were compared."""


@dataclass(frozen=True)
class Zeros:
    """The zeros of a gradient at the positions that went bad."""

    num_discarded: int
    """Positions that a selection has dropped."""
    selections: frozenset[str]
    others: frozenset[str]
    """Nodes that made the other zeros: a zero derivative, a saturated function."""


class GradientFlow:
    """Receives every operator of the backward, in order."""

    def __init__(self) -> None:
        self._flows: dict[int, _Flow] = {}
        self._num_kept = 0
        self.peaks: list[tuple[str, float]] = []
        """(autograd node, largest magnitude of its gradients), in the order of the backward."""

    def note(self, call: Call, results: Iterable[Tensor]) -> None:
        """Note that an operator inside a node made `results`.

        Results that a node computes from saved values alone (a derivative) are not gradients and are ignored.
        """
        parents = [(flow, view_of(g.live)) for g in call.given if (flow := self.of(g.live))]
        if not parents or not call.reads_values:
            for part in (p for t in results for p in dense_parts(t)):
                self._flows.pop(address(part), None)  # reused memory
            return
        discarded: Tensor | None = None
        direct: frozenset[int] | None = None
        if _SATURATES.match(call.name):
            direct = _directly_under(call.node)
        if direct is not None or _SELECTS.match(call.name) or self._is_masking_product(call):
            discarded = self._discarded(call)
        for tensor in results:
            for part in dense_parts(tensor):
                if part.numel() > _COUNT_LIMIT:
                    continue
                self._flows[address(part)] = _Flow(
                    call.name,
                    tuple(parents),
                    view_of(part),
                    self._zeros(part),
                    discarded if discarded is not None and discarded.shape == part.shape else None,
                    call.keeps_places,
                    direct,
                )
                self._peak(call.name, part)

    def start(self, root: Tensor) -> None:
        """Note the gradient of the loss with respect to itself."""
        for part in dense_parts(root):
            self._flows[address(part)] = _Flow("", (), view_of(part))

    def _zeros(self, part: Tensor) -> Tensor | None:
        values = part.detach()
        length = values.untyped_storage().nbytes() // values.element_size()
        if self._num_kept + length > _TOTAL_LIMIT or length > _COUNT_LIMIT:
            return None
        zeros: Tensor = values.as_strided((length,), (1,), 0) == 0
        if not bool(zeros.any()):
            return None
        self._num_kept += length
        return zeros

    def _is_masking_product(self, call: Call) -> bool:
        """Whether this is a product with a mask: a factor that is 0 or one other number, or only 0."""
        if call.name not in ("MulBackward0", "MulBackward1"):
            return False
        factors = [g for g in call.given if self.of(g.live) is None]
        if not factors:
            return 0 in [a for a in call.args if isinstance(a, (int, float))]
        factor = factors[0].live
        if factor.requires_grad or factor.layout != torch.strided or factor.numel() > _COUNT_LIMIT:
            return False
        factor = factor.abs() if factor.is_complex() else factor
        peak = factor.max() if factor.numel() else factor
        return bool(((factor == 0) | (factor == peak)).all())

    def _discarded(self, call: Call) -> Tensor | None:
        """The positions at which the result is zero if the incoming gradient is 1 everywhere."""
        before = {id(g.live): g.values for g in call.given}
        is_mutable = call.func._schema.is_mutable

        def changed(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if hasattr(value, "device_mesh"):
                raise TypeError("a call over several ranks is not made by one alone")
            if self.of(value) is not None:
                return torch.ones_like(value)
            value = before.get(id(value), value)
            return value.clone() if is_mutable else value

        try:
            with torch.no_grad():
                made = call.func(*tree_map(changed, call.args), **tree_map(changed, call.kwargs))
        except (RuntimeError, TypeError):
            return None
        return made.detach() == 0 if isinstance(made, Tensor) and not made.is_sparse else None

    def _peak(self, node: str, part: Tensor) -> None:
        low, high = (float(v) for v in torch.aminmax(part))
        value = max(abs(low), abs(high))
        if value != value:
            return
        if self.peaks and self.peaks[-1][0] == node:
            self.peaks[-1] = (node, max(self.peaks[-1][1], value))
        else:
            self.peaks.append((node, value))

    def of(self, tensor: Tensor) -> _Flow | None:
        """The record of the gradient in this memory; None if it is not a gradient."""
        for part in dense_parts(tensor):
            return self._flows.get(address(part))
        return None

    def zeros_at(self, tensor: Tensor, bad: Tensor, number: int, is_any: bool) -> Zeros | None:
        """Find the nodes that made this gradient zero where `bad` is true; None if it is not a gradient.

        `number` is that of the node where it went bad. A node that drops elements by value (relu, clamp, max) counts only if it compared
        the value of that node, or, with `is_any`, in any case.
        """
        flow = self.of(tensor)
        if flow is None:
            return None
        places = bad.nonzero()[:_MAX_PLACES]
        story = _Story(number, is_any)
        found = story.explain(flow, index_of(places, view_of(tensor)))
        return Zeros(int(found.sum()), frozenset(story.selections), frozenset(story.others))


class _Story:
    """The search back through the gradients, over the positions that went bad."""

    def __init__(self, number: int, is_any: bool) -> None:
        self._number = number
        self._is_any = is_any
        self._num_visits = 0
        self.selections: set[str] = set()
        self.others: set[str] = set()

    def explain(self, flow: _Flow, index: Tensor) -> Tensor:
        """The elements of the flow's storage that a selection has made zero."""
        self._num_visits += 1
        nothing = torch.zeros(len(index), dtype=torch.bool, device=index.device)
        if flow.zeros is None or self._num_visits > _MAX_VISITS:
            return nothing
        if not len(index) or int(index.max()) >= len(flow.zeros):
            return nothing  # different memory by now
        is_zero = flow.zeros[index]
        at = coordinates(index, flow.view)
        found = nothing
        if flow.discarded is not None and self._counts(flow):
            found = flow.discarded[tuple(at.T)] if at.shape[1] else flow.discarded.expand(len(at))
            if bool(found.any()):
                self.selections.add(flow.node)
        left = is_zero & ~found
        if bool(left.any()):
            found = found.clone()
            found[left] = self._older(flow, at[left])
        return found

    def _counts(self, flow: _Flow) -> bool:
        return flow.direct is None or self._is_any or self._number in flow.direct

    def _older(self, flow: _Flow, at: Tensor) -> Tensor:
        """Zeros that came with the incoming gradients of this operator."""
        found = torch.ones(len(at), dtype=torch.bool, device=at.device)
        for parent, view in flow.parents:
            step = carry(at, flow.view, view) if flow.keeps_places else None
            if step is None:
                found[:] = False
                break
            owner, index = step
            found[owner[~self.explain(parent, index)]] = False
        if not bool(found.all()):
            self.others.add(flow.node)
        return found


def _directly_under(node: Any) -> frozenset[int]:
    """The numbers of the nodes whose value was the only input of this node."""
    found = set()
    for _ in range(_MAX_DIRECT):
        inner = [n for n, _ in node.next_functions if n is not None]
        if len(inner) != 1:
            break
        node = inner[0]
        found.add(int(node._sequence_nr()))
    return frozenset(found)
