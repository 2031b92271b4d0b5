"""Interval analysis of a captured step: lower and upper bounds of every operator's result in a box.

Each operator is computed again on ranges: the smallest and largest value of every element, rounded according to its dtype. An
operator without a model makes its results unknown, and an unknown result is never called safe. An operator that uses the result
of one that is not safe is `after` it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..records import Verdict
from ..tape import Call, Capture, Ref, refs_in
from .box import Box
from .call import HANDLES_INF, At, Failure, NotModeled
from .models import MODELS
from .names import FILLS, MOVES, ONLY_SHAPES, RANDOM, TAKES_ITEMS, WITH_ANY_NUMBER
from .rounding import is_finite, rounded
from .seed import Seeds
from .shadow import Shadows, Span
from .tools import (
    all_spans,
    assumed,
    has_opaque,
    has_written_inf,
    last_uses,
    paired,
    reads,
    replaced,
    tensors,
    turns_positive,
    unwritten,
    written_by,
)
from .verdicts import ON_PURPOSE, Verdicts, check_exact, overflow_of

__all__ = ["ON_PURPOSE", "Judgment", "judge"]


@dataclass(frozen=True)
class Judgment:
    """All verdicts, and the cost."""

    verdicts: tuple[Verdict, ...]
    peak_bytes: int
    """The most memory that the shadows held at a time."""


def judge(capture: Capture, box: Box) -> Judgment:
    """Compute a verdict for every captured numeric operator, in order."""
    analysis = _Analysis(capture, box)
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        analysis.run()
    found = analysis.verdicts
    verdicts = tuple(found[i] for i in sorted(found))
    return Judgment(verdicts, 16 * analysis.shadows.peak_elements)


class _Analysis:
    def __init__(self, capture: Capture, box: Box) -> None:
        self.capture, self.box = capture, box
        self.shadows = Shadows()
        self._verdicts = Verdicts(capture.calls)
        self._seeds = Seeds(capture, box, self.shadows)
        self._last_use = last_uses(capture)
        self._items: dict[float, Span] = {}
        self._step = 0
        batch = [p for p in capture.parts if p.kind == "batch" and p.ref.shape]
        ends = [abs(v) for pair in box.data.values() for v in pair]
        self._largest = max(ends, default=0.0)
        self._rows = batch[0].ref.shape[0] if batch else None

    @property
    def verdicts(self) -> dict[int, Verdict]:
        return self._verdicts.found

    def run(self) -> None:
        for call in self.capture.calls:
            if call.operation.step != self._step:
                self._step = call.operation.step
                self._seeds.begin_step(self._step)
            self._one(call)
            for storage in self._last_use.get(call.operation.index, ()):
                self.shadows.free(storage)

    def _one(self, call: Call) -> None:
        given = list(refs_in((call.args, call.kwargs)))
        made = list(refs_in(call.results))
        for ref in given:
            self._ready(ref)
        if not made and not call.is_written:
            self._note_item(call, given)
            return
        if not call.is_written and {r.storage for r in made} <= {r.storage for r in given}:
            return  # a view
        if call.operation.op.removeprefix("aten.").rstrip("_") in ONLY_SHAPES:
            return
        written = written_by(call)
        targets = made or written
        if call.operation.op.removeprefix("aten.").startswith("_foreach_"):
            self._each(call, given, written)
            return
        at = self._at(call, given, targets)
        try:
            self._check_unwritten(at, call, given)
            inherited = self.shadows.after(reads(call, given))
            spans = self._computed(at, call, given, written)
            self._finish(at, call, given, spans, inherited)
        except NotModeled as e:
            self._unknown(call, given, targets + written, str(e))
        except (
            RuntimeError,
            TypeError,
            IndexError,
            ValueError,
            AttributeError,
            KeyError,
            AssertionError,
        ) as e:
            # A call that its model does not support.
            self._unknown(
                call, given, targets + written, f"{call.operation.op}: {type(e).__name__}: {e}"
            )

    def _ready(self, ref: Ref) -> None:
        if not self.shadows.has(ref):
            self._seeds.fill(ref, self._step)

    def _at(self, call: Call, given: list[Ref], targets: list[Ref]) -> At:
        dtype = targets[0].dtype if targets else torch.float32
        at = At(call, dtype, self.box.batch_sizes, self._largest, self._rows)
        for ref in given:
            variable = self.shadows.of(ref).variable
            if variable is not None and variable[0] in ref.shape:
                at.variable = variable
        return at

    def _computed(
        self, at: At, call: Call, given: list[Ref], written: list[Ref]
    ) -> list[tuple[Ref, Span]]:
        """The range of each result and of what was written."""
        if has_opaque((call.args, call.kwargs, call.results)):
            raise NotModeled("a tensor whose memory cannot be followed")
        if at.name.startswith(("empty", "new_empty")):
            return unwritten(call)
        if self._is_exact(call, given):
            return self._executed(call)
        model = MODELS.get(at.name)
        if model is None or not call.operation.op.startswith("aten."):
            raise NotModeled(f"{call.operation.op} is not modeled")
        if (
            at.variable is not None
            and at.name not in WITH_ANY_NUMBER
            and torch.Tag.pointwise not in call.func.tags
        ):
            raise NotModeled("the number of elements changes with the data")
        args, kwargs = self._spans(at, call)
        if at.name not in HANDLES_INF and any(s.has_inf for s in all_spans((args, kwargs))):
            raise NotModeled("an infinite number goes in")
        result = model(at, *args, **kwargs)
        if at.name in ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"):
            self._update_statistics(call)
        if call.is_written:
            return (
                [(written[0], result)]
                if isinstance(result, Span)
                else paired(call.results or written, result)
            )
        return paired(call.results, result)

    def _check_unwritten(self, at: At, call: Call, given: list[Ref]) -> None:
        """An operator that uses uninitialized memory gets arbitrary values."""
        if at.name in MOVES or at.name.endswith("_like") or at.name.startswith("new_"):
            return
        written = set(map(id, written_by(call))) if at.name in FILLS else set()
        for ref in given:
            if id(ref) in written or not ref.dtype.is_floating_point:
                continue
            memory = self.shadows.of(ref)
            if memory.unwritten is None:
                continue
            lo, hi = (
                t.as_strided(ref.shape, ref.stride, ref.offset) for t in (memory.lo, memory.hi)
            )
            missing = lo.isnan() | hi.isnan()
            if bool(missing.any()):
                self._verdicts.blame_allocation(memory.unwritten, call)
                memory.after = memory.unwritten
            low, high = assumed(call, ref.dtype)
            lo.copy_(torch.where(missing, low, lo))
            hi.copy_(torch.where(missing, high, hi))

    def _spans(self, at: At, call: Call) -> tuple[Any, Any]:
        args, kwargs = (
            replaced(call.args, self.shadows.read),
            replaced(call.kwargs, self.shadows.read),
        )
        for name in (
            "memory_format",
            "dtype",
            "layout",
            "device",
            "pin_memory",
            "non_blocking",
            "out",
            "generator",
        ):
            kwargs.pop(name, None)
        if self._items and at.name in TAKES_ITEMS:
            args = [self._items.get(a, a) if isinstance(a, (int, float)) else a for a in args]
        return args, kwargs

    def _is_exact(self, call: Call, given: list[Ref]) -> bool:
        name = call.operation.op.removeprefix("aten.").rstrip("_")
        if name in RANDOM or torch.Tag.nondeterministic_seeded in call.func.tags:
            return False
        if self._items and any(isinstance(a, (int, float)) and a in self._items for a in call.args):
            return False
        return all(self.shadows.of(r).is_exact and self.shadows.of(r).after is None for r in given)

    def _executed(self, call: Call) -> list[tuple[Ref, Span]]:
        """If everything that goes in is known, the operator itself determines the result."""
        real: dict[int, Tensor] = {}

        def made(ref: Ref) -> Tensor:
            span = self.shadows.read(ref)
            t = span.lo.to(ref.dtype).contiguous().clone()
            real[id(ref)] = t
            return t

        args, kwargs = replaced(call.args, made), replaced(call.kwargs, made)
        kwargs.pop("device", None)
        out = call.func(*args, **kwargs)
        pairs = list(zip(refs_in(call.results), tensors(out)))
        for ref in written_by(call):
            pairs.append((ref, real[id(ref)]))
        found = []
        for ref, t in pairs:
            if t.is_complex():
                raise NotModeled("complex numbers")
            value = t.detach().double()
            span = Span(value, value, ref.dtype)
            span.facts["exact"] = True
            found.append((ref, span))
        return found

    def _update_statistics(self, call: Call) -> None:
        """They are written although the schema need not say so; a later read of them is a finding."""
        for ref in refs_in(call.args[3:5]):
            memory = self.shadows.of(ref)
            memory.is_exact, memory.after = False, call.operation.index
            memory.version += 1

    def _finish(self, at: At, call: Call, given: list[Ref], results: list[tuple[Ref, Span]],
                inherited: int | None) -> None:  # fmt: skip
        if at.cancels is not None:
            inherited = self._verdicts.cancel(at, self.shadows.of(given[0]).after, inherited)
        has_sentinel = has_written_inf(call) or any(self.shadows.of(r).has_inf for r in given)
        parts = self.shadows.parts(given)
        settled = []
        for ref, span in results:
            settled.append((ref, self._settled(at, call, ref, span, has_sentinel)))
        if turns_positive(call, [s for _, s in settled], map(self.shadows.read, given)):
            at.failures.append(
                Failure("overflow", "an infinite number changes its sign", is_loose=True)
            )
        after = call.operation.index if at.failures else inherited
        for ref, span in settled:
            self._write(at, call, ref, span, after, parts)
        is_on_purpose = any(span.has_inf for _, span in settled)
        self._verdicts.pronounce(at, call, [r for r, _ in results], inherited, parts, is_on_purpose)

    def _settled(self, at: At, call: Call, ref: Ref, span: Span, has_sentinel: bool) -> Span:
        """Round to the dtype; an overflow is a failure, and the captured value continues."""
        if span.lo.dtype is not torch.float64:
            span = replace(span, lo=span.lo.double(), hi=span.hi.double())
        if not ref.dtype.is_floating_point:
            return span
        if span.facts.get("exact"):
            check_exact(at, span, has_sentinel)
        lo, hi = rounded(span.lo, ref.dtype), rounded(span.hi, ref.dtype)
        if is_finite(lo, hi):
            return Span(lo, hi, ref.dtype, facts=span.facts)
        bad = lo.isnan() | hi.isnan()
        if bool(bad.any()) and (at.name in MOVES or at.name.startswith(("empty", "new_empty"))):
            return Span(lo, hi, ref.dtype, facts={"unwritten": self._allocator(call)})
        if has_sentinel or span.facts.get("exact"):
            over = (lo.isinf() & span.lo.isfinite()) | (hi.isinf() & span.hi.isfinite())
        else:
            over = lo.isinf() | hi.isinf()
        if bool((over & ~bad).any()):
            at.failures.append(overflow_of(at, call, ref))
        elif bool(bad.any()) and not at.failures:
            at.failures.append(Failure("overflow", "the range is not known", is_loose=True))
        bad = bad | over
        if span.facts.get("exact") and at.failures:
            bad = bad | lo.isinf()
        if bool(bad.any()):
            low, high = assumed(call, ref.dtype)
            lo, hi = torch.where(bad, low, lo), torch.where(bad, high, hi)
        return Span(lo, hi, ref.dtype, facts=span.facts, has_inf=not is_finite(lo, hi))

    def _allocator(self, call: Call) -> int:
        found = [self.shadows.of(r).unwritten for r in refs_in((call.args, call.kwargs))]
        return next((i for i in found if i is not None), call.operation.index)

    def _write(
        self, at: At, call: Call, ref: Ref, span: Span, after: int | None, parts: frozenset[str]
    ) -> None:
        is_new = not self.shadows.has(ref)
        self.shadows.write(ref, span)
        memory = self.shadows.of(ref)
        is_whole = is_new or ref.numel == ref.length
        if is_whole:
            memory.after, memory.parts, memory.words, memory.variable = after, parts, at.words, None
            memory.is_exact = bool(span.facts.get("exact"))
        else:
            memory.after = after if memory.after is None else memory.after
            memory.parts = memory.parts | parts
            memory.is_exact = memory.is_exact and bool(span.facts.get("exact"))
        memory.has_inf = span.has_inf or (memory.has_inf and not is_whole)
        kept = None if is_whole else memory.unwritten
        memory.unwritten = span.facts.get("unwritten", kept)
        if at.variable is not None and at.variable[0] in ref.shape:
            memory.variable = at.variable
        op = call.operation
        if op.seen_lo is not None and op.seen_hi is not None and is_whole:
            memory.seen = (op.seen_lo, op.seen_hi)

    def _unknown(self, call: Call, given: list[Ref], targets: list[Ref], why: str) -> None:
        """Without a model, the captured result continues, and nothing after it is called safe."""
        op = call.operation
        parts = self.shadows.parts(given)
        for ref in dict.fromkeys(targets):
            low, high = assumed(call, ref.dtype)
            shape = torch.Size(ref.shape)
            self.shadows.write(ref, Span(low.expand(shape), high.expand(shape), ref.dtype))
            memory = self.shadows.of(ref)
            memory.after, memory.parts, memory.is_exact = op.index, memory.parts | parts, False
            memory.words, memory.variable = "", None
            if op.seen_lo is not None and op.seen_hi is not None:
                memory.seen = (op.seen_lo, op.seen_hi)
        self._verdicts.unknown(call, targets, parts, why)

    def _each(self, call: Call, given: list[Ref], written: list[Ref]) -> None:
        """An operator over lists of tensors: one after another."""
        name = call.operation.op.removeprefix("aten._foreach_").rstrip("_")
        at = self._at(call, given, written or list(refs_in(call.results)))
        results: list[tuple[Ref, Span]] = []
        try:
            model = MODELS.get(name)
            if model is None:
                raise NotModeled(f"{call.operation.op} is not modeled")
            outs = list(refs_in(call.results)) or list(refs_in(call.args[0]))
            for i, ref in enumerate(outs):
                pick = tuple(a[i] if isinstance(a, (list, tuple)) else a for a in call.args)
                named = {
                    k: v[i] if isinstance(v, (list, tuple)) else v for k, v in call.kwargs.items()
                }
                one = replace(call, args=pick, kwargs=named, results=ref, operation=replace(
                    call.operation, op=f"aten.{name}"))  # fmt: skip
                inner = At(one, ref.dtype, self.box.batch_sizes, self._largest, self._rows)
                inner.failures = at.failures
                args, kwargs = self._spans(inner, one)
                results.append((ref, model(inner, *args, **kwargs)))
                at.failures = inner.failures
        except (NotModeled, RuntimeError, TypeError, IndexError, ValueError) as e:
            self._unknown(call, given, written or list(refs_in(call.results)), str(e))
            return
        self._finish(at, call, given, results, self.shadows.after(given))

    def _note_item(self, call: Call, given: list[Ref]) -> None:
        """A number that Python reads: where it comes back as it is, it is the range again."""
        is_number = isinstance(call.results, (int, float)) and not isinstance(call.results, bool)
        if is_number and given and not self.shadows.of(given[0]).is_exact:
            span = self.shadows.read(given[0])
            if span.lo.numel() == 1 and call.results not in (0.0, 1.0):
                point = Span(span.lo.reshape(()).clone(), span.hi.reshape(()).clone(), span.dtype)
                self._items[call.results] = replace(point, words=span.words, seen=span.seen)
