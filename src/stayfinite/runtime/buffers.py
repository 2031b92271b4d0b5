"""The models' buffers: names, and copies from the start of a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from ..numerics.health import is_finite
from .outside_modes import outside_user_modes

__all__ = ["Buffers", "join"]

_ALWAYS_MOVED = -1
"""A version number that no tensor has."""
_MAX_SEARCHES = 4


class Buffers:
    """The buffers of all models of one training, identified by module and key."""

    def __init__(
        self,
        roots: Mapping[str, weakref.ref[nn.Module]],
        others: Callable[[], Mapping[str, weakref.ref[nn.Module]]] = dict,
    ) -> None:
        self._roots, self._others = roots, others
        self.homes: list[tuple[nn.Module, str, str]] | None = None
        """(module, key, name) of each; None until they are searched."""
        self._copies: dict[tuple[int, str], tuple[Tensor, Tensor, int]] = {}
        self._moving: list[tuple[nn.Module, str, str]] = []
        """Parameters without gradients that the forward itself updates (a momentum encoder), treated like buffers."""
        self._seen: dict[tuple[int, str], float] = {}
        self._num_searches = 0
        self.is_needed = True
        """Whether `copy` may have anything to do."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for module, key, name in self._found():
            value = module._buffers.get(key)
            if isinstance(value, Tensor):
                yield name, value

    def holds(self, module: object, key: str) -> bool:
        """Whether this attribute is a buffer that `restore` restores."""
        return any(m is module and k == key for m, k, _ in self._found())

    def search_again(self) -> None:
        """Search again, because the models have changed."""
        self.homes = None
        self._moving, self._seen, self._num_searches = [], {}, 0
        self.is_needed = True

    def clear(self) -> None:
        """Drop the copies; those returned by `copies` stay valid."""
        self._copies = {}

    def _found(self) -> list[tuple[nn.Module, str, str]]:
        if self.homes is None:
            self.homes = [
                (module, key, join(prefix, join(path, key)))
                for prefix, ref in (*self._roots.items(), *self._others().items())
                if (root := ref()) is not None
                for path, module in root.named_modules()
                for key, value in module._buffers.items()
                if value is not None
            ]
        return self.homes

    @property
    def copies(self) -> Any:
        """The current copies, for `use`."""
        return self._copies

    def use(self, copies: Any) -> None:
        """Let `restore` use these copies from now on."""
        self._copies = copies

    def copy(self, is_kept: bool = False) -> None:
        """Copy the buffers that changed since the last call, according to their version counters.

        Batch norm updates its running statistics without the counter, so those are always copied.
        `is_kept`: do not overwrite the previous copies, which are still needed (see `copies`).
        """
        if self._num_searches < _MAX_SEARCHES:
            self._find_moving()
        if self.homes is None or self.homes or self._moving:
            self._copy(is_kept)
        self.is_needed = self._num_searches < _MAX_SEARCHES or bool(self.homes or self._moving)

    @outside_user_modes
    @torch.no_grad()
    def _find_moving(self) -> None:
        """Find parameters that change without gradients; they do so in the first steps or not at all."""
        self._num_searches += 1
        found = list(self._without_gradients())
        for (module, key, name), value in zip(found, _first_values(found)):
            if value == value and self._seen.setdefault((id(module), key), value) != value:
                self._moving.append((module, key, name))
                self._num_searches = 1  # the rest of it may show later

    def _without_gradients(self) -> Iterator[tuple[nn.Module, str, str]]:
        known = {(id(m), k) for m, k, _ in self._moving}
        for prefix, ref in self._roots.items():
            root = ref()
            for path, module in root.named_modules() if root is not None else ():
                for key, p in module._parameters.items():
                    if (id(module), key) not in known and _is_fixed(p):
                        yield module, key, join(prefix, join(path, key))

    @outside_user_modes
    @torch.no_grad()
    def _copy(self, is_kept: bool) -> None:
        if is_kept:
            self._copies = dict(self._copies)
        for module, key, _ in (*self._found(), *self._moving):
            live = _live(module, key)
            if live is None or live.device.type == "meta":
                continue
            known = self._copies.get((id(module), key))
            version = live._version if key in module._buffers else _ALWAYS_MOVED
            if known is None or known[1].shape != live.shape or known[1].dtype != live.dtype:
                self._copies[id(module), key] = (live, live.detach().clone(), version)
            elif (
                known[0] is not live
                or version == _ALWAYS_MOVED
                or known[2] != version
                or isinstance(module, _NormBase)
            ):
                room = torch.empty_like(known[1]) if is_kept else known[1]
                self._copies[id(module), key] = (live, room.copy_(live), version)

    def have_moved(self) -> bool:
        """Whether any buffer may have changed since it was copied."""
        copies = self._copies
        return any(
            (known := copies.get((id(module), key))) is None
            or known[0] is not _live(module, key)
            or known[2] != known[0]._version
            or isinstance(module, _NormBase)
            for module, key, _ in (*self._found(), *self._moving)
        )

    def forget_later_versions(self) -> None:
        """The version counters were reset, so the later ones that were noted are no longer valid."""
        for at, (live, kept, version) in self._copies.items():
            if version > live._version:
                self._copies[at] = (live, kept, _ALWAYS_MOVED)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the buffers to the start of the step."""
        self._restore([*self._found(), *self._moving])

    @torch.no_grad()
    def restore_bad(self) -> None:
        """The same for modules with a buffer that is not finite."""
        bad = self._bad()
        self._restore([f for f in (*self._found(), *self._moving) if id(f[0]) in bad])

    @torch.no_grad()
    def restore_layers(self) -> None:
        """The same, and for layers: modules with weights, and norms. A metric keeps the sums that the loop has added."""
        bad, all_homes = self._bad(), (*self._found(), *self._moving)
        self._restore([f for f in all_homes if id(f[0]) in bad or _is_layer(f[0])])

    def _bad(self) -> set[int]:
        return {
            id(module)
            for module, key, _ in (*self._found(), *self._moving)
            if (live := _live(module, key)) is not None and not is_finite(live)
        }

    def _restore(self, homes: list[tuple[nn.Module, str, str]]) -> None:
        """Restore each buffer separately; those that cannot be restored are named in one error."""
        failed: dict[str, Exception] = {}
        for module, key, name in homes:
            known = self._copies.get((id(module), key))
            if known is None:
                continue
            try:
                self._put(module, key, *known)
            except Exception as error:
                failed[name] = error
        if failed:
            names = ", ".join(failed)
            raise RuntimeError(f"buffers keep what the bad step wrote: {names}") from next(
                iter(failed.values())
            )

    def _put(self, module: nn.Module, key: str, live: Tensor, kept: Tensor, version: int) -> None:
        if version == _ALWAYS_MOVED and key in module._parameters:
            live.data.copy_(kept)  # in place, because the memory may be shared
            return
        if module._buffers.get(key) is not live:
            module._buffers[key] = live
        if live._version == version and not isinstance(module, _NormBase):
            return
        try:
            with _unsafe_preserve_version_counter(live):  # a graph may hold it
                live.copy_(kept)
        except (
            RuntimeError
        ):  # expanded, or made in inference mode: it cannot be written to any more
            live = module._buffers[key] = kept.clone()
        self._copies[id(module), key] = (live, kept, live._version)


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) or any(p is not None for p in module._parameters.values())


def _live(module: nn.Module, key: str) -> Tensor | None:
    return module._buffers.get(key, module._parameters.get(key))


def _is_fixed(p: Tensor | None) -> bool:
    """Whether this is an ordinary, initialized parameter without gradients."""
    if type(p) is not nn.Parameter or p.requires_grad or is_lazy(p) or p.is_inference():
        return False
    is_here = p.layout == torch.strided and p.device.type != "meta"
    return is_here and p.is_floating_point() and p.numel() > 0


def _first_values(found: list[tuple[nn.Module, str, str]]) -> list[float]:
    """The first number of each, read at once."""
    numbers: list[Tensor] = []
    for module, key, _ in found:
        p = module._parameters[key]
        assert p is not None
        numbers.append(
            p.detach()[(0,) * p.dim()].to(numbers[0].device if numbers else p.device, torch.float32)
        )
    values: list[float] = torch.stack(numbers).tolist() if numbers else []
    return values


def join(prefix: str, name: str) -> str:
    """`a.b` of `a` and `b`; either may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name
