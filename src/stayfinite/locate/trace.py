"""The operator trace of one replayed step: every operator with a result that is not finite, and its bad inputs.

Only bad results are recorded. That is enough for the slice, which only passes through bad values, and a traced replay takes
only a few times as long as a normal step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..numerics.health import Badness, badness
from ..putting_back import put_back
from .facts import Given, bad_mask, birth_facts, describe_operands
from .frames import backward_place, current_place
from .gradients import Call, GradientFlow
from .modules import ModuleStack
from .notes import DISCARDS, BadInput, Note, SourceRef, descendants
from .storage import Writers, address

__all__ = ["BadInput", "Note", "OpTrace", "SourceRef"]

_FULL_STATS_LIMIT = 12
"""The number of bad operators with full statistics; later ones are far from the birth."""

_OVERWRITES = {
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "set_",
    "exponential_", "log_normal_", "geometric_", "cauchy_", "_foreach_zero_", "_foreach_copy_",
}  # fmt: skip
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
_CONSTANT = {"lift_fresh", "lift_fresh_copy", "lift"}


@dataclass(frozen=True)
class _Schema:
    """Properties of an operator's schema, read once."""

    name: str
    names: tuple[str, ...]
    written: frozenset[str]
    is_view: bool
    is_pointwise: bool


_SCHEMAS: dict[Any, _Schema] = {}


def _schema(func: Any) -> _Schema:
    known = _SCHEMAS.get(func)
    if known is None:
        schema = func._schema
        name = schema.name.split("::", 1)[-1]
        written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
        if "batch_norm" in name and "backward" not in name:
            # It updates its running statistics in place, although its schema does not say so.
            written |= {"running_mean", "running_var"} & {a.name for a in schema.arguments}
        aliases = [r.alias_info for r in schema.returns]
        is_view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
        is_view = is_view and name not in _CONSTANT
        known = _SCHEMAS[func] = _Schema(
            schema.name.replace("::", "."),
            tuple(a.name for a in schema.arguments),
            frozenset(written),
            is_view,
            torch.Tag.pointwise in func.tags,
        )
    return known


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)


def _has_infinite_number(args: Iterable[Any]) -> bool:
    for a in args:
        if isinstance(a, float) and math.isinf(a):
            return True
        if isinstance(a, (list, tuple)) and _has_infinite_number(a):
            return True
    return False


