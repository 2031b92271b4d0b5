"""Shadow intervals: what every captured operator can give, for all inputs in a box.

Each operator is computed again on ranges: the smallest and largest value of every element, rounded
as its dtype rounds. An operator without a model makes its results unknown, and unknown is never
called safe. What follows an operator that is not safe is not called safe either: it is `after` it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from . import (
    intervals_backward,
    intervals_layers,
    intervals_linear,
    intervals_move,
    intervals_pointwise,
    intervals_reduce,
)
from .box import Box
from .intervals_at import HANDLES_INF, MODELS, NEAR, At, Failure, NotModeled
from .intervals_seed import Seeds
from .records import Verdict
from .rounding import limit_of, rounded
from .shadow import Shadows, Span
from .tape import Call, Capture, Opaque, Ref, refs_in

__all__ = ["ON_PURPOSE", "Judgment", "judge", "judge_fully"]

ON_PURPOSE = "an infinite number that was written on purpose is passed on"
"""What is said of a safe operator that gives such a number, as a mask does."""
_MODEL_FILES = (
    intervals_backward, intervals_layers, intervals_linear, intervals_move, intervals_pointwise, intervals_reduce,
)  # fmt: skip
"""Imported for the models that they register."""
_CREATES = {
    "zeros_like", "new_zeros", "zero", "ones_like", "new_ones", "full_like", "new_full", "fill", "empty_like",
    "new_empty", "new_empty_strided", "zeros", "ones", "full", "empty", "empty_strided", "scalar_tensor", "arange",
    "clone", "alias", "lift_fresh", "lift_fresh_copy", "detach", "contiguous", "set_", "resize",
}  # fmt: skip
"""They only make or copy memory: no verdict is given on them."""
_ONLY_SHAPES = {"transpose", "t", "squeeze", "unsqueeze", "swapaxes", "swapdims", "as_strided", "detach"}
"""In place they change how memory is looked at, and nothing in it."""
_FILLS = {"copy", "fill", "zero", "uniform", "normal", "bernoulli", "exponential", "random", "log_normal", "geometric"}
"""In place they read nothing of what they overwrite."""
_MOVES = {
    "clone", "_to_copy", "cat", "stack", "index", "gather", "index_select", "scatter", "index_put", "_index_put_impl",
    "index_copy", "slice_scatter", "select_scatter", "masked_fill", "where", "repeat", "flip", "copy", "masked_scatter",
    "constant_pad_nd", "roll", "view_copy", "contiguous", "_unsafe_view", "index_fill",
}  # fmt: skip
"""They pass memory on that nobody has written yet: only who computes with it reads it."""
_WITH_ANY_NUMBER = {
    "sum", "mean", "amax", "amin", "max", "min", "var", "std", "var_mean", "mse_loss", "l1_loss", "nll_loss_forward",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "smooth_l1_loss", "cat", "stack", "index", "clone",
    "_to_copy", "copy", "masked_select", "index_select", "_softmax", "_log_softmax", "embedding", "zeros_like",
    "ones_like", "mse_loss_backward", "nll_loss_backward", "index_put", "linalg_vector_norm", "count_nonzero",
    "any", "all", "huber_loss", "sort", "full_like", "new_zeros", "zeros", "_index_put_impl", "index_add",
    "native_layer_norm",
}  # fmt: skip
"""Models that hold when the number of elements changes with the data."""
_TAKES_ITEMS = {"add", "sub", "rsub", "mul", "div", "clamp", "clamp_min"}
_RANDOM = {
    "rand", "rand_like", "randn", "randn_like", "uniform", "normal", "bernoulli", "exponential", "randint", "random",
    "randint_like", "randperm", "multinomial", "native_dropout", "log_normal", "cauchy", "geometric", "poisson",
    "binomial", "dropout", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "empty", "empty_like",
    "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize", "set",
}  # fmt: skip


@dataclass(frozen=True)
class Judgment:
    """All verdicts, and what it took."""

    verdicts: tuple[Verdict, ...]
    peak_bytes: int
    """The most memory that the shadows held at a time."""


def judge(capture: Capture, box: Box) -> tuple[Verdict, ...]:
    """A verdict for every captured operator that gives numbers, in their order."""
    return judge_fully(capture, box).verdicts


def judge_fully(capture: Capture, box: Box) -> Judgment:
    court = _Court(capture, box)
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        court.run()
    verdicts = tuple(court.verdicts[i] for i in sorted(court.verdicts))
    return Judgment(verdicts, 16 * court.shadows.peak_elements)


@dataclass
class _Failed:
    """An operator that was found not safe; a mask behind it may take that back."""

    failures: list[Failure]
    inherited: int | None


class _Court:
    def __init__(self, capture: Capture, box: Box) -> None:
        self.capture, self.box = capture, box
        self.shadows = Shadows()
        self.verdicts: dict[int, Verdict] = {}
        self._seeds = Seeds(capture, box, self.shadows)
        self._failed: dict[int, _Failed] = {}
        self._last_use = _last_uses(capture)
        self._items: dict[float, Span] = {}
        self._step = 0
        batch = [p for p in capture.parts if p.kind == "batch" and p.ref.shape]
        self._rows = batch[0].ref.shape[0] if batch else None

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
        if call.operation.op.removeprefix("aten.").rstrip("_") in _ONLY_SHAPES:
            return
        written = _written(call)
        targets = made or written
        if call.operation.op.removeprefix("aten.").startswith("_foreach_"):
            self._each(call, given, written)
            return
        at = self._at(call, given, targets)
        try:
            self._check_unwritten(at, call, given)
            inherited = self.shadows.after(_reads(call, given))
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
            # A form of the operator that its model does not expect.
            self._unknown(
                call, given, targets + written, f"{call.operation.op}: {type(e).__name__}: {e}"
            )

    def _ready(self, ref: Ref) -> None:
        if not self.shadows.has(ref):
            self._seeds.fill(ref, self._step)

    def _at(self, call: Call, given: list[Ref], targets: list[Ref]) -> At:
        dtype = targets[0].dtype if targets else torch.float32
        at = At(call, dtype, self.box.batch_sizes, self._rows)
        for ref in given:
            variable = self.shadows.of(ref).variable
            if variable is not None and variable[0] in ref.shape:
                at.variable = variable
        return at

    def _computed(
        self, at: At, call: Call, given: list[Ref], written: list[Ref]
    ) -> list[tuple[Ref, Span]]:
        """The range of each result and of what was written."""
        if _has_opaque((call.args, call.kwargs, call.results)):
            raise NotModeled("a tensor whose memory cannot be followed")
        if at.name.startswith(("empty", "new_empty")):
            return _unwritten(call)
        if self._is_exact(call, given):
            return self._executed(call)
        model = MODELS.get(at.name)
        if model is None or not call.operation.op.startswith("aten."):
            raise NotModeled(f"{call.operation.op} is not modeled")
        if (
            at.variable is not None
            and at.name not in _WITH_ANY_NUMBER
            and torch.Tag.pointwise not in call.func.tags
        ):
            raise NotModeled("the number of elements changes with the data")
        args, kwargs = self._spans(at, call)
        if at.name not in HANDLES_INF and any(_has_inf(s) for s in _all_spans((args, kwargs))):
            raise NotModeled("an infinite number goes in")
        result = model(at, *args, **kwargs)
        if at.name in ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"):
            self._update_statistics(call)
        if call.is_written:
            return (
                [(written[0], result)]
                if isinstance(result, Span)
                else _paired(call.results, result)
            )
        return _paired(call.results, result)

    def _check_unwritten(self, at: At, call: Call, given: list[Ref]) -> None:
        """Who computes with memory that nobody has written gets whatever was there."""
        if at.name in _MOVES or at.name.endswith("_like") or at.name.startswith("new_"):
            return
        written = set(map(id, _written(call))) if at.name in _FILLS else set()
        for ref in given:
            if id(ref) in written or not ref.dtype.is_floating_point:
                continue
            memory = self.shadows.of(ref)
            if memory.unwritten is None:
                continue
            lo, hi = (t.as_strided(ref.shape, ref.stride, ref.offset) for t in (memory.lo, memory.hi))
            missing = lo.isnan() | hi.isnan()
            if bool(missing.any()):
                self._blame_allocation(memory.unwritten, call)
                memory.after = memory.unwritten
            low, high = _assumed(call, ref.dtype)
            lo.copy_(torch.where(missing, low, lo))
            hi.copy_(torch.where(missing, high, hi))

    def _blame_allocation(self, index: int, reader: Call) -> None:
        op = self.capture.calls[index].operation
        where = f" (line {reader.operation.line})" if reader.operation.line else ""
        self.verdicts[index] = Verdict(
            operation=op,
            status="can_fail",
            kind="uninitialized_memory",
            condition=f"{reader.operation.op} reads elements that were never written{where}",
        )

    def _spans(self, at: At, call: Call) -> tuple[Any, Any]:
        def read(ref: Ref) -> Span:
            return self.shadows.read(ref)

        args, kwargs = tree_map_only(Ref, read, (list(call.args), dict(call.kwargs)))
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
        if self._items and at.name in _TAKES_ITEMS:
            args = [self._items.get(a, a) if isinstance(a, float) else a for a in args]
        return args, kwargs

    def _is_exact(self, call: Call, given: list[Ref]) -> bool:
        name = call.operation.op.removeprefix("aten.").rstrip("_")
        if name in _RANDOM or torch.Tag.nondeterministic_seeded in call.func.tags:
            return False
        if self._items and any(isinstance(a, float) and a in self._items for a in call.args):
            return False
        return all(self.shadows.of(r).is_exact and self.shadows.of(r).after is None for r in given)

    def _executed(self, call: Call) -> list[tuple[Ref, Span]]:
        """Everything that goes in is known: the operator itself says what comes out."""
        real: dict[int, Tensor] = {}

        def made(ref: Ref) -> Tensor:
            span = self.shadows.read(ref)
            t = span.lo.to(ref.dtype).contiguous().clone()
            real[id(ref)] = t
            return t

        args, kwargs = tree_map_only(Ref, made, (list(call.args), dict(call.kwargs)))
        kwargs.pop("device", None)
        out = call.func(*args, **kwargs)
        pairs = list(zip(refs_in(call.results), _tensors(out)))
        for ref in _written(call):
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
        """They are written although the schema need not say so; who reads them later is told."""
        for ref in refs_in(call.args[3:5]):
            memory = self.shadows.of(ref)
            memory.is_exact, memory.after = False, call.operation.index
            memory.version += 1

    def _finish(self, at: At, call: Call, given: list[Ref], results: list[tuple[Ref, Span]],
                inherited: int | None) -> None:  # fmt: skip
        if at.cancels is not None:
            inherited = self._cancel(at, given, inherited)
        has_sentinel = _has_written_inf(call) or any(
            _has_inf(self.shadows.read(r)) for r in given if r.dtype.is_floating_point
        )
        parts = self.shadows.parts(given)
        settled = []
        for ref, span in results:
            settled.append((ref, self._settled(at, call, ref, span, has_sentinel)))
        after = call.operation.index if at.failures else inherited
        for ref, span in settled:
            self._write(at, call, ref, span, after, parts)
        is_on_purpose = any(_has_inf(span) for _, span in settled)
        self._pronounce(at, call, [r for r, _ in results], inherited, parts, is_on_purpose)

    def _settled(self, at: At, call: Call, ref: Ref, span: Span, has_sentinel: bool) -> Span:
        """Rounded to its dtype; what is beyond that is a failure, and the rest goes on as it was seen."""
        if span.lo.dtype is not torch.float64:
            span = replace(span, lo=span.lo.double(), hi=span.hi.double())
        if not ref.dtype.is_floating_point:
            return span
        if span.facts.get("exact") and not has_sentinel:
            self._check_exact(at, span)
        lo, hi = rounded(span.lo, ref.dtype), rounded(span.hi, ref.dtype)
        bad = lo.isnan() | hi.isnan()
        if bool(bad.any()) and (at.name in _MOVES or at.name.startswith(("empty", "new_empty"))):
            return Span(lo, hi, ref.dtype, facts={"unwritten": self._allocator(call)})
        if has_sentinel or span.facts.get("exact"):
            over = (lo.isinf() & span.lo.isfinite()) | (hi.isinf() & span.hi.isfinite())
        else:
            over = lo.isinf() | hi.isinf()
        if bool((over & ~bad).any()):
            at.failures.append(self._overflow(at, call, ref))
        elif bool(bad.any()) and not at.failures:
            at.failures.append(Failure("overflow", "the range is not known", is_loose=True))
        bad = bad | over
        if span.facts.get("exact") and at.failures:
            bad = bad | lo.isinf()
        if bool(bad.any()):
            low, high = _assumed(call, ref.dtype)
            lo, hi = torch.where(bad, low, lo), torch.where(bad, high, hi)
        return Span(lo, hi, ref.dtype, facts=span.facts)

    def _allocator(self, call: Call) -> int:
        found = [self.shadows.of(r).unwritten for r in refs_in((call.args, call.kwargs))]
        return next((i for i in found if i is not None), call.operation.index)

    def _check_exact(self, at: At, span: Span) -> None:
        """It gives the same in every step: the logarithm of a mask is meant to be -inf, no other."""
        is_mask = at.name.startswith("log")
        bad = span.lo.isnan() | (span.lo.isinf() & ~((span.lo < 0) & is_mask))
        kind = "zero_denominator" if "div" in at.name or "recip" in at.name else "domain_error"
        at.fail(kind, bad, "always: all that goes in is constant")

    def _overflow(self, at: At, call: Call, ref: Ref) -> Failure:
        op = call.operation
        is_forward = op.phase == "forward"
        if at.overflow is not None:
            return replace(at.overflow, is_loose=at.overflow.is_loose or not is_forward)
        seen = max(abs(op.seen_lo or 0.0), abs(op.seen_hi or 0.0))
        limit = limit_of(ref.dtype)
        name = str(ref.dtype).removeprefix("torch.")
        kind = "low_precision_overflow" if limit < 1e6 else "overflow"
        is_near = is_forward and seen * NEAR >= limit
        return Failure(
            kind, f"the result is beyond {limit:g}, the limit of {name}", is_loose=not is_near
        )

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
        kept = None if is_whole else memory.unwritten
        memory.unwritten = span.facts.get("unwritten", kept)
        if at.variable is not None and at.variable[0] in ref.shape:
            memory.variable = at.variable
        op = call.operation
        if op.seen_lo is not None and op.seen_hi is not None and is_whole:
            memory.seen = (op.seen_lo, op.seen_hi)

    def _pronounce(self, at: At, call: Call, targets: list[Ref], inherited: int | None, parts: frozenset[str],
                   is_on_purpose: bool) -> None:  # fmt: skip
        op = call.operation
        if at.failures:
            self._failed[op.index] = _Failed(at.failures, inherited)
        if at.name in _CREATES or not any(r.dtype.is_floating_point for r in targets):
            return
        firm = [f for f in at.failures if not f.is_loose]
        chosen = firm[0] if firm else at.failures[0] if at.failures else None
        if chosen is None:
            status = "safe" if inherited is None else "unknown"
            said = ON_PURPOSE if is_on_purpose else ""
            said = said if inherited is None else self._after_words(inherited)
            self.verdicts[op.index] = Verdict(
                operation=op, status=status, condition=said, after=inherited
            )
            return
        self.verdicts[op.index] = Verdict(
            operation=op,
            status="can_fail" if firm else "unknown",
            condition=chosen.condition if firm else f"not proved: {chosen.condition}",
            kind=chosen.kind,
            parts=tuple(sorted(parts)),
            operand=chosen.operand,
            low=chosen.low,
            high=chosen.high,
            after=inherited,
        )

    def _after_words(self, index: int) -> str:
        if index < 0:
            return "it is given values that are not known"
        op = self.capture.calls[index].operation
        return (
            f"it is given what {op.name} makes (line {op.line})" if op.line else f"after {op.name}"
        )

    def _cancel(self, at: At, given: list[Ref], inherited: int | None) -> int | None:
        """Where the denominator is zero something else is put: the division was no failure."""
        index = self.shadows.of(given[0]).after
        failed = self._failed.get(index) if index is not None else None
        if failed is None or index is None or any(f.key != at.cancels for f in failed.failures):
            return inherited
        self.verdicts.pop(index, None)  # the two are one operator, and the mask speaks for both
        if not all(f.is_bounded for f in failed.failures):
            near = "the denominator is next to 0, where a mask does not help"
            at.failures.append(Failure("overflow", near, is_loose=True))
        return failed.inherited

    def _unknown(self, call: Call, given: list[Ref], targets: list[Ref], why: str) -> None:
        """No model: what it gave in the captured step goes on, and nothing after it is called safe."""
        op = call.operation
        parts = self.shadows.parts(given)
        for ref in dict.fromkeys(targets):
            low, high = _assumed(call, ref.dtype)
            shape = torch.Size(ref.shape)
            self.shadows.write(ref, Span(low.expand(shape), high.expand(shape), ref.dtype))
            memory = self.shadows.of(ref)
            memory.after, memory.parts, memory.is_exact = op.index, memory.parts | parts, False
            memory.words, memory.variable = "", None
            if op.seen_lo is not None and op.seen_hi is not None:
                memory.seen = (op.seen_lo, op.seen_hi)
        if (
            any(r.dtype.is_floating_point for r in targets)
            and op.op.removeprefix("aten.").rstrip("_") not in _CREATES
        ):
            self.verdicts[op.index] = Verdict(
                operation=op, status="unknown", condition=why, parts=tuple(sorted(parts))
            )

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
                inner = At(one, ref.dtype, self.box.batch_sizes, self._rows)
                inner.failures = at.failures
                args, kwargs = self._spans(inner, one)
                results.append((ref, model(inner, *args, **kwargs)))
        except (NotModeled, RuntimeError, TypeError, IndexError, ValueError) as e:
            self._unknown(call, given, written or list(refs_in(call.results)), str(e))
            return
        self._finish(at, call, given, results, self.shadows.after(given))

    def _note_item(self, call: Call, given: list[Ref]) -> None:
        """A number that Python reads: where it comes back as it is, it is the range again."""
        if isinstance(call.results, float) and given and not self.shadows.of(given[0]).is_exact:
            span = self.shadows.read(given[0])
            if span.lo.numel() == 1 and call.results not in (0.0, 1.0):
                point = Span(span.lo.reshape(()).clone(), span.hi.reshape(()).clone(), span.dtype)
                self._items[call.results] = replace(point, words=span.words, seen=span.seen)


def _reads(call: Call, given: list[Ref]) -> list[Ref]:
    """What its result depends on: not the running statistics that a training norm only updates."""
    if "batch_norm" in call.operation.op and len(call.args) > 5 and call.args[5] is True:
        statistics = {id(r) for r in refs_in(call.args[3:5])}
        return [r for r in given if id(r) not in statistics]
    return given


def _unwritten(call: Call) -> list[tuple[Ref, Span]]:
    found = []
    for ref in refs_in(call.results):
        t = torch.full(ref.shape, math.nan, dtype=torch.float64)
        found.append((ref, Span(t, t, ref.dtype)))
    return found


def _last_uses(capture: Capture) -> dict[int, list[int]]:
    last: dict[int, int] = {}
    for call in capture.calls:
        for ref in refs_in((call.args, call.kwargs, call.results)):
            last[ref.storage] = call.operation.index
    kept = {p.ref.storage for p in capture.parts}
    found: dict[int, list[int]] = {}
    for storage, index in last.items():
        if storage not in kept:
            found.setdefault(index, []).append(storage)
    return found


def _written(call: Call) -> list[Ref]:
    """The tensors that the operator writes into, as its schema says."""
    if not call.is_written:
        return []
    found: list[Ref] = []
    for i, argument in enumerate(call.func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = call.args[i] if i < len(call.args) else call.kwargs.get(argument.name)
            found += list(refs_in(value))
    return found


def _paired(results: Any, spans: Any) -> list[tuple[Ref, Span]]:
    refs = results if isinstance(results, (list, tuple)) else (results,)
    values = spans if isinstance(spans, (list, tuple)) else (spans,)
    if len(values) < len([r for r in refs if isinstance(r, Ref)]):
        raise NotModeled(f"{len(refs)} results")
    return [(r, s) for r, s in zip(refs, values) if isinstance(r, Ref) and isinstance(s, Span)]


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)


def _all_spans(value: Any) -> Iterable[Span]:
    if isinstance(value, Span):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _all_spans(v)
    elif isinstance(value, dict):
        yield from _all_spans(list(value.values()))


def _has_inf(span: Span) -> bool:
    return bool(span.lo.isinf().any()) or bool(span.hi.isinf().any())


def _has_opaque(value: Any) -> bool:
    if isinstance(value, Opaque):
        return True
    if isinstance(value, dict):
        return _has_opaque(list(value.values()))
    return isinstance(value, (list, tuple)) and any(_has_opaque(v) for v in value)


def _has_written_inf(call: Call) -> bool:
    numbers = [*call.args, *call.kwargs.values()]
    return any(isinstance(a, float) and math.isinf(a) for a in numbers)


def _assumed(call: Call, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What is gone on with where nothing is known: ten times what was seen."""
    low, high = call.operation.seen_lo, call.operation.seen_hi
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        low, high = -1.0, 1.0
    size = 10 * max(abs(low), abs(high))
    if dtype.is_floating_point:
        size = min(size, limit_of(dtype))
    bottom = -size if low < 0 else min(low, high) / 10
    return torch.tensor(bottom, dtype=torch.float64), torch.tensor(size, dtype=torch.float64)
