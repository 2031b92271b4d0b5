"""Turns what a reader found into named tensors with statistics: the core of a scan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..numerics.health import stats as live_stats
from ..records import TensorStats
from .files import Blob
from .geometry import Layout, layout_of, row_major
from .judge import finding, is_plainly_fine, judge_number, judge_tensor, needs_range
from .limits import FileFault, LimitError, Limits
from .measure import Elements, Probe, dtype_of, measure
from .parallel import Measurer, Outcome, Waiting
from .readers.arrays import array_tensor
from .readers.base import Contents
from .records import TensorFinding, TensorReport
from .roles import role_of
from .tree import Leaf, clean, leaves
from .values import ArrayRef, StorageRef, TensorRef

__all__ = ["Examined", "NamedTensor", "examine", "named_tensors"]

_MAX_ALIASES = 100
_MAX_VIEWS = 64
_MAX_NOTES = 1000
_BYTES_PER_TENSOR = 450
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
    num_stored = blob.size // elements.itemsize
    count = math.prod(ref.size)
    if 0 < count <= num_stored - start and ref.stride == row_major(ref.size):
        layout = Layout(start, ref.size, ref.stride, ((count, 1),))
    else:
        layout = layout_of(start, ref.size, ref.stride, num_stored)
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
    path = leaf.path if len(leaf.path) > 1 else tuple(leaf.path[0].split(".")) if leaf.path else ()
    return role_of(path, hint)


def examine(contents: Contents, hint: str, limits: Limits, probe: Probe) -> Examined:
    """Look at everything in a file once."""
    worker = _Worker(limits, probe)
    limits.part("its tensors' names and shapes")
    try:
        for label, root in contents.roots:
            try:
                for leaf in leaves(root, limits, (clean(label),) if label else ()):
                    worker.look(leaf, hint)
            except FileFault as e:
                worker.say(finding(e.code, str(e)))
        return worker.finish()
    except BaseException:
        worker.measurer.stop()
        raise


class _Worker:
    def __init__(self, limits: Limits, probe: Probe) -> None:
        self.limits = limits
        self.probe = probe
        self.measurer = Measurer(probe, self._measured)
        self.names: list[str] = []
        self.roles: list[str] = []
        self.figures: list[TensorStats | None] = []
        """By the tensor's number; None until it was measured, and for one that could not be."""
        self.aliases: dict[int, list[str]] = {}
        self.refs: list[TensorRef | None] = []
        self.known: dict[Blob, tuple[int, ...]] = {}
        """The numbers of the tensors that lie in a storage."""
        self.shared: dict[tuple[Blob, str], TensorStats] = {}
        self.spent: dict[Blob, int] = {}
        self.notes: dict[str, None] = {}
        self.found: list[tuple[int, TensorFinding]] = []
        """With the number of tensors before it, so that findings come in the order of the file."""

    def say(self, found: TensorFinding) -> None:
        self.found.append((len(self.names), found))

    def finish(self) -> Examined:
        """Measure what is waiting, and put all together."""
        self.measurer.finish()
        self.found.sort(key=lambda f: f[0])
        tensors = [
            TensorReport(name=n, role=r, stats=s, aliases=tuple(self.aliases.get(i, ())))
            for i, (n, r, s) in enumerate(zip(self.names, self.roles, self.figures))
            if s is not None
        ]
        return Examined(tensors, [f for _, f in self.found], list(self.notes))

    def _measured(self, job: Waiting, outcome: Outcome) -> None:
        number = job.key
        name, role = self.names[number], self.roles[number]
        if isinstance(outcome, FileFault):
            message = f"{name}: {outcome}"
            self.found.append((number, finding(outcome.code, message, tensor=name)))
            return
        self.figures[number], is_flooded = outcome
        self._judge(number, name, role, outcome[0], is_flooded)

    def _judge(
        self, number: int, name: str, role: str, figures: TensorStats, is_flooded: bool
    ) -> None:
        if is_plainly_fine(name, figures) and not is_flooded:
            return
        report = TensorReport(name=name, role=role, stats=figures)
        self.found.extend((number, f) for f in judge_tensor(report, is_flooded))

    def look(self, leaf: Leaf, hint: str) -> None:
        value = leaf.value
        if isinstance(value, (int, float, complex)):
            self._number(leaf, hint)
        elif isinstance(value, Tensor):
            figures = live_stats(value)
            flood = figures.num_subnormal * 2 > figures.num_elements
            self._add(leaf.name, _role(leaf, hint), figures, flood)
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

    def _stored(self, leaf: Leaf, hint: str) -> None:
        ref = as_tensor(leaf.value)
        if ref is None:
            self._unseen(leaf)
            return
        blob = ref.storage.blob if ref.storage is not None else None
        if blob is not None and self._is_alias(leaf, ref, blob):
            return
        tensor = locate(leaf.path, _role(leaf, hint), ref)
        if tensor.elements is None:
            message = f"{leaf.name}: dtype {clean(ref.dtype, 40)!r} is not known to this torch"
            self.say(finding("not_scanned", message, tensor=leaf.name))
            return
        if tensor.layout is None or blob is None:
            if ref.storage is None:
                empty = TensorStats(
                    shape=ref.size, dtype=ref.dtype, device="meta", num_elements=math.prod(ref.size)
                )
                self._add(leaf.name, tensor.role, empty, False)
            return  # a storage without bytes is a finding of the reader already
        if self._is_affordable(tensor, blob):
            self._wait(tensor, blob)
        else:
            self._add(leaf.name, tensor.role, self._share(tensor, blob), False, ref)

    def _is_alias(self, leaf: Leaf, ref: TensorRef, blob: Blob) -> bool:
        """Whether this is another name of elements that are known."""
        numbers = self.known.get(blob)
        if numbers is None:
            return False
        for number in numbers:
            other = self.refs[number]
            if other is ref or (other is not None and other.is_same_view(ref)):
                names = self.aliases.setdefault(number, [])
                name = leaf.name
                if len(names) < _MAX_ALIASES and name != self.names[number]:
                    names.append(name)
                return True
        return False

    def _wait(self, tensor: NamedTensor, blob: Blob) -> None:
        """Measure it with the others, or as soon as there is a thread for it."""
        layout, elements, ref = tensor.layout, tensor.elements, tensor.ref
        assert layout is not None and elements is not None
        is_matrix = len(ref.size) > 1 and tensor.role in ("weights", "ema")
        is_plain = layout.stride is row_major(ref.size) or ref.stride == row_major(ref.size)
        strided = None if is_plain and layout.num_elements else layout
        number = self._enter(tensor.name, tensor.role, None, ref)
        has_range = self.probe.asked.has_ranges or needs_range(tensor.name)
        job = Waiting(
            number, blob, layout.offset, ref.size, elements, is_matrix, strided, has_range
        )
        self.measurer.add(job)

    def _enter(
        self, name: str, role: str, figures: TensorStats | None, ref: TensorRef | None
    ) -> int:
        number = len(self.names)
        if number >= self.limits.max_entries:
            raise LimitError(f"more than {self.limits.max_entries:,} tensors")
        self.limits.spend(_BYTES_PER_TENSOR)
        self.names.append(name)
        self.roles.append(role)
        self.figures.append(figures)
        self.refs.append(ref)
        blob = ref.storage.blob if ref is not None and ref.storage is not None else None
        if blob is not None:
            numbers = self.known.get(blob, ())
            if len(numbers) < _MAX_VIEWS:
                self.known[blob] = (*numbers, number)
        return number

    def _is_affordable(self, tensor: NamedTensor, blob: Blob) -> bool:
        """Views that overlap may not make one storage be read over and over."""
        layout, elements = tensor.layout, tensor.elements
        assert layout is not None and elements is not None
        if blob not in self.known:
            return True  # the first view of it
        cost = layout.num_elements * elements.itemsize
        spent = self.spent[blob] = self.spent.get(blob, blob.size) + cost
        return spent <= self.limits.max_rereads * blob.size + (1 << 20)

    def _share(self, tensor: NamedTensor, blob: Blob) -> TensorStats:
        """The figures of the whole storage, for one view too many of it."""
        layout, elements = tensor.layout, tensor.elements
        assert layout is not None and elements is not None
        figures = self.shared.get((blob, elements.name))
        if figures is None:
            count = blob.size // elements.itemsize
            figures, _ = measure(blob, layout_of(0, (count,), (1,), count), elements, self.probe)
            self.shared[blob, elements.name] = figures
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
        elif len(self.notes) < _MAX_NOTES and not isinstance(
            getattr(leaf.value, "data", None), list
        ):
            self.notes[f"{leaf.name}: an array of {clean(descr, 60)!r}, no numbers to look at"] = (
                None
            )

    def _add(
        self,
        name: str,
        role: str,
        figures: TensorStats,
        is_flooded: bool,
        ref: TensorRef | None = None,
    ) -> None:
        self._judge(self._enter(name, role, figures, ref), name, role, figures, is_flooded)


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
