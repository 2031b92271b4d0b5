"""The save gate: nothing non-finite overwrites a good checkpoint, whatever writes it.

Wrapped once for the process: `torch.save`, `safetensors.torch.save_file`, the distributed
checkpoint's `save` and `async_save`, and Lightning's own writer. While no gate is open they are
passed through untouched. With one open, a good state is written in one step (temporary file, fsync,
rename), and a bad one goes beside it under a name that says so. A script that reads a bad one back
from a place where nothing lies is given what went beside.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import TensorFinding, scan_object
from ..numerics.health import FiniteFlag
from ..observe.batches import named_tensors
from ..observe.imports import wrap_when_imported
from ..observe.witness import install as install_witness
from ..observe.witness import witness
from ..recover.atomic import atomic_path

__all__ = ["Refusal", "SaveGate", "bad_tensors", "install", "refused_name", "ungated"]

_MARK = ".nonfinite"


@dataclass(frozen=True)
class Refusal:
    """A save that was held back."""

    path: str
    """Where it was to go."""
    written_to: str | None
    """Where the bad state is now; None if it could not be written."""
    findings: tuple[TensorFinding, ...]
    last_good: str | None
    """The last good checkpoint that this process wrote, or the one that stays at `path`."""

    def describe(self) -> str:
        first = self.findings[0]
        more = f" and {len(self.findings) - 1} more" if len(self.findings) > 1 else ""
        return f"{first.tensor or 'a tensor'}{more} in {self.path} is not finite"


class SaveGate:
    """Open from `open` to `close`; told of every save while it is."""

    def __init__(
        self,
        on_refusal: Callable[[Refusal], None],
        on_good: Callable[[str], None] = lambda path: None,
        is_ours: Callable[[TensorFinding], bool] = lambda found: True,
    ) -> None:
        self.last_good: str | None = None
        self.refused: dict[str, str] = {}
        """Where a save was to go, and where it went instead."""
        self._on_refusal = on_refusal
        self._on_good = on_good
        self._is_ours = is_ours

    def open(self) -> None:
        install()
        _open[next(_numbers)] = self

    def close(self) -> None:
        for number in [n for n, gate in _open.items() if gate is self]:
            del _open[number]

    def save(
        self, value: Any, path: str, write: Callable[[str], Any], agree: Callable[[bool], bool]
    ) -> Any:
        """Write it where it belongs, or beside it."""
        findings = [f for f in bad_tensors(value) if self._is_ours(f)]
        if not agree(bool(findings)):
            result = write(path)
            self.last_good = path
            self.refused.pop(os.path.abspath(path), None)
            _held_back.discard(os.path.abspath(path))
            self._on_good(path)
            return result
        beside: str | None = refused_name(path)
        try:
            result = write(str(beside))
        except OSError:
            result, beside = None, None
        if beside is not None:
            self.refused[os.path.abspath(path)] = beside
            _held_back.add(os.path.abspath(path))
        good = path if os.path.exists(path) else self.last_good
        found = tuple(findings) or (_elsewhere(path),)
        self._on_refusal(Refusal(path, beside, found, good))
        return result


_open: weakref.WeakValueDictionary[int, SaveGate] = weakref.WeakValueDictionary()
"""By the order in which they were opened."""
_numbers = itertools.count()
_held_back: set[str] = set()
"""For the whole process: a script may read back what it wrote after its gate was closed."""
_inside = threading.local()
_installed = False


def _elsewhere(path: str) -> TensorFinding:
    return TensorFinding(code="nonfinite_tensor", message="another rank's part of it is not finite")


def refused_name(path: str | os.PathLike[str]) -> str:
    """The name beside `path` for what must not take its place.

    >>> refused_name("runs/last.pt"), refused_name("runs/step_100")
    ('runs/last.nonfinite.pt', 'runs/step_100.nonfinite')
    """
    where = Path(path)
    return str(where.with_name(f"{where.stem}{_MARK}{where.suffix}"))


def bad_tensors(value: Any) -> list[TensorFinding]:
    """What is non-finite in a state, by name; one fused pass while all is well.

    A mask of -inf by design is none of it, nor is a single tensor: that is data, not a state.
    """
    if isinstance(value, Tensor):
        return []
    value = _as_state(value)
    tensors = [t for _, t in named_tensors(value) if t.device.type != "meta"]
    if not tensors:
        return []
    flag = FiniteFlag(tensors[0].device)
    flag.fold_readonly(tensors)
    if not flag.read():
        return []
    report = scan_object(value)
    return [f for f in report.findings if f.code == "nonfinite_tensor" and f.role != "data"]


def _as_state(value: Any) -> Any:
    """Whole modules and optimizers, which some people save, as their state."""
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        return value.state_dict()
    if isinstance(value, dict):
        return {k: _as_state(v) if not isinstance(v, Tensor) else v for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_as_state(v) for v in value)
    return value


def _gated(
    value: Any, path: Any, write: Callable[[str], Any], agree: Callable[[bool], bool] = bool
) -> Any:
    gates = list(_open.values())
    if not gates or getattr(_inside, "is_set", False):
        return write(path)
    _inside.is_set = True
    try:
        # The gate opened last is the training at hand; one of them is enough to hold a save back.
        return gates[-1].save(value, os.fspath(path), write, agree)
    finally:
        _inside.is_set = False


@contextlib.contextmanager
def ungated() -> Iterator[None]:
    """For what is no checkpoint: a failed step's state is saved as it is."""
    was = getattr(_inside, "is_set", False)
    _inside.is_set = True
    try:
        yield
    finally:
        _inside.is_set = was


