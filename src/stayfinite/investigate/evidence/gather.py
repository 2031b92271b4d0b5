"""Collects evidence that only the live training has, as plain values."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from ...devices import widest
from ...diagnose.evidence import BatchPart, Data, Evidence, Memory, Outlier, Resume, Scale, Weights
from ...diagnose.unfilled import filling_of
from ...locate.slice import DISCARDS, Origin
from ...numerics.health import dense_parts, stats
from ...patches.provenance import provenance
from ...records import Incident, TensorStats
from ...runtime.batches import named_tensors
from ...runtime.window import BatchRef
from ..investigation import Investigation
from .data_facts import inspect_data
from .unscaled_steps import step_without_scaler

__all__ = ["gather", "owner_of", "source_files"]

_HALF = (torch.float16, torch.bfloat16)
_USUAL_BATCHES = 8
_MAX_PARTS = 32
_PAST_BATCHES = 64
_FEWEST_OTHERS = 3


def gather(
    investigation: Investigation, incident: Incident, origin: Origin | None, seconds: float
) -> Evidence:
    """Gather the evidence before any experiment."""
    phase = incident.event.phase
    data: Data | None = None
    if phase == "data":
        data = inspect_data(investigation.window, seconds)
    traced = investigation.traced
    return Evidence(
        event=incident.event,
        location=incident.location,
        history=incident.history,
        weights=_weights(investigation),
        batch=tuple(_batch_parts(investigation)),
        outlier=_outlier(investigation),
        resume=_resume(investigation),
        data=data,
        memory=_memory(investigation, origin),
        scale=_scale(investigation, incident),
        optimizer=_optimizer(investigation, incident.event.name),
        gradient_peaks=tuple(p for _, p in investigation.trace.gradients.peaks)
        if investigation.trace
        else (),
        is_half=_is_half(investigation, incident),
        is_complete=traced is not None and traced.is_complete,
        is_clipped=investigation.window.norm is not None
        or any(w.norm is not None for w in investigation.engine.log[-4:]),
        num_finite_replays=investigation.num_finite,
        own_counts=investigation.counts.changed() if investigation.num_finite else (),
        is_discarded=_is_discarded(investigation, origin),
    )


def _is_discarded(investigation: Investigation, origin: Origin | None) -> bool:
    birth = origin.birth if origin is not None else None
    if birth is None or investigation.trace is None:
        return False
    later = [n for n in investigation.trace.notes[birth.index :] if n.direction == "forward"]
    return any(n.absorbed_by & DISCARDS for n in later)


def _weights(investigation: Investigation) -> Weights:
    state = investigation.state
    largest, first, growth = 0.0, 0.0, 1.0
    for key, p in state.parameters():
        size = _size(p)
        before = state.first_sizes.get(key)
        if size is None:
            continue
        largest = max(largest, size[0])
        if before is not None:
            first = max(first, before[0])
            if before[1] > 0:
                growth = max(growth, size[1] / before[1])
    return Weights(
        largest=largest,
        first=first,
        steps=len(investigation.engine.log),
        growth=growth,
        searched=point.largest if (point := investigation.window.search_point) is not None else 0.0,
    )


def _size(tensor: Tensor) -> tuple[float, float] | None:
    """(largest magnitude, norm) of a parameter; None if it is not finite or has no values."""
    parts = dense_parts(tensor)
    if not parts:
        return None
    largest = max(float(p.detach().abs().max()) for p in parts)
    norm = math.sqrt(sum(float(p.detach().to(widest(p.device)).square().sum()) for p in parts))
    return (largest, norm) if math.isfinite(largest) else None


def _batch_parts(investigation: Investigation) -> list[BatchPart]:
    usual: dict[str, float] = {}
    for window in investigation.engine.log[-_USUAL_BATCHES:]:
        if window is investigation.window:
            continue
        for batch in window.batches:
            for name, t in named_tensors(batch.value):
                if t.is_floating_point() and (size := _finite_peak(t)) is not None:
                    usual[name] = max(usual.get(name, 0.0), size)
    found = []
    for batch in investigation.window.batches:
        for name, t in list(named_tensors(batch.value))[:_MAX_PARTS]:
            found.append(
                BatchPart(
                    name=name,
                    stats=stats(t),
                    usual=usual.get(name),
                    usual_here=_median(t),
                    bad_rows=_bad_rows(t),
                )
            )
    return found


def _outlier(investigation: Investigation) -> Outlier | None:
    """The most unusual batch since the snapshot, if there are enough to compare."""
    seen: dict[str, list[tuple[float, BatchRef, Tensor]]] = {}
    for window in investigation.engine.log[-_PAST_BATCHES:]:
        for batch in window.batches if window is not investigation.window else ():
            for name, t in list(named_tensors(batch.value))[:_MAX_PARTS]:
                if t.is_floating_point() and (peak := _finite_peak(t)) is not None:
                    seen.setdefault(name, []).append((peak, batch, t))
    found: list[Outlier] = []
    for name, batches in seen.items():
        peak, ref, tensor = max(batches, key=lambda b: b[0])
        others = [p for p, r, _ in batches if r is not ref]
        if len(others) >= _FEWEST_OTHERS:
            row = _row_of(tensor, peak)
            known = ref.indices or []
            index = known[row] if row is not None and row < len(known) else None
            found.append(
                Outlier(
                    step=ref.step, name=name, peak=peak, usual=median(others), row=row,
                    index=index if isinstance(index, int) else None,
                )
            )  # fmt: skip
    return max(found, key=lambda o: o.peak / max(o.usual, 1e-6), default=None)


def _row_of(tensor: Tensor, peak: float) -> int | None:
    if tensor.dim() == 0 or tensor.layout != torch.strided:
        return None
    rows = (tensor.detach().abs().reshape(tensor.shape[0], -1) == peak).any(1).nonzero()
    return int(rows[0]) if len(rows) else None


def _finite_peak(tensor: Tensor) -> float | None:
    parts = [p[torch.isfinite(p)] for p in dense_parts(tensor)]
    sizes = [float(p.abs().max()) for p in parts if p.numel()]
    return max(sizes) if sizes else None


def _median(tensor: Tensor) -> float | None:
    if not tensor.is_floating_point():
        return None
    for part in dense_parts(tensor):
        flat = part.reshape(-1)[: 1 << 20]
        finite = flat[torch.isfinite(flat)]
        return float(finite.float().abs().median()) if finite.numel() else None
    return None


def _bad_rows(tensor: Tensor) -> tuple[int, ...]:
    if not tensor.is_floating_point() or tensor.dim() == 0 or tensor.layout != torch.strided:
        return ()
    bad = ~torch.isfinite(tensor.detach()).reshape(tensor.shape[0], -1).all(1)
    return tuple(int(i) for i in bad.nonzero().flatten().tolist())


def _resume(investigation: Investigation) -> Resume:
    state = investigation.state
    modules = [m for root in state.roots.values() for m in root.modules()]
    model = provenance.restore_of(*modules)
    optimizer = provenance.restore_of(*state.optimizers)
    scheduler = provenance.restore_of(*state.schedulers)
    read = provenance.last_read
    notes = [n for n in (model, optimizer) if n is not None]
    is_same_file = read is not None and any(n.path == read.path for n in notes)
    groups = optimizer.saved.get("param_groups", ()) if optimizer is not None else ()
    return Resume(
        model=model is not None,
        optimizer=optimizer is not None,
        scheduler=scheduler is not None,
        path=next((n.path for n in notes if n.path), None),
        file_has_optimizer=bool(is_same_file and read and read.has_optimizer),
        file_has_scheduler=bool(is_same_file and read and read.has_scheduler),
        has_scheduler=bool(state.schedulers),
        configured_lr=optimizer.before if optimizer is not None else (),
        saved_lr=tuple(float(g["lr"]) for g in groups if "lr" in g),
        first_lr=state.first_lrs,
        file_lr=read.lr if is_same_file and read is not None else (),
    )


def _scale(investigation: Investigation, incident: Incident) -> Scale:
    traced = investigation.traced
    scale = investigation.state.scale()
    return Scale(
        factor=traced.loss_factor if traced is not None else None,
        is_scaler_unused=_is_scaler_unused(investigation),
        is_passed_by=bool(investigation.state.scalers)
        and step_without_scaler(investigation) is not None,
        is_stepped_again=investigation.window.is_left_by_scaler,
        scaler=scale,
        is_collapse=incident.event.kind == "scale_collapse",
    )


def _is_scaler_unused(investigation: Investigation) -> bool:
    """Whether a scaler has a scale and steps were applied, but it was never updated."""
    if not investigation.engine.num_applied:
        return False
    for scaler in investigation.state.scalers:
        if not scaler.is_enabled() or scaler._scale is None:
            continue
        tracker = scaler._growth_tracker
        is_new = tracker is None or int(tracker) == 0
        if is_new and float(scaler._scale) == scaler._init_scale and scaler._init_scale > 1:
            return True
    return False


def _optimizer(investigation: Investigation, name: str | None) -> dict[str, str]:
    """The settings of the optimizer of the bad parameter, else of the first."""
    corrupted = dict(investigation.state.parameters()).get((name or "").split(":")[0])
    groups = [(o, g) for o in investigation.state.optimizers for g in o.param_groups]
    moving = [(o, g) for o, g in groups if any(p is corrupted for p in g["params"])]
    for optimizer, group in (*moving, *groups):
        plain = {k: str(v) for k, v in group.items() if isinstance(v, (bool, int, float, str))}
        return {"type": type(optimizer).__name__, **plain}
    return {}


def _is_half(investigation: Investigation, incident: Incident) -> bool:
    if any(p.dtype in _HALF for _, p in investigation.state.parameters()):
        return True
    for link in incident.location.chain:
        for o in (*link.inputs, *link.outputs):
            if o.stats is not None and o.stats.dtype in ("float16", "bfloat16"):
                return True
    return any(
        t.dtype in _HALF for b in investigation.window.batches for _, t in named_tensors(b.value)
    )


def _memory(investigation: Investigation, origin: Origin | None) -> Memory | None:
    """How the state that was bad (or absurdly large) from the start was made."""
    source = origin.source if origin is not None and origin.birth is None else None
    if source is not None and source.kind in ("parameter", "buffer"):
        if f"{source.kind} {source.name}" in investigation.state.initially_bad:
            return _reading(investigation, source.name, stats(source.tensor), source.tensor)
        return None
    for name, (largest, _) in investigation.state.first_sizes.items():
        if largest > 1e8:
            tensor = dict(investigation.state.parameters()).get(name)
            if tensor is not None:
                return _reading(investigation, name, stats(tensor), tensor)
    return None


def _reading(investigation: Investigation, name: str, s: TensorStats, tensor: Tensor) -> Memory:
    owner, attribute = owner_of(investigation, name)
    memory = Memory(
        name=name,
        is_garbage=_looks_like_old_memory(s, tensor),
        is_constant_nan=_is_fill_nan(tensor),
        is_all_nan=s.num_nan == s.num_elements,
    )
    for file in source_files(_classes(investigation, owner)):
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        read = filling_of(text, attribute)
        if read.state == "unknown":
            continue
        return replace(memory, filling=read.state, file=file, line=read.line, source=read.source)
    return memory


def _looks_like_old_memory(s: TensorStats, tensor: Tensor) -> bool:
    """Whether numbers of all magnitudes are mixed. Diverged weights are all large."""
    if s.num_subnormal > max(4, s.num_elements // 10):
        return True
    middle = _median(tensor)
    return (s.abs_max or 0) > 1e20 and middle is not None and middle < 1e-20 * (s.abs_max or 0)


def owner_of(investigation: Investigation, name: str) -> tuple[nn.Module | None, str]:
    """The module that owns a parameter or buffer, and its attribute name."""
    path, _, attribute = name.rpartition(".")
    for prefix, root in investigation.state.roots.items():
        inner = path.removeprefix(prefix).removeprefix(".") if prefix else path
        try:
            return root.get_submodule(inner), attribute
        except AttributeError:
            continue
    return None, attribute


def _classes(investigation: Investigation, owner: nn.Module | None) -> list[type]:
    """The owner's class and its bases, then those of the models that contain it."""
    classes = list(type(owner).__mro__) if owner is not None else []
    return classes + [type(r) for r in investigation.state.roots.values()]


def source_files(classes: list[type]) -> list[str]:
    """The source files of these classes, except torch's own."""
    found: list[str] = []
    for cls in classes:
        if cls.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        try:
            file = inspect.getsourcefile(cls)
        except (TypeError, OSError):
            continue
        if file is not None and file not in found:
            found.append(file)
    return found


def _is_fill_nan(tensor: Tensor) -> bool:
    """Whether every bad value is the NaN that deterministic mode fills memory with.

    Arithmetic on x86 makes a NaN with its sign bit set, so an invalid operation looks different.
    """
    if tensor.dtype != torch.float32 or tensor.layout != torch.strided:
        return False
    bits = tensor.detach().contiguous().view(torch.int32)
    bad = ~torch.isfinite(tensor.detach())
    return bool((bits[bad] == 0x7FC00000).all()) if bool(bad.any()) else False
