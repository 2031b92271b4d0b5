"""Undoes changes of small state: rates, schedulers, scalers, modes.

A *capture* is a function that saves the current values, and returns a function that restores them. Identities are
preserved: values are written back into the same dicts and lists, and a scheduler inside another one stays the same object.
Nothing is deep-copied, because an optimizer may refer to modules, functions and tensors with a graph.
"""

from __future__ import annotations

import contextlib
import copy
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.optim import Optimizer

from .buffers import Buffers

__all__ = [
    "Capture",
    "Undo",
    "attributes",
    "by_state_dict",
    "entries",
    "helpers_of",
    "modes",
    "optimizer_extras",
    "scaler_state",
    "scaler_step",
    "versions_kept",
]

Undo = Callable[[], None]
Capture = Callable[[], Undo]

_CONTAINERS = (list, dict, OrderedDict, defaultdict, Counter, deque, set)
_SMALL = 64
_GONE: Any = object()
_TORCH_OWN = frozenset(
    ("defaults", "state", "param_groups", "step", "_opt_called")
    + tuple(n for n in vars(Optimizer) if not n.startswith("__"))
    + tuple(getattr(Optimizer, "__annotations__", ()))
)


def by_state_dict(obj: Any) -> Capture:
    """Capture an object by `state_dict` and `load_state_dict`."""

    def capture() -> Undo:
        kept = copy.deepcopy(obj.state_dict())
        return lambda: obj.load_state_dict(copy.deepcopy(kept))

    return capture


def entries(home: dict[str, Any], skip: tuple[str, ...] = ()) -> Capture:
    """Capture the values of a dict that are not tensors; those are copied with the model."""

    def capture() -> Undo:
        kept = {k: _kept(v) for k, v in home.items() if k not in skip and not isinstance(v, Tensor)}

        return lambda: _put(home, kept)

    return capture


def _put(home: dict[str, Any], kept: dict[str, Callable[[], Any]]) -> None:
    for key, put in kept.items():
        value = put()
        if value is not _GONE:
            home[key] = value


def attributes(obj: Any, stop: tuple[type, ...] = (Optimizer, nn.Module)) -> Capture:
    """Capture the attributes of an object such as a scheduler, and of schedulers inside it."""

    def capture() -> Undo:
        undos: list[Undo] = []
        _note(obj, stop, undos, set())

        def undo() -> None:
            for each in undos:
                each()

        return undo

    return capture


def _note(obj: Any, stop: tuple[type, ...], undos: list[Undo], seen: set[int]) -> None:
    home = getattr(obj, "__dict__", None)
    if not isinstance(home, dict) or id(obj) in seen:
        return
    seen.add(id(obj))
    kept = {k: _kept(v) for k, v in home.items() if not isinstance(v, stop)}
    names = set(home)
    # A weak reference: the capture must not keep the training alive.
    owner = weakref.ref(obj)

    def undo() -> None:
        live = owner()
        if live is None:
            return
        for key in [k for k in vars(live) if k not in names]:
            del vars(live)[key]
        _put(vars(live), kept)

    undos.append(undo)
    for value in list(home.values()):
        for inner in value if isinstance(value, (list, tuple)) else (value,):
            if _is_alike(inner, obj) and not isinstance(inner, stop):
                _note(inner, stop, undos, seen)


def _is_alike(inner: Any, outer: Any) -> bool:
    """Whether this is a scheduler inside a scheduler, which advances with it."""
    if isinstance(inner, type):
        return False
    return hasattr(inner, "step") and hasattr(inner, "state_dict") and hasattr(outer, "step")


def _kept(value: Any) -> Callable[[], Any]:
    """A function that returns this same object, with its current contents restored."""
    if isinstance(value, Tensor):
        if value.numel() > _SMALL or value.requires_grad:
            return lambda: value
        copy = value.detach().clone()

        def put_tensor() -> Tensor:
            with torch.no_grad():
                value.copy_(copy)
            return value

        return put_tensor
    if type(value) not in _CONTAINERS:
        return _weakly(value)
    if isinstance(value, dict):
        inside = {k: _kept(v) for k, v in value.items()}

        def put_dict() -> Any:
            restored = {k: v for k, put in inside.items() if (v := put()) is not _GONE}
            value.clear()
            value.update(restored)
            return value

        return put_dict
    if isinstance(value, set):
        members = set(value)

        def put_set() -> Any:
            value.clear()
            value.update(members)
            return value

        return put_set
    items = [_kept(v) for v in value]

    def put_items() -> Any:
        restored = [v for put in items if (v := put()) is not _GONE]
        value.clear()
        value.extend(restored)
        return value

    return put_items


