"""From what a reader found to named tensors and their statistics: the heart of a scan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..numerics.health import stats as live_stats
from ..records import TensorStats
from .files import Blob
from .geometry import Layout, layout_of
from .judge import finding, judge_number, judge_tensor
from .limits import FileFault, Limits
from .measure import Elements, Probe, dtype_of, measure
from .parallel import Waiting, measure_all
from .readers.arrays import array_tensor
from .readers.base import Contents
from .records import TensorFinding, TensorReport
from .roles import role_of
from .tree import Leaf, clean, leaves
from .values import ArrayRef, StorageRef, TensorRef

__all__ = ["Examined", "NamedTensor", "examine", "named_tensors"]

_STEP_KEYS = ("global_step", "global_steps", "step", "iteration", "iter", "n_iter", "steps")


@dataclass(slots=True)
class NamedTensor:
    """A tensor of a file: its name, its role, its bytes and which of them."""

    path: tuple[str, ...]
    role: str
    ref: TensorRef
    blob: Blob | None
    elements: Elements | None
    layout: Layout | None

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def identity(self) -> object:
        """Equal for two names of the same elements."""
        r = self.ref
        return (self.blob, r.dtype, self.layout.offset if self.layout else 0, r.size, r.stride)


@dataclass
class Examined:
    """The outcome of looking at every tensor of one file."""

    tensors: list[TensorReport]
    findings: list[TensorFinding]
    notes: list[str]


def as_tensor(value: Any) -> TensorRef | None:
    """A tensor reference for anything in a tree that has elements; None for text and records."""
    if isinstance(value, StorageRef):
        return TensorRef(value, value.dtype or "uint8", 0, (value.num_elements,), (1,))
    if isinstance(value, ArrayRef):
        value = array_tensor(value)
    return value if isinstance(value, TensorRef) else None


def locate(path: tuple[str, ...], role: str, ref: TensorRef) -> NamedTensor:
    """A tensor with its bytes; one that reaches outside its storage raises FileFault."""
    elements = dtype_of(ref.dtype)
    blob = ref.storage.blob if ref.storage is not None else None
    if ref.storage is None or blob is None or elements is None:
        return NamedTensor(path, role, ref, blob, elements, None)
    start = ref.offset + ref.storage.view_offset
    layout = layout_of(start, ref.size, ref.stride, blob.size // elements.itemsize)
    return NamedTensor(path, role, ref, blob, elements, layout)


def named_tensors(contents: Contents, hint: str, limits: Limits) -> Iterator[NamedTensor]:
    """The tensors that can be looked at, for a comparison of files; faulty ones are left out."""
    for label, root in contents.roots:
        for leaf in leaves(root, limits, (label,) if label else ()):
            try:
                ref = (
                    as_tensor(leaf.value)
                    if not isinstance(leaf.value, (int, float, complex))
                    else None
                )
                if ref is not None:
                    tensor = locate(leaf.path, _role(leaf, hint), ref)
                    if tensor.layout is not None:
                        yield tensor
            except FileFault:
                continue


def _role(leaf: Leaf, hint: str) -> str:
    if "scale" in leaf.path[-1:] and isinstance(leaf.value, TensorRef) and len(leaf.path) > 1:
        return "quantizer" if hint == "quantizer" else role_of(leaf.path, hint)
    path = leaf.path if len(leaf.path) > 1 else tuple(leaf.path[0].split(".")) if leaf.path else ()
    return role_of(path, hint)


def examine(contents: Contents, hint: str, limits: Limits, probe: Probe) -> Examined:
    """Look at everything in a file once."""
    out = Examined([], [], [])
    worker = _Worker(out, limits, probe)
    for label, root in contents.roots:
        try:
            for leaf in leaves(root, limits, (clean(label),) if label else ()):
                worker.look(leaf, hint)
        except FileFault as e:
            worker.say(finding(e.code, str(e)))
    worker.finish()
    out.findings = [f for slot in worker.slots for f in slot]
    out.tensors = list(worker.reports.values())
    out.notes = list(worker.notes)
    return out


class _Worker:
    def __init__(self, out: Examined, limits: Limits, probe: Probe) -> None:
        self.out = out
        self.limits = limits
        self.probe = probe
        self.reports: dict[object, TensorReport] = {}
        self.spent: dict[Blob, int] = {}
        self.notes: dict[str, None] = {}
        self.slots: list[list[TensorFinding]] = []
        """Findings in the order of the file, a slot for each thing looked at."""
        self.waiting: list[Waiting] = []

    def say(self, found: TensorFinding) -> None:
        self.slots.append([found])

    def finish(self) -> None:
        """Measure what is waiting, and judge it."""
        for job, outcome in zip(self.waiting, measure_all(self.waiting, self.probe)):
            report, slot = self.reports[job.key], self.slots[job.slot]
            if isinstance(outcome, FileFault):
                del self.reports[job.key]
                slot.append(finding(outcome.code, f"{report.name}: {outcome}", tensor=report.name))
                continue
            figures, is_flooded = outcome
            self.reports[job.key] = replace(report, stats=figures)
            slot.extend(judge_tensor(self.reports[job.key], is_flooded))

    def look(self, leaf: Leaf, hint: str) -> None:
        value = leaf.value
        if isinstance(value, (int, float, complex)):
            self._number(leaf, hint)
        elif isinstance(value, Tensor):
            self._live(leaf, hint, value)
        else:
            try:
                self._stored(leaf, hint)
            except FileFault as e:
                message = f"{leaf.name}: {e}"
                self.say(finding(e.code, message, tensor=leaf.name))

    def _number(self, leaf: Leaf, hint: str) -> None:
        value = leaf.value
        if isinstance(value, complex):
            value = abs(value)
        is_scale = bool(leaf.path) and "scale" in leaf.path[-1] and not isinstance(value, bool)
        if not is_scale and (isinstance(value, int) or math.isfinite(value)):
            return
        if isinstance(value, int) and abs(value) > 1 << 62:
            return
        found = judge_number(leaf.name, _role(leaf, hint), float(value))
        if found is not None:
            self.say(found)

    def _live(self, leaf: Leaf, hint: str, tensor: Tensor) -> None:
        """A tensor in memory (`scan_object`)."""
        figures = live_stats(tensor)
        flood = figures.num_subnormal * 2 > figures.num_elements
        self._add(object(), leaf.name, _role(leaf, hint), figures, flood)

    def _stored(self, leaf: Leaf, hint: str) -> None:
        ref = as_tensor(leaf.value)
        if ref is None:
            self._unseen(leaf)
            return
        tensor = locate(leaf.path, _role(leaf, hint), ref)
        if tensor.elements is None:
            message = f"{leaf.name}: dtype {clean(ref.dtype, 40)!r} is not known to this torch"
            self.say(finding("not_scanned", message, tensor=leaf.name))
            return
        if tensor.layout is None or tensor.blob is None:
            if ref.storage is None:
                empty = TensorStats(
                    shape=ref.size, dtype=ref.dtype, device="meta", num_elements=math.prod(ref.size)
                )
                self._add(object(), leaf.name, tensor.role, empty, False)
            return  # a storage without bytes is a finding of the reader already
        known = self.reports.get(tensor.identity)
        if known is not None:
            if len(known.aliases) < 100 and leaf.name != known.name:
                self.reports[tensor.identity] = replace(known, aliases=(*known.aliases, leaf.name))
            return
        if self._is_affordable(tensor):
            self._wait(tensor)
        else:
            self._add(tensor.identity, leaf.name, tensor.role, self._share(tensor), False)

    def _wait(self, tensor: NamedTensor) -> None:
        """Measure it with the others, when all are known."""
        blob, layout, elements = tensor.blob, tensor.layout, tensor.elements
        assert blob is not None and layout is not None and elements is not None
        blank = TensorStats(shape=layout.size, dtype=elements.name)
        key = tensor.identity
        self.reports[key] = TensorReport(name=tensor.name, role=tensor.role, stats=blank)
        is_matrix = len(layout.size) > 1 and tensor.role in ("weights", "ema")
        self.waiting.append(Waiting(key, len(self.slots), blob, layout, elements, is_matrix))
        self.slots.append([])

    def _is_affordable(self, tensor: NamedTensor) -> bool:
        """Views that overlap may not make one storage be read over and over."""
        blob, layout, elements = tensor.blob, tensor.layout, tensor.elements
        assert blob is not None and layout is not None and elements is not None
        cost = layout.num_elements * elements.itemsize
        spent = self.spent[blob] = self.spent.get(blob, 0) + cost
        return spent <= self.limits.max_rereads * blob.size + (1 << 20)

    def _share(self, tensor: NamedTensor) -> TensorStats:
        """The figures of the whole storage, for one view too many of it."""
        blob, layout, elements = tensor.blob, tensor.layout, tensor.elements
        assert blob is not None and layout is not None and elements is not None
        count = blob.size // elements.itemsize
        whole = replace(tensor, layout=layout_of(0, (count,), (1,), count))
        if whole.identity not in self.reports:
            assert whole.layout is not None
            figures, _ = measure(blob, whole.layout, elements, self.probe)
            self.reports[whole.identity] = TensorReport(
                name=f"(whole storage of {tensor.name})", role=tensor.role, stats=figures
            )
        figures = self.reports[whole.identity].stats
        if not figures.is_finite:
            raise FileFault(
                "limit_exceeded",
                "too many overlapping views of one storage, which holds NaN or Inf",
            )
        self.notes[
            "overlapping views of one storage: the range given is that of the whole storage"
        ] = None
        return replace(figures, shape=layout.size, num_elements=math.prod(layout.size))

    def _unseen(self, leaf: Leaf) -> None:
        descr = getattr(leaf.value, "descr", "?")
        if descr.lstrip("<>|=")[:1] in ("f", "c"):
            message = f"{leaf.name}: numpy type {clean(descr, 20)!r} has no equal in torch"
            self.say(finding("not_scanned", message, tensor=leaf.name))
        elif not isinstance(getattr(leaf.value, "data", None), list):
            self.notes[f"{leaf.name}: an array of {clean(descr, 60)!r}, no numbers to look at"] = (
                None
            )

    def _add(
        self, key: object, name: str, role: str, figures: TensorStats, is_flooded: bool
    ) -> None:
        report = TensorReport(name=name, role=role, stats=figures)
        self.reports[key] = report
        self.slots.append(list(judge_tensor(report, is_flooded)))


def step_and_epoch(contents: Contents) -> tuple[int | None, int | None]:
    """The step and the epoch that the file itself names."""
    from .rates import number_of

    step = epoch = None
    for label, root in contents.roots:
        if label:  # a distributed checkpoint keeps each entry by itself
            root = {label.rpartition(".")[2]: root}
        if not isinstance(root, dict):
            continue
        for key in _STEP_KEYS:
            value = number_of(root.get(key))
            if step is None and value is not None and value == int(value) and value >= 0:
                step = int(value)
        value = number_of(root.get("epoch"))
        if epoch is None and value is not None and math.isfinite(value) and value >= 0:
            epoch = int(value)
    return step, epoch