class OpTrace(TorchDispatchMode):
    """Records bad operators while it is entered. `sources` are the tensors that existed before.

    It also tracks modules, and lets anomaly mode (without its checks) record the forward line of every autograd node.
    """

    is_strict = False
    """For tests: raise errors of the trace itself instead of storing them in `error`."""

    def __init__(self, sources: Iterable[SourceRef], module_names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.error = ""
        self.elsewhere: Callable[[Tensor], SourceRef | None] | None = None
        """Names a tensor that the replay was given."""
        self.notes: list[Note] = []
        self.modules = ModuleStack(module_names)
        self.writers = Writers()
        self.gradients = GradientFlow()
        self.direction = "forward"
        self.is_paused = False
        self._sources: dict[int, list[SourceRef]] = {}
        for ref in sources:
            self.add_source(ref)
        self._anomaly: Any = None
        self._num_bad = 0

    def add_source(self, ref: SourceRef) -> None:
        for key in self.writers.keys_of(ref.tensor):
            self._sources.setdefault(key, []).append(ref)

    def __enter__(self) -> OpTrace:
        self._anomaly = torch.autograd.set_detect_anomaly(True, check_nan=False)
        self._anomaly.__enter__()
        try:
            self.modules.__enter__()
            return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]
        except BaseException:
            put_back(self.modules.close, self._anomaly.__exit__)
            raise

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        # No hook may stay on the user's modules.
        put_back(self.modules.close, lambda: self._anomaly.__exit__(*exc))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_paused or not func._schema.name.startswith("aten::"):
            return func(*args, **kwargs)
        schema = _schema(func)
        if schema.is_view:
            return func(*args, **kwargs)
        named = dict(zip(schema.names, args)) | kwargs
        given: list[Given] = []
        try:
            given = self._inputs(schema, named)
        except Exception as e:
            self._forgive(e)
        out = func(*args, **kwargs)
        try:
            results = self._inspect(schema, named, given, out)
            node = torch._C._current_autograd_node()
            if node is not None and results:
                call = Call(node, func, args, kwargs, given, schema.is_pointwise)
                self.gradients.note(call, results)
            elif schema.name == "aten.ones_like" and results:
                self.gradients.start(results[0])
        except Exception as e:
            self._forgive(e)
        return out

    def _forgive(self, error: Exception) -> None:
        """Run our own code; an error in it must not end the replay."""
        if self.is_strict:
            raise error
        self.error = self.error or f"{type(error).__name__}: {error}"

    def _inputs(self, schema: _Schema, named: dict[str, Any]) -> list[Given]:
        """The input tensors; those that an in-place operator is about to overwrite are copied first."""
        short = schema.name.split(".")[-1]
        given = []
        for name, value in named.items():
            is_written = name in schema.written
            if is_written and (name == "out" or short in _OVERWRITES):
                continue
            for t in _tensors(value):
                values = t.detach().clone() if is_written and _is_float(t) else t.detach()
                given.append(Given(name, values, t))
        return given

    def _inspect(
        self, schema: _Schema, named: dict[str, Any], given: list[Given], out: Any
    ) -> list[Tensor]:
        """Record a bad result; returns the new tensors, none for a view."""
        results = [t for t in _tensors(out) if _is_float(t)]
        if not schema.written and results and _shares_memory(results[0], given):
            return []  # a view whose schema does not say so (unsafe_split, _unsafe_view)
        seen = {id(t) for t in results}
        for name in schema.written:
            results += [t for t in _tensors(named.get(name)) if _is_float(t) and id(t) not in seen]
        if schema.name.split(".")[-1] in _EMPTY:
            self._note_empty(schema, results)
            return []
        bad_results = []
        for t in results:
            bad = badness(t)
            if bad:
                bad_results.append((t, bad))
            else:
                self.writers.clear(t, whole=not schema.written)
        if bad_results:
            self._record(schema, named, given, bad_results)
        elif results:
            self._note_absorbed(schema, given)
        return results

    def _note_absorbed(self, schema: _Schema, given: list[Given]) -> None:
        """Record that a bad value went in and only finite values came out."""
        if schema.name.endswith("_like") or schema.name.startswith("aten.new_"):
            return  # it uses only the shape
        if self.direction == "forward" and torch._C._current_autograd_node() is None:
            for g in given:
                for index in self.writers.find(g.live) if _is_float(g.live) else ():
                    self.notes[index].absorbed_by.add(schema.name)

    def _note_empty(self, schema: _Schema, results: list[Tensor]) -> None:
        """Record uninitialized memory, which is the cause only if it is read."""
        if not results:
            return
        note = Note(
            index=len(self.notes),
            op=schema.name,
            kernel=schema.name,
            direction=self.direction,
            bad=Badness(True, True, True),
            bad_inputs=[],
            has_written_inf=False,
            is_uninitialized=True,
        )
        self._place(note)
        self.notes.append(note)
        for t in results:
            self.writers.write(t, note.index, whole=True)

    def _record(
        self,
        schema: _Schema,
        named: dict[str, Any],
        given: list[Given],
        bad_results: list[tuple[Tensor, Badness]],
    ) -> None:
        short = schema.name.split(".")[-1]
        bad_inputs = [
            self._bad_input(g, bad)
            for g in given
            if _is_float(g.values) and (bad := badness(g.values))
        ]
        numbers = {k: v for k, v in named.items() if not isinstance(v, Tensor)}
        is_constant = short in _CONSTANT and not any(b.source for b in bad_inputs)
        note = Note(
            index=len(self.notes),
            op=schema.name,
            kernel=schema.name,
            direction=self.direction,
            bad=_union(b for _, b in bad_results),
            bad_inputs=bad_inputs,
            has_written_inf=_has_infinite_number(numbers.values()) or is_constant,
        )
        self._place(note)
        may_be_birth = not any(b.bad.has_nan for b in bad_inputs)
        self._num_bad += 1
        is_early = self._num_bad <= _FULL_STATS_LIMIT
        values = [(t.detach(), b) for t, b in bad_results]
        if may_be_birth or is_early:
            measured = birth_facts(short, named, given, values, schema.is_pointwise)
            note.has_fresh_nan, note.has_fresh_inf = measured[:2]
            note.facts.update(measured[2])
        # An Inf that passes through a long chain is not described at every link.
        passes_on = bool(bad_inputs) and not note.bad.has_nan
        is_news = not passes_on or note.has_fresh_nan or note.has_fresh_inf
        if is_early or (may_be_birth and is_news):
            note.inputs, note.outputs = describe_operands(
                given, numbers, values, schema.is_pointwise, self._label
            )
            if note.direction == "backward":
                places = bad_mask(values[0][0]) if schema.is_pointwise else None
                note.facts.update(self._backward_facts(note, given, places))
        self.notes.append(note)
        for t, _ in bad_results:
            self.writers.write(t, note.index, whole=not schema.written)

    def _bad_input(self, given: Given, bad: Badness) -> BadInput:
        producers, source = self.writers.find(given.live), self.source_of(given.live)
        # An infinity below zero is most often a mask or an initial value of the script's own.
        is_news = self.elsewhere is not None and not producers and source is None
        if is_news and (bad.has_nan or bad.has_posinf):
            source = self.elsewhere(given.values)  # type: ignore[misc]
        return BadInput(given.name, bad, producers, source)

    def _backward_facts(
        self, note: Note, given: list[Given], bad: Tensor | None
    ) -> dict[str, float]:
        """The source of the zeros that met the infinity, and whether the forward of this line was bad already."""
        facts: dict[str, float] = {}
        early = [
            n
            for n in self.notes
            if n.direction == "forward"
            and note.place.user is not None
            and n.place.user == note.place.user
            and not (n.bad_inputs or n.has_written_inf or n.is_uninitialized)
        ]
        if early:
            facts["forward_was_bad"] = 1.0
            if any(n.absorbed_by & DISCARDS for n in descendants(self.notes, early)):
                facts["forward_was_discarded"] = 1.0
        for g in given if bad is not None else ():
            if bad is not None and self.gradients.of(g.live) is not None:
                with contextlib.suppress(RuntimeError):  # incompatible shapes
                    facts.update(self._zeros_at(g, bad, is_any=bool(early)))
        return facts

    def _zeros_at(self, g: Given, bad: Tensor, is_any: bool) -> dict[str, float]:
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else -1
        zeros = self.gradients.zeros_at(g.live.detach().expand(bad.shape), bad, number, is_any)
        if zeros is None:
            return {}
        facts = {
            "gradient_at_bad": float(bad.sum()),
            "gradient_zero_at_bad": float((g.values.expand(bad.shape)[bad] == 0).sum()),
            "gradient_discarded_at_bad": float(zeros.num_discarded),
        }
        facts |= {f"discarded_by {name}": 1.0 for name in zeros.selections}
        return facts | {f"zeroed_by {name}": 1.0 for name in zeros.others}

    def _place(self, note: Note) -> None:
        """Module and lines; in the backward, those of the forward call that made the node."""
        node = torch._C._current_autograd_node()
        if node is None:
            note.place = current_place()
            note.module, note.module_type = self.modules.current()
            return
        note.direction = "backward"
        note.op = node.name().split("::")[-1]
        found = backward_place(node)
        note.place = found.place
        if found.is_own_code:
            note.facts["own_backward"] = 1.0
        if found.order > 1:
            note.facts["derivative_order"] = float(found.order)
        note.module, note.module_type = self.modules.at_sequence(found.number)

    def source_of(self, tensor: Tensor) -> SourceRef | None:
        for key in self.writers.keys_of(tensor):
            for ref in self._sources.get(key, ()):
                return ref
        return None

    def _label(self, tensor: Tensor) -> str | None:
        ref = self.source_of(tensor)
        if ref and not self.writers.find(tensor):
            return f"{ref.kind} {ref.name}"
        return "gradient" if self.gradients.of(tensor) is not None else None


def _union(found: Iterable[Badness]) -> Badness:
    flags = list(found)
    return Badness(
        any(b.has_nan for b in flags),
        any(b.has_posinf for b in flags),
        any(b.has_neginf for b in flags),
    )


def _shares_memory(result: Tensor, given: list[Given]) -> bool:
    if result.layout != torch.strided or result.numel() == 0 or hasattr(result, "device_mesh"):
        return False
    own = address(result)
    return any(
        g.live.layout == torch.strided
        and not hasattr(g.live, "device_mesh")
        and address(g.live) == own
        for g in given
    )


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