def install() -> None:
    """Wrap what writes checkpoints; safe to call again."""
    global _installed
    if _installed:
        return
    _installed = True
    _wrap_torch_save()
    wrap_when_imported("safetensors.torch", "save_file", _save_file)
    for name in ("save", "async_save"):
        wrap_when_imported("torch.distributed.checkpoint.state_dict_saver", name, _dcp_save)
    for home in ("lightning.fabric.utilities.cloud_io", "lightning_fabric.utilities.cloud_io"):
        wrap_when_imported(home, "_atomic_save", _lightning_save)
    for name in ("rename", "replace"):
        _wrap_rename(name)
    install_witness()  # reading goes through its wrappers
    witness.instead = _instead


def _instead(path: Any) -> Any:
    """A script that reads back a state that was held back gets it from where it went."""
    if not _held_back or not isinstance(path, (str, os.PathLike)) or os.path.exists(path):
        return path
    beside = refused_name(os.fsdecode(path))
    if os.path.abspath(os.fsdecode(path)) not in _held_back or not os.path.exists(beside):
        return path
    print(
        f"stayfinite: {os.fsdecode(path)} was held back because it is not finite, and nothing lies "
        f"there; reading {beside} instead",
        file=sys.stderr,
    )
    return beside


def _wrap_torch_save() -> None:
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        def write(path: Any) -> Any:
            with _whole(path) as part:
                return original(obj, part, *args, **kwargs)

        if not _open or getattr(_inside, "is_set", False):
            return original(obj, f, *args, **kwargs)
        if isinstance(f, (str, os.PathLike)):
            return _gated(obj, f, write)
        name = getattr(f, "name", None)
        if isinstance(name, str) and hasattr(f, "fileno"):
            # The file is open already: a good state goes into it, a bad one beside it.
            def into(path: Any) -> Any:
                return original(obj, f, *args, **kwargs) if path == name else write(path)

            return _gated(obj, name, into)
        return original(obj, f, *args, **kwargs)

    torch.save = save


class _whole:
    """`atomic_path`, or the path itself where nothing may be made beside it."""

    def __init__(self, path: Any) -> None:
        self._path = path
        self._inner: Any = None

    def __enter__(self) -> Any:
        folder = os.path.dirname(os.path.realpath(self._path))
        is_special = os.path.exists(self._path) and not os.path.isfile(self._path)
        if is_special or not os.access(folder, os.W_OK | os.X_OK):
            return self._path
        self._inner = atomic_path(self._path)
        return str(self._inner.__enter__())

    def __exit__(self, *exc: Any) -> Any:
        return self._inner.__exit__(*exc) if self._inner is not None else None


def _save_file(original: Any) -> Any:
    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        def write(path: Any) -> Any:
            with _whole(path) as part:
                return original(tensors, part, *args, **kwargs)

        if not _open or getattr(_inside, "is_set", False):
            return original(tensors, filename, *args, **kwargs)
        return _gated(tensors, filename, write)

    return save_file


def _dcp_save(original: Any) -> Any:
    def save(state_dict: Any, *args: Any, checkpoint_id: Any = None, **kwargs: Any) -> Any:
        def write(path: Any) -> Any:
            return original(state_dict, *args, checkpoint_id=path, **kwargs)

        if checkpoint_id is None or kwargs.get("storage_writer") is not None:
            return original(state_dict, *args, checkpoint_id=checkpoint_id, **kwargs)
        agree = functools.partial(_any_rank, kwargs)
        return _gated(_states_of(state_dict), checkpoint_id, write, agree)

    return save


def _states_of(value: Any) -> Any:
    """Objects that DCP would ask for their state."""
    if not isinstance(value, dict):
        return value
    return {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in value.items()}


def _any_rank(kwargs: dict[str, Any], is_bad: bool) -> bool:
    """Each rank writes its own shards into one checkpoint: bad on one is bad on all."""
    dist = torch.distributed
    if kwargs.get("no_dist") or not dist.is_available() or not dist.is_initialized():
        return is_bad
    found: list[Any] = [None] * dist.get_world_size(kwargs.get("process_group"))
    dist.all_gather_object(found, is_bad, group=kwargs.get("process_group"))
    return any(found)


def _lightning_save(original: Any) -> Any:
    def _atomic_save(checkpoint: Any, filepath: Any) -> Any:
        return _gated(checkpoint, filepath, lambda path: original(checkpoint, path))

    return _atomic_save


def _wrap_rename(name: str) -> None:
    original = getattr(os, name)

    @functools.wraps(original)
    def rename(src: Any, dst: Any, **kwargs: Any) -> Any:
        moved = next(_diverted(src), None) if _open else None
        if moved is None:
            return original(src, dst, **kwargs)
        # The script writes to a temporary name and renames it: the bad state stays bad.
        gate, beside = moved
        target = refused_name(os.fspath(dst))
        original(beside, target, **kwargs)
        del gate.refused[os.path.abspath(src)]
        _held_back.discard(os.path.abspath(src))
        _held_back.add(os.path.abspath(dst))
        return None

    setattr(os, name, rename)


def _diverted(src: Any) -> Iterator[tuple[SaveGate, str]]:
    if isinstance(src, (str, os.PathLike)) and not isinstance(os.fspath(src), bytes):
        where = os.path.abspath(src)
        for gate in list(_open.values()):
            if where in gate.refused and not os.path.exists(where):
                yield gate, gate.refused[where]