def _weakly(value: Any) -> Callable[[], Any]:
    """A function that returns this value; objects are referenced weakly."""
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), tuple)):
        return lambda: value
    if isinstance(
        value, types.MethodType
    ):  # a new object at every access, so its owner is referenced
        owner, function = weakref.ref(value.__self__), value.__func__
        return lambda: _GONE if (o := owner()) is None else types.MethodType(function, o)
    try:
        ref = weakref.ref(value)
    except TypeError:
        return lambda: value
    return lambda: _GONE if (found := ref()) is None else found


def optimizer_extras(optimizer: Any) -> list[Capture]:
    """Capture the other attributes of a custom optimizer: counters, a loss scale."""
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return []
    home = vars(optimizer)
    extra = [k for k in home if k not in _TORCH_OWN and not k.startswith("_optimizer_")]
    plain = [k for k in extra if _is_plain(home[k])]

    def capture() -> Undo:
        kept = {k: _kept(home[k]) for k in plain if k in home}
        return lambda: _put(home, kept)

    return [capture, *(_plain_attributes(o) for o in helpers_of(optimizer))]


def helpers_of(optimizer: Any) -> list[Any]:
    """Objects in the attributes of a custom optimizer, such as an adaptive scale."""
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return []
    extra = [v for k, v in vars(optimizer).items() if k not in _TORCH_OWN]
    return [v for v in extra if not _is_plain(v) and _is_own_object(v)]


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, type(None), Tensor)) or (
        type(value) in _CONTAINERS
    )


def _is_own_object(value: Any) -> bool:
    home = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and home not in ("builtins", "collections", "torch", "numpy")


def _plain_attributes(obj: Any) -> Capture:
    home = vars(obj)

    def capture() -> Undo:
        kept = {k: _kept(v) for k, v in home.items() if _is_plain(v)}
        return lambda: _put(home, kept)

    return capture


def modes(roots: Iterable[nn.Module]) -> Capture:
    """Capture which modules are in training mode."""
    modules = [m for root in roots for m in root.modules()]

    def capture() -> Undo:
        # A snapshot keeps this, and a model must not outlive its last user because of it.
        kept = [(weakref.ref(m), m.training) for m in modules]

        def undo() -> None:
            for ref, mode in kept:
                module = ref()
                if module is not None and module.training != mode:
                    module.training = mode

        return undo

    return capture


def scaler_state(scaler: Any) -> Capture:
    """Capture a GradScaler's scale and growth counter."""

    def capture() -> Undo:
        names = [n for n in ("_scale", "_growth_tracker") if hasattr(scaler, n)]
        live = {n: getattr(scaler, n) for n in names}
        copies = {n: t.detach().clone() for n, t in live.items() if isinstance(t, Tensor)}

        def undo() -> None:
            for name, value in live.items():
                now = getattr(scaler, name)
                if name in copies:
                    # A newer graph may use the tensor, so it is replaced and not written to.
                    if now is not value or not torch.equal(value, copies[name]):
                        value = copies[name].clone()
                elif value is None and isinstance(now, Tensor):
                    # The scaler was not in use yet, but a coming `update` needs the tensor.
                    now.fill_(
                        scaler._init_scale if name == "_scale" else scaler._init_growth_tracker
                    )
                    continue
                setattr(scaler, name, value)

        return undo

    return capture


def scaler_step(scaler: Any) -> Capture:
    """Capture a GradScaler's state of the current step, in the same dicts."""

    def capture() -> Undo:
        known = getattr(scaler, "_per_optimizer_states", None)
        if known is None:
            return lambda: None
        kept = {key: (state, dict(state)) for key, state in known.items()}

        def undo() -> None:
            known.clear()
            for key, (state, entries) in kept.items():
                state.clear()
                state.update(entries)
                known[key] = state
            scaler._per_optimizer_states = known  # `update` puts a new dict there

        return undo

    return capture


@contextlib.contextmanager
def versions_kept(weights: Iterable[Tensor], buffers: Buffers) -> Iterator[None]:
    """Preserve the version counters in this block.

    The loop may have a graph whose backward is still to come (a generator's, when its critic fails). With changed
    counters that backward would raise.
    """
    tensors = (*weights, *(b for _, b in buffers))
    plain = tuple(t for t in tensors if type(t) in (Tensor, nn.Parameter) and not t.is_inference())
    try:
        with _unsafe_preserve_version_counter(plain) if plain else contextlib.nullcontext():
            yield
    finally:
        buffers.forget_later_versions()
