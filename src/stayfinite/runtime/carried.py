"""Restores the tensors that a loop carries from one iteration to the next, such as a recurrent network's hidden state.

A bad batch makes them non-finite, and then every later step would be bad. Before each iteration they are only referenced;
loops that carry nothing have no cost at all.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..numerics.health import is_finite
from .carried_names import VariablePath, carried_names
from .frames import StepPlace, calling_frames, variables
from .outside_modes import outside_user_modes

__all__ = ["Carried"]

_MAX_FRAMES = 6
_MAX_VALUES = 4_000_000
"""Larger states are not referenced: an iteration would need twice their memory."""
_GONE = object()


@dataclass(frozen=True)
class _Variable:
    """`path` from a local or module-level name of the function with this code, or from an object."""

    code: CodeType
    path: VariablePath
    owner: Callable[[], Any] | None

    def value(self, frames: dict[CodeType, dict[str, Any]]) -> Any:
        if self.owner is not None:
            return _follow(self.owner(), self.path[1:])
        return _follow(frames.get(self.code, {}).get(self.path[0], _GONE), self.path[1:])


@dataclass(frozen=True)
class _Kept:
    """A tensor before the iteration, referenced without its graph."""

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Kept:
        return cls(tensor if tensor.grad_fn is None else tensor.detach(), tensor._version)

    def is_usable(self, now: Tensor) -> bool:
        kept = self.tensor
        is_alike = kept.shape == now.shape and kept.dtype == now.dtype
        return is_alike and kept._version == self.version and is_finite(kept)


class Carried:
    """The carried tensors of one training."""

    def __init__(self) -> None:
        self._at: tuple[CodeType | None, int] | None = None
        self._variables: list[_Variable] = []
        self._kept: list[list[_Kept]] = []
        self._written: dict[CodeType, frozenset[str]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether this loop carries anything; not known before its first iteration."""
        return self._at is None or bool(self._variables)

    def look(self, place: StepPlace) -> None:
        """At a step: find what the functions on the stack carry, if it is at another place than the last one."""
        at = (place.code, place.instruction)
        if at != self._at:
            self._find(at, sys._getframe(1))

    def _find(self, at: tuple[CodeType | None, int], frame: FrameType) -> None:
        kept = {(v.code, v.path): k for v, k in zip(self._variables, self._kept)}
        self._at, self._variables, self._written = at, [], {}
        for each in calling_frames(frame, _MAX_FRAMES):
            names = carried_names(each.f_code.co_filename, each.f_lineno)
            self._written[each.f_code] = names.written
            values = variables(each) if names.carried else {}
            for path in names.carried:
                variable = _variable(each.f_code, path, values, names.written)
                if next(_tensors(variable.value({each.f_code: values})), None) is not None:
                    self._variables.append(variable)
        self._kept = [kept.get((v.code, v.path), []) for v in self._variables]

    def forget(self) -> None:
        """Drop everything when the training is over."""
        self._at, self._variables, self._kept, self._written = None, [], [], {}

    def note(self) -> None:
        """Before an iteration: reference what it starts with."""
        if self._at is None:
            self._find((None, -1), sys._getframe(1))
        if self._variables:
            frames = self._frames(sys._getframe(1))
            self._kept = [[_Kept.of(t) for t in _tensors(v.value(frames))] for v in self._variables]

    @outside_user_modes
    @torch.no_grad()
    def restore(self, batches: Iterable[Any]) -> list[Callable[[], None]]:
        """At a bad step: restore what the iteration has made non-finite.

        Returns functions for the end of the iteration, which may still write to them. Tensors of `batches`, and
        those that are older than the iteration, are never written to.
        """
        if not self._variables:
            return []
        frames = self._frames(sys._getframe(1))
        foreign = {_memory(t) for t in _all_tensors([*batches, *self._older(frames)])}
        wanted = []
        for variable, kept in zip(self._variables, self._kept):
            now = list(_tensors(variable.value(frames)))
            if len(now) != len(kept):
                continue
            good = []
            for live, before in zip(now, kept):
                is_whole = is_finite(live)
                if not is_whole and before.is_usable(live) and _memory(live) not in foreign:
                    _put(live, before.tensor)
                    is_whole = True
                good.append(live.detach().clone() if is_whole else None)
            wanted.append((variable, good))
        return [lambda: self._restore_later(wanted, foreign)] if wanted else []

    @outside_user_modes
    @torch.no_grad()
    def _restore_later(
        self, wanted: list[tuple[_Variable, list[Tensor | None]]], foreign: set[int]
    ) -> None:
        frames = self._frames(sys._getframe(1))
        for variable, good in wanted:
            now = list(_tensors(variable.value(frames)))
            for live, value in zip(now, good) if len(now) == len(good) else ():
                is_same_kind = value is not None and value.shape == live.shape
                if is_same_kind and not is_finite(live) and _memory(live) not in foreign:
                    assert value is not None
                    _put(live, value)

    def _frames(self, frame: FrameType | None) -> dict[CodeType, dict[str, Any]]:
        wanted = {v.code for v in self._variables if v.owner is None}
        found: dict[CodeType, dict[str, Any]] = {}
        for each in calling_frames(frame) if wanted else ():
            if each.f_code in wanted and each.f_code not in found:
                found[each.f_code] = variables(each)
        return found

    def _older(self, frames: dict[CodeType, dict[str, Any]]) -> Iterator[Any]:
        """The values of variables that no iteration assigns."""
        for code, values in frames.items():
            written = self._written.get(code, frozenset())
            yield from (v for n, v in values.items() if n not in written)


def _variable(
    code: CodeType, path: VariablePath, values: dict[str, Any], written: frozenset[str]
) -> _Variable:
    """An object that the iteration does not assign is remembered weakly: its function may have returned by then."""
    if len(path) > 1 and path[0] not in written:
        try:
            return _Variable(code, path, weakref.ref(values.get(path[0])))
        except TypeError:
            pass
    return _Variable(code, path, None)


def _follow(value: Any, steps: VariablePath) -> Any:
    """Read attributes and items without running code of the user."""
    for step in steps:
        if step.startswith("."):
            try:
                home = object.__getattribute__(value, "__dict__")
            except AttributeError:
                return _GONE
            value = home.get(step[1:], _GONE)
        elif type(value) is dict:
            value = next((v for k, v in value.items() if _is_key(k, step[1:])), _GONE)
        else:
            value = _GONE
    return value


def _is_key(key: Any, text: str) -> bool:
    return type(key) in (str, int) and repr(key) == text


def _tensors(value: Any, depth: int = 2) -> Iterator[Tensor]:
    """The tensors that an iteration may compute, in the order of their containers."""
    if type(value) is Tensor:
        is_computed = value.is_floating_point() and not (value.is_leaf and value.requires_grad)
        is_plain = value.layout == torch.strided and value.device.type != "meta"
        if is_computed and is_plain and value.numel() <= _MAX_VALUES and not value.is_inference():
            yield value
    elif depth and issubclass(type(value), (list, tuple)):
        for each in value:
            yield from _tensors(each, depth - 1)
    elif depth and type(value) is dict:
        for each in value.values():
            yield from _tensors(each, depth - 1)


def _all_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from (v for v in value if isinstance(v, Tensor))
        elif type(value) is dict:
            yield from (v for v in value.values() if isinstance(v, Tensor))


def _memory(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a class that has no memory of its own
        return id(tensor)


def _put(live: Tensor, value: Tensor) -> None:
    with _unsafe_preserve_version_counter(live):  # a graph may hold it
        live.copy_(value)
