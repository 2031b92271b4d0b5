"""The trace of one rank: its own shards, and the values it sends to others.

Values move between ranks in collectives, which a trace cannot follow: after one, a NaN has no producer. So each rank also
records the first bad value that it *sent*.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from ...locate.notes import COLLECTIVES
from ...locate.slice import Origin, find_origin
from ...locate.trace import OpTrace
from ...numerics.health import badness
from ...runtime.ranks.agreement import Ranks
from ...runtime.ranks.groups import has_world, world_of_all
from ...runtime.ranks.shards import local

__all__ = [
    "DIVERGED_NOTE",
    "FROM_ANOTHER",
    "JOINING_NOTE",
    "NOT_COMPUTED_NOTE",
    "SUM_NOTE",
    "NeedsOthers",
    "RankTrace",
    "Silence",
    "is_received",
    "trace_for",
]

_TALK = COLLECTIVES | {"fsdp"}
_SENT = {
    "tensors", "input", "inputs", "input_tensor", "input_tensors", "all_gather_inputs", "self",
}  # fmt: skip
_RECEIVED = {"out", "output", "output_tensor", "output_tensors", "all_gather_output"}
_BOTH = "tensors"
"""Sent, and overwritten with what is received. What was finite before is not this rank's own any more."""
_FROM_ONE = ("broadcast_", "broadcast", "scatter_", "recv_")

SUM_NOTE = (
    "every rank's own values were finite, and what came back from the others was not: the sum over "
    "the ranks overflowed"
)

NOT_COMPUTED_NOTE = "the ranks could not compute the step again to its end, so it is not known on which of them it began"

DIVERGED_NOTE = (
    "it was seen after the ranks had parted, at the end of the run: no step could be run again, and "
    "this rank's state was left as it is; do not save a checkpoint from it"
)

JOINING_NOTE = "inside `with model.join():` a rank that has run out of batches cannot take part in a replay, so no earlier step was run again"
FROM_ANOTHER = (
    "this rank's own values were finite: the bad gradient came from another rank, which shows more (inside "
    "`with model.join():` each rank looks into it by itself)"
)


class NeedsOthers(Exception):
    """Raised if the replay needs an answer from ranks that are gone."""


class Silence(TorchDispatchMode):
    """Ends a computation before its first collective, which nobody would answer."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace in _TALK:
            raise NeedsOthers(func._schema.name)
        return func(*args, **(kwargs or {}))


class RankTrace(OpTrace):
    """A trace of this rank's shards, and of the values it sends to the others."""

    is_quiet = False
    """Whether the other ranks cannot answer, so that the trace stops before the first collective."""
    is_exchanging = False
    """Whether the computation of the loss itself needs the other ranks."""
    first_sent: Origin | None = None
    """The origin of the first bad value that was sent in a collective."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.is_paused or func.namespace not in _TALK:
            return super().__torch_dispatch__(func, types, args, kwargs)
        if self.is_quiet:
            raise NeedsOthers(func._schema.name)
        named = dict(zip((a.name for a in func._schema.arguments), args)) | (kwargs or {})
        if not func._schema.name.endswith(_FROM_ONE):
            self.is_exchanging |= torch._C._current_autograd_node() is None
            self.first_sent = self.first_sent or self._origin_of(named)
        is_sending = func._schema.name.endswith("send")
        both = [] if is_sending else [t for t in _tensors([named.get(_BOTH)]) if not badness(t)]
        result = func(*args, **(kwargs or {}))
        for tensor in (*_tensors(v for k, v in named.items() if k in _RECEIVED), *both):
            self.writers.clear(tensor, whole=True)
        return result

    def _origin_of(self, named: dict[str, Any]) -> Origin | None:
        for tensor in _tensors(v for k, v in named.items() if k in _SENT):
            if badness(tensor):
                origin = find_origin(self, [tensor])
                if origin is not None and not is_received(origin):
                    return origin
        return None

    def own(self, origin: Origin | None) -> Origin | None:
        """The origin if there are no others: what was received is what was sent."""
        return self.first_sent or origin if origin is None or is_received(origin) else origin

    def _note_empty(self, schema: Any, results: list[Tensor]) -> None:
        """The buckets that DistributedDataParallel makes are filled with gradients, part by part, before they are sent."""
        super()._note_empty(schema, results)
        library = self.notes[-1].place.library if results else None
        if library is not None and library.file == distributed.__file__:
            for tensor in results:
                self.writers.clear(tensor, whole=True)

    def _inputs(self, schema: Any, named: dict[str, Any]) -> Any:
        return super()._inputs(schema, _local(named))

    def _inspect(self, schema: Any, named: dict[str, Any], given: Any, out: Any) -> list[Tensor]:
        return super()._inspect(schema, _local(named), given, _local(out))


def trace_for(ranks: Ranks) -> type[OpTrace]:
    """The kind of trace for this training. A process group of a single rank also exchanges values: with itself."""
    return RankTrace if ranks.has_others or (has_world() and world_of_all() is None) else OpTrace


def is_received(origin: Origin) -> bool:
    """Whether the slice ended at a value that no operator and no state of this rank made."""
    if origin.source is not None:
        return False
    if not origin.path:
        return True
    return any(not b.producers and b.source is None for b in origin.path[0].bad_inputs)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            value = local(value)
            if value.is_floating_point() or value.is_complex():
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _local(value: Any) -> Any:
    """The same arguments with this rank's part instead of each DTensor."""
    if isinstance(value, Tensor):
        return local(value)
    if isinstance(value, dict):
        return {k: _local(v) for k, v in value.items()}
    if type(value) in (list, tuple) and any(isinstance(v, (Tensor, list)) for v in value):
        return type(value)(_local(v) for v in value)
    return value
